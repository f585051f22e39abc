"""Runs of seven peers, every blend of which is computed again from their traces."""

import asyncio
import threading
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Run, Trace, federate, resolve
from numpy.typing import NDArray

from peer.runtime.in_process import run_in_process
from peer.topology import two_opt

GOLDEN = (1 + sqrt(5)) / 2
QUICK = {"head_epochs": 1, "extractor_epochs": 2, "batch_size": 16}
SKEWED = {"name": "digits", "limit": 350, "partition": {"kind": "dirichlet", "alpha": 0.3}}
PEERS = [f"peer{i}" for i in range(7)]
Matrix = NDArray[np.float64]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    protocols: dict[str, dict[str, Any]] = {
        "fibfl": {"gamma": 0.3},
        "fibfl+": {"tau": 0.6},
        "fibfl++": {"tau": 0.6, "warmup": 1, "lr": 0.003},
    }
    directory = tmp_path_factory.mktemp("seven")
    return {
        name: federate(
            directory / name.replace("+", "p"), {"name": name, **QUICK, **settings}, 7, rounds=4, data=SKEWED
        )
        for name, settings in protocols.items()
    }


def sides(trace: Trace, peer: str) -> tuple[str, str]:
    ring = trace.facts["ring"]
    return ring[ring.index(peer) - 1], ring[(ring.index(peer) + 1) % len(ring)]


def gated_step(now: dict[str, Matrix], traces: dict[str, Trace], keep: float, tau: float) -> dict[str, Matrix]:
    """One Jacobi pass of Eqs. 5-7 over everyone's vectors."""
    after = {}
    for peer, trace in traces.items():
        left, right = sides(trace, peer)
        a = np.array([traces[left].facts["accuracy"], traces[right].facts["accuracy"]])
        g = np.where(a >= tau, a, 0)
        if g.sum() < 1e-8:
            after[peer] = now[peer]
            continue
        weights = np.array([1 / GOLDEN, 1 / GOLDEN**2]) / 2 + g / g.sum() / 2
        blended = weights[0] * now[left] + weights[1] * now[right]
        after[peer] = keep * now[peer] + (1 - keep) * blended
    return after


def close(actual: dict[str, Matrix], expected: dict[str, Matrix]) -> None:
    for peer, vector in expected.items():
        np.testing.assert_allclose(actual[peer], vector, atol=3e-6, err_msg=peer)


@pytest.mark.parametrize("round", range(1, 5))
def test_every_blend_of_fibfl(runs: dict[str, Run], round: int) -> None:
    traces = runs["fibfl"].traces(round)
    for peer, trace in traces.items():
        assert trace.facts["ring"] == PEERS
        assert trace.facts["gamma"] == 0.3
        left, right = (traces[side]["before"] for side in sides(trace, peer))
        expected = 0.3 * trace["before"] + 0.7 * (left / GOLDEN + right / GOLDEN**2)
        np.testing.assert_allclose(trace["after"], expected, atol=1e-6)


def test_ungated_blends_conserve_the_ring_s_mean_and_gated_ones_need_not(runs: dict[str, Run]) -> None:
    moved = {}
    for name in ("fibfl", "fibfl+"):
        traces = runs[name].traces(1).values()
        before, after = (np.mean([trace[when] for trace in traces], axis=0) for when in ("before", "after"))
        moved[name] = abs(after - before).max()
    assert moved["fibfl"] < 1e-6
    assert moved["fibfl+"] > 1e-3


@pytest.mark.parametrize("round", range(1, 5))
def test_every_blend_of_fibfl_plus(runs: dict[str, Run], round: int) -> None:
    traces = runs["fibfl+"].traces(round)
    before = {peer: trace["before"] for peer, trace in traces.items()}
    close({peer: trace["after"] for peer, trace in traces.items()}, gated_step(before, traces, 0.5, 0.6))


def test_the_gate_is_met_by_some_and_failed_by_others(runs: dict[str, Run]) -> None:
    accuracies = [trace.facts["accuracy"] for r in (1, 2, 3, 4) for trace in runs["fibfl+"].traces(r).values()]
    assert min(accuracies) < 0.6 < max(accuracies)


def test_all_passes_of_fibfl_plus_plus(runs: dict[str, Run]) -> None:
    for round, gamma in ((2, 0.4), (3, 0.225), (4, 0.05)):
        traces = runs["fibfl++"].traces(round)
        now = {peer: trace["before"] for peer, trace in traces.items()}
        assert all(trace.facts["gamma"] == pytest.approx(gamma) for trace in traces.values())
        for number in range(1, 5):  # K = ceil(7/2)
            now = gated_step(now, traces, gamma**0.25, 0.6)
            close({peer: trace[f"pass-{number}"] for peer, trace in traces.items()}, now)
        close({peer: trace["after"] for peer, trace in traces.items()}, now)
        assert all("pass-5" not in trace.vectors for trace in traces.values())


