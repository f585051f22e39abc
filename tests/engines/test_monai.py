"""MONAI's usual pipeline, an example: dict transforms, crops, sliding windows over volumes of any size."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu import DEVICES

EXAMPLES = Path(__file__).parents[2] / "examples"
# PyPI's torchvision, which MONAI imports, fails beside a CPU build of torch.
BEGIN = "from peer.learning.vision import torchvision\ntorchvision()\n"
RUN = """
import sys
from pathlib import Path
from peer import federate
for out in ("first", "second"):
    run = federate(Path("federation.yaml"), Path(out), peers=3, device=sys.argv[1])
    print(run.result("peer0")["model_sha256"], run.result("peer0")["figures"]["dice"], file=sys.stderr)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("device", DEVICES)
def test_patches_and_whole_volumes(device: str, tmp_path: Path) -> None:
    (tmp_path / "volumes.py").write_text(BEGIN + (EXAMPLES / "volumes.py").read_text("utf-8"))
    (tmp_path / "federation.yaml").write_text((EXAMPLES / "volumes.yaml").read_text("utf-8"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", RUN, device], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    (first, dice), (second, _) = re.findall(r"^([0-9a-f]{64}) ([0-9.]+)$", ran.stderr, re.M)
    assert first == second
    assert float(dice) > 0.7
    plain = [sys.executable, "-m", "launcher.cli", "check", "federation.yaml", "--peers", "3", "--json"]
    checked = subprocess.run(plain, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(checked.stdout)["unrepeatable"] == []
