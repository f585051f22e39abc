"""Drift: on a convex problem with skewed data FedAvg rests beside the optimum; FedDyn and SCAFFOLD go on to it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from federations import Run, federate
from torch import Tensor
from torch.nn import functional

from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build

ROUNDS = 12
FULL_BATCH = {"lr": 0.5, "epochs": 20, "batch_size": 1000}
SKEWED = {"name": "convex:clouds", "partition": {"kind": "pathological", "xi": 2}}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "fedavg": {"momentum": 0.0},
    "feddyn": {"alpha": 0.1},
    "scaffold": {},
}


def optimum(run: Run) -> Tensor:
    """(9,) float64: of the mean loss over all samples, by L-BFGS from the same initial weights.

    Softmax does not see a sum over classes, which no gradient moves either: so it is the only one.
    """
    shards = [runtime.setup.shard.train for runtime in run.runtimes.values()]
    assert {len(shard) for shard in shards} == {48}
    x, y = torch.cat([shard.x for shard in shards]).double(), torch.cat([shard.y for shard in shards])
    w = build("convex:linear", Example.zeros((2,), 3), 42, "shared").vector.double().requires_grad_()
    optimiser = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = functional.cross_entropy(x @ w[:6].view(3, 2).T + w[6:], y)
        torch.autograd.backward(loss)
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    assert w.grad is not None
    assert w.grad.norm() < 1e-6
    return w.detach()


@pytest.fixture(scope="module")
def distances(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """‖w − w*‖ after the last round, by protocol."""
    found = {}
    for name, settings in PROTOCOLS.items():
        directory: Path = tmp_path_factory.mktemp(name)
        keys = {"rounds": ROUNDS, "init": "shared", "trace": False, "model": {"name": "convex:linear"}, "data": SKEWED}
        run = federate(directory, {"name": name, **FULL_BATCH, **settings}, 2, **keys)
        found[name] = float((run.runtimes["peer0"].peer.model.double() - optimum(run)).norm())
    return found


def test_fedavg_misses_the_optimum(distances: dict[str, float]) -> None:
    assert distances["fedavg"] > 0.4


@pytest.mark.parametrize("name", ["feddyn", "scaffold"])
def test_corrected_methods_reach_it(distances: dict[str, float], name: str) -> None:
    assert distances[name] < 0.1 * distances["fedavg"]
