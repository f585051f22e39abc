"""FlexiFed: links and blends computed again from the traces of runs; where its resources come from."""

import asyncio
import json
import random
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Run, federate, resolve
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import InputError
from peer.network.wire.messages import Resources
from peer.protocols.flexifed import Capacity, standing_links
from peer.runtime.in_process import run_in_process
from peer.runtime.rounds.local_peer import LocalPeer
from peer.spec.agreement import differing
from peer.spec.blocks import Machine
from peer.spec.loading import load_peer
from peer.spec.peer import PeerConfig
from peer.spec.recordings import fixed_resources

SKEWED = {"name": "digits", "limit": 120, "partition": {"kind": "dirichlet", "alpha": 0.5}}
PINNED = {"name": "flexifed", "resources": "pinned"}
CORES, MEMORY = [1, 2, 4, 8, 16, 1], [4, 1, 2, 16, 8, 1]
MACHINES = {f"peer{i}": {"cores": CORES[i], "memory": MEMORY[i]} for i in range(6)}


def chosen(cores: Any, memory: Any, samples: Any, rates: Any, alpha: float) -> Any:
    """The links, (N, N), with numpy and exact levels; `rates[i, j]` from i to j; ids in order."""
    n = len(cores)
    res = alpha * normalised(cores, np.max) + (1 - alpha) * normalised(memory, np.max)
    keeps = np.zeros((n, n), bool)
    for i in range(n):
        level = Fraction(ceil(3 * Fraction(int((res <= res[i]).sum()), n)), 3)
        degree = max(1, ceil(level * (n - 1)))
        others = np.delete(np.arange(n), i)
        worth = res[others] + normalised(samples[others], np.sum) + normalised(rates[i][others], np.sum)
        keeps[i, others[np.argsort(-worth, kind="stable")][:degree]] = True
    return keeps | keeps.T


def normalised(values: Any, by: Any) -> Any:
    whole = by(values)
    return values / whole if whole > 0 else np.zeros(len(values))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    protocol = {**PINNED, "alpha": 0.3, "beta": 0.4, "lr": 0.1}
    directory = tmp_path_factory.mktemp("flexifed")
    return federate(directory, protocol, 6, machines=MACHINES, data=SKEWED, init="independent")


def linked(run: Run, round: int) -> Any:
    """(N, N) by what each peer noted."""
    found = np.zeros((len(run.ids),) * 2, bool)
    for i, trace in enumerate(run.traces(round).values()):
        found[i, [int(j) for j in trace.facts["links"]]] = True
    return found


def test_links_are_those_of_the_paper_s_rule(run: Run) -> None:
    samples = np.array([run.trace(peer, 1).facts["samples"] for peer in run.ids], float)
    expected = chosen(np.array(CORES), np.array(MEMORY), samples, np.zeros((6, 6)), 0.3)
    for round in (1, 2):
        assert (linked(run, round) == expected).all()
    assert expected.sum() < 30, "all links stand: the test is too tame"


def test_models_travel_along_the_links_alone(run: Run) -> None:
    for i, peer in enumerate(run.ids):
        for round in (1, 2):
            record = run.audit(peer)[round]
            for direction, other in (("sent", "to"), ("received", "from")):
                along = {line[other] for line in record[direction] if line["vector"] == "model" and line["bytes"]}
                assert along == {run.ids[j] for j in np.flatnonzero(linked(run, round)[i])}
            tensors = {line["vector"] for line in record["sent"] if line["bytes"]}
            assert tensors == {"model"}


def test_models_are_blended_by_similarity(run: Run) -> None:
    """Unlike one another from the start, so that the similarities are no mere ones."""
    for round in (1, 2):
        traces = run.traces(round)
        w = np.stack([trace["before"] for trace in traces.values()])
        unit = w / np.linalg.norm(w, axis=1, keepdims=True)
        s = np.maximum(unit @ unit.T, 0) * linked(run, round)
        assert 0 < s[s > 0].min() < 0.9 * s.max()
        expected = 0.4 * w + 0.6 * (s / s.sum(1, keepdims=True)) @ w
        np.testing.assert_allclose([trace["after"] for trace in traces.values()], expected, atol=1e-5)


capacities = st.integers(2, 7).flatmap(
    lambda n: st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.5, 1.0, 2.0, 32.0]),
            st.sampled_from([0.0, 1.0, 8.0]),
            st.integers(1, 4),
            st.lists(st.sampled_from([0.0, 1e3, 2e8]), min_size=n, max_size=n),
        ),
        min_size=n,
        max_size=n,
    )
)


