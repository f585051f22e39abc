"""DP-FedAvg from its traces: clipping, noise and the division by the expected size; secrets, and what ε counts."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy  # its stats are imported where they are first used: that takes seconds
import torch
from federations import Run, Vector, federate
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.cli import main
from launcher.reports.summary import TimeSpent, summarise
from peer.errors import InputError
from peer.network.transport.memory import MemoryPipe
from peer.protocols.blocks.privacy import as_secret, gaussian_epsilon, sampled_epsilon, stream, uniform
from peer.protocols.dp_fedavg import DPFedAvg
from peer.runtime.rounds.local_peer import LocalPeer

UNLIKELY = 1e-9
TRAINING = {"epochs": 1, "batch_size": 16, "lr": 0.1}
KNOWN: dict[str, Any] = {"name": "dp-fedavg", "insecure_reproducible_noise": True, **TRAINING}
CLIP, NOISE, RATE = 0.05, 0.8, 0.6


Sent = dict[tuple[Path, str, int], Vector]


@pytest.fixture(scope="module", autouse=True)
def sent() -> Iterator[Sent]:
    """What each peer gave to the mean of the updates, by run, peer and round."""
    found, mean = Sent(), LocalPeer.weighted_mean

    async def telling(peer: LocalPeer, share: str, weight: float) -> None:
        if share == "update":
            found[peer._own.setup.out.parent, peer.id, peer.round] = peer.state["update"].double().numpy()
        await mean(peer, share, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPeer, "weighted_mean", telling)
        yield found


@pytest.fixture(scope="module")
def updates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Vector]:
    """Δ_k of every peer in round 1, as FedAvg's peers have it."""
    protocol = {"name": "fedavg", "momentum": 0, **TRAINING}
    run = federate(tmp_path_factory.mktemp("fedavg"), protocol, 5, rounds=1, init="shared")
    return {peer: trace["before"] - trace["start"] for peer, trace in run.traces(1).items()}


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Without noise."""
    protocol = {**KNOWN, "participation": RATE, "clip_norm": CLIP, "noise_multiplier": 0}
    return federate(tmp_path_factory.mktemp("clipped"), protocol, 5, rounds=4)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with noise."""
    protocol = {**KNOWN, "participation": RATE, "clip_norm": CLIP, "noise_multiplier": NOISE}
    return federate(tmp_path_factory.mktemp("noisy"), protocol, 5, rounds=4)


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, bytes]:
    """With noise from secrets, and all bytes that passed between the peers."""
    passed = list[bytes]()
    send = MemoryPipe.send

    async def heard(pipe: MemoryPipe, data: bytes) -> None:
        passed.append(bytes(data))
        await send(pipe, data)

    protocol = {"name": "dp-fedavg", "participation": RATE, "noise_multiplier": 2, **TRAINING}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryPipe, "send", heard)
        run = federate(tmp_path_factory.mktemp("secret"), protocol, 5, rounds=3)
    return run, b"\0".join(passed)


def sampled(run: Run, round: int) -> list[str]:
    return [peer for peer, trace in run.traces(round).items() if trace.facts["participated"]]


def test_the_drawn_send_their_clipped_update_and_nobody_else_anything(
    clipped: Run, updates: dict[str, Vector], sent: Sent
) -> None:
    drawn = sampled(clipped, 1)
    assert 0 < len(drawn) < 5
    for peer in clipped.ids:
        norm = np.sqrt((updates[peer] ** 2).sum())
        assert norm > CLIP
        expected = updates[peer] * CLIP / norm if peer in drawn else np.zeros(610)
        np.testing.assert_allclose(RATE * sent[clipped.out, peer, 1], expected, atol=1e-6)


def test_a_short_update_is_left_as_it_is(tmp_path: Path, updates: dict[str, Vector], sent: Sent) -> None:
    run = federate(tmp_path, {**KNOWN, "clip_norm": 1000, "noise_multiplier": 0}, 5, rounds=1)
    for peer, trace in run.traces(1).items():
        np.testing.assert_allclose(sent[run.out, peer, 1], updates[peer], atol=1e-6)
        np.testing.assert_allclose(trace["after"] - trace["start"], np.mean([*updates.values()], axis=0), atol=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40), st.floats(1e-3, 1e3))
