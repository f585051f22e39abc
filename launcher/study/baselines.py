"""Over which cell of `solo` the gains of a cell are counted."""

from collections.abc import Collection, Sequence

from launcher.commands.compare import COMPARED
from launcher.study.cell import Cell, Label
from peer.spec.agreement import sha256
from peer.spec.own_code import own_code


def baselines(cells: Sequence[Cell], finished: Collection[str]) -> dict[str, Cell]:
    """By a cell's key its baseline, among cells whose keys are in `finished`: the peers alone, with the same data in
    the same way. Of several the one at the same place in the grid; `solo` itself has none."""
    alone: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.spec.protocol.name == "solo" and cell.key in finished:
            alone.setdefault(_compared(cell), []).append(cell)
    chosen = {cell.key: _baseline(cell, alone.get(_compared(cell), [])) for cell in cells}
    return {key: one for key, one in chosen.items() if one}


def _baseline(cell: Cell, alone: Sequence[Cell]) -> Cell | None:
    if cell.spec.protocol.name == "solo":
        return None
    local = cell.spec.protocol.local()
    fitting = [one for one in alone if one.spec.protocol.local() == local]
    beside = [one for one in fitting if _elsewhere(one) == _elsewhere(cell)]
    return next(iter([*beside, *fitting]), None)


def _compared(cell: Cell) -> str:
    """The digest of all but the protocol: also of the files that it reads, as only these tell what is in them."""
    spec = cell.spec.canonical()
    modules = {name.partition(":")[0] for name in own_code({key: spec.get(key) for key in COMPARED})}
    read = {"data.path", "data.root", "model.weights", *modules}
    sources = {name: found for name, found in cell.sources.items() if name in read}
    return sha256({"spec": {key: spec.get(key) for key in COMPARED}, "sources": sources})


def _elsewhere(cell: Cell) -> dict[str, Label]:
    return {axis: label for axis, label in cell.labels.items() if axis != "protocol"}
