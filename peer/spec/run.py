"""run.json: whose directory it is, and of which run; with the whole spec, so that it tells so far from home, too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from peer.files import write_atomically
from peer.reading import read_plain
from peer.spec.agreement import agreed, digests
from peer.spec.federation import Spec

RUN = "run.json"
MOST = 16 << 20
"""Bytes of the file; a ring of 10,000 peers with the longest names and addresses takes 4 MB."""


class Run(BaseModel):
    """Of which run a peer's directory is. spec: as resolved, in plain keys; None in one of an earlier version."""

    version: int = 1
    id: str
    rounds: int
    digests: dict[str, str]
    spec: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, spec: Spec, id: str, version: int) -> Self:
        plain = spec.model_dump(mode="json")
        return cls(version=version, id=id, rounds=spec.rounds, digests=digests(agreed(plain)), spec=plain)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """OSError where there is none; ValueError for one that no peer wrote."""
        return cls.model_validate_json(read_plain(directory / RUN, MOST))

    def write(self, directory: Path) -> None:
        write_atomically(directory / RUN, self.model_dump_json().encode())