def test_no_update_is_longer_than_the_clip_norm(values: list[float], clip_norm: float) -> None:
    update = torch.tensor(values)
    scale = DPFedAvg(clip_norm=clip_norm).scale(update)
    assert 0 <= scale <= 1
    assert float((update.double() * scale).norm()) <= clip_norm * (1 + 1e-9)


@pytest.mark.parametrize("round", [1, 2, 3, 4])
def test_the_sum_is_divided_by_the_expected_size(noisy: Run, sent: Sent, round: int) -> None:
    traces = noisy.traces(round)
    summed = RATE * np.sum([sent[noisy.out, peer, round] for peer in noisy.ids], axis=0)
    for trace in traces.values():
        np.testing.assert_allclose(trace["after"], trace["start"] + summed / (RATE * 5), atol=1e-5)
        assert (trace["after"] == traces["peer0"]["after"]).all()


def test_each_of_m_peers_adds_an_mth_of_the_variance(clipped: Run, noisy: Run, sent: Sent) -> None:
    """Round 1: the same sample and the same training, so the difference is the noise."""
    drawn, noises = sampled(clipped, 1), {}
    assert sampled(noisy, 1) == drawn
    for peer in noisy.ids:
        noises[peer] = RATE * (sent[noisy.out, peer, 1] - sent[clipped.out, peer, 1])
        if peer not in drawn:
            assert not noises[peer].any()
            continue
        assert scipy.stats.kstest(noises[peer] / (NOISE * CLIP / np.sqrt(len(drawn))), "norm").pvalue > UNLIKELY
        low, high = scipy.stats.chi2.ppf([UNLIKELY, 1 - UNLIKELY], 610)
        assert low < (noises[peer] ** 2).sum() * len(drawn) / (NOISE * CLIP) ** 2 < high
    whole = np.sum([*noises.values()], axis=0)
    assert low < (whole**2).sum() / (NOISE * CLIP) ** 2 < high


def test_an_empty_sample_looks_like_any_other(tmp_path: Path) -> None:
    """Nobody trains, everybody adds noise: of z²S² in all. Else an unchanged model would tell that nobody was drawn."""
    run = federate(tmp_path, {**KNOWN, "participation": 0.01, "clip_norm": CLIP}, 4, rounds=2)
    low, high = scipy.stats.chi2.ppf([UNLIKELY, 1 - UNLIKELY], 610)
    for round in (1, 2):
        assert sampled(run, round) == []
        trace = run.trace("peer0", round)
        assert low < (((trace["after"] - trace["start"]) * 0.01 * 4 / CLIP) ** 2).sum() < high


class Known:
    """The part of a peer that sampling needs."""

    members = tuple(f"peer{i}" for i in range(20))

    def __init__(self, round: int) -> None:
        self.round, self.state = round, {"sampling": as_secret(b"sampling")}


def test_each_peer_is_drawn_by_itself_with_the_rate() -> None:
    protocol, rounds = DPFedAvg(participation=0.3), 2000
    samples = [protocol.sample(Known(round)) for round in range(1, rounds + 1)]  # type: ignore[arg-type]
    for member in Known.members:
        times = sum(member in sample for sample in samples)
        assert scipy.stats.binomtest(times, rounds, 0.3).pvalue > UNLIKELY
    # Sizes of a Poisson sample are binomial: of a drawn share they would all be the same.
    sizes = np.bincount([len(sample) for sample in samples], minlength=21)
    middle = slice(2, 12)
    expected = rounds * scipy.stats.binom.pmf(np.arange(21), 20, 0.3)
    observed = [*sizes[middle], sizes.sum() - sizes[middle].sum()]
    wanted = [*expected[middle], expected.sum() - expected[middle].sum()]
    assert scipy.stats.chisquare(observed, wanted).pvalue > UNLIKELY


