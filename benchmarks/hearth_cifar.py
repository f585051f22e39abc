"""Hearth and its rivals on a small part of CIFAR-10, with a network that has BatchNorm.

Run: python -m benchmarks.hearth_cifar cifar10.npz [--rows hearth fedavg] [--seeds 1] [--train 2000]. The file has
x_train and x_test, uint8 (n, 32, 32, 3), and their labels. Four peers, Dirichlet 0.5, eight rounds: two to four
minutes of one core a run.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.hearth_table import Outcome, measured
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

ROWS: dict[str, dict[str, Any]] = {
    "solo": {"name": "solo", "like": "hearth"},
    "fedavg": {"name": "fedavg"},
    "rdfl": {"name": "rdfl"},
    "hearth": {"name": "hearth"},
}


def normalised(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """Three convolutions with BatchNorm, 16, 32 and 64 channels; 64 features."""
    layers: list[nn.Module] = []
    for before, after in ((shape[0], 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(64, classes)


def part(source: Path, train: int, target: Path) -> None:
    """The first `train` images and 1,000 of the test set, channels first."""
    with np.load(source) as arrays:
        some = {name: arrays[name][: train if name.endswith("train") else 1000] for name in arrays.files}
    images = {name: np.moveaxis(x, 3, 1) if name.startswith("x") else x for name, x in some.items()}
    np.savez(target, **images)


def outcome(directory: Path, row: str, seed: int) -> Outcome:
    federation = {
        "seed": seed,
        "rounds": 8,
        "protocol": ROWS[row],
        "model": {"name": "benchmarks.hearth_cifar:normalised"},
        "data": {"name": "npz", "path": str(directory / "part.npz"), "partition": {"kind": "dirichlet", "alpha": 0.5}},
        "init": "shared",
    }
    path = directory / f"{row}-{seed}.yaml"
    path.write_text(json.dumps(federation))
    return measured(asyncio.run(run_in_process(load_spec(path, peers=4), directory / f"{row}-{seed}")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npz", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--train", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        part(given.npz, given.train, directory / "part.npz")
        print("| | matched | worst | Gini | global | global, η |\n" + "|---" * 6 + "|")
        for row in given.rows:
            runs = [outcome(directory, row, seed) for seed in given.seeds]
            means = [statistics.mean(values) for values in zip(*runs, strict=True)]
            print(f"| {row} | " + " | ".join(f"{value:.4f}" for value in means) + " |", flush=True)
            print(f"{row}: {[round(run.matched, 4) for run in runs]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
