"""The formats that peers of different releases share, and which of their numbers this release writes and reads.

Each format has a number of its own. It grows by one when a release writes what the release before cannot read, or
means something else by it; not when it adds what others may skip. A release reads what the release before it has
written, so that a run continues after an upgrade, and speaks with it, so that peers are upgraded one after the other
(docs/upgrading.md). What the first release has left on disk is kept in tests/releases/, and is read by a test.
"""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Format:
    """A format. writes: its number in this release; reads: the oldest number that this release understands."""

    name: str
    where: str
    writes: int
    reads: int

    def understands(self, number: int) -> bool:
        return self.reads <= number <= self.writes

    def overlaps(self, newest: int, oldest: int) -> bool:
        """Whether a party that writes `newest`, and understands what is from `oldest` on, shares a number with us."""
        return max(oldest, self.reads) <= min(newest, self.writes)

    @property
    def span(self) -> str:
        """What this release understands, in words."""
        return span(self.writes, self.reads)


def span(newest: int, oldest: int) -> str:
    """These numbers, in words."""
    return f"{oldest} to {newest}" if oldest < newest else f"{newest}"


WIRE = Format("wire", "`Hello.version`, with frames `DFL2`", writes=4, reads=4)
DIRECTORY = Format("directory", "`run.json`: `version`; checkpoints, journal, archive", writes=4, reads=4)
VIEWS = Format("views", "`views.json`: `version`; what members sign", writes=2, reads=2)
EVENTS = Format("events", "`events.jsonl`: `schema` in `started`", writes=1, reads=1)
SPEC = Format("spec", "`federation.yaml`: `format`", writes=1, reads=1)
FORMATS = (WIRE, DIRECTORY, VIEWS, EVENTS, SPEC)


@cache
def release() -> str:
    """The version of dfl and, as that stays the same between releases, the beginning of its code's SHA-256."""
    here = Path(__file__).parent
    code = sha256()
    for path in sorted(here.rglob("*.py"), key=lambda path: path.relative_to(here).as_posix()):
        code.update(path.relative_to(here).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{version('dfl')}+{code.hexdigest()[:8]}"
