"""Runs whose vectors travel rounded or in parts: their blends again from the traces, and the bytes in the audit."""

from math import ceil, sqrt
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
from audits_written import as_read
from federations import Run, federate, resolve
from numpy.typing import NDArray

from launcher.commands.check import traffic
from launcher.plan import plan
from launcher.reports.privacy import PrivacyDeclaration, privacy
from launcher.views import Views
from peer.errors import InputError
from peer.protocols.fibfl import FibFL

GOLDEN = (1 + sqrt(5)) / 2
EXTRACTOR, HEAD = 520, 90
SHARE = 0.1
ROUNDS = 3
SETTINGS = {
    "fibfl": ({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1, "gamma": 0.3}, "bfloat16"),
    "gossip": ({"name": "gossip-sgd", "topology": "ring"}, {"kind": "top-k", "share": SHARE}),
    "fibfl+": ({"name": "fibfl+", "head_epochs": 1, "extractor_epochs": 1}, "top-k"),
    "fedavg": ({"name": "fedavg", "epochs": 1, "participation": 0.6}, "bfloat16"),
    "fedisp": ({"name": "fedisp"}, "bfloat16"),
    "coded": ({"name": "gossip-sgd", "topology": "ring"}, {"kind": "codec", "name": "faults.quantisers:Steps"}),
}
Vector = NDArray[np.float32]


class Exact(FibFL):
    """One whose vectors must arrive as they are."""

    name: Literal["test_wire:Exact"] = "test_wire:Exact"  # type: ignore[assignment]
    exact: ClassVar[bool] = True


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    directory = tmp_path_factory.mktemp("wire")
    return {
        name: federate(directory / name.replace("+", "p"), protocol, 4, rounds=ROUNDS, wire=wire)
        for name, (protocol, wire) in SETTINGS.items()
    }


