"""SECURITY.md's promises and the tests that try to break them are one list."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTY = re.compile(r"^### A (.+) cannot$", re.MULTILINE)
PROMISE = re.compile(r"^- [^`\n].*?: (`test_\w+\.py.*`)$")
NAMED = re.compile(r"`(test_\w+\.py)((?:::\w+)?)`")
PARTIES = {"stranger", "member", "neighbour", "remote host", "local user"}


def promised() -> list[tuple[str, str]]:
    """Party and tests of each promise."""
    section = (ROOT / "SECURITY.md").read_text(encoding="utf-8").split("## The promises", 1)[1].split("\n## ", 1)[0]
    _, *parts = PARTY.split(section)
    found = []
    for party, part in zip(parts[::2], parts[1::2], strict=True):
        for line in filter(None, part.splitlines()):
            row = PROMISE.match(line)
            assert row, f"a promise and the tests that try it: {line}"
            found.append((party, row[1]))
    return found


def written() -> dict[str, set[str]]:
    """The tests of each file, by its name."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        names = {
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        }
        found.setdefault(path.name, set()).update(names)
    return found


def test_every_promise_is_made_to_a_party_and_tried() -> None:
    tests = written()
    for party, cell in promised():
        assert party in PARTIES
        named = NAMED.findall(cell)
        assert named, cell
        for file, test in named:
            assert file in tests, f"{file}: there is no such file"
            assert not test or test.removeprefix("::") in tests[file], f"{file}{test}: there is no such test"


def test_every_attack_is_a_promise() -> None:
    tests = written()
    tried = {(file, test.removeprefix("::")) for _, cell in promised() for file, test in NAMED.findall(cell)}
    for path in Path(__file__).parent.glob("test_*.py"):
        if path.name == Path(__file__).name:
            continue
        missing = {test for test in tests[path.name] if (path.name, test) not in tried and (path.name, "") not in tried}
        assert not missing, f"SECURITY.md does not say what {path.name} tries: {sorted(missing)}"
