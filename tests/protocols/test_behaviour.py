"""Peers that misbehave by the spec: what leaves them, what they keep, and what everybody else makes of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Run, federate, resolve

from peer.errors import InputError
from peer.learning.data.shard import CommonData
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.protocols.declarations import Share
from peer.runtime.rounds.adversary import SimulatedAdversary, flip_labels
from peer.spec.blocks import Noise, SignFlip, Stale

BEHAVIOUR = {
    "peer1": {"kind": "noise", "scale": 0.5},
    "peer2": {"kind": "stale"},
    "peer3": {"kind": "sign-flip"},
    "peer4": {"kind": "label-flip", "rate": 0.4},
}
GOSSIP = {"name": "gossip-sgd", "lr": 0.1}
CODE = """
import torch
from peer import SGD, Phase, Protocol, Share
class Updates(Protocol):
    paper = "none"
    def local(self): return (Phase("model", 1, SGD(0.1)),)
    def shares(self, rounds): return (Share("update", like="model"), Share("sealed", bytes=True, size=8))
    async def round(self, peer):
        before = peer.model.clone()
        await peer.train(*self.local())
        peer.state["update"], peer.state["sealed"] = peer.model - before, torch.full((8,), 3, dtype=torch.uint8)
        everyone = await peer.all_gather("update")
        beside = await peer.exchange("update")
        sealed = await peer.exchange("sealed")
        for id, received in everyone.items():
            peer.state[f"of {id}"] = received.vector
        assert all(torch.equal(beside[id].vector, everyone[id].vector) for id in beside if id != "peer2")
        assert all(bool((one.vector == 3).all()) for one in sealed.values())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return federate(tmp_path_factory.mktemp("run"), GOSSIP, 5, rounds=3, behaviour=BEHAVIOUR)


def sent(run: Run, peer: str, round: int) -> Any:
    trace = run.trace(peer, round)
    return trace["sent"] if "sent" in trace.vectors else trace["before"]


def test_everybody_blends_what_was_sent_and_what_it_has_itself(run: Run) -> None:
    for round in (1, 2, 3):
        for peer in run.ids:
            own = run.trace(peer, round)["before"]
            others = [sent(run, other, round) for other in run.ids if other != peer]
            np.testing.assert_allclose(run.trace(peer, round)["after"], np.mean([own, *others], axis=0), atol=1e-5)


def test_honest_peers_send_what_they_have(run: Run) -> None:
    liars = {peer for peer in run.ids if "sent" in run.trace(peer, 1).vectors}
    assert liars == {"peer1", "peer2", "peer3"}


def test_noise_is_new_in_each_message_and_of_that_size(run: Run) -> None:
    noises = [sent(run, "peer1", round) - run.trace("peer1", round)["before"] for round in (1, 2, 3)]
    for noise in noises:
        assert abs(noise.std() - 0.5) < 0.06
        assert abs(noise.mean()) < 0.1
    assert abs(np.corrcoef(noises[0], noises[1])[0, 1]) < 0.2


def test_a_stale_peer_sends_its_first_model_for_ever(run: Run) -> None:
    first = run.trace("peer2", 1)["before"]
    for round in (1, 2, 3):
        assert (sent(run, "peer2", round) == first).all()
    assert (run.trace("peer2", 3)["before"] != first).any()


def test_a_flipped_sign_reverses_the_round_s_change(run: Run) -> None:
    for round in (1, 2, 3):
        trace = run.trace("peer3", round)
        np.testing.assert_allclose(trace["sent"] - trace["start"], trace["start"] - trace["before"], atol=1e-6)


def test_targets_are_flipped_in_training_only(run: Run) -> None:
    spec, setup = run.runtimes["peer4"].setup.spec, run.runtimes["peer4"].setup
    true = CommonData(spec.data, spec.ids).shard("peer4")
    wrong = setup.shard.train.y != true.train.y
    assert int(wrong.sum()) == round(0.4 * len(true.train))
    assert torch.equal(setup.shard.train.x, true.train.x)
    assert torch.equal(setup.shard.test.y, true.test.y)
    assert (setup.shard.proportions == true.proportions).all()
    told = np.bincount(setup.shard.train.y.numpy(), minlength=10) / len(true.train)
    np.testing.assert_allclose(run.runtimes["peer4"].peer.proportions.numpy(), told)


def test_everybody_is_told(run: Run) -> None:
    for peer in run.ids:
        events = [json.loads(line) for line in (run.out / peer / "events.jsonl").read_text().splitlines()]
        told = next(event["peers"] for event in events if event["event"] == "behaviour")
        assert told == {
            "peer1": "noise, scale 0.5",
            "peer2": "stale",
            "peer3": "sign-flip",
            "peer4": "label-flip, rate 0.4",
        }


def test_it_is_agreed_upon_like_all_else(tmp_path: Path) -> None:
    with_it, without = (resolve(tmp_path, GOSSIP, 5, behaviour=behaviour) for behaviour in (BEHAVIOUR, {}))
    assert with_it.agreement.digests["behaviour"] != without.agreement.digests["behaviour"]


def test_what_happened_is_the_same_after_a_break(run: Run, tmp_path: Path) -> None:
    """Rounds that come later begin from a checkpoint: what was first sent, and every draw, is found again."""
    federate(tmp_path, GOSSIP, 5, rounds=2, behaviour=BEHAVIOUR)
    assert federate(tmp_path, GOSSIP, 5, rounds=3, behaviour=BEHAVIOUR).models() == run.models()


