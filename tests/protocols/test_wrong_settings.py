"""A hyperparameter that makes no sense is refused by its name before anything starts."""

from pathlib import Path
from typing import Any

import pytest
from federations import resolve

from peer.errors import InputError

WRONG: dict[str, tuple[dict[str, Any], ...]] = {
    "fedprox": ({"mu": -0.1}, {"keep_momentum": True}),
    "feddyn": ({"alpha": 0}, {"participation": 0}),
    "scaffold": ({"eta_g": 0}, {"momentum": 0.9}),
    "ri-fedavg": ({"lam": -1}, {"length": 0}, {"directions": 1}, {"intervals": 1}, {"clip": 0}),
    "dp-fedavg": ({"clip_norm": 0}, {"noise_multiplier": -1}, {"participation": 0}, {"delta": 1}, {"noise": 1}),
    "def-kt": ({"epochs": 0}, {"lr": 0}, {"momentum": 2}, {"topology": "ring"}),
    "cycle-pdl": (
        {"tau_opt": 0.8},
        {"lam": -1},
        {"epochs": 0},
        {"temperature": 0},
        {"lr_decay": 1.5},
        {"alpha": 2},
        {"reputation_every": 0},
        {"predictions": "guessed"},
    ),
    "cycle-gossip": ({"beta": -1}, {"every": 0}, {"alpha": 1.5}, {"epochs": -1}),
    "flexifed": ({"alpha": 1.5}, {"beta": -0.1}, {"resources": "guessed"}),
    "cgsv": ({"gamma": 0}, {"alpha": 1.1}, {"beta": 0}, {"floor": 0}),
    "rffl": ({"gamma": -1}, {"after": -1}, {"threshold": 2}),
    "cffl": ({"clip": 0}, {"upload": 0}, {"memory": 1.5}, {"alpha": 0}),
    "hearth": ({"beta2": 1}, {"lr": 0}, {"epochs": -1}, {"predicts": "global"}, {"batch_size": 0}),
}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [(name, wrong) for name, each in WRONG.items() for wrong in each],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_it_is_refused(tmp_path: Path, name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`(protocol.)?{next(iter(wrong))}`"):
        resolve(tmp_path, {"name": name, **wrong}, 4)


def test_bounds_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`tau_opt` \(0\.8\) must be below `tau_max` \(0\.75\)"):
        resolve(tmp_path, {"name": "cycle-pdl", "tau_opt": 0.8}, 3)