def test_everybody_is_in_a_sample_of_all() -> None:
    assert all(DPFedAvg().sample(Known(round)) == Known.members for round in range(50))  # type: ignore[arg-type]


def encodings(content: bytes) -> list[bytes]:
    """Encodings of a content: as uint8, and with each byte as a number."""
    numbers = np.frombuffer(content, np.uint8)
    return [content, numbers.astype("<f4").tobytes(), numbers.astype("<f8").tobytes()]


def test_secrets_differ_and_never_leave(secret: tuple[Run, bytes]) -> None:
    run, passed = secret
    states = [runtime.peer.state for runtime in run.runtimes.values()]
    secrets = {bytes(state["secret"].tolist()) for state in states}
    sampling = {bytes(state["sampling"].tolist()) for state in states}
    assert len(secrets) == 5
    assert len(sampling) == 1
    told = stream(states[0]["secret"], "part of the sampling", 0, 32)
    assert any(encoded in passed for encoded in encodings(told))
    assert not any(encoded in passed for kept in secrets | sampling for encoded in encodings(kept))
    files = [path for path in run.out.rglob("*") if path.is_file()]
    holding = {path.parent.name for path in files if any(kept in path.read_bytes() for kept in secrets)}
    assert "checkpoint" in holding
    assert holding <= {"checkpoint", "journal"}


def drawn(parts: dict[str, torch.Tensor], rate: float) -> list[str]:
    """Round 1's sample if these are everybody's parts."""
    content = b"".join(bytes(parts[id].int().tolist()) for id in sorted(parts))
    draws = uniform(as_secret(content), "sample", 1, len(parts))
    return [id for id, draw in zip(sorted(parts), draws, strict=True) if draw < rate]


def test_who_chooses_its_part_after_the_others_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """peer3 hears all other parts first, and looks for one with which peer0 is drawn alone."""
    gather, parts, complete, chosen = LocalPeer.gather, dict[str, torch.Tensor](), asyncio.Event(), []

    async def last(peer: LocalPeer, record: str, values: torch.Tensor) -> dict[str, torch.Tensor]:
        if record == "sampling" and peer.id != "peer3":
            parts[peer.id] = values
            if len(parts) == 4:
                complete.set()
        elif record == "sampling":
            await complete.wait()
            for number in range(10_000):
                values = as_secret(bytes(number)).double()
                if drawn({**parts, "peer3": values}, RATE) == ["peer0"]:
                    chosen.append(number)
                    break
        return await gather(peer, record, values)

    monkeypatch.setattr(LocalPeer, "gather", last)
    with pytest.raises(ExceptionGroup) as failed:
        federate(tmp_path, {**KNOWN, "participation": RATE}, 5, rounds=1)
    assert chosen
    assert {str(error) for error in failed.value.exceptions} == {
        "peer3 told another part of the sampling than committed to; see what runs there, and what relays it"
    }
    assert not [*tmp_path.rglob("trace/*")]