def test_a_mean_takes_what_is_sent_and_gives_all_the_same(tmp_path: Path) -> None:
    behaviour = {"peer0": {"kind": "sign-flip"}, "peer2": {"kind": "stale"}}
    run = federate(tmp_path, {"name": "fedavg", "lr": 0.1, "epochs": 1}, 3, rounds=2, behaviour=behaviour)
    assert len({*run.models().values()}) == 1
    traces = run.traces(2)
    weights = [trace.facts["samples"] for trace in traces.values()]
    vectors = [sent(run, peer, 2) for peer in run.ids]
    expected = np.average(vectors, axis=0, weights=weights)
    for trace in traces.values():
        np.testing.assert_allclose(trace["after"], expected, atol=1e-5)


def test_a_token_goes_on_as_it_is_sent(tmp_path: Path) -> None:
    honest = federate(tmp_path / "honest", "fedisp", 3, rounds=1)
    run = federate(tmp_path / "run", "fedisp", 3, rounds=1, behaviour={"peer0": {"kind": "noise", "scale": 0.1}})
    assert run.models()["peer0"] == honest.models()["peer0"]
    distance = np.abs(run.trace("peer1", 1)["after"] - sent(run, "peer0", 1))
    assert distance.mean() < 0.02 < np.abs(run.trace("peer1", 1)["after"] - honest.trace("peer1", 1)["after"]).mean()


def test_updates_are_reversed_and_bytes_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "updates.py").write_text(CODE)
    name = {"name": "updates:Updates"}
    behaviour = {"peer1": {"kind": "sign-flip"}, "peer2": {"kind": "noise", "scale": 1.0}}
    run = federate(tmp_path / "run", name, 3, rounds=1, code=str(tmp_path), behaviour=behaviour)
    states = {id: runtime.peer.state for id, runtime in run.runtimes.items()}
    for state in states.values():
        torch.testing.assert_close(state["of peer0"], states["peer0"]["update"])
        torch.testing.assert_close(state["of peer1"], -states["peer1"]["update"])
        assert 0.8 < float((state["of peer2"] - states["peer2"]["update"]).std()) < 1.2


@pytest.mark.parametrize("behaviour", [Noise(kind="noise", scale=3.0), SignFlip(kind="sign-flip")])
@pytest.mark.parametrize("share", [Share("model"), Share("extractor"), Share("u", like="head"), Share("u")])
def test_running_statistics_leave_as_they_are(behaviour: Noise | SignFlip, share: Share) -> None:
    extractor = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    head = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    model = Model(Split(extractor, head), settings="bn", example=Example.zeros((3,), 2))
    misbehaviour = SimulatedAdversary(behaviour, model, 1, "peer0")
    misbehaviour.begin(1)
    model.vector.add_(1.0)
    whole = model.vector[model.part(share.part or "model")]
    told = misbehaviour.transform(share, whole)
    trained = torch.zeros(len(model.vector), dtype=torch.bool)
    for entry in model.layout:
        entry.view(trained)[...] = entry.trainable or share.part is None
    changes = trained[model.part(share.part or "model")]
    assert torch.equal(told != whole, changes)


def test_vectors_of_one_name_and_several_lengths_are_stale_apart() -> None:
    model = Model(Split(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)), settings="m", example=Example.zeros((3,), 2))
    misbehaviour, share = SimulatedAdversary(Stale(kind="stale"), model, 1, "peer0"), Share("u")
    first = [misbehaviour.transform(share, torch.full((size,), 1.0)) for size in (2, 3)]
    again = [misbehaviour.transform(share, torch.full((size,), 2.0)) for size in (2, 3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    again[0].zero_()  # what is sent may be worked on, as a mean's vector is
    assert torch.equal(misbehaviour.transform(share, torch.ones(2)), first[0])


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0])
def test_flipped_labels_are_others_each_as_likely(rate: float) -> None:
    labels = torch.arange(9000) % 3
    flipped = flip_labels(labels, rate, 3, seed=1, peer="peer0")
    wrong = flipped != labels
    assert int(wrong.sum()) == int(9000 * rate)
    shift = (flipped - labels)[wrong] % 3
    assert rate < 0.5 or abs(float((shift == 1).double().mean()) - 0.5) < 0.03
    assert not torch.equal(flipped, flip_labels(labels, rate, 3, seed=1, peer="peer1"))
    assert torch.equal(labels, flip_labels(labels * 0, rate, 1, seed=1, peer="peer0") + labels)


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        ({"peer7": {"kind": "stale"}}, "names `peer7`, which is not in the ring; did you mean `peer"),
        ({"peer1": {"kind": "noize"}}, "unknown behaviour `noize`; did you mean `noise`"),
        ({"peer1": {"kind": "noise", "scle": 1}}, "unknown key `scle`; did you mean `scale`"),
        ({"peer1": {"kind": "noise", "scale": 0}}, "greater than 0"),
        ({"peer1": {"kind": "label-flip", "rate": 1.5}}, "less than or equal to 1"),
        ({"peer1": "noize"}, "unknown behaviour `noize`; did you mean `noise`"),
        ({"peer1": 3}, "`behaviour.peer1`"),
    ],
)
def test_wrong_settings(tmp_path: Path, behaviour: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        resolve(tmp_path, GOSSIP, 3, behaviour=behaviour)


def test_a_word_alone_is_the_kind(tmp_path: Path) -> None:
    word, block = (resolve(tmp_path, GOSSIP, 3, behaviour={"peer1": told}) for told in ("stale", {"kind": "stale"}))
    assert word.agreement.digest == block.agreement.digest
