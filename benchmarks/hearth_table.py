"""Hearth beside its rivals on digits: what peers get on their own mix of classes, and what the federation gets.

Run: python -m benchmarks.hearth_table [--rows hearth rdfl] [--columns iid k-1] [--seeds 0 1 2] [--data-seed 42]. Five
peers, ten rounds, the same initial weights at all peers; three to ten seconds of one core a run, with fibfl++ four
times as much. A seed gives the weights and the order of the batches; `--data-seed` another test set and other splits.
"""

import statistics
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.digits import arguments, federate
from peer.learning.training.evaluation import evaluate
from peer.learning.training.metrics import gini
from peer.runtime.runtime import Runtime

STUDIES = Path(__file__).parent.parent / "examples" / "studies"

COLUMNS: dict[str, dict[str, Any]] = {
    "iid": {"kind": "iid"},
    "dir-0.8": {"kind": "dirichlet", "alpha": 0.8},
    "dir-0.5": {"kind": "dirichlet", "alpha": 0.5},
    "dir-0.1": {"kind": "dirichlet", "alpha": 0.1},
    "k-1": {"kind": "label-skew", "k": 1},
    "k-2": {"kind": "label-skew", "k": 2},
    "k-3": {"kind": "label-skew", "k": 3},
}

ROWS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "rdfl": {"name": "rdfl"},
    "fibfl++": {"name": "fibfl++"},
    "hearth": {"name": "hearth"},
    "unadjusted": {"name": "hearth_rivals:Unadjusted"},
    "fedavg-refit": {"name": "hearth_rivals:Unadjusted", "shared": "model"},
}


class Outcome(NamedTuple):
    """One run: the mean, the worst and the Gini coefficient of `matched`; means of `global`, in 0..1."""

    matched: float
    worst: float
    gini: float
    everyone: float
    balanced: float
    """`global` of hearth's other head, η; of the model itself where there is none."""


def outcome(row: str, column: str, seed: int, data_seed: int) -> Outcome:
    keys: dict[str, Any] = {"seed": seed, "protocol": ROWS[row], "init": "shared", "code": str(STUDIES)}
    with tempfile.TemporaryDirectory() as directory:
        return measured(federate(Path(directory), COLUMNS[column], data_seed, **keys))


def measured(runtimes: Mapping[str, Runtime]) -> Outcome:
    ends = [accuracies(runtime) for runtime in runtimes.values()]
    for runtime in runtimes.values():
        runtime.peer.head.copy_(runtime.peer.state.get("head", runtime.peer.head))
    balanced = [accuracies(runtime)[1] for runtime in runtimes.values()]
    matched = [end[0] for end in ends]
    everyone = statistics.mean(end[1] for end in ends)
    return Outcome(statistics.mean(matched), min(matched), gini(matched), everyone, statistics.mean(balanced))


def accuracies(runtime: Runtime) -> tuple[float, float]:
    """`matched` and `global` of a peer's model."""
    shard = runtime.setup.shard
    found = evaluate(runtime.setup.model, shard.test, shard.proportions)
    assert found.matched is not None
    assert found.global_ is not None
    return found.matched, found.global_


def line(row: str, cells: Mapping[str, list[Outcome]]) -> str:
    """A row of the table: each column's mean and deviation over the seeds, then means over all its runs."""
    columns = [[run.matched for run in runs] for runs in cells.values()]
    deviations = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in columns]
    pairs = zip(columns, deviations, strict=True)
    shown = [f"{statistics.mean(values):.4f} ± {deviation:.3f}" for values, deviation in pairs]
    runs = [run for runs in cells.values() for run in runs]
    overall = [statistics.mean(values) for values in zip(*runs, strict=True)]
    text = " | ".join([row, *shown, *(f"{value:.4f}" for value in overall)]).replace(" 0.", " .").replace("± 0.", "± .")
    return f"| {text} |"


def main() -> None:
    parser = arguments(__doc__, ROWS, COLUMNS, seeds=[0, 1, 2])
    parser.add_argument("--data-seed", type=int, default=42)
    given = parser.parse_args()
    heads = ["", *given.columns, "matched", "worst", "Gini", "global", "global, η"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for row in given.rows:
        found: dict[str, list[Outcome]] = {column: [] for column in given.columns}
        for column, seed in product(given.columns, given.seeds):
            found[column].append(outcome(row, column, seed, given.data_seed))
            print(f"{row} {column} {seed}: {found[column][-1].matched:.4f}", file=sys.stderr, flush=True)
        print(line(row, found), flush=True)


if __name__ == "__main__":
    main()
