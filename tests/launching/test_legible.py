"""Text comes out on every terminal, in letters that it knows."""

import io
import os
import pty

import pytest

from launcher.output import make_legible


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("utf-8", "peer–1 … é ━ κ"),
        ("latin-1", "peer-1 . é = ?"),
        ("ascii", "peer-1 . e = ?"),
    ],
)
def test_a_letter_for_a_letter(encoding: str, written: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    make_legible(stream)
    stream.write("peer–1 … é ━ κ")
    stream.flush()
    assert stream.buffer.getvalue().decode(encoding) == written  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "encoding"),
    [
        ({"LC_ALL": "C"}, "ascii"),
        ({"LC_ALL": "", "LANG": "POSIX"}, "ascii"),
        ({}, "ascii"),
        ({"LC_ALL": "C.UTF-8"}, "utf-8"),
        ({"LANG": "en_GB.UTF-8"}, "utf-8"),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}, "utf-8"),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, "utf-8"),
    ],
)
def test_a_terminal_without_a_locale_is_written_plain_letters(
    settings: dict[str, str], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING", "PYTHONUTF8"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    screen, end = pty.openpty()
    with open(end, "w", encoding="utf-8") as stream:
        make_legible(stream)
        assert stream.encoding == encoding
    os.close(screen)


def test_a_file_is_written_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    make_legible(stream)
    assert stream.encoding == "utf-8"
