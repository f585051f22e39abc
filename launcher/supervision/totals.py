"""What a run has taken over all its launches: a run that is stopped and resumed adds them up."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pydantic import FiniteFloat, TypeAdapter

from peer.files import write_atomically
from peer.reading import SETTINGS, read_plain


@dataclass(frozen=True)
class Totals:
    """Seconds and restarts of the launches so far; of one that was killed up to when it wrote them down last."""

    wall_seconds: FiniteFloat = 0.0
    restarts: int = 0

    @classmethod
    def read(cls, path: Path) -> Self:
        """From the file, or nothing spent if there is none, or none that can be read."""
        try:
            return TypeAdapter(cls).validate_json(read_plain(path, SETTINGS))
        except (OSError, ValueError):
            return cls()

    def plus(self, wall_seconds: float, restarts: int) -> "Totals":
        return Totals(self.wall_seconds + wall_seconds, self.restarts + restarts)

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self)).encode())
