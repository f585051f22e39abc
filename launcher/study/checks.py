"""What is looked at before a study writes or computes anything."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from launcher.plan import plan
from launcher.study.cell import Cell
from launcher.study.grid import read
from peer.errors import InputError
from peer.files import why_unwritable
from peer.spec.agreement import sha256

NEEDED = ("pandas", "pyarrow", "scipy", "vl_convert")
STUDY = "study.yaml"
"""The study's file, beside its results."""


def check_packages(extra: str) -> None:
    needed = (*NEEDED, "distributed") if extra == "dask" else NEEDED
    if missing := [name for name in needed if find_spec(name) is None]:
        way_out = f"install them with: pip install -c constraints.txt 'dfl[{extra}]'"
        raise InputError(f"studies need packages that are missing here ({', '.join(missing)}); {way_out}")


def check_directory(directory: Path, name: str) -> None:
    if why := why_unwritable(directory):
        raise InputError(f"{why}; choose another directory with --out")
    if directory.exists() and any(directory.iterdir()) and not (directory / "cells").is_dir():
        raise InputError(f"{directory} holds files that are no study's; choose another directory with --out")
    if (there := name_of(directory)) not in (None, name):
        raise InputError(f"{directory} is of the study `{there}`; choose another directory with --out")


def name_of(directory: Path) -> str | None:
    """Of the study that is there already; None where there is none, or it cannot be read any more."""
    try:
        return read(directory / STUDY)[0].name
    except (InputError, OSError):
        return None


def check_data(cells: Sequence[Cell]) -> None:
    """Opens the data of one cell of each kind and builds its model; InputError where its peers would refuse them."""
    kinds = {}
    for cell in cells:
        # Whole, as it has the places of files, which the peers need not agree on.
        spec = cell.spec.model_dump(mode="json")
        kinds[sha256([spec[key] for key in ("data", "model", "task", "ring")])] = cell
    for cell in kinds.values():
        try:
            plan(cell.spec)
        except InputError as error:
            raise InputError(f"{error} (in the cell {cell.name})") from None
