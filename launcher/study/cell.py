"""One cell of a study: its federation, and the directory that holds its files.

DIR/cells/<digest>/federation.yaml   the spec as resolved     rounds.json    rows of rounds, an ordered ring, the commit
DIR/cells/<digest>/log.txt           what its process said    summary.json   written last: with it the cell is finished
DIR/cells/<digest>/run/              while it is computed
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from launcher.reports import summary_json
from launcher.run_files import RunFiles
from launcher.study.settings import Network
from launcher.study.sources import Sources
from peer.files import write_atomically
from peer.reading import RECORDS, read_plain
from peer.spec.agreement import sha256
from peer.spec.federation import Spec

Label = int | float | str
KEPT = {"commit", "rounds"}
"""What rounds.json holds at least."""


def called(axis: str, label: Label) -> str:
    """A value of an axis in words; with the axis' name where it says nothing by itself, as `3`, `true` and `[64]`."""
    speaks = isinstance(label, str) and label not in ("true", "false", "null") and not label.startswith("[")
    return str(label) if speaks else f"{axis} {label}"


@dataclass(frozen=True)
class Cell:
    """labels: what it is of, in words, by key of the grid. directory: the study's. sources: of what its peers read."""

    labels: Mapping[str, Label]
    spec: Spec
    network: Network
    directory: Path
    sources: Sources = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """The digest of all that its peers must agree on, and of the files that they read; the same for the same cell
        of another study file beside this one."""
        return sha256({**self.spec.canonical(), "sources": self.sources}) if self.sources else self.spec.digest()

    @cached_property
    def place(self) -> Path:
        return self.directory / "cells" / (self.key if self.network == "memory" else f"{self.key}-{self.network}")

    @property
    def name(self) -> str:
        return ", ".join(called(axis, label) for axis, label in self.labels.items())

    @property
    def files(self) -> "CellFiles":
        return CellFiles(self.place)

    @property
    def finished(self) -> bool:
        return self.files.finished

    @property
    def command(self) -> str:
        """Runs it once more, as real peers."""
        out = f"runs/{self.spec.name}-{self.key[:12]}"
        return shlex.join(["dfl-launch", "run", str(self.files.federation), "--out", out, "--device", "cpu"])

    def prepare(self) -> None:
        """Its directory, with the spec in it."""
        self.place.mkdir(parents=True, exist_ok=True)
        file, content = self.files.federation, self.spec.dump().encode()
        if not file.is_file() or file.read_bytes() != content:
            write_atomically(file, content)


@dataclass(frozen=True)
class CellFiles(RunFiles):
    """The names in a cell's directory: a run's, and these."""

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def rounds(self) -> Path:
        return self.path / "rounds.json"

    @property
    def finished(self) -> bool:
        return self.has_rounds and summary_json.read(self.summary) is not None

    @property
    def has_rounds(self) -> bool:
        """Whether they can be read; a power cut may have taken either file."""
        try:
            found = json.loads(read_plain(self.rounds, RECORDS))
            return isinstance(found, dict) and found.keys() >= KEPT
        except (OSError, ValueError):
            return False

    @property
    def said(self) -> Path:
        return self.path / "log.txt"
