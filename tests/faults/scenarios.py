"""The federations that are simulated."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from launcher.certificates import make_certificates
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

PATIENCE = 60.0
HERE = Path(__file__).parent


def long(rounds: int) -> "Scenario":
    """For looking at what grows."""
    return Scenario(f"long {rounds}", {"name": "fedavg", "epochs": 1, "batch_size": 64}, peers=3, rounds=rounds)


@dataclass(frozen=True)
class Scenario:
    """A federation."""

    name: str
    protocol: dict[str, Any]
    peers: int = 4
    rounds: int = 4
    keys: dict[str, Any] = field(default_factory=dict)
    """Keys of the spec besides the protocol's own."""
    secret: bool = False
    """What is drawn in secret differs from run to run: then all peers end in the same bits as one another."""
    wire: str | Mapping[str, Any] = "float32"
    dial_out: tuple[str, ...] = ()
    """Whom nobody can dial."""
    signed: bool = False
    """Members have certificates, and so f = 1 of four or more may lie."""

    @property
    def ids(self) -> list[str]:
        return [f"peer{i}" for i in range(self.peers)]


ONE_EPOCH = {"epochs": 1, "batch_size": 16}
CODEC = {"kind": "codec", "name": "quantisers:Marked"}
STOPPING = {
    "data": {"name": "tiny:clouds", "partition": {"kind": "dirichlet", "alpha": 5.0}},
    "hold_back": 0.3,
    "stop_early": {"patience": 2, "min_rounds": 4, "margin": 0.03},
    "finetune": {"epochs": 2, "part": "model", "lr": 0.1, "batch_size": 4},
}
"""What all peers find out together: here that they may end before the last round."""
LIARS = {
    "peer0": {"kind": "stale"},
    "peer1": {"kind": "noise", "scale": 0.5},
    "peer2": {"kind": "sign-flip"},
    "peer3": {"kind": "label-flip", "rate": 0.5},
}
UNEVEN = {"name": "tiny:clouds", "partition": {"kind": "dirichlet", "alpha": 1.0}}
"""What there is to order a ring by."""
DRIFT = [
    {"round": 2, "partition": {"kind": "dirichlet", "alpha": 1.0}},
    {"round": 4, "labels": [1, 2, 0]},
]
ONCE = {"head_epochs": 1, "extractor_epochs": 1, "batch_size": 16}
STANDARDISED = {
    "name": "csv",
    "path": str(HERE / "gaps.csv"),
    "partition": {"kind": "dirichlet", "alpha": 1.0},
    "impute": {"b": "mean", "c": "median", "d": "category"},
    "standardize": "federation",
    "drift": [{"round": 3, "partition": {"kind": "iid"}}],
}
"""By means and deviations that are found round the ring before round 1, as is what stands for missing values."""
PUBLIC = {"name": "tiny:data", "validation": 0.4}
"""With samples by which all peers judge."""
TRAINING = {
    "optimiser": {"name": "RAdam", "groups": {"*bias": {"weight_decay": 0.1}}},
    "scheduler": {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 1000, "every": "step"},
    "precision": "float16",
    "patience": 1,
    "accumulate": 2,
}
BY_THE_CLOCK = {
    "budget": {"seconds": 0.001},
    "step": "callers:noisy",
    "scheduler": {"name": "ExponentialLR", "gamma": 0.9},
}
"""What a replay must take from the journal, or the neighbours get two messages of one key."""
MACHINES = {f"peer{i}": {"cores": 2**i, "memory": 8} for i in range(5)}
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("fibfl", {"name": "fibfl", **ONCE}, peers=4, rounds=5),
        Scenario("fibfl+", {"name": "fibfl+", "tau": 0.0, **ONCE}),
        Scenario("fibfl++", {"name": "fibfl++", "tau": 0.0, **ONCE}, peers=5),
        Scenario("fibfl++ reordering", {"name": "fibfl++", "reorder_every": 2, **ONCE}, peers=5, rounds=5),
        Scenario("fibfl++ model", {"name": "fibfl++", "warmup_shares": "model", "warmup": 2, **ONCE}, peers=3),
        Scenario("restless", {"name": "tiny:Restless", **ONCE}, peers=6, rounds=6),
        Scenario("restless 2", {"name": "tiny:Restless", "every": 2, **ONCE}, peers=5, rounds=6),
        Scenario("talkative", {"name": "tiny:Talkative", **ONCE}, peers=4),
        Scenario("rdfl", {"name": "rdfl", "epochs": 1}),
        Scenario("fedavg", {"name": "fedavg", "epochs": 1, "participation": 0.5}, peers=5),
        Scenario("fedprox", {"name": "fedprox", "epochs": 1, "participation": 0.5}),
        Scenario("feddyn", {"name": "feddyn", "epochs": 1, "alpha": 0.1, "participation": 0.5}, peers=5),
        Scenario("scaffold", {"name": "scaffold", "epochs": 1, "participation": 0.5}, peers=5),
        Scenario("ri-fedavg", {"name": "ri-fedavg", "epochs": 1, "length": 3, "directions": 2, "intervals": 3}),
        Scenario("fedrep", {"name": "fedrep", "head_epochs": 1, "extractor_epochs": 1}),
        Scenario(
            "dp-fedavg",
            {"name": "dp-fedavg", "epochs": 1, "participation": 0.5, "insecure_reproducible_noise": True},
            peers=5,
        ),
        Scenario("dp-fedavg secret", {"name": "dp-fedavg", "epochs": 1, "participation": 0.7}, secret=True),
        Scenario("fedisp", {"name": "fedisp"}, peers=5),
        Scenario("def-kt", {"name": "def-kt", "batch_size": 16}, peers=5),
        Scenario("hearth", {"name": "hearth", "epochs": 1, "refit_epochs": 1, "batch_size": 16}),
        Scenario("gossip complete", {"name": "gossip-sgd"}),
        Scenario("gossip ring", {"name": "gossip-sgd", "topology": "ring"}, peers=5),
        Scenario("gossip exponential", {"name": "gossip-sgd", "topology": "exponential"}, peers=6, rounds=3),
        Scenario("vpdl", {"name": "vpdl", "lr": 0.01, "warmup_epochs": 1, "batch_size": 8}),
        Scenario("cycle-pdl", {"name": "cycle-pdl", "lr": 0.01, "warmup_epochs": 1, "reputation_every": 2}, rounds=5),
        Scenario("cycle-gossip", {"name": "cycle-gossip", "every": 2, "lr": 0.1}),
        Scenario("flexifed", {"name": "flexifed", "resources": "pinned"}, peers=5, keys={"machines": MACHINES}),
        Scenario("cgsv", {"name": "cgsv", "epochs": 1, "batch_size": 16}),
        Scenario("rffl", {"name": "rffl", "epochs": 1, "batch_size": 16, "after": 1, "threshold": 0.9}, peers=5),
        Scenario("cffl", {"name": "cffl", "epochs": 1, "lr": 0.85, "clip": 1, "upload": 1}, keys={"data": PUBLIC}),
        Scenario("ring-median", {"name": "ring-median", **ONCE}),
        Scenario("cross-evaluation", {"name": "extras.cross_evaluation:CrossEvaluation"}, keys={"init": "independent"}),
        Scenario("statistics", {"name": "extras.statistics:Statistics"}, rounds=2),
        Scenario("archive", {"name": "rdfl", "epochs": 1}, peers=3, rounds=7, keys={"keep": {"every": 2, "last": 2}}),
        Scenario("misbehaving", {"name": "gossip-sgd", "trim": 1}, peers=5, rounds=3, keys={"behaviour": LIARS}),
        Scenario(
            "drift",
            {"name": "fibfl++", "reorder_every": 1, **ONCE},
            rounds=5,
            keys={"data": {"name": "tiny:data", "drift": DRIFT}, "clip_gradient": 0.5},
        ),
        Scenario("own training", {"name": "fibfl", **ONCE}, peers=3, keys={"training": TRAINING, "hold_back": 0.3}),
        Scenario("by the clock", {"name": "fedavg"}, peers=3, secret=True, keys={"training": BY_THE_CLOCK}),
        Scenario("standardised", {"name": "fedavg", **ONE_EPOCH}, keys={"data": STANDARDISED}),
        Scenario("solo", {"name": "solo", "like": "rdfl", "settings": {"epochs": 1}}, peers=3),
        Scenario("every call", {"name": "callers:EveryCall", "epochs": 1, "batch_size": 16}),
        Scenario("secrets", {"name": "callers:Secrets", "epochs": 1, "batch_size": 16}, peers=3, secret=True),
        Scenario("keeping", {"name": "callers:Keeping", "epochs": 1, "batch_size": 16}, peers=3, rounds=5),
        Scenario("bfloat16", {"name": "callers:EveryCall", **ONE_EPOCH}, peers=3, rounds=3, wire="bfloat16"),
        Scenario("top-k", {"name": "callers:Updates", **ONE_EPOCH}, peers=3, rounds=3, wire="top-k"),
        Scenario("codec", {"name": "callers:Updates", **ONE_EPOCH}, peers=3, rounds=3, wire=CODEC),
        Scenario("stopping early", {"name": "fibfl", **ONCE}, rounds=20, keys=STOPPING),
        Scenario(
            "stopping early, restless",
            {"name": "tiny:Restless", **ONCE},
            peers=5,
            rounds=20,
            keys=STOPPING | {"evaluate_every": 2},
        ),
        Scenario("pair", {"name": "fedavg", "epochs": 1}, peers=2, rounds=6),
        Scenario("dialling out", {"name": "fibfl", **ONCE}, peers=5, rounds=5, dial_out=("peer1", "peer3")),
        Scenario("dialling out, directed", {"name": "fedavg", "epochs": 1}, peers=4, dial_out=("peer0", "peer2")),
        Scenario("dialling out, restless", {"name": "tiny:Restless", **ONCE}, peers=5, rounds=5, dial_out=("peer4",)),
    )
}


