"""Claims of the papers that need no training: FIRMA's ring costs and spectral gap, CYCle's estimation of a mean.

Run: python -m benchmarks.claims [DATASETS]. DATASETS is a folder with MNIST, Fashion-MNIST and cifar10.npz; without it
the rings are those of the digits alone. Half a minute of one core.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from benchmarks.hearth_table import COLUMNS
from peer.learning.data.partition import AnyPartition, Partition
from peer.learning.data.samples import Labels
from peer.learning.data.sources.image_sets import Digits
from peer.topology import ring_cost, similarity, two_opt

SEED, DRAWS = 42, 400_000
RULES: TypeAdapter[Partition] = TypeAdapter(AnyPartition)
PHI = (1 + 5**0.5) / 2


def label_sets(folder: Path | None) -> Iterator[tuple[str, Labels, int]]:
    """Name, training labels and number of peers."""
    yield "digits", Digits(name="digits", seed=SEED).load().train_targets, 5
    if folder:
        for name in ("MNIST", "FashionMNIST"):
            raw = (folder / name / "raw" / "train-labels-idx1-ubyte").read_bytes()[8:]
            yield name, np.frombuffer(raw, np.uint8).astype(np.int64), 10
        with np.load(folder / "cifar10.npz") as arrays:
            yield "CIFAR-10", arrays["y_train"], 10


def saving(labels: Labels, peers: int, partition: dict[str, Any], cost: Any) -> float:
    """The share of the ring's cost that 2-opt saves (FIRMA, Eq. 8 and Section 6.7), in per cent."""
    names = [f"peer{at}" for at in range(peers)]
    parts = RULES.validate_python(partition).split(labels, names, np.random.default_rng(SEED))
    counts = np.stack([np.bincount(labels[part], minlength=10) for part in parts])
    similar = similarity(counts / counts.sum(axis=1, keepdims=True), cost)
    return 100 * (1 - ring_cost(similar, two_opt(similar)) / ring_cost(similar, range(peers)))


def rings(folder: Path | None) -> None:
    print("| | | " + " | ".join(COLUMNS) + " |\n|---|---" + "|---:" * len(COLUMNS) + "|")
    for name, labels, peers in label_sets(folder):
        for cost in ("dot", "cosine"):
            found = [f"{saving(labels, peers, column, cost):.1f}" for column in COLUMNS.values()]
            print(f"| {name} | {cost} | {' | '.join(found)} |")


def slowest(left: float, right: float, own: float, peers: int) -> float:
    """max |λ_k|, k > 0, of the circulant blend (FIRMA, Lemma 5.1): the smaller, the faster extractors become one."""
    turn = np.exp(2j * np.pi * np.arange(1, peers) / peers)
    return float(np.abs(own + (1 - own) * (left * turn + right * turn.conj())).max())


def gaps() -> None:
    print("\n| N, γ | golden ratio | one half each |\n|---|---:|---:|")
    for peers, own in ((5, 0.5), (10, 0.5), (5, 0.05)):
        golden, even = slowest(1 / PHI, 1 / PHI**2, own, peers), slowest(0.5, 0.5, own, peers)
        print(f"| {peers}, {own} | {golden:.4f} | {even:.4f} |")


def estimation() -> None:
    """CYCle, Theorem 4.1 and Figure 8: two clients estimate their means from samples of deviation γ = 1."""
    print(
        "\n| θ₂ − θ₁ | mean no worse | CYCle no worse | CYCle takes part | squared error, mean | CYCle |\n|---"
        + "|---:" * 5
        + "|"
    )
    draw = np.random.default_rng(0)
    for gap in (0, 1, 2, 3, 4, 5):
        ours, theirs = draw.normal(0, 1, DRAWS), draw.normal(gap, 1, DRAWS)
        reputation = np.clip(2 - ((theirs - ours) / 2) ** 2, 0, 1)
        both = (ours + theirs) / 2
        cycle = (1 - reputation / 2) * ours + reputation / 2 * theirs
        better = [(one**2 <= ours**2).mean() for one in (both, cycle)]
        figures = [*better, (reputation > 0).mean(), (both**2).mean(), (cycle**2).mean()]
        print(f"| {gap} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |")


if __name__ == "__main__":
    rings(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    gaps()
    estimation()
