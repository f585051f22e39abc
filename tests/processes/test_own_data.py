"""Peers with tables of their own: what must be alike in them, and how a difference is told."""

import re
from pathlib import Path

import numpy as np
from real_peers import Build

REASON = r"refused: its data has [^;()]+; make the two alike"
"""The whole of it: one difference, one way out."""


def table(path: Path, columns: list[str]) -> None:
    """Forty rows with the columns a, b, c in this order, two classes."""
    draw = np.random.default_rng(1)
    values = dict(zip("abc", draw.normal(size=(3, 40)), strict=True))
    rows = [",".join([*(f"{values[name][row]:.4f}" for name in columns), str(row % 2)]) for row in range(40)]
    path.write_text("\n".join([",".join([*columns, "label"]), *rows]) + "\n")


def test_columns_in_another_order_and_of_another_number_are_refused(federation: Build) -> None:
    made = federation({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}, 3, patience=4)
    for id, columns in zip(made.ids, (["a", "b", "c"], ["a", "c", "b"], ["a", "b"]), strict=True):
        table(made.directory / f"{id}.csv", columns)
        made.configure(id, data={"name": "csv", "path": f"{id}.csv"})
    made.start()
    assert made.wait() == dict.fromkeys(made.ids, 1)
    swapped = "refused: its data has column 2 `b`, column 3 `c`, and this peer's column 2 `c`, column 3 `b`"
    assert swapped in made.log("peer1")
    assert "refused: its data has 3 columns, column 3 `c`, and this peer's 2 columns; make" in made.log("peer2")
    for id in made.ids:
        others = r"; ".join([rf"peer\d at [\d.:]+: ({REASON}|connection refused \(before that: {REASON}\))"] * 2)
        gave_up = made.log(id).splitlines()[-1]
        assert re.fullmatch(f"dfl-peer: gave up after 4 s of waiting for {others}", gave_up), gave_up


def test_tables_that_agree_are_learnt_from(federation: Build) -> None:
    made = federation({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}, 3)
    for id in made.ids:
        table(made.directory / f"{id}.csv", ["a", "b", "c"])
        made.configure(id, data={"name": "csv", "path": f"{id}.csv"})
    made.run()