BYPASS = {"on_loss": "bypass", "absence": 5}
HEALING = {
    scenario.name: scenario
    for scenario in (
        Scenario("healing fibfl", {"name": "fibfl", **ONCE}, peers=5, rounds=12, keys=BYPASS),
        Scenario("healing fibfl++", {"name": "fibfl++", **ONCE}, 5, 12, BYPASS | {"data": UNEVEN}),
        Scenario("healing fedavg", {"name": "fedavg", "epochs": 1, "participation": 0.6}, 5, 12, BYPASS),
        Scenario("healing alike", {"name": "tiny:Alike", "epochs": 1}, 4, 12, BYPASS),
        Scenario("healing scaffold", {"name": "scaffold", "epochs": 1}, 4, 12, BYPASS),
        Scenario("healing secrets", {"name": "callers:Secrets", **ONE_EPOCH}, 4, 10, BYPASS, secret=True),
        Scenario("healing restless", {"name": "tiny:Restless", "every": 3, **ONCE}, 5, 12, BYPASS),
        Scenario("healing gossip", {"name": "gossip-sgd"}, peers=4, rounds=12, keys=BYPASS),
        Scenario("healing quorum", {"name": "fedavg", "epochs": 1}, 4, 8, BYPASS | {"start_with": 3}),
        Scenario("healing feddyn", {"name": "feddyn", "epochs": 1, "alpha": 0.1, "participation": 0.5}, 4, 12, BYPASS),
        Scenario("healing token", {"name": "tiny:Counting"}, peers=4, rounds=12, keys=BYPASS),
        Scenario("healing fedisp", {"name": "fedisp", "participation": 0.7}, peers=5, rounds=12, keys=BYPASS),
        Scenario("healing rffl", {"name": "rffl", "after": 1, "threshold": 0.7, **ONE_EPOCH}, 4, 12, BYPASS),
        Scenario("healing cffl", {"name": "cffl", "epochs": 1, "clip": 1}, 4, 10, BYPASS | {"data": PUBLIC}),
        Scenario("healing cycle", {"name": "cycle-gossip", "every": 3, "lr": 0.1}, 4, 12, BYPASS),
        Scenario(
            "healing cycle-pdl",
            {"name": "cycle-pdl", "lr": 0.01, "warmup_epochs": 1, "reputation_every": 3},
            4,
            10,
            BYPASS,
        ),
        Scenario("healing standardised", {"name": "fedavg", "epochs": 1}, 4, 12, BYPASS | {"data": STANDARDISED}),
        Scenario("signed five", {"name": "fibfl", **ONCE}, peers=5, rounds=12, keys=BYPASS, signed=True),
        Scenario("signed six", {"name": "fedavg", "epochs": 1}, peers=6, rounds=12, keys=BYPASS, signed=True),
        Scenario("signed four", {"name": "tiny:Restless", "every": 3, **ONCE}, 4, 12, BYPASS, signed=True),
        Scenario(
            "signed seven",
            {"name": "fedavg", "epochs": 1, "participation": 0.6},
            peers=7,
            rounds=10,
            keys=BYPASS | {"faulty_members": 2},
            signed=True,
        ),
        Scenario("signed codec", {"name": "gossip-sgd"}, 4, 10, BYPASS | {"wire": CODEC}, signed=True),
        Scenario("healing three", {"name": "fedavg", "epochs": 1}, peers=3, rounds=12, keys=BYPASS),
    )
}
"""The scenarios whose members may change."""


@cache
def certificates(name: str) -> Path | None:
    """Where a scenario's certificates lie, if it has any; they are made once in a process."""
    if not (SCENARIOS | HEALING)[name].signed:
        return None
    directory = Path(tempfile.mkdtemp(prefix="certificates-"))
    atexit.register(shutil.rmtree, directory)
    make_certificates(specification(name), directory, days=2)
    return directory


@cache
def specification(name: str) -> Spec:
    scenario = (SCENARIOS | HEALING)[name]
    content = {
        "name": "simulated",
        "rounds": scenario.rounds,
        "protocol": scenario.protocol,
        "model": "tiny:model",
        "data": {"name": "tiny:data"},
        "patience": PATIENCE,
        "code": str(HERE),
        "wire": scenario.wire,
        "ring": [
            {"id": id, **({"dials_out": True} if id in scenario.dial_out else {"address": f"127.0.0.1:{7000 + i}"})}
            for i, id in enumerate(scenario.ids)
        ],
        **scenario.keys,
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "federation.yaml"
        path.write_text(json.dumps(content))
        return load_spec(path)
