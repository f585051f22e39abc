"""From study.yaml to its cells, each checked; and a cell: its federation, its key, the directory that holds its files.

DIR/cells/<digest>/federation.yaml   the spec as resolved     rounds.json    rows of rounds, an ordered ring, the commit
DIR/cells/<digest>/log.txt           what its process said    summary.json   written last: with it the cell is finished
DIR/cells/<digest>/run/              while it is computed

A cell's digest is that of all that its peers must agree on, and of the files of the user's that they read, as no digest
of a spec tells what is in those. So the same cell of another study file beside this one is computed once. An error in a
cell's federation names the line of study.yaml from which the value came.
"""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from launcher.reports import summary_json
from launcher.reports.summary_json import Summary
from launcher.run_files import RunFiles
from peer.errors import InputError, suggest
from peer.files import MAX_RECORDS_BYTES, open_plain, read_plain, write_atomically
from peer.settings import Settings, of_peer
from peer.spec.agreement import sha256, user_code
from peer.spec.document import Document, Location, put, validate
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

Network = Literal["memory", "grpc"]


class StudySettings(Settings):
    """A grid of federations."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")]
    """Names the study, and its directory: letters, digits and `-_.+`."""
    base: dict[str, Any] = Field(default_factory=dict)
    """What all cells have alike: keys of federation.yaml, and `peers` in place of a ring."""
    grid: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
    """The values of each key that varies; a dot reaches into a block, as in `data.partition`. A cell is one value of
    each."""
    exclude: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(default_factory=list)
    """Cells to leave out: those that have all values of one of these, each as it stands in `grid`."""
    network: Network = "memory"
    """`memory`: a cell is one process. `grpc`: a process a peer, on this machine."""


Sources = Mapping[str, Sequence[str]]
"""Sources by their names in the spec: the path, relative to the study's file, and the digest of each file."""


def sources(spec: Spec, base: Path, digest: Callable[[Path], str]) -> Sources:
    """Seen from the folder `base`."""
    return {
        name: [os.path.relpath(path, base.resolve()), *map(digest, dict.fromkeys(of_peer(path, id) for id in spec.ids))]
        for name, path in _named(spec)
    }


def _named(spec: Spec) -> Iterator[tuple[str, Path]]:
    # A source that must be told where its data lie knows nothing else of them.
    fields = type(spec.data).model_fields
    for key in ("path", "root"):
        if key in fields and fields[key].is_required():
            yield f"data.{key}", getattr(spec.data, key)
    if spec.model.weights is not None:
        yield "model.weights", spec.model.weights
    if spec.recording is not None:
        yield "recording", spec.recording
    if spec.code is not None:
        for module in {name.partition(":")[0] for name in user_code(spec.model_dump(mode="json"))}:
            file = spec.code / f"{module.replace('.', '/')}.py"
            yield module, file if file.exists() else file.with_suffix("") / "__init__.py"


def digest(path: Path) -> str:
    """The SHA-256 (hex) of a plain file's content; empty for a directory."""
    if path.is_dir():
        return ""
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError:
        return "cannot be read"


Label = int | float | str
DETAIL_KEYS = {"commit", "rounds"}
"""What rounds.json holds at least."""


def axis_value(axis: str, label: Label) -> str:
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
        agreement = self.spec.agreement
        return sha256({**agreement.content, "sources": self.sources}) if self.sources else agreement.digest

    @cached_property
    def files(self) -> "CellFiles":
        name = self.key if self.network == "memory" else f"{self.key}-{self.network}"
        return CellFiles(self.directory / "cells" / name)

    @property
    def name(self) -> str:
        return ", ".join(axis_value(axis, label) for axis, label in self.labels.items())

    @property
    def command(self) -> str:
        """Run it once more, as real peers."""
        out = f"runs/{self.spec.name}-{self.key[:12]}"
        return shlex.join(["dfl-launch", "run", str(self.files.federation), "--out", out, "--device", "cpu"])

    def prepare(self) -> None:
        """Make the cell's directory, with the spec in it."""
        self.files.path.mkdir(parents=True, exist_ok=True)
        file, content = self.files.federation, self.spec.dump().encode()
        if not file.is_file() or file.read_bytes() != content:
            write_atomically(file, content)


class CellFiles(RunFiles):
    """The names in a cell's directory: a run's, and these."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.run = path / "run"
        self.rounds = path / "rounds.json"
        self.said = path / "log.txt"

    @property
    def details(self) -> dict[str, Any]:
        """What the cell's process left beside the summary; empty where that cannot be read."""
        try:
            found = json.loads(read_plain(self.rounds, MAX_RECORDS_BYTES))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and found.keys() >= DETAIL_KEYS else {}

    @property
    def finished(self) -> Summary | None:
        """The summary, if the cell is finished: a power cut may have taken either file."""
        return summary_json.read(self.summary) if self.details else None

    def finish(self, details: Mapping[str, Any], summary: Summary) -> None:
        """Keep what the cell came to, and remove what it was computed with; the summary is written last."""
        write_atomically(self.rounds, json.dumps(details).encode())
        shutil.rmtree(self.run)
        self.said.unlink(missing_ok=True)
        summary_json.write(self.summary, summary)


