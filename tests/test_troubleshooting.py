"""What docs/troubleshooting.md quotes is what the software says, word for word."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGE = re.compile(r"^- (`+) ?(.+?) ?\1: ", re.MULTILINE)
HOLE = "..."


def quoted() -> list[str]:
    """What each entry begins with."""
    return [message for _, message in MESSAGE.findall(PAGE.read_text(encoding="utf-8"))]


@cache
def said() -> frozenset[str]:
    return frozenset(map(plain, sentences()))


def sentences() -> Iterator[str]:
    """All strings in the source, with a hole for what is filled in."""
    for top in ("peer", "launcher"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values]
                    yield "".join(parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"\{\w+\}", HOLE, node.value)


def plain(text: str) -> str:
    """Holes next to one another, and what quotes one, are one hole."""
    return re.sub(r"(`?\.\.\.`?[,;:]? ?)+", HOLE, text.strip())


@pytest.mark.parametrize("sentence", quoted())
def test_the_software_says_so(sentence: str) -> None:
    assert any(plain(sentence) in one for one in said())


def test_there_are_some() -> None:
    assert len(quoted()) > 40