def bfloat16(values: Vector) -> Vector:
    """To the nearest number whose last 16 bits are 0, of two the even one."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_each_blend_is_of_rounded_vectors_and_the_rest_goes_with_the_next(runs: dict[str, Run]) -> None:
    run, lost = runs["fibfl"], {peer: np.zeros(EXTRACTOR, np.float32) for peer in runs["fibfl"].ids}
    for round in range(1, ROUNDS + 1):
        traces, sent = run.traces(round), {}
        for peer, trace in traces.items():
            own = trace["before"].astype(np.float32)
            wanted = own + lost[peer]
            sent[peer] = bfloat16(np.where(np.sign(wanted) == np.sign(own), wanted, 0).astype(np.float32))
            lost[peer] = wanted - sent[peer]
        for number, trace in enumerate(traces.values()):
            left, right = (sent[run.ids[(number + step) % 4]] for step in (-1, 1))
            expected = 0.3 * trace["before"] + 0.7 * (left / GOLDEN + right / GOLDEN**2)
            np.testing.assert_allclose(trace["after"], expected, atol=1e-6)
            unrounded = [traces[run.ids[(number + step) % 4]]["before"] for step in (-1, 1)]
            exact = 0.3 * trace["before"] + 0.7 * (unrounded[0] / GOLDEN + unrounded[1] / GOLDEN**2)
            assert np.abs(trace["after"] - exact).max() > 1e-5
            for peer_lost in lost.values():
                assert np.abs(peer_lost).max() < 2.0**-8 * np.abs(trace["before"]).max() * 2


def test_each_blend_is_of_the_values_that_changed_most_and_one_s_own(runs: dict[str, Run]) -> None:
    """What a peer was told last of a value begins as the shared initial model."""
    run = runs["gossip"]
    told = {peer: trace["start"].astype(np.float32) for peer, trace in run.traces(1).items()}
    for round in range(1, ROUNDS + 1):
        traces, places = run.traces(round), {}
        for peer, trace in traces.items():
            own, chosen = trace["before"].astype(np.float32), []
            for start, size in ((0, EXTRACTOR), (EXTRACTOR, HEAD)):
                change = np.abs(own - told[peer])[start : start + size]
                chosen += [start + np.argsort(-change, kind="stable")[: ceil(SHARE * size)]]
            places[peer] = np.concatenate(chosen)
            told[peer][places[peer]] = own[places[peer]]
        for number, (peer, trace) in enumerate(traces.items()):
            seen = [trace["before"]]
            for other in (run.ids[number - 1], run.ids[(number + 1) % 4]):
                vector = trace["before"].copy()
                vector[places[other]] = traces[other]["before"][places[other]]
                seen.append(vector)
            np.testing.assert_allclose(trace["after"], np.mean(seen, axis=0), atol=1e-6, err_msg=peer)


def test_each_blend_is_of_what_a_codec_gives_and_the_rest_goes_with_the_next(runs: dict[str, Run]) -> None:
    """Nobody is further from what was meant than a step, and what was lost before is made good."""
    run = runs["coded"]
    meant, sent = (dict.fromkeys(run.ids, np.zeros(EXTRACTOR + HEAD)) for _ in range(2))
    for round in range(1, ROUNDS + 1):
        traces = run.traces(round)
        meant = {peer: meant[peer] + trace["before"] for peer, trace in traces.items()}
        # A ring of four: each blend has two unknown messages, and opposite peers have the same two.
        blends = {peer: 3 * trace["after"] - trace["before"] for peer, trace in traces.items()}
        np.testing.assert_allclose(blends["peer0"], blends["peer2"], atol=1e-5)
        np.testing.assert_allclose(blends["peer1"], blends["peer3"], atol=1e-5)
        for one, (left, right) in {"peer0": ("peer1", "peer3"), "peer1": ("peer0", "peer2")}.items():
            sent[one] = sent[one] + blends[one]
            steps = [np.abs(traces[peer]["before"]).max() * 1.5 / 127 for peer in (left, right)]
            assert np.abs(sent[one] - meant[left] - meant[right]).max() <= sum(steps)
            assert (blends[one] != traces[left]["before"] + traces[right]["before"]).any()


def test_a_rounded_mean_is_the_same_at_all_peers_and_near_the_exact_one(runs: dict[str, Run]) -> None:
    for round in range(1, ROUNDS + 1):
        traces = runs["fedavg"].traces(round)
        assert len({trace["after"].tobytes() for trace in traces.values()}) == 1
        weights = [trace.facts["samples"] * trace.facts["participated"] for trace in traces.values()]
        mean = np.average([trace["before"] for trace in traces.values()], axis=0, weights=weights)
        after = traces["peer0"]["after"].astype(np.float32)
        np.testing.assert_allclose(after, mean, atol=0.01)
        assert (after == bfloat16(after)).all()


def test_a_token_arrives_rounded(runs: dict[str, Run]) -> None:
    run = runs["fedisp"]
    handed = run.trace("peer3", ROUNDS)["before"].astype(np.float32)
    arrived = run.runtimes["peer0"].peer.state["token"].numpy()
    assert (arrived == bfloat16(arrived)).all()
    assert (arrived != handed).any()
    assert (np.abs(arrived - handed) <= 2.0**-7 * np.abs(handed) + 1e-6).all()
    assert run.result("peer0")["tensor_bytes_sent"] == ROUNDS * 2 * (EXTRACTOR + HEAD)


def block(size: int) -> int:
    """Bytes of the largest values of so many: as float32, with a bitmap."""
    return 4 * ceil(SHARE * size) + ceil(size / 8)


BYTES = {
    # of tensors that a peer sends to each neighbour in a round, and of a head in them
    "fibfl": (2 * EXTRACTOR, 0),
    "fibfl+": (block(EXTRACTOR), 0),
    "gossip": (block(EXTRACTOR) + block(HEAD), block(HEAD)),
    "coded": (4 + EXTRACTOR + 4 + HEAD, 4 + HEAD),
}


@pytest.mark.parametrize("name", BYTES)
def test_the_audit_counts_what_travels_and_a_head_s_bytes_in_it(runs: dict[str, Run], name: str) -> None:
    run, (size, head) = runs[name], BYTES[name]
    for number, peer in enumerate(run.ids):
        neighbours = sorted({run.ids[number - 1], run.ids[(number + 1) % 4]})
        for line in run.audit(peer)[1:]:
            sent = [(entry["to"], entry["bytes"], entry["head_bytes"]) for entry in line["sent"]]
            assert sent == [(other, size, head) for other in neighbours]
            assert [(entry["from"], entry["bytes"]) for entry in line["received"]] == [(n, size) for n in neighbours]
    spec = next(iter(run.runtimes.values())).setup.spec
    audits = as_read({peer: {"rounds": run.audit(peer)} for peer in run.ids})
    promise = PrivacyDeclaration(spec.protocol.declarations(ROUNDS))
    proof = privacy(Views(tuple(run.ids), ROUNDS), audits, promise)
    assert proof["head_bytes_sent"] == 4 * 2 * ROUNDS * head
    assert proof["definitions"]["3.1"] is (head == 0)
    assert not proof["violations"]


@pytest.mark.parametrize("name", SETTINGS)
async def test_check_counts_the_bytes_of_the_run(runs: dict[str, Run], name: str, tmp_path: Path) -> None:
    protocol, wire = SETTINGS[name]
    spec = resolve(tmp_path, protocol, 4, rounds=ROUNDS, wire=wire)
    counted = await traffic(plan(spec), spec.ids)
    for peer in runs[name].ids:
        line = runs[name].audit(peer)
        scalars = sum(entry["scalar_bytes"] for one in line for entry in one["sent"])
        beside = scalars if name == "fibfl+" else 0  # the weights of means are not counted
        sent = runs[name].result(peer)["tensor_bytes_sent"] + beside
        assert sum(counted[peer][: ROUNDS + 1]) == pytest.approx(sent, abs=4 * ROUNDS)


@pytest.mark.parametrize("wire", ["bfloat16", "top-k"])
def test_a_protocol_that_needs_its_vectors_as_they_are_is_refused(wire: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"`test_wire:Exact` needs its vectors as they are, and `wire` is {wire}; "):
        resolve(tmp_path, "test_wire:Exact", 3, wire=wire)
    assert resolve(tmp_path, "test_wire:Exact", 3, wire="float32").protocol.exact