@dataclass(frozen=True)
class CellDocument(Document):
    """places: by where in the federation a value of the grid was put, where it stands in study.yaml."""

    places: Mapping[Location, Location]

    def where(self, location: Location) -> str:
        for place in sorted(self.places, key=len, reverse=True):
            if location[: len(place)] == place:
                return super().where((*self.places[place], *location[len(place) :]))
        return super().where(("base", *location))


def read_study(path: Path) -> tuple[StudySettings, Document]:
    document = Document.read(path)
    return validate(StudySettings, document.content, document, {}), document


def cells(settings: StudySettings, document: Document, directory: Path) -> list[Cell]:
    """Every cell of the grid, to lie below `directory`; InputError says what is wrong with one, or which are equal."""
    check_keys(settings, document)
    known = cache(digest)
    made: dict[Path, Cell] = {}
    for places in product(*(range(len(values)) for values in settings.grid.values())):
        at = dict(zip(settings.grid, places, strict=True))
        values = {key: settings.grid[key][place] for key, place in at.items()}
        if any(matches(values, one) for one in settings.exclude):
            continue
        spec = spec_of(settings, values, at, document)
        words = {key: label(value) for key, value in values.items()}
        cell = Cell(words, spec, settings.network, directory, sources(spec, document.path.parent, known))
        if twin := made.get(cell.files.path):
            raise InputError(
                f"{document.path}: the cells {twin.name} and {cell.name} are the same; leave one of them out"
            )
        made[cell.files.path] = cell
    if not made:
        raise InputError(f"{document.where(('exclude',))}: `exclude` leaves no cell; leave some of it out")
    return [*made.values()]


def matches(values: Mapping[str, Any], pattern: Mapping[str, Any]) -> bool:
    return all(exactly(values[key]) == exactly(value) for key, value in pattern.items())


def exactly(value: Any) -> str:
    """Python takes true for 1."""
    return json.dumps(value, sort_keys=True)


def check_keys(settings: StudySettings, document: Document) -> None:
    known = {*Spec.model_fields, "peers"} - {"ring", "name"}
    for block, keys in (("base", settings.base), ("grid", settings.grid)):
        for key in keys:
            first, dot, rest = key.partition(".")
            where = document.where((block, key))
            if first in ("ring", "name"):
                hint = "give `peers: 5`, say" if first == "ring" else "all cells have the study's"
                raise InputError(f"{where}: `{key}` cannot be in `{block}`; {hint}")
            if first not in known:
                raise InputError(f"{where}: unknown key `{key}`; {suggest(first, [*known])}")
            if dot and block == "base":
                raise InputError(f"{where}: `base` has no dots in its keys; write `{first}: {{{rest}: …}}`")
    if "peers" not in settings.base.keys() | settings.grid.keys():
        raise InputError(f"{document.path}: `peers` is missing; write `peers: [5]` into `grid`, say")
    for number, pattern in enumerate(settings.exclude):
        for key, value in pattern.items():
            if exactly(value) not in map(exactly, settings.grid.get(key, [])):
                where = document.where(("exclude", number, key))
                raise InputError(f"{where}: `exclude` wants values of `grid`, and {key} {label(value)} is none of them")
    for key, values in settings.grid.items():
        words = [*map(label, values)]
        for at, one in enumerate(words):
            if one in words[:at]:
                where = document.where(("grid", key, at))
                raise InputError(f"{where}: `grid` has {key} {one} twice; leave one of them out")


def spec_of(settings: StudySettings, values: Mapping[str, Any], at: Mapping[str, int], document: Document) -> Spec:
    """One cell's federation, resolved. at: the place of each value in the list of its key in `grid`."""
    content = {"name": settings.name, **settings.base}
    try:
        for key, value in values.items():
            put(content, key, value)
    except ValueError as error:
        raise InputError(f"{document.path}: {error}, and `grid` cannot reach into one; write it whole") from None
    protocol = content.get("protocol")
    if not isinstance(protocol, Mapping) or protocol.get("resources") != "pinned":
        content.pop("machines", None)  # which a federation refuses whose protocol does not go by them
    peers = content.pop("peers")
    if type(peers) is not int or peers < 1:
        where = document.where(("grid" if "peers" in settings.grid else "base", "peers"))
        raise InputError(f"{where}: `peers` wants a number from 1 on, such as 5 (given: {json.dumps(peers)})")
    places: dict[Location, Location] = {tuple(key.split(".")): ("grid", key, place) for key, place in at.items()}
    try:
        return load_spec(CellDocument(document.path, content, document.tree, places), peers=peers)
    except InputError as error:
        where = ", ".join(f"{key} {label(value)}" for key, value in values.items())
        raise InputError(f"{error} (in the cell {where})") from None


def label(value: Any) -> Label:
    """`fibfl++ tau=0.3` for {name: fibfl++, tau: 0.3}, `none` for {}; a number is its own."""
    if isinstance(value, Mapping):
        first = [str(value[key]) for key in ("name", "kind") if key in value]
        rest = {key: f"({label(one)})" if isinstance(one, Mapping) else label(one) for key, one in value.items()}
        said = [f"{key}={one}" for key, one in rest.items() if key not in ("name", "kind")]
        return " ".join(first + said) or "none"
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value)