@settings(max_examples=60)
@given(capacities, st.sampled_from([0.0, 0.5, 1.0]), st.randoms())
def test_the_rule_of_links(told: list[tuple[float, float, int, list[float]]], alpha: float, shuffler: Any) -> None:
    ids = [f"peer{i}" for i in range(len(told))]
    peers = {
        id: Capacity(cores, memory, samples, dict(zip(ids, rates, strict=True)))
        for id, (cores, memory, samples, rates) in zip(ids, told, strict=True)
    }
    found = standing_links(peers, alpha)
    cores, memory, samples, rates = (np.array(column, float) for column in zip(*told, strict=True))
    expected = chosen(cores, memory, samples, rates, alpha)
    assert {(i, j) for i in found for j in found[i]} == {(ids[a], ids[b]) for a, b in np.argwhere(expected)}
    assert all(i in found[j] for i in ids for j in found[i])
    assert all(found[i] and i not in found[i] for i in ids)
    best = max(ids, key=lambda i: (expected[ids.index(i)].sum(), i))
    assert len(found[best]) == len(ids) - 1, "who has the most keeps all its links"
    shuffled = [*ids]
    shuffler.shuffle(shuffled)
    again = standing_links({id: peers[id] for id in shuffled}, alpha)
    assert {i: {*again[i]} for i in ids} == {i: {*found[i]} for i in ids}


def test_equal_machines_keep_the_complete_graph() -> None:
    ids = [f"peer{i}" for i in range(9)]
    found = standing_links(dict.fromkeys(ids, Capacity(2.0, 4.0, 10.0, dict.fromkeys(ids, 0.0))), 0.5)
    assert found == {i: [j for j in ids if j != i] for i in ids}


