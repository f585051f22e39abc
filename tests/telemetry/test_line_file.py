"""A file of lines that stays open is still the one of its name."""

from pathlib import Path

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