@pytest.mark.parametrize("record", ["commitment", "sampling"])
@pytest.mark.parametrize("told", [-1.0, 256.0, 0.5])
def test_what_is_no_byte_is_refused(told: float, record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gather = LocalPeer.gather

    async def lying(peer: LocalPeer, name: str, values: torch.Tensor) -> dict[str, torch.Tensor]:
        lies = name == record and peer.id == "peer1"
        return await gather(peer, name, torch.full_like(values, told) if lies else values)

    monkeypatch.setattr(LocalPeer, "gather", lying)
    with pytest.raises(ExceptionGroup) as failed:
        federate(tmp_path, KNOWN, 3, rounds=1)
    assert {str(error) for error in failed.value.exceptions} == {
        f"peer1 sent what are no bytes as its {record}; see what it runs"
    }


def test_only_sums_leave_and_only_to_the_right(secret: tuple[Run, bytes]) -> None:
    run, _ = secret
    for peer, right in zip(run.ids, run.ids[1:] + run.ids[:1], strict=True):
        lines = [(record["round"], line) for record in run.audit(peer) for line in record["sent"]]
        left = {(line["to"], line["vector"]) for _, line in lines}
        assert left == {(right, name) for name in ("commitment", "sampling", "update")}
        assert {round for round, line in lines if line["vector"] in ("commitment", "sampling")} == {0}
        assert sum(line["bytes"] for _, line in lines) == 3 * 4 * 610 * 8 // 5


def test_a_flipped_sign_reverses_the_update(updates: dict[str, Vector], tmp_path: Path) -> None:
    protocol = {**KNOWN, "clip_norm": CLIP, "noise_multiplier": 0}
    run = federate(tmp_path, protocol, 5, rounds=1, behaviour={"peer3": {"kind": "sign-flip"}})
    signs = {peer: -1 if peer == "peer3" else 1 for peer in run.ids}
    sent = [signs[peer] * one * min(1, CLIP / np.linalg.norm(one)) for peer, one in updates.items()]
    trace = run.trace("peer0", 1)
    assert np.allclose(trace["after"], trace["start"] + np.mean(sent, 0), atol=1e-6)


def test_epsilon_of_every_round_is_in_trace_and_summary(secret: tuple[Run, bytes]) -> None:
    run, _ = secret
    spec = run.runtimes["peer0"].setup.spec
    summary = summarise(spec, run.out, TimeSpent(1.0, 0))
    exposure = dict.fromkeys(run.ids, 0)
    for round in (1, 2, 3):
        drawn = sampled(run, round)
        for peer, one in zip(run.ids, summary.per_peer, strict=True):
            exposure[peer] += len(drawn) if peer in drawn else 0
            peers = gaussian_epsilon(2 / np.sqrt(exposure[peer]), 1e-5) if exposure[peer] else 0
            facts = run.trace(peer, round).facts
            assert facts["epsilon_outsiders"] == pytest.approx(sampled_epsilon(RATE, 2, round, 1e-5))
            assert facts["epsilon_peers"] == pytest.approx(peers)
            assert one.notes[round - 1] == {name: facts.get(name, round) for name in one.notes[round - 1]}
    assert {*summary.per_peer[0].notes[2]} == {"round", "epsilon_outsiders", "epsilon_peers"}
    assert summary.replicated == {"sampling": True}


@pytest.mark.parametrize("run", ["clipped", "noisy"])
def test_noise_that_protects_nobody_has_no_epsilon(run: str, request: pytest.FixtureRequest) -> None:
    facts = request.getfixturevalue(run).trace("peer0", 4).facts
    assert facts["epsilon_outsiders"] is None
    assert facts["epsilon_peers"] is None


def test_two_runs_with_secrets_differ(secret: tuple[Run, bytes], tmp_path: Path) -> None:
    protocol = secret[0].runtimes["peer0"].setup.spec.protocol.model_dump()
    again = federate(tmp_path, protocol, 5, rounds=1)
    assert again.trace("peer0", 1)["after"].tolist() != secret[0].trace("peer0", 1)["after"].tolist()
    assert len({*secret[0].models().values()}) == 1


def test_running_variances_stay_variances(tmp_path: Path) -> None:
    """With so much noise every second one would be negative."""
    protocol = {**KNOWN, "clip_norm": 100}
    run = federate(tmp_path, protocol, 2, rounds=1, model={"name": "federations:normalised"})
    peer = run.runtimes["peer0"].peer
    (variances,) = (entry.view(peer.model) for entry in peer.layout if entry.name.endswith("running_var"))
    assert 0 < int((variances == 0).sum()) < 8
    assert (variances >= 0).all()


def test_a_missing_accountant_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    spec = tmp_path / "federation.yaml"
    spec.write_text(json.dumps({"protocol": "dp-fedavg", "data": {"name": "digits", "limit": 60}}))
    assert main(["check", str(spec), "--peers", "3"]) == 2
    assert "pip install -c constraints.txt 'dfl[privacy]'" in capsys.readouterr().err
    with pytest.raises(InputError, match="dp-accounting"):
        federate(tmp_path / "run", "dp-fedavg", 3)
