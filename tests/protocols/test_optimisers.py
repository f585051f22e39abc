"""Which optimisers live on from round to round, which are new, and when FibFL++'s third one is dropped."""

from pathlib import Path
from typing import Any

import pytest
from federations import federate

from peer.learning.training.optimiser import SGD, Adam
from peer.learning.training.phase import Phase
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.runtime.rounds.local_peer import LocalPeer

ADAM, SGD9 = Adam(0.01), SGD(0.01, 0.9)
TWO_PHASES = (Phase("head", 1, ADAM, 64, "head"), Phase("extractor", 20, ADAM, 64, "extractor"))
DEFAULTS: dict[str, tuple[Phase, ...]] = {
    "fibfl": TWO_PHASES,
    "fibfl+": TWO_PHASES,
    "fibfl++": TWO_PHASES,
    "solo": TWO_PHASES,
    "rdfl": (Phase("model", 5, SGD9, 64, "model"),),
    "fedavg": (Phase("model", 5, SGD9, 64, "model"),),
    "fedprox": (Phase("model", 5, SGD(0.01), 128),),
    "feddyn": (Phase("model", 5, SGD(0.01), 128),),
    "scaffold": (Phase("model", 5, SGD(0.01), 128),),
    "ri-fedavg": (Phase("model", 5, SGD(0.01), 128),),
    "fedrep": (Phase("head", 2, SGD9, 64, "head"), Phase("extractor", 2, SGD9, 64, "extractor")),
    "gossip-sgd": (Phase("model", 1, SGD9, 64, "model"),),
    "hearth": (Phase("model", 5, Adam(0.001, betas=(0.9, 0.99)), 64, "model"),),
    "fedisp": (Phase("model", 1, SGD(0.01, 0.5, 1e-5), 64),) * 2,
    "cgsv": (Phase("model", 3, SGD(0.1), 64),),
    "rffl": (Phase("model", 3, SGD(0.1), 64),),
    "cffl": (Phase("model", 3, SGD(0.1), 64),),
    "dp-fedavg": (Phase("model", 5, SGD(0.01), 128),),
    "def-kt": (Phase("model", 1, SGD(0.01, 0.5, 1e-5), 64),),
    "cycle-gossip": (Phase("model", 1, SGD9, 64, "model"),),
    "flexifed": (Phase("model", 1, SGD9, 64),),
    "ring-median": TWO_PHASES,
    "vpdl": (Phase("model", 1, SGD(0.1 * 0.1, 0.9), 128, "model"),),
    "cycle-pdl": (Phase("model", 1, SGD(0.1 * 0.1, 0.9), 128, "model"),),
}


def test_every_protocol_is_listed() -> None:
    assert {*DEFAULTS} == {*PROTOCOLS}


@pytest.mark.parametrize("name", DEFAULTS)
def test_local_training_as_published(name: str) -> None:
    assert protocol_class(name)().local() == DEFAULTS[name]  # type: ignore[call-arg]


@pytest.mark.parametrize("like", [name for name in DEFAULTS if name != "solo"])
def test_solo_trains_as_the_compared_protocol_and_keeps_its_optimisers(like: str) -> None:
    phases = protocol_class("solo")(name="solo", like=like, settings={"lr": 0.02}).local()
    compared = protocol_class(like)(name=like, lr=0.02).local()
    assert [(p.part, p.epochs, p.optimiser) for p in phases] == [(p.part, p.epochs, p.optimiser) for p in compared]
    assert all(phase.keep for phase in phases)


def test_solo_renews_its_optimisers_where_that_is_set() -> None:
    settings = {"keep_momentum": False}
    phases = protocol_class("solo")(name="solo", like="fedavg", settings=settings).local()  # type: ignore[call-arg]
    assert [phase.keep for phase in phases] == [None]


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("fibfl", {"head": 2 * 3, "extractor": 2 * 2 * 3}),
        ("fibfl+", {"head": 2 * 3, "extractor": 2 * 2 * 3}),
        ("fibfl++", {"head": 2 * 2, "extractor": 2 * 2 * 2}),
        ("solo", {"head": 2 * 3, "extractor": 2 * 2 * 3}),
    ],
)
def test_steps_of_the_adams_after_three_rounds(tmp_path: Path, protocol: str, expected: dict[str, int]) -> None:
    """40 samples are two batches of 20; FibFL++'s first round is warm-up, whose Adam is gone by the end."""
    epochs = {"head_epochs": 1, "extractor_epochs": 2, "batch_size": 20}
    settings: dict[str, Any] = {"settings": epochs} if protocol == "solo" else epochs
    run = federate(tmp_path, {"name": protocol, **settings}, 3, rounds=3)
    for runtime in run.runtimes.values():
        state = runtime.participant.learner.trainer.state()
        assert {key.split("/")[0]: int(state[key]) for key in state if key.endswith("/step")} == expected


@pytest.mark.parametrize("kept", [None, True, False])
@pytest.mark.parametrize("name", ["rdfl", "gossip-sgd", "fedavg", "fedrep"])
def test_momentum_lives_on_or_does_not(tmp_path: Path, name: str, kept: bool | None) -> None:
    epochs = {"head_epochs": 1, "extractor_epochs": 1} if name == "fedrep" else {"epochs": 1}
    asked = {} if kept is None else {"keep_momentum": kept}
    run = federate(tmp_path, {"name": name, **epochs, **asked}, 3, rounds=1)
    state = run.runtimes["peer0"].participant.learner.trainer.state()
    parts = {key.split("/")[0] for key in state if "momentum" in key}
    expected = {"head", "extractor"} if name == "fedrep" else {"model"}
    assert parts == (set() if kept is False else expected)


def test_the_warm_up_adam_lives_through_warm_up_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[int, Phase]] = []
    forgotten: list[tuple[int, str]] = []
    train, forget = LocalPeer.train, LocalPeer.forget

    async def watched_train(self: LocalPeer, *phases: Phase) -> float:
        trained.extend((self.round, phase) for phase in phases if self.id == "peer0")
        return await train(self, *phases)

    def watched_forget(self: LocalPeer, optimiser: str) -> None:
        forgotten.extend([(self.round, optimiser)] * (self.id == "peer0"))
        forget(self, optimiser)

    monkeypatch.setattr(LocalPeer, "train", watched_train)
    monkeypatch.setattr(LocalPeer, "forget", watched_forget)
    protocol = {"name": "fibfl++", "warmup": 2, "head_epochs": 3, "extractor_epochs": 1}
    federate(tmp_path, protocol, 3, rounds=3)
    joint = Phase("model", 3, ADAM, 64, "warm-up")
    assert trained[:2] == [(1, joint), (2, joint)]
    assert forgotten == [(2, "warm-up")]
    assert [(round, phase.keep) for round, phase in trained[2:]] == [(3, "head"), (3, "extractor")]
