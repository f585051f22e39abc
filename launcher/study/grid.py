"""From study.yaml to its cells, each checked."""

import json
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from launcher.study.cell import Cell
from launcher.study.cell_document import CellDocument
from launcher.study.settings import StudySettings
from launcher.study.sources import digest, sources
from peer.errors import InputError, nearest
from peer.spec.document import Document, put, validate
from peer.spec.federation import Spec
from peer.spec.known_keys import Location
from peer.spec.peer import resolve


def read(path: Path) -> tuple[StudySettings, Document]:
    document = Document.read(path)
    return validate(StudySettings, document.content, document, {}), document


def cells(settings: StudySettings, document: Document, directory: Path) -> list[Cell]:
    """Every cell of the grid, to lie below `directory`; InputError says what is wrong with one, or which are equal."""
    check_keys(settings, document)
    named = {key: labels(key, values, document) for key, values in settings.grid.items()}
    known = cache(digest)
    made: dict[Path, Cell] = {}
    for chosen in product(*(zip(named[key], values, strict=True) for key, values in settings.grid.items())):
        words = dict(zip(settings.grid, (label for label, _ in chosen), strict=True))
        values = dict(zip(settings.grid, (value for _, value in chosen), strict=True))
        if any(matches(values, one) for one in settings.exclude):
            continue
        spec = spec_of(settings, values, document)
        cell = Cell(words, spec, settings.network, directory, sources(spec, document.path.parent, known))
        if twin := made.get(cell.place):
            raise InputError(
                f"{document.path}: the cells {twin.name} and {cell.name} are the same; leave one of them out"
            )
        made[cell.place] = cell
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
                way_out = "give `peers: 5`, say" if first == "ring" else "all cells have the study's"
                raise InputError(f"{where}: `{key}` cannot be in `{block}`; {way_out}")
            if first not in known:
                raise InputError(f"{where}: unknown key `{key}`; {nearest(first, [*known])}")
            if dot and block == "base":
                raise InputError(f"{where}: `base` has no dots in its keys; write `{first}: {{{rest}: …}}`")
    if "peers" not in settings.base.keys() | settings.grid.keys():
        raise InputError(f"{document.path}: `peers` is missing; write `peers: [5]` into `grid`, say")
    for number, pattern in enumerate(settings.exclude):
        for key, value in pattern.items():
            if exactly(value) not in map(exactly, settings.grid.get(key, [])):
                where = document.where(("exclude", number, key))
                raise InputError(f"{where}: `exclude` wants values of `grid`, and {key} {label(value)} is none of them")


def spec_of(settings: StudySettings, values: Mapping[str, Any], document: Document) -> Spec:
    """One cell's federation, resolved."""
    content = {"name": settings.name, **settings.base}
    try:
        for key, value in values.items():
            put(content, key, value)
    except ValueError as error:
        raise InputError(f"{document.path}: {error}, and `grid` cannot reach into one; write it whole") from None
    if not pinned(content.get("protocol")):
        content.pop("machines", None)
    peers = content.pop("peers")
    if type(peers) is not int or peers < 1:
        where = document.where(("grid" if "peers" in settings.grid else "base", "peers"))
        raise InputError(f"{where}: `peers` wants a number from 1 on, such as 5 (given: {json.dumps(peers)})")
    places: dict[Location, Location] = {
        tuple(key.split(".")): ("grid", key, settings.grid[key].index(value)) for key, value in values.items()
    }
    try:
        return resolve(CellDocument(document.path, content, document.tree, places), peers=peers)
    except InputError as error:
        where = ", ".join(f"{key} {label(value)}" for key, value in values.items())
        raise InputError(f"{error} (in the cell {where})") from None


def pinned(protocol: Any) -> bool:
    """Whether it goes by `machines`, which a federation refuses whose protocol does not."""
    return isinstance(protocol, Mapping) and protocol.get("resources") == "pinned"


def labels(key: str, values: list[Any], document: Document) -> list[int | float | str]:
    """Each value in words; InputError where two are called the same."""
    found = [label(value) for value in values]
    for at, one in enumerate(found):
        if one in found[:at]:
            where = document.where(("grid", key, at))
            raise InputError(f"{where}: `grid` has {key} {one} twice; leave one of them out")
    return found


def label(value: Any) -> int | float | str:
    """`fibfl++ tau=0.3` for {name: fibfl++, tau: 0.3}, `none` for {}; a number is its own."""
    if isinstance(value, Mapping):
        first = [str(value[key]) for key in ("name", "kind") if key in value]
        rest = {key: f"({label(one)})" if isinstance(one, Mapping) else label(one) for key, one in value.items()}
        said = [f"{key}={one}" for key, one in rest.items() if key not in ("name", "kind")]
        return " ".join(first + said) or "none"
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value)
