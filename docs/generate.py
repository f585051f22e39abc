"""Writes what the documentation repeats from the code: `make docs`."""

import re
from collections.abc import Mapping
from pathlib import Path

from written.configuration import configuration
from written.events import events
from written.limits import limits
from written.protocols import protocols
from written.results import measured
from written.versions import formats
from written.wire import header
from written.words import escaped

from peer.protocols.registry import PROTOCOLS
from peer.runtime.lifecycle import MEANING, TRANSITIONS

HERE = Path(__file__).parent


def pages() -> dict[Path, str]:
    """Every page that is written here, or has a block that is, with its text."""
    readme, architecture, wire = HERE.parent / "README.md", HERE / "architecture.md", HERE / "wire.md"
    security, upgrading = HERE.parent / "SECURITY.md", HERE / "upgrading.md"
    examples = HERE.parent / "examples"
    protocol, task = ((examples / name).read_text(encoding="utf-8") for name in ("my_protocol.py", "own_task.py"))
    tasks, monitoring = HERE / "tasks.md", HERE / "monitoring.md"
    begin, end = task.index("import torch\n"), task.index("Array =")  # the task, without its data
    tracker = (examples / "tracker.py").read_text(encoding="utf-8")
    return {
        HERE / "configuration.md": configuration(),
        HERE / "events.md": events(),
        examples / "README.md": listed(examples),
        readme: filled(readme, {"examples/my_protocol.py": f"```python\n{protocol}```\n"}),
        HERE / "protocols.md": filled(HERE / "protocols.md", {"peer.protocols.registry": protocols()}),
        monitoring: filled(monitoring, {"examples/tracker.py": f"```python\n{tracker}```\n"}),
        tasks: filled(tasks, {"examples/own_task.py": f"```python\n{task[begin:end].rstrip()}\n```\n"}),
        architecture: filled(architecture, {"peer.runtime.lifecycle": life()}),
        wire: filled(wire, {"peer.network.wire.frames": header()}),
        upgrading: filled(upgrading, {"peer.versions": formats()}),
        security: filled(security, {"peer.network.limits": limits()}),
        **{page: filled(page, dict(measured(page))) for page in (HERE / "results").glob("*.md")},
    }


def listed(examples: Path) -> str:
    """The page of examples: specs that are no protocol's by the first sentence of their comment."""
    rows = ["# Examples", "", "Each file says how to run it.", ""]
    rows += ["One per [protocol](../docs/protocols.md) has its name, such as [fedavg.yaml](fedavg.yaml).", ""]
    for file in sorted(examples.glob("*.yaml")):
        if file.stem not in PROTOCOLS:
            comment = re.match(r"(# .*\n)+", file.read_text(encoding="utf-8"))
            assert comment, f"{file.name} does not say what it shows"
            words = " ".join(comment[0].replace("\n#", "\n").removeprefix("#").split())
            rows.append(f"- [{file.name}]({file.name}): {escaped(re.split(r'(?<=[.]) (?=[A-Z])', words)[0])}")
    return "".join(f"{row}\n" for row in rows)


def filled(page: Path, blocks: Mapping[str, str]) -> str:
    """The page with what stands between the two comments about each source replaced."""
    text, end = page.read_text(encoding="utf-8"), "<!-- end -->\n"
    for source, block in blocks.items():
        begin = f"<!-- from {source}, by `make docs` -->\n"
        before, found, rest = text.partition(begin)
        assert found, f"{page} has no place for {source}"
        text = f"{before}{begin}{block}{end}{rest.partition(end)[2]}"
    return text


def life() -> str:
    """A line per state of a peer: what it is, and which may follow."""
    lines = [
        f"- **{state}**: {MEANING[state]}" + (f"; then {', '.join(after)}" if after else "")
        for state, after in TRANSITIONS.items()
    ]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
