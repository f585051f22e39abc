"""A file of lines that stays open is still the one of its name."""

import os
from errno import ENOSPC
from pathlib import Path

import pytest

from peer.files import LineFile


def test_what_was_deleted_or_moved_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = LineFile(path)
    lines.append("one")
    path.rename(tmp_path / "events.1")
    lines.append("two")
    path.unlink()
    lines.append("three")
    lines.append("four")
    assert (tmp_path / "events.1").read_text() == "one\n"
    assert path.read_text() == "three\nfour\n"
    lines.close()
    lines.append("five")
    assert path.read_text() == "three\nfour\nfive\n"
    lines.close()


def test_a_line_that_finds_no_room_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, [3, 0]

    def nearly_full(descriptor: int, data: bytes) -> int:
        if room and not (left := room.pop(0)):
            raise OSError(ENOSPC, "No space left on device")
        return write(descriptor, data[:left] if room else data)

    lines = LineFile(tmp_path / "events.jsonl")
    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(OSError, match="No space left"):
        lines.append("first")
    lines.append("second")
    lines.append("third")
    lines.close()
    assert lines.path.read_text() == "fir\nsecond\nthird\n"
