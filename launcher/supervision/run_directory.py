"""A run's directory: which launcher may use it, what is in it, and when it may be used again.

DIR/.lock            held by the launcher
DIR/.peers           held by every peer that is a process of this machine
DIR/.launcher.json   `TimeSpent`: what the run has taken over all its launches
DIR/.engine.json     `LaunchRecord`: what started the peers, and how, so that `dfl-launch attach` can take them up

What is in <id>/ is for the user who runs the federation alone; the specs and the summary are as the umask has it.
"""

import json
import os
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from launcher.engines.base import Engine, Run, engine
from launcher.recorded_spec import RecordedSpec
from launcher.reports import summary_json
from launcher.reports.summary_json import Summary
from launcher.run_files import RunFiles, default_directory
from peer.errors import InputError
from peer.files import MAX_SETTINGS_BYTES, lock, make_private, read_plain, unwritable_reason, write_atomically
from peer.spec.checks import why_not_continued
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.spec.recordings import RunFormat, recorded_run

LIBRARIES = ("torch", "numpy")
"""Those whose versions a model's bits depend on."""


class LaunchRecord(BaseModel):
    """The engine and its settings, what all peers' configs have alike, and where and with what it was launched."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    on: str
    settings: dict[str, Any]
    device: str
    certs: Path | None
    host: str = ""
    versions: str = ""

    @classmethod
    def read(cls, files: RunFiles) -> Self:
        """InputError where no launcher has begun a run, or its record cannot be read."""
        try:
            return cls.model_validate(json.loads(read_plain(files.engine, MAX_SETTINGS_BYTES)))
        except FileNotFoundError:
            raise InputError(f"{files.path} holds no run that a launcher began; name the directory of one") from None
        except (OSError, ValueError) as why:
            raise InputError(f"{files.engine}: cannot be read ({why}); remove it and repeat `dfl-launch run`") from None

    @classmethod
    def write(cls, engine: Engine[Any], run: Run) -> None:
        settings = engine.settings.model_dump(mode="json")
        certs, host = run.certs and run.certs.absolute(), f"{platform.node()}, {platform.platform()}"
        versions = ", ".join([f"Python {platform.python_version()}", *(f"{one} {version(one)}" for one in LIBRARIES)])
        record = cls(on=engine.name, settings=settings, device=run.device, certs=certs, host=host, versions=versions)
        write_atomically(run.files.engine, record.model_dump_json(indent=1).encode())

    @property
    def engine(self) -> Engine[Any]:
        return engine(self.on, self.settings)

    def run(self, files: RunFiles) -> Run:
        """Return the run, as its spec was written there."""
        return Run(load_spec(files.federation), files, self.device, self.certs)


class RunDirectory:
    """One run's directory, from the claim on it to its files. Every refusal is an InputError.

    peers_lock: a descriptor for peers on this machine to keep open, so that a later launcher can tell when the last
    peer of an earlier one is gone.
    """

    def __init__(self, path: Path, patience: float = 15.0):
        # One name for a directory, however it is reached: engines know a run by it.
        self.path = path.resolve()
        self.files, self.patience = RunFiles(self.path), patience
        self.peers_lock = -1
        self._lock = -1
        self._made: list[Path] = []
        """What this launcher has created and an earlier one had not: directories, and the files of the locks."""
        self._begun = False
        """Whether the run in it is this launcher's, and no earlier one's that goes on."""

    @classmethod
    def chosen(cls, spec: Spec, out: Path | None) -> Self:
        """The one given, or that by the federation's name; InputError where the name cannot name a directory."""
        if (path := out or default_directory(spec.name)) is None:
            raise InputError(f"the name `{spec.name}` cannot name a directory; choose another or give --out")
        return cls(path)

    def is_run(self) -> bool:
        """Whether a launcher has been here before."""
        return (self.path / ".lock").exists()

    def is_in_use(self) -> bool | None:
        """Whether a launcher, or a peer on this machine, is at work here now; None where that may not be known."""
        try:
            descriptor = os.open(self.path / ".peers", os.O_RDWR | os.O_NOFOLLOW)
        except OSError as error:
            return None if isinstance(error, PermissionError) else False
        try:
            return not lock(descriptor)  # for a moment; a launcher that begins just then waits for it
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """Whether the directory can be used, without creating anything."""
        if why := unwritable_reason(self.path):
            raise InputError(f"{why}; choose another directory with --out")
        try:
            foreign = self.path.exists() and not self.is_run() and any(self.path.iterdir())
        except OSError as error:
            raise self._unwritable(error) from None
        if foreign:
            raise InputError(f"{self.path} holds files that are no run's; choose another directory with --out")

    def _unwritable(self, error: OSError) -> InputError:
        why = error.strerror or str(error)
        return InputError(f"{self.path} cannot be written to ({why}); choose another directory with --out")

    def claim(self) -> None:
        """Create the directory if need be, keep other launchers out, wait for an earlier one's peers."""
        if self._lock >= 0:
            return
        try:
            missing = [place for place in (self.path, *self.path.parents) if not place.exists()]
            for place in reversed(missing):
                place.mkdir(exist_ok=True)
                self._made.append(place)
            self._lock = self._open(".lock")
            self.peers_lock = self._open(".peers")
        except OSError as error:
            self._undo()
            raise self._unwritable(error) from None
        # A file that another launcher has removed meanwhile is found by no other: its lock excludes none.
        if not lock(self._lock) or os.fstat(self._lock).st_nlink == 0:
            raise InputError(f"another dfl-launch is at work in {self.path}; wait for it or choose another --out")
        if not lock(self.peers_lock, self.patience):
            raise InputError(f"peers of an earlier launch still run in {self.path}; end them first")

    def _open(self, name: str) -> int:
        path = self.path / name
        if not path.exists():
            self._made.append(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)  # to open it is to be able to lock it

    def withdraw(self) -> None:
        """Leave nothing of a run that this launcher began and that was refused; an earlier run stays as it is."""
        if self._begun:
            self.discard()
            self._undo()

    def _undo(self) -> None:
        for place in reversed(self._made):
            with suppress(OSError):  # something else has been put there
                place.rmdir() if place.is_dir() else place.unlink()
        self.close()

    def close(self) -> None:
        """Let another launcher in."""
        for descriptor in (self._lock, self.peers_lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self.peers_lock = -1

    def check_engine(self, engine: Engine[Any], fresh: bool) -> None:
        """InputError where another engine began the run, and its peers may still be at work on it, or what they have
        left elsewhere would be forgotten."""
        ended = self.files.summary.exists()
        if not self.files.engine.exists() or (ended and (fresh or not self.files.place.exists())):
            return
        record, discard = LaunchRecord.read(self.files), f"`dfl-launch discard {self.path}`"
        # By its name alone, as its libraries may not be installed: the peers of all engines but `local` outlive it.
        if record.on not in (engine.name, "local"):
            raise InputError(
                f"the run in {self.path} was begun by `--on {record.on}`, where its checkpoints are: go on there, or "
                f"remove them by {discard}; or choose another --out"
                if ended
                else f"the run in {self.path} was begun by `--on {record.on}`, whose peers may still run: end them by "
                f"`dfl-launch attach {self.path}` and Ctrl-C, then remove what they leave by {discard}, and "
                f"{self.files.engine}; or choose another --out"
            )

    def earlier(self) -> RecordedSpec | None:
        """The spec of the run that is already here, if one is; it may be another's."""
        if not self.files.federation.exists():
            return None
        try:
            return RecordedSpec.read(self.files.federation)
        except InputError as error:
            raise InputError(f"{error} (an earlier run's; --fresh discards it)") from None

    def named(self, spec: Spec, fresh: bool) -> Spec:
        """The spec of this very run, where members sign what they say: no other run has its `run`, but one that replays
        its views, whose proofs are those of the recording."""
        if spec.on_loss != "bypass" or spec.run is not None:
            return spec
        if spec.views:
            return spec.model_copy(update={"run": recorded_run(spec)})
        earlier = None if fresh else self.earlier()
        return spec.model_copy(update={"run": earlier.keys.run if earlier else token_hex(8)})

    def compare(self, spec: Spec) -> None:
        """Refuse a directory of another run, naming the keys that differ."""
        earlier = self.earlier()
        if earlier is None:
            return
        for id in earlier.ids:
            with suppress(OSError, ValueError):  # not there, or not readable: its peer says so
                RunFormat.check(self.files.out(id))
        differing = earlier.differing(RecordedSpec.from_spec(spec, self.files.federation))
        if obstacle := why_not_continued(spec, differing, earlier.keys.rounds):
            raise InputError(
                f"{self.path} holds another run: {obstacle}; choose another --out, or discard it with --fresh"
            )

    def finished(self, spec: Spec) -> Summary | None:
        """The summary, if the run has come to its end; with more rounds than then, or if all go back, it has not."""
        earlier, summary = self.earlier(), summary_json.read(self.files.summary)
        if summary is None or (earlier and earlier.keys.rewinds != spec.plain_rewinds):
            return None
        return summary if summary.rounds >= spec.rounds or summary.stopped_early else None

    def discard(self) -> None:
        """Remove what a run wrote; anything else in the directory stays."""
        for file in (self.files.summary, self.files.report, self.files.totals, self.files.engine, self.files.place):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.files.job, ignore_errors=True)
        for config in self.path.glob("*.yaml"):
            if (self.path / config.stem).is_dir():
                shutil.rmtree(self.path / config.stem)
                config.unlink()
        self.files.federation.unlink(missing_ok=True)

    def write(self, spec: Spec, configs: Mapping[str, Mapping[str, object]]) -> None:
        """The spec as resolved, and for every peer its config and a directory."""
        self._begun = not self.files.federation.exists()
        if self.files.summary.exists():  # of an earlier end; the run goes on
            self.files.summary.unlink()
            self.files.report.unlink(missing_ok=True)
        for id, config in configs.items():
            make_private(self.files.out(id))
            write_atomically(self.files.config(id), dump_yaml(config).encode())
        write_atomically(self.files.federation, spec.dump().encode())
