"""A command waits for no library that it does not use: what is imported takes most of its time."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]
IMPORTED = """
import sys
from launcher.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(" ".join(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["--help"], {"torch", "numpy", "pydantic", "grpc", "cryptography"}),
        (
            ["check", str(HOUSE / "examples" / "demo.yaml")],
            {"torchvision", "torch._dynamo", "pandas", "pyarrow", "asyncssh", "docker", "tensorboard", "PIL"},
        ),
    ],
)
def test_what_is_not_used_is_not_imported(arguments: list[str], unused: set[str]) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED, *arguments], cwd=HOUSE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not unused & {*done.stderr.split()}


def test_who_starts_a_peer_is_told_so_before_anything_large_is_imported(tmp_path: Path) -> None:
    """On a terminal. What is wrong is the next line then."""
    ring = "[{id: peer0, address: '127.0.0.1:7700'}, {id: peer1, address: '127.0.0.1:7701'}]"
    (tmp_path / "fed.yaml").write_text(f"protocol: fibfl\nring: {ring}\n")
    (tmp_path / "peer0.yaml").write_text("federation: fed.yaml\nid: peer0\ndevise: cpu\n")
    said = on_a_terminal(
        [sys.executable, "-X", "importtime", "-m", "peer.cli", "--config", str(tmp_path / "peer0.yaml")]
    )
    first = said.index("peer0 of fed, at 127.0.0.1:7700: fibfl, 2 peers, 10 rounds\r\n")
    for large in ("torch", "numpy", "grpc"):
        assert said.find(f" {large}", 0, first) < 0
    assert said.endswith("peer0.yaml:3: unknown key `devise`; did you mean `device`?\r\n")


def on_a_terminal(command: list[str]) -> str:
    """What a command says there until it ends."""
    screen, end = pty.openpty()
    with subprocess.Popen(command, cwd=HOUSE, stdin=subprocess.DEVNULL, stdout=end, stderr=end):
        os.close(end)
        said = b""
        with suppress(OSError):  # it has ended
            while read := os.read(screen, 1 << 16):
                said += read
    os.close(screen)
    return said.decode()
