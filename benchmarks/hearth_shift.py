"""Hearth where the peers' inputs differ, or their labels are wrong: what a mean of extractors costs there.

Run: python -m benchmarks.hearth_shift [--rows hearth solo] [--seeds 1 2] [--noise]. Five peers with an even share
of the digits each, ten rounds. Peer i holds its images turned by i quarters, and is tested on all test images turned
alike; with --noise nothing is turned, and three in ten labels of two peers are wrong. A seed gives everything: the test
set, the shares, the weights and the order of the batches.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.learning.data.samples import InMemory
from peer.learning.data.sources import Source, source_type
from peer.learning.data.sources.image_sets import Digits
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

PEERS, ROUNDS, CLASSES = 5, 10, 10
NOISY = (1, 3)
SOURCE = "benchmarks.hearth_shift:digits"

ROWS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "rdfl": {"name": "rdfl"},
    "hearth": {"name": "hearth"},
    "solo": {"name": "solo", "like": "hearth"},
}

Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


def digits(peer: int, seed: int, turns: int, noise: float) -> Arrays:
    """One peer's share: images of shape (1, 8, 8) turned by `turns` quarters, a share `noise` of its labels wrong."""
    whole = Digits(name="digits", seed=seed).load()
    mine = np.array_split(np.random.default_rng(seed).permutation(len(whole.train_targets)), PEERS)[peer]
    train, test = whole.train(mine), whole.test()
    assert isinstance(train, InMemory)
    assert isinstance(test, InMemory)
    x, x_test = (np.ascontiguousarray(np.rot90(part.x.numpy(), turns, axes=(2, 3))) for part in (train, test))
    return x, _with_noise(train.y.numpy(), noise, seed, peer), x_test, test.y.numpy()


def _with_noise(labels: NDArray[np.int64], noise: float, seed: int, peer: int) -> NDArray[np.int64]:
    generator = np.random.default_rng([seed, peer])
    wrong = generator.random(len(labels)) < noise
    return np.where(wrong, (labels + generator.integers(1, CLASSES, len(labels))) % CLASSES, labels)


def source(peer: int, seed: int, noisy: bool) -> Source:
    noise = 0.3 if noisy and peer in NOISY else 0.0
    options = {"peer": peer, "seed": seed, "turns": 0 if noisy else peer % 4, "noise": noise}
    return source_type(SOURCE).model_validate({"name": SOURCE, "options": options})


def accuracies(protocol: Mapping[str, Any], seed: int, noisy: bool) -> list[float]:
    """Each peer's accuracy on its own test images after the last round, 0..1."""
    federation = {
        "name": "hearth-shift",
        "seed": seed,
        "rounds": ROUNDS,
        "protocol": protocol,
        "data": {"name": "digits"},
        "init": "shared",
    }
    with tempfile.TemporaryDirectory() as directory:
        path, out = Path(directory) / "federation.yaml", Path(directory) / "run"
        path.write_text(json.dumps(federation))
        spec = load_spec(path, peers=PEERS)
        own = {id: source(peer, seed, noisy) for peer, id in enumerate(spec.ids)}
        asyncio.run(run_in_process(spec, out, own=own))
        return [float(json.loads((out / id / "result.json").read_text())["accuracy"]["local"]) for id in spec.ids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--noise", action="store_true", help="wrong labels instead of turned images")
    given = parser.parse_args()
    print("| | " + " | ".join(f"seed {seed}" for seed in given.seeds) + " | mean | worst peer |")
    print("|---" * (len(given.seeds) + 3) + "|")
    for row in given.rows:
        runs = [accuracies(ROWS[row], seed, given.noise) for seed in given.seeds]
        means = [statistics.mean(run) for run in runs]
        figures = [*means, statistics.mean(means), statistics.mean(min(run) for run in runs)]
        print(f"| {row} | " + " | ".join(f"{figure:.4f}".removeprefix("0") for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