def test_of_equals_the_first_ids_are_kept() -> None:
    """The two of four with the least keep one link each: to the one with the most, or to the first of two such."""
    ids = ["a", "b", "c", "d"]
    told = {i: Capacity(8.0 if i in "cd" else 1.0, 1.0, 1.0, dict.fromkeys(ids, 0.0)) for i in ids}
    assert standing_links(told, 1.0) == {i: [j for j in ids if j != i and {i, j} != {"a", "b"}] for i in ids}
    least = {"a": told["c"], "b": told["d"], "c": told["a"]}
    assert standing_links(least, 1.0) == {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which everybody's resources are others each time that they are measured."""
    entropy = random.SystemRandom()

    def measure(*_: Any) -> Resources:
        rates = {f"peer{i}": entropy.uniform(1e6, 1e9) for i in range(5)}
        free = {"free_cpus": entropy.uniform(0, 32), "free_memory_bytes": entropy.randrange(1 << 36)}
        return Resources(cpus=32, samples=1, bytes_per_second=rates, **free)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peer.runtime.connection.measure", measure)
        return federate(tmp_path_factory.mktemp("measured"), "flexifed", 5, rounds=3, data=SKEWED)


def test_partners_are_mutual_and_change_with_what_is_measured(measured: Run) -> None:
    graphs = [linked(measured, round) for round in (1, 2, 3)]
    for round, graph in enumerate(graphs, 1):
        told = np.array([trace.facts["resources"] for trace in measured.traces(round).values()])
        samples = np.array([trace.facts["samples"] for trace in measured.traces(round).values()], float)
        assert (graph == chosen(told[:, 0], told[:, 1], samples, told[:, 2:], 0.5)).all()
    assert len({graph.tobytes() for graph in graphs}) > 1 or graphs[0].sum() == 20


def replay(tmp_path: Path, recording: Path | None, peers: int = 5, **keys: Any) -> Run:
    where = {"recording": str(recording)} if recording else {}
    return federate(tmp_path, {"name": "flexifed", "resources": "replay"}, peers, data=SKEWED, **where, **keys)


def test_a_replay_has_the_same_links_and_the_same_bits(tmp_path: Path, measured: Run) -> None:
    again = replay(tmp_path, measured.out, rounds=3)
    for round in (1, 2, 3):
        assert (linked(again, round) == linked(measured, round)).all()
    assert again.models() == measured.models()
    third = replay(tmp_path / "third", again.out, rounds=2)
    assert third.trace("peer1", 2).facts["resources"] == measured.trace("peer1", 2).facts["resources"]


def test_what_cannot_be_replayed_is_said_before_anything_begins(tmp_path: Path, measured: Run) -> None:
    with pytest.raises(InputError, match="no run is named; write `recording: DIR`"):
        replay(tmp_path / "none", None)
    with pytest.raises(InputError, match="no resources of peer0 were recorded in round 4"):
        replay(tmp_path / "long", measured.out, rounds=9)
    with pytest.raises(InputError, match=r"peer5/events.jsonl: cannot be read .* of a run of these peers"):
        fixed_resources(config("peer5", tmp_path), resolve(tmp_path, replaying(), 6, recording=str(measured.out)))
    with pytest.raises(InputError, match="was not recorded by a federation of 4 peers"):
        replay(tmp_path / "few", measured.out, peers=4)
    with pytest.raises(InputError, match="is where this run itself writes"):
        replay(tmp_path / "itself", tmp_path / "itself")
    assert not [*tmp_path.glob("*/peer*")]


def replaying() -> dict[str, Any]:
    return {"name": "flexifed", "resources": "replay"}


def config(id: str, out: Path) -> PeerConfig:
    return PeerConfig(federation=out / "federation.yaml", id=id, out=out / id)


def test_pinned_machines_are_the_federation_s_or_the_peer_s_own(tmp_path: Path) -> None:
    spec = resolve(tmp_path, PINNED, 3, machines={"peer0": {"cores": 2, "memory": 3}})
    first = fixed_resources(config("peer0", tmp_path), spec)
    assert first
    assert (first(1).cpus, first(9).memory, {*first(1).rates.values()}) == (2.0, 3.0, {0.0})
    with pytest.raises(InputError, match=r"`peer1` has none; write `machine: \{cores: 4, memory: 8\}` into its file"):
        fixed_resources(config("peer1", tmp_path), spec)
    ring = [{"id": f"peer{i}", "address": f"127.0.0.1:{7700 + i}"} for i in range(3)]
    (tmp_path / "ring.yaml").write_text(json.dumps({"protocol": PINNED, "ring": ring, "machines": {}}))
    for id in ("peer0", "peer1"):
        content = {"federation": "ring.yaml", "id": id, "machine": {"cores": 7, "memory": 0.5}}
        (tmp_path / f"{id}.yaml").write_text(json.dumps(content))
        own = fixed_resources(*load_peer(tmp_path / f"{id}.yaml"))
        assert own
        assert own(1)[:2] == (7.0, 0.5)


def test_machines_are_agreed_on_and_recordings_are_not(tmp_path: Path) -> None:
    plain = resolve(tmp_path, PINNED, 3)
    other = resolve(tmp_path, PINNED, 3, machines=dict.fromkeys(plain.ids, MACHINES["peer3"]))
    assert differing(plain.agreement.digests, other.agreement.digests) == ["machines"]
    assert "machines" not in plain.agreement.digests
    replayed = resolve(tmp_path, {"name": "flexifed", "resources": "replay"}, 3, recording="far")
    assert replayed.recording == tmp_path / "far"
    assert "recording" not in replayed.agreement.digests


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"machines": {"peer9": MACHINES["peer0"]}}, "`machines` has `peer9`, which is not in the ring"),
        ({"machines": {"peer0": {"cores": -1, "memory": 1}}}, "`machines.peer0.cores`"),
        ({"machines": {"peer0": {"cores": 1, "memori": 1}}}, "memori"),
    ],
)
def test_wrong_machines_are_refused(keys: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        resolve(tmp_path, PINNED, 3, **keys)


@pytest.mark.parametrize(
    ("protocol", "keys", "sentence"),
    [
        ({"name": "fedavg"}, {"machines": MACHINES}, "`fedavg` does not go by `machines` as it is set; leave it out"),
        ({"name": "fedavg"}, {"recording": "far"}, "`fedavg` does not go by `recording` as it is set; leave it out"),
        ({"name": "flexifed"}, {"machines": MACHINES}, "write `resources: pinned` into `protocol`, or leave it out"),
        (PINNED, {"recording": "far"}, "write `resources: replay` into `protocol`, or leave it out"),
    ],
)
def test_what_would_be_ignored_is_refused(
    protocol: dict[str, Any], keys: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        resolve(tmp_path, protocol, 6, **keys)


def test_a_machine_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    spec = resolve(tmp_path, {"name": "flexifed"}, 3)
    machine = PeerConfig(federation=tmp_path, id="peer1", machine=Machine(cores=1, memory=1))
    with pytest.raises(InputError, match="does not go by the `machine` of `peer1`"):
        fixed_resources(machine, spec)


async def test_a_model_along_a_link_that_does_not_stand_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """peer0's code sends to everybody; only who is linked with it takes anything."""
    exchange = LocalPeer.exchange

    def to_all(self: LocalPeer, share: str, /, to: Any = None, of: Any = None, **scalars: float) -> Any:
        return exchange(self, share, to=None if self.id == "peer0" else to, of=of, **scalars)

    monkeypatch.setattr(LocalPeer, "exchange", to_all)
    machines = {f"peer{i}": {"cores": 2**i, "memory": 2**i} for i in range(4)}
    spec = resolve(tmp_path, PINNED, 4, machines=machines)
    running = asyncio.create_task(run_in_process(spec, tmp_path))
    async with asyncio.timeout(20):
        while not (told := refusals(tmp_path)):  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert {(who, one["caller"]) for who, one in told} == {("peer1", "peer0")}
    assert all("`model` was not to come from this sender in round 1" in one["reason"] for _, one in told)


def refusals(out: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = [(path.parent.name, line) for path in out.glob("*/events.jsonl") for line in path.read_text().splitlines()]
    events = [(who, json.loads(line)) for who, line in lines if line.endswith("}")]
    return [(who, event) for who, event in events if event["event"] == "refused"]
