"""The live view of a run as a real terminal shows it, of any width and in any locale."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_peers import until

pytestmark = [
    pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux here"),
    pytest.mark.timeout(300),
]
LINES = 40
OUTER = ("LC_", "LANG", "TMUX", "COLUMNS", "LINES", "NO_COLOR", "PYTHONIOENCODING")
"""What the environment says of the terminal of whoever runs the tests."""
UTF8 = {"LC_ALL": "C.UTF-8"}
LATIN_1 = {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "latin-1"}
PLAIN = {"LC_ALL": "C"}
"""No locale at all, as in many containers."""


class Terminal:
    """A server of tmux with one window, in which dfl-launch runs; each picture that it showed is in `pictures`."""

    def __init__(self, place: Path, width: int, locale: dict[str, str]) -> None:
        self.place, self.width, self.pictures = place, width, list[str]()
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
        self._locale = locale

    def starts(self, *arguments: object) -> None:
        settings = [f"{name}={value}" for name, value in self._locale.items()]
        launch = shlex.join(["env", *settings, sys.executable, "-m", "launcher.cli", *map(str, arguments)])
        # The window stays, so that the end is seen.
        command = f"{launch}; echo exit status $?; sleep 600"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(self.width), "-y", str(LINES), command)

    def picture(self) -> str:
        shown = self._tmux("capture-pane", "-p")
        if shown not in self.pictures[-1:]:
            self.pictures.append(shown)
        return shown

    def shows(self, *words: str) -> str:
        """The first picture with all these words."""
        until(lambda: all(word in self.picture() for word in words), 200, f"the terminal shows {words}")
        return self.pictures[-1]

    def ends(self) -> None:
        subprocess.run(["tmux", "-S", self.place / "socket", "kill-server"], check=False, capture_output=True)
        (self.place / "pictures.txt").write_text(f"\n{'=' * self.width}\n".join(self.pictures))

    def _tmux(self, *words: str) -> str:
        # -u: what is captured is UTF-8, whatever the locale of what runs in it.
        command = ["tmux", "-u", "-S", str(self.place / "socket"), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=self._environment).stdout


Opens = Callable[[int, dict[str, str]], Terminal]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    made: list[Terminal] = []

    def opens(width: int, locale: dict[str, str]) -> Terminal:
        made.append(Terminal(tmp_path, width, locale))
        return made[-1]

    yield opens
    for terminal in made:
        terminal.ends()
        print(*terminal.pictures[-3:], sep="\n")  # pytest shows it when the test has failed; all are in pictures.txt


@pytest.fixture
def spec(tmp_path: Path, ports: Callable[[int], list[int]]) -> Path:
    file = tmp_path / "federation.yaml"
    ring = [{"id": f"peer{n}", "address": f"127.0.0.1:{port}"} for n, port in enumerate(ports(3))]
    content = {"name": "seen", "rounds": 12, "protocol": "fibfl", "data": "digits", "ring": ring}
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("locale", [UTF8, LATIN_1, PLAIN], ids=["utf-8", "latin-1", "c"])
@pytest.mark.parametrize("width", [50, 80, 200])
def test_what_matters_is_seen(opens: Opens, spec: Path, tmp_path: Path, width: int, locale: dict[str, str]) -> None:
    terminal = opens(width, locale)
    terminal.starts("run", spec, "--out", tmp_path / "out")
    shown = terminal.shows("peer0", "peer1", "peer2", "accuracy", "left")
    heading = next(line for line in shown.splitlines() if line.lstrip().startswith("peer "))
    for column in ("state", "accuracy", "waits for", *(["round"] if width >= 80 else [])):
        assert column in heading
    assert ("train/comm/eval" in heading) is (width == 200)
    assert ("───" in shown) is (locale is UTF8)
    assert ("---" in shown) is (locale is not UTF8)
    assert "/12, " in shown, "the bar with the rounds"
    terminal.shows("exit status 0")
    everything = "".join(terminal.pictures)
    assert "Traceback" not in everything
    assert "?" not in everything
    assert "\ufffd" not in everything


def test_a_terminal_that_cannot_move_its_cursor_is_shown_lines(opens: Opens, spec: Path, tmp_path: Path) -> None:
    terminal = opens(80, UTF8 | {"TERM": "dumb"})
    terminal.starts("run", spec, "--out", tmp_path / "out", "--set", "rounds=2")
    terminal.shows("round 2/2, mean matched accuracy", "exit status 0")
