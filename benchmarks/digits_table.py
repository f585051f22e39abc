"""FIRMA's table on scikit-learn's digits: the published figure / the mean over model seeds ± their standard deviation.

Run: python -m benchmarks.digits_table [--rows fibfl fibfl+] [--columns iid] [--seeds 1 2 3] [--processes 2]. Five
peers, ten rounds; about five minutes of one core a seed. The data and their splits are the same for all seeds; a seed
gives the initial weights and the order of the batches. The second table compares with an independent
implementation of the same recipe; a cell that lies further from it than its seeds do from each other is bold.
"""

import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.digits import arguments, federate

COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "iid": ("IID", {"kind": "iid"}),
    "dir-0.8": ("Dir .8", {"kind": "dirichlet", "alpha": 0.8}),
    "dir-0.5": ("Dir .5", {"kind": "dirichlet", "alpha": 0.5}),
    "dir-0.1": ("Dir .1", {"kind": "dirichlet", "alpha": 0.1}),
    "ls-1": ("LS K=1", {"kind": "label-skew", "k": 1}),
}

NONE = (None,) * len(COLUMNS)
Figures = dict[str, tuple[float | None, ...]]

ROWS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedrep": {"name": "fedrep"},
    "fedavg-new": {"name": "fedavg", "keep_momentum": False},
    "fedrep-new": {"name": "fedrep", "keep_momentum": False},
    "rdfl-1": {"name": "rdfl", "gamma": 1},
    "rdfl-0.5": {"name": "rdfl", "gamma": 0.5},
    "fibfl": {"name": "fibfl"},
    "fibfl+": {"name": "fibfl+"},
    "fibfl++": {"name": "fibfl++", "warmup_shares": "model"},
}

PUBLISHED: Figures = {
    "fedavg": (0.9694, 0.9708, 0.9712, 0.9398, 0.9691),
    "fedrep": (0.9528, 0.7360, 0.7765, 0.2278, 0.8816),
    "rdfl-1": (0.9417, 0.8237, 0.7895, 0.2745, 0.9492),
    "rdfl-0.5": NONE,
    "fibfl": (0.9444, 0.8170, 0.8067, 0.2866, 0.9489),
    "fibfl+": (0.9472, 0.7889, 0.7397, 0.3248, 0.9302),
    "fibfl++": (0.9556, 0.9209, 0.8663, 0.3323, 0.9695),
}
"""FIRMA, Table 11. Its RDFL is γ = 1, so there is none for γ = 0.5, and its SGD keeps its momentum."""

INDEPENDENT: Figures = {
    "fedavg": (0.9676, 0.9675, 0.9613, 0.9141, 0.9627),
    "fedrep": (0.9676, 0.7396, 0.7890, 0.2238, 0.9048),
    "rdfl-1": (0.9435, 0.8129, 0.7813, 0.2581, 0.9411),
    "rdfl-0.5": (0.9657, 0.9438, 0.9041, 0.6606, 0.9677),
    "fibfl": (0.9528, 0.8804, 0.8273, 0.3094, 0.9562),
    "fibfl+": (0.9556, 0.8745, 0.7875, 0.3037, 0.9594),
    "fibfl++": (0.9611, 0.9253, 0.8619, 0.3533, 0.9668),
}
"""The same recipe in another implementation, mean of three model seeds of its own."""

SPREAD = {row: 0.07 if row in ("fibfl", "fibfl+") else 0.01 for row in ROWS}
"""How far seeds lie from each other in that implementation, at most."""

Cell = tuple[str, str, int]


def accuracy(cell: Cell) -> float:
    """Mean accuracy of the five peers after the last round, each on its part of the published test split."""
    row, column, seed = cell
    keys: dict[str, Any] = {"seed": seed, "protocol": ROWS[row], "init": "independent", "test": "paper"}
    with tempfile.TemporaryDirectory() as directory:
        federate(Path(directory), COLUMNS[column][1], **keys)
        results = [json.loads(file.read_text()) for file in sorted(Path(directory).glob("run/*/result.json"))]
    return statistics.mean(float(result["accuracy"]["paper"]) for result in results)


def measured(rows: list[str], columns: list[str], seeds: list[int], processes: int) -> dict[Cell, float]:
    cells = list(product(rows, columns, seeds))
    found: dict[Cell, float] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for cell, value in zip(cells, pool.map(accuracy, cells), strict=True):
            found[cell] = value
            print(f"{len(found)} of {len(cells)}: {cell} {value:.4f}", file=sys.stderr, flush=True)
    return found


def table(rows: list[str], columns: list[str], cells: dict[tuple[str, str], str]) -> str:
    lines = ["| | " + " | ".join(COLUMNS[column][0] for column in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    lines += [f"| {row} | " + " | ".join(cells[row, column] for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def short(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}".removeprefix("0")


def show(found: dict[Cell, float], rows: list[str], columns: list[str], seeds: list[int]) -> None:
    ours, differences = {}, {}
    for row, column in product(rows, columns):
        values, at = [found[row, column, seed] for seed in seeds], [*COLUMNS].index(column)
        mean, spread = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        published, independent = PUBLISHED.get(row, NONE)[at], INDEPENDENT.get(row, NONE)[at]
        ours[row, column] = f"{short(published)} / {short(mean)} ± {short(spread, 3)}"
        differences[row, column] = "–" if independent is None else apart(mean - independent, SPREAD[row])
    print(f"Published / this run (mean of {len(seeds)} seeds ± standard deviation):\n")
    print(table(rows, columns, ours))
    print("\nThis run less the independent implementation:\n")
    print(table([row for row in rows if row in INDEPENDENT], columns, differences))


def apart(difference: float, spread: float) -> str:
    mark = "**" if abs(difference) > spread else ""
    return f"{mark}{difference:+.4f}{mark}"


def main() -> None:
    parser = arguments(__doc__, ROWS, COLUMNS, seeds=[1, 2, 3])
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    began = time.perf_counter()
    found = measured(given.rows, given.columns, given.seeds, given.processes)
    show(found, given.rows, given.columns, given.seeds)
    print(f"\n{time.perf_counter() - began:.0f} s in {given.processes} processes on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
