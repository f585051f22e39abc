"""The same spec and seed give the same model, bit for bit, in every run, whoever is killed, and on both networks.

And the theory's bytes.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from every_protocol import ADAM, SETTINGS, SGD, keys
from faults.accidents import start_and_die
from real_peers import Build, SmallFederation, digests

from peer.protocols.registry import PROTOCOLS
from peer.runtime.in_process import run_in_process
from peer.telemetry.results import AUDIT

pytestmark = pytest.mark.long

EXTRACTOR, HEAD = 4 * 116_352, 4 * 1_290
"""Bytes of mlp's parts for digits."""
MODEL = EXTRACTOR + HEAD
ROUNDS = 3
FAULTS = Path(__file__).parents[1] / "faults"
"""Where the protocols are that make every call."""
CASES: dict[str, tuple[int, int | None]] = {
    # peers, bytes of tensors that each peer sends; a ring all-reduce is 2(N−1)/N of the vector
    "fibfl": (3, ROUNDS * 2 * EXTRACTOR),
    "fibfl+": (3, ROUNDS * 2 * EXTRACTOR),
    "fibfl++": (4, EXTRACTOR * 3 // 2 + (ROUNDS - 1) * 2 * 2 * EXTRACTOR),
    "rdfl": (3, ROUNDS * 2 * MODEL),
    "fedavg": (3, (1 + ROUNDS) * MODEL * 4 // 3),
    "fedprox": (3, ROUNDS * MODEL * 4 // 3),
    "feddyn": (3, ROUNDS * 2 * MODEL * 4 // 3),
    "scaffold": (3, ROUNDS * 2 * MODEL * 4 // 3),
    "ri-fedavg": (3, ROUNDS * MODEL * 4 // 3),
    "dp-fedavg": (3, ROUNDS * MODEL * 4 // 3),
    "hearth": (3, ROUNDS * EXTRACTOR * 4 // 3),
    "fedrep": (4, ROUNDS * EXTRACTOR * 3 // 2),
    "fedisp": (3, ROUNDS * MODEL),
    "gossip-sgd": (5, ROUNDS * 4 * MODEL),
    "ring-median": (3, ROUNDS * 2 * EXTRACTOR),
    "def-kt": (4, None),  # who sends is drawn
    "vpdl": (3, ROUNDS * 2 * MODEL),
    "cycle-pdl": (3, None),
    "cycle-gossip": (3, (1 + ROUNDS) * 2 * MODEL),
    "flexifed": (3, None),
    "cgsv": (3, ROUNDS * 2 * MODEL),
    "rffl": (3, ROUNDS * 2 * MODEL),
    "cffl": (3, ROUNDS * 2 * MODEL),
    "solo": (2, 0),
}
MOMENTS = ("training:2", "communicating:3", "overtaken:2")
"""When a peer is killed: in its second batch, at its third message, evaluating round 2 when others are in round 3."""


def test_none_is_left_out() -> None:
    assert {*CASES} == {*SETTINGS} == {*PROTOCOLS}


def run_with_deaths(federation: SmallFederation, trained: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Its results, though at each of the moments a peer was killed: another in each protocol; one that trains."""
    ids, first = federation.ids, list(PROTOCOLS).index(federation.spec.protocol.name)
    order = sorted((ids[(first + k) % len(ids)] for k in range(len(ids))), key=lambda id: id not in (trained or ids))
    start_and_die(federation, dict(zip(order, MOMENTS, strict=False)))
    assert federation.wait() == dict.fromkeys(ids, 0), federation.account()
    assert not [event for id in ids for event in federation.events(id, "conflict")]
    return federation.results()


@pytest.mark.parametrize("name", CASES)
async def test_every_protocol(name: str, federation: Build, tmp_path: Path) -> None:
    """Once in peace, once with deaths of those that share anything, once in process."""
    peers, sent = CASES[name]
    data = {"name": "digits", "limit": 300, "partition": {"kind": "dirichlet", "alpha": 0.5}, "validation": 0.2}
    protocol, beside = {"name": name, **SETTINGS[name]}, keys(name, [f"peer{i}" for i in range(peers)])
    first, second = (federation(protocol, peers, data=data, rounds=ROUNDS, **beside) for _ in range(2))
    results = first.run()
    trained = [id for id, result in results.items() if any(one["loss"] is not None for one in result["history"])]
    again = run_with_deaths(second, trained) if peers > 2 else second.run()
    assert digests(again) == digests(results)
    runtimes = await run_in_process(first.spec, tmp_path / "memory")
    assert {id: one.setup.model.sha256() for id, one in runtimes.items()} == digests(results)
    if sent is not None:
        assert {id: result["tensor_bytes_sent"] for id, result in results.items()} == dict.fromkeys(first.ids, sent)
    shares, records = first.spec.protocol.shares(ROUNDS), first.spec.protocol.records
    assert told(first) >= {one.vector for one in shares if one.scalars} | {one.name for one in records}


def told(federation: SmallFederation) -> set[str]:
    """The vectors with which numbers have left, and the records."""
    lines = [line for id in federation.ids for line in (federation.directory / id / AUDIT).read_text().splitlines()]
    return {name for line in lines for name in json.loads(line)["told"]}


async def test_deaths_where_the_noise_is_secret(federation: Build) -> None:
    """It differs from run to run; but a round that is replayed has the same, so that all end with one model."""
    made = federation({"name": "dp-fedavg", **SGD}, 3, data={"name": "digits", "limit": 300}, rounds=ROUNDS)
    assert len({*digests(run_with_deaths(made)).values()}) == 1


async def test_deaths_where_resources_are_measured(federation: Build, tmp_path: Path) -> None:
    """They differ from run to run; what was told in this one, before a death or after, has these bits once more."""
    protocol, data = {"name": "flexifed", **SGD}, {"name": "digits", "limit": 300}
    measured = federation(protocol | {"resources": "measured"}, 3, data=data, rounds=ROUNDS)
    results = run_with_deaths(measured)
    replay = protocol | {"resources": "replay"}
    again = federation(replay, 3, data=data, rounds=ROUNDS, recording=str(measured.directory))
    runtimes = await run_in_process(again.spec, tmp_path / "memory")
    assert {id: one.setup.model.sha256() for id, one in runtimes.items()} == digests(results)


async def test_every_call_of_the_interface(federation: Build, tmp_path: Path) -> None:
    protocol, data = {"name": "callers:EveryCall", "epochs": 1}, {"name": "digits", "limit": 300}
    first, second = (federation(protocol, 4, data=data, rounds=ROUNDS, code=str(FAULTS)) for _ in range(2))
    results = first.run()
    assert digests(second.run()) == digests(results)
    runtimes = await run_in_process(first.spec, tmp_path / "memory")
    assert {id: one.setup.model.sha256() for id, one in runtimes.items()} == digests(results)
    assert len({result["replicated"]["total"] for result in results.values()}) == 1
    for result in results.values():
        assert [len(one["notes"]["norms"]) for one in result["history"]] == [4] * ROUNDS


async def test_another_seed_is_another_model(federation: Build, tmp_path: Path) -> None:
    shas = set()
    for seed in (1, 2):
        made = federation({"name": "rdfl", **SGD}, seed=seed, rounds=1)
        runtimes = await run_in_process(made.spec, tmp_path / str(seed))
        shas |= {one.setup.model.sha256() for one in runtimes.values()}
    assert len(shas) == 6


@pytest.mark.parametrize(("name", "wire"), [("fedavg", "bfloat16"), ("gossip-sgd", "top-k")])
async def test_vectors_that_do_not_travel_as_they_are(name: str, wire: str, federation: Build, tmp_path: Path) -> None:
    made = federation({"name": name, **SGD}, 3, data={"name": "digits", "limit": 120}, rounds=2, wire=wire)
    results = made.run()
    runtimes = await run_in_process(made.spec, tmp_path / "memory")
    assert {id: one.setup.model.sha256() for id, one in runtimes.items()} == digests(results)
    assert len({*digests(results).values()}) == (1 if name == "fedavg" else 3)


async def test_deaths_where_a_codec_draws(federation: Build, tmp_path: Path) -> None:
    wire, code = {"kind": "codec", "name": "quantisers:Steps", "options": {"steps": 15}}, str(FAULTS)
    made = federation({"name": "rdfl", **SGD}, 3, rounds=ROUNDS, wire=wire, code=code)
    results = run_with_deaths(made)
    runtimes = await run_in_process(made.spec, tmp_path / "memory")
    assert {id: one.setup.model.sha256() for id, one in runtimes.items()} == digests(results)


JITTERED = """
import numpy as np
import torch
from torch.utils.data import Dataset
rng = np.random.default_rng()
class Jittered(Dataset):
    def __init__(self):
        self.R, self.targets = np.random.RandomState(), [number % 3 for number in range(120)]
    def __len__(self):
        return 120
    def __getitem__(self, number):
        return torch.full((1, 4, 4), self.targets[number] + self.R.normal() + rng.random()), self.targets[number]
def scans():
    return Jittered()
"""


async def test_deaths_where_the_data_draw_from_generators_of_their_own(federation: Build, tmp_path: Path) -> None:
    (tmp_path / "jittered.py").write_text(JITTERED)
    data, code = {"name": "jittered:scans", "workers": 1}, str(tmp_path)
    made = federation({"name": "rdfl", **SGD}, 3, data=data, rounds=ROUNDS, code=code)
    results = run_with_deaths(made)
    runtimes = await run_in_process(made.spec, tmp_path / "memory")
    assert {id: one.setup.model.sha256() for id, one in runtimes.items()} == digests(results)


async def test_a_death_between_predictions_and_result(federation: Build, tmp_path: Path) -> None:
    looked = {"resamples": 100, "predictions": True}
    one = federation({"name": "fedavg", "epochs": 1}, peers=3, rounds=2, final_evaluation=looked)
    await run_in_process(one.spec, tmp_path / "memory")
    start_and_die(one, {"peer1": "looking-closer:1"})
    assert one.wait() == dict.fromkeys(one.ids, 0), one.account()
    for name in ("predictions.csv", "result.json"):
        made, expected = ((place / "peer1" / name).read_text() for place in (one.directory, tmp_path / "memory"))
        if name == "predictions.csv":
            assert made == expected
        else:
            assert json.loads(made)["final"] == json.loads(expected)["final"]


async def test_deaths_in_a_training_loop_of_the_user_s(federation: Build, tmp_path: Path) -> None:
    """It draws, reads by a loader of its own and keeps an optimiser and tensors from round to round."""
    plain = (Path(__file__).parents[2] / "examples" / "loops" / "pytorch_loop.py").read_text("utf-8")
    (tmp_path / "drawing_loop.py").write_text(
        plain + "\n\ndef drawing(loop):\n"
        "    kept = loop.state.setdefault('drawn', torch.zeros(()))\n"
        "    kept += torch.rand(())\n"
        "    return {'loss': plain(loop), 'drawn': kept}\n"
    )
    training, data = {"loop": "drawing_loop:drawing"}, {"name": "digits", "limit": 300}
    made = federation({"name": "fibfl", **ADAM}, 3, data=data, rounds=ROUNDS, code=str(tmp_path), training=training)
    results = run_with_deaths(made)
    runtimes = await run_in_process(made.spec, tmp_path / "memory")
    assert {id: one.setup.model.sha256() for id, one in runtimes.items()} == digests(results)
    for result in results.values():
        drawn = [number for one in result["history"] for number in one["notes"]["drawn"]]
        assert len(drawn) == 2 * ROUNDS  # one for each phase
        assert sorted(drawn) == drawn
