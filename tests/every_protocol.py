"""Every registered protocol with settings by which its rounds are short and all of it happens in a few of them."""

from collections.abc import Sequence
from typing import Any

SGD = {"epochs": 1}
ADAM = {"head_epochs": 1, "extractor_epochs": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "fibfl": ADAM,
    "fibfl+": ADAM | {"tau": 0.05},
    "fibfl++": ADAM | {"tau": 0.05},
    "rdfl": SGD,
    "fedavg": SGD | {"participation": 0.5},
    "fedprox": SGD | {"participation": 0.5},
    "feddyn": SGD | {"participation": 0.5},
    "scaffold": SGD | {"participation": 0.5},
    "ri-fedavg": SGD | {"length": 3, "directions": 2, "intervals": 2},
    "dp-fedavg": SGD | {"insecure_reproducible_noise": True},
    "hearth": SGD,
    "fedrep": ADAM,
    "fedisp": {},
    "gossip-sgd": SGD | {"topology": "exponential"},
    "ring-median": ADAM,
    "def-kt": {},
    "vpdl": {"warmup_epochs": 2},
    "cycle-pdl": {"warmup_epochs": 2, "reputation_every": 2},
    "cycle-gossip": SGD | {"beta": 0},
    "flexifed": SGD | {"resources": "pinned"},
    "cgsv": SGD,
    "rffl": SGD | {"after": 0},
    "cffl": SGD,
    "solo": {"like": "rdfl", "settings": SGD},
}
"""All have the same bits in each run."""


def keys(name: str, ids: Sequence[str]) -> dict[str, Any]:
    """What the spec says beside the protocol."""
    return {"machines": {id: {"cores": 2**k, "memory": 4} for k, id in enumerate(ids)}} if name == "flexifed" else {}
