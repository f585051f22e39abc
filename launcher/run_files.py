"""Where everything of a run lies: the one place that knows the names in its directory, and in that of its certificates.

DIR/federation.yaml   the spec as resolved      DIR/<id>.yaml   one peer's config, to start it by hand
DIR/<id>/             one peer's files          DIR/summary.json, and report.html for people
DIR/.launcher.json    what the launches so far have taken
DIR/.engine.json      what started the peers, and how, for `dfl-launch attach`
DIR/.place.json       which run this is, for engines whose peers keep their files elsewhere
DIR/.job/             a cluster's job: its id, its output, and the exit codes of the peers in it

CERTS/ca.pem, and CERTS/<id>.pem with CERTS/<id>.key for every peer, as `dfl-launch certs` writes them

Names only, and nothing but the standard library: a cluster's job imports this, and whoever names a certificate's file
needs nothing of X.509.
"""

from pathlib import Path


class RunFiles:
    """The files of the run in the directory `path`, which is absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.federation = path / "federation.yaml"
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        self.totals = path / ".launcher.json"
        self.engine = path / ".engine.json"
        self.place = path / ".place.json"
        self.job = path / ".job"

    def config(self, id: str) -> Path:
        return self.path / f"{id}.yaml"

    def out(self, id: str) -> Path:
        """The directory of what the peer writes."""
        return self.path / id

    def log(self, id: str) -> Path:
        return self.out(id) / "log.txt"


def default_directory(name: str) -> Path | None:
    """The directory of a run of that name without `--out`; None for a name that cannot name a directory."""
    return Path("runs") / name if name.strip(".") else None


def certificate_files(directory: Path, id: str) -> dict[str, Path]:
    """The absolute paths of a peer's certificate files, as made by `make_certificates`, by key of `tls`."""
    base = directory.resolve()
    return {"ca": base / "ca.pem", "cert": base / f"{id}.pem", "key": base / f"{id}.key"}
