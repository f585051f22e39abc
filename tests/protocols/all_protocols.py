"""Settings of every protocol there is, for short runs of four peers."""

from typing import Any

TWO_PHASES = {"head_epochs": 1, "extractor_epochs": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "fibfl": TWO_PHASES,
    "fibfl+": {**TWO_PHASES, "tau": 0.1},
    "fibfl++": {**TWO_PHASES, "tau": 0.1},
    "rdfl": {"epochs": 1},
    "fedavg": {"epochs": 1, "participation": 0.6},
    "fedprox": {"epochs": 1, "participation": 0.6},
    "feddyn": {"epochs": 1, "participation": 0.6},
    "scaffold": {"epochs": 1, "participation": 0.6},
    "ri-fedavg": {"epochs": 1, "participation": 0.6, "length": 3, "directions": 2, "intervals": 2},
    "fedrep": {**TWO_PHASES, "participation": 0.6},
    "dp-fedavg": {"epochs": 1, "participation": 0.6, "insecure_reproducible_noise": True},
    "fedisp": {"participation": 0.6},
    "def-kt": {},
    "gossip-sgd": {"topology": "exponential"},
    "vpdl": {"warmup_epochs": 1},
    "cycle-pdl": {"warmup_epochs": 1, "reputation_every": 2},
    "cycle-gossip": {"every": 1},
    "flexifed": {"resources": "pinned"},
    "cgsv": {"epochs": 1},
    "rffl": {"epochs": 1, "after": 0},
    "cffl": {"epochs": 1},
    "ring-median": TWO_PHASES,
    "hearth": {"epochs": 1, "refit_epochs": 1},
    "solo": {"settings": TWO_PHASES},
}
KEYS: dict[str, dict[str, Any]] = {
    "cffl": {"data": {"name": "digits", "limit": 120, "validation": 0.2}},
    "flexifed": {"machines": {f"peer{i}": {"cores": 2**i, "memory": 32 / 2**i} for i in range(4)}},
}
"""Keys of the spec besides the protocol's own."""
