"""A command waits for no library that it does not use: what is imported takes most of its time."""

import subprocess
import sys
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
