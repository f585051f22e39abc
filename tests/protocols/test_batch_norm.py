"""A model with BatchNorm under every protocol: its running statistics travel with the part in which they lie."""

from pathlib import Path
from typing import Any

import pytest
import torch
from every_protocol import SETTINGS, keys
from federations import Run, federate
from torch import nn

from peer.protocols.registry import PROTOCOLS

IDS = [f"peer{number}" for number in range(4)]
MODEL = f"{Path(__file__).stem}:normalised"
ALIKE = {"fibfl+", "fibfl++", "rdfl", "fedprox", "cycle-gossip", "cycle-pdl", "cgsv"}
"""Treat statistics as fibfl, fedavg, gossip-sgd, vpdl and rffl do, which are quick."""


def normalised(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """BatchNorm in both parts."""
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
    return extractor, nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, classes))


def run(directory: Path, name: str, **more: Any) -> Run:
    spec = {"trace": False, "model": {"name": MODEL}, **keys(name, IDS), **more}
    if name == "cffl":
        spec["data"] = {"name": "digits", "limit": 120, "validation": 0.2}
    return federate(directory, {"name": name, **SETTINGS[name]}, len(IDS), **spec)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in ALIKE)) for name in PROTOCOLS])
def test_statistics_stay_sane_and_the_bits_the_same(tmp_path: Path, name: str) -> None:
    """In each run with the same seed, and in none with another."""
    first, second, other = (
        run(tmp_path / directory, name, seed=seed) for directory, seed in (("first", 5), ("second", 5), ("other", 6))
    )
    assert first.models() == second.models()
    assert all(first.models()[peer] != other.models()[peer] for peer in first.ids)
    moved = set()
    for runtime in first.runtimes.values():
        model = runtime.setup.model
        assert bool(torch.isfinite(model.vector).all())
        variances = {key: tensor for key, tensor in model.state().items() if key.endswith("running_var")}
        assert all(bool((variance >= 0).all()) for variance in variances.values())
        moved |= {key for key, variance in variances.items() if not torch.equal(variance, torch.ones_like(variance))}
    assert moved == {"extractor.2.running_var", "head.0.running_var"}, "they follow the data, at somebody at least"


@pytest.mark.parametrize("kind", ["noise", "sign-flip"])
def test_a_liar_s_statistics_are_no_poison(tmp_path: Path, kind: str) -> None:
    """A negative variance would end every neighbour at once, and no experiment would be left."""
    finished = run(tmp_path, "gossip-sgd", rounds=3, behaviour={"peer1": {"kind": kind}})
    for runtime in finished.runtimes.values():
        assert bool(torch.isfinite(runtime.setup.model.vector).all())
