"""The committed stubs are those of the contract: `make proto` writes them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
STUBS = ROOT / "peer" / "network" / "wire" / "stubs"


def test_stubs_are_current(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", "dfl/v1/peer.proto"]
    subprocess.run([*command, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"], cwd=ROOT, check=True)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py*")}
    assert made
    for name, text in made.items():
        assert (STUBS / name).read_text() == text, f"{name}: run `make proto`"
