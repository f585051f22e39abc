"""docs/tutorial.md does what it says: every block is run as it stands there, in one shell, from top to bottom."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALLS = "make setup\n"
"""The one block that is not run: the tests are, in what it makes."""
END = "--- end of a block"
ACCURACY = r"\b0\.\d{4}\b"
LOOSE = re.compile(
    r"(?P<time>\d+(\\\.\d+)? s\b)|(?P<size>\d+(\\\.\d+)?(?= MB\b))"
    r"|(?P<accuracy>\b0\\\.\d{4}\b)|(?P<left_out>\\\.\\\.\\\.)"
)
ANY = {
    "time": r"(?:[\d.]+ s|\d+ min \d+ s|\d+ h \d+ min)",
    "size": r"[\d.]+",
    "accuracy": r"(0\.\d{4})",
    "left_out": ".*?",
}
"""Times and megabytes may be others, and accuracies are only near. All other numbers are as they stand on the page."""


@pytest.mark.timeout(1500)
def test_the_tutorial_runs_as_written(tmp_path: Path, ports: Callable[[int], list[int]]) -> None:
    checkout, said = tmp_path / "dfl", tmp_path / "said.txt"
    checkout.mkdir()
    (checkout / ".venv").symlink_to(sys.prefix)
    (checkout / "examples").symlink_to(ROOT / "examples")
    text = PAGE.read_text(encoding="utf-8")
    for shown, free in zip(("7700", "7701", "7702"), ports(3), strict=True):
        text = text.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{free}")
    blocks = [block for block in BLOCK.findall(text) if block[1] != INSTALLS]
    kept = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # what takes seconds to make
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": kept}
    with said.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script(blocks)],
            cwd=checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            shell.wait(timeout=1400)
        finally:
            with suppress(ProcessLookupError):  # nobody of them is left, as it should be
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            print(said.read_text(encoding="utf-8"))  # pytest shows it when the test has failed
    parts = iter(said.read_text(encoding="utf-8").split(END))
    for (kind, block), (following, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind != "text":
            words, ended = next(parts), next(parts).strip()
            assert ended == "0", block
            if following == "text":
                assert_says(words, shown)


def script(blocks: Sequence[tuple[str, str]]) -> str:
    """All of it for one shell, which ends with the first block that fails.

    A block whose first line is a name, `# federation.yaml`, is that file.
    """
    lines = []
    for kind, block in blocks:
        if kind == "text":
            continue
        if kind != "sh":
            name = re.match(r"# (\S+)\n", block)
            assert name, f"what file is this?\n{block}"
            block = f"cat > {name[1]} <<'END OF FILE'\n{block}END OF FILE\n"
        lines.append(f"{block}status=$?; echo '{END}' $status '{END}'; [ $status = 0 ] || exit 1")
    return "\n".join(lines)


def assert_says(said: str, shown: str) -> None:
    """What was said has the lines shown, one after the other; `...` stands for anything."""
    pattern = LOOSE.sub(lambda found: ANY[str(found.lastgroup)], re.escape(plain(shown)).replace("\\ ", " "))
    found = re.search(pattern, plain(said), re.DOTALL)
    assert found, f"not said, by {pattern}:\n{shown}"
    figures = [float(one) for one in re.findall(ACCURACY, shown)]
    assert [float(one) for one in found.groups()] == pytest.approx(figures, abs=0.1)


@pytest.mark.parametrize("said", ["5 s", "0.4 s", "1 min 12 s", "2 h 5 min"])
def test_a_slow_machine_says_the_same(said: str) -> None:
    assert_says(f"tiny: 5 rounds in {said}, 20 MB", "tiny: 5 rounds in 21 s, 3.1 MB")


def plain(text: str) -> str:
    """Without what is there for the eye: how wide columns are, and empty lines."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "\n".join(re.sub("─+", "─", line) for line in lines if line)