def test_rounds_begin_where_the_last_one_ended(runs: dict[str, Run]) -> None:
    for run in runs.values():
        for round in range(2, 5):
            for peer in PEERS:
                assert (run.trace(peer, round)["start"] == run.trace(peer, round - 1)["after"]).all()


def test_warm_up_ends_in_the_mean_by_samples(runs: dict[str, Run]) -> None:
    traces = runs["fibfl++"].traces(1).values()
    samples = [trace.facts["samples"] for trace in traces]
    assert len({*samples}) > 1
    mean = np.average([trace["before"] for trace in traces], axis=0, weights=samples)
    for trace in traces:
        np.testing.assert_allclose(trace["after"], mean, atol=1e-6)
    assert len({trace["after"].tobytes() for trace in traces}) == 1


def test_two_opt_orders_the_ring_and_reports_its_cost(runs: dict[str, Run]) -> None:
    run = runs["fibfl++"]
    q = np.stack([run.runtimes[peer].peer.proportions.numpy() for peer in PEERS])
    q /= np.linalg.norm(q, axis=1, keepdims=True)

    def cost(order: list[str]) -> float:
        numbers = [PEERS.index(peer) for peer in order]
        return float(sum(q[a] @ q[b] for a, b in zip(numbers, np.roll(numbers, 1), strict=True)))

    for peer in PEERS:
        result = run.result(peer)
        assert result["ring"] == run.trace(peer, 2).facts["ring"] == run.result("peer0")["ring"]
        assert result["ring_cost"]["before"] == pytest.approx(cost(PEERS))
        assert result["ring_cost"]["after"] == pytest.approx(cost(result["ring"]))
    assert cost(run.result("peer0")["ring"]) < cost(PEERS)
    assert {edge for line in run.audit("peer0")[2:] for edge in line["edges"]} == {
        *sides(run.trace("peer0", 2), "peer0")
    }


async def test_signs_of_life_go_on_while_the_ring_is_ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand peers 2-opt takes seconds: here it ends only when the event loop has run beside it."""
    loop, alive = asyncio.get_running_loop(), threading.Event()

    def slow(similar: Matrix) -> list[int]:
        if threading.current_thread() is threading.main_thread():
            return two_opt(similar)  # before the peer lives: how much disk it needs
        loop.call_soon_threadsafe(alive.set)
        assert alive.wait(5), "the event loop stands still"
        return two_opt(similar)

    monkeypatch.setattr("peer.protocols.fibfl_plus_plus.two_opt", slow)
    runtimes = await run_in_process(resolve(tmp_path, {"name": "fibfl++", **QUICK}, 4, rounds=1), tmp_path)
    assert len({runtime.peer.ring for runtime in runtimes.values()}) == 1


@pytest.mark.parametrize("name", ["fibfl", "fibfl+", "fibfl++"])
def test_no_byte_of_a_head_leaves(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    for peer in PEERS:
        sent = [line for record in run.audit(peer) for line in record["sent"]]
        assert sum(line["head_bytes"] for line in sent) == 0
        assert {line["vector"] for line in sent} <= {"extractor", "proportions", "order"}
        assert run.runtimes[peer].peer.extractor.numel() == len(run.trace(peer, 1)["after"]) == 520
    assert len({run.runtimes[peer].peer.head.numpy().tobytes() for peer in PEERS}) == 7


@pytest.mark.parametrize(("shares", "heads"), [("extractor", 3), ("model", 1)])
def test_what_is_averaged_in_warm_up(tmp_path: Path, shares: str, heads: int) -> None:
    protocol = {"name": "fibfl++", "warmup_shares": shares, **QUICK}
    run = federate(tmp_path, protocol, 3, rounds=1)
    peers = [runtime.peer for runtime in run.runtimes.values()]
    assert len({peer.extractor.numpy().tobytes() for peer in peers}) == 1
    assert len({peer.head.numpy().tobytes() for peer in peers}) == heads
    head_bytes = sum(line["head_bytes"] for record in run.audit("peer0") for line in record["sent"])
    assert (head_bytes > 0) == (shares == "model")


def test_without_warm_up_the_head_is_private_whatever_warm_up_would_share(tmp_path: Path) -> None:
    spec = resolve(tmp_path, {"name": "fibfl++", "warmup": 0, "warmup_shares": "model"}, 3)
    assert [share.vector for share in spec.protocol.shares(spec.rounds)] == ["extractor"]


def test_reordering_static_data_changes_nothing(tmp_path: Path) -> None:
    data = {**SKEWED, "limit": 120}
    once = federate(tmp_path / "once", {"name": "fibfl++", **QUICK}, 5, rounds=4, data=data)
    often = federate(tmp_path / "often", {"name": "fibfl++", "reorder_every": 1, **QUICK}, 5, rounds=4, data=data)
    assert once.models() == often.models()
    assert [line["vector"] for line in often.audit("peer0")[3]["sent"]].count("proportions") == 1
