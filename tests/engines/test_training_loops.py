"""The loops in docs/loops.md and examples/loops: each trains, with the same bits each time, under FedProx."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu import DEVICES

ROOT = Path(__file__).parents[2]
FIT, *SHOWN = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "loops.md").read_text("utf-8"), re.M | re.S)
CODE = [*SHOWN, *(file.read_text("utf-8") for file in sorted((ROOT / "examples" / "loops").glob("*.py")))]
LOOPS = {re.findall(r"^def (\w+)\(loop\)", code, re.M)[0]: code for code in CODE}
SAME = ("accelerated", "lightning", "monai")
"""Those that take the same steps, of SGD on the same batches."""
# PyPI's torchvision, which three of these import, fails beside a CPU build of torch.
BEGIN = "from peer.learning.vision import torchvision\ntorchvision()\n"
RUN = """
import sys
from pathlib import Path
from peer import federate
import torch
if __name__ == "__main__":
    for out in ("first", "second"):
        run = federate(Path("federation.yaml"), Path(out), peers=2, device=sys.argv[1])
        print(run.result("peer0")["model_sha256"], run.result("peer0")["accuracy"]["matched"], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def digests() -> dict[tuple[str, str], str]:
    return {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LOOPS)
def test_it_trains_with_the_same_bits_each_time(
    name: str, device: str, digests: dict[tuple[str, str], str], tmp_path: Path
) -> None:
    (tmp_path / "my_loops.py").write_text(BEGIN + LOOPS[name])
    spec = {
        "name": name.replace("_", "-"),
        "rounds": 3,
        "protocol": {"name": "fedprox", "epochs": 1, "lr": 0.1},
        "data": {"name": "digits", "limit": 600},
        "training": {"loop": f"my_loops:{name}"},
    }
    (tmp_path / "federation.yaml").write_text(json.dumps(spec))
    ran = subprocess.run(
        [sys.executable, "-c", RUN, device],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    (first, accuracy), (second, _) = re.findall(r"^([0-9a-f]{64}) ([0-9.]+)$", ran.stderr, re.M)
    assert first == second
    assert float(accuracy) > 0.3
    digests[name, device] = first


@pytest.mark.parametrize("device", DEVICES)
def test_frameworks_take_the_same_steps(device: str, digests: dict[tuple[str, str], str]) -> None:
    """FedProx's correction included, which each gets to its optimiser in another way."""
    assert len({digests[name, device] for name in SAME}) == 1, digests
