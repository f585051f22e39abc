"""Where everything of a run lies: the one place that knows the names in its directory.

DIR/federation.yaml   the spec as resolved      DIR/<id>.yaml   one peer's config, to start it by hand
DIR/<id>/             one peer's files          DIR/summary.json, and report.html for people
DIR/.launcher.json    what the launches so far have taken
DIR/.engine.json      what started the peers, and how, for `dfl-launch attach`
DIR/.place.json       which run this is, for engines whose peers keep their files elsewhere
DIR/.job/             a cluster's job: its id, its output, and the exit codes of the peers in it
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFiles:
    """The files of the run in the directory `path`, which is absolute."""

    path: Path

    @property
    def federation(self) -> Path:
        return self.path / "federation.yaml"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def totals(self) -> Path:
        return self.path / ".launcher.json"

    @property
    def engine(self) -> Path:
        return self.path / ".engine.json"

    @property
    def place(self) -> Path:
        return self.path / ".place.json"

    @property
    def job(self) -> Path:
        return self.path / ".job"

    def config(self, id: str) -> Path:
        return self.path / f"{id}.yaml"

    def out(self, id: str) -> Path:
        """The directory of what the peer writes."""
        return self.path / id

    def log(self, id: str) -> Path:
        return self.out(id) / "log.txt"
