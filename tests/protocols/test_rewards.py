"""CGSV, RFFL, CFFL: whole runs computed again in numpy from what was trained, free riders, and what leaves a peer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Run, Vector, federate
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from launcher.cli import main
from launcher.reports.definitions import fit_on_a_ring
from peer.errors import InputError
from peer.learning.model.layout import Entry
from peer.learning.training.trainer import Phase
from peer.protocols.blocks.largest import largest, largest_of_each
from peer.protocols.blocks.reputation import portions, reputable
from peer.protocols.cffl import CFFL
from peer.protocols.cgsv import CGSV
from peer.runtime.local_peer import LocalPeer

DATA = {"name": "digits", "limit": 240, "validation": 0.2, "partition": {"kind": "quantity", "delta": 1}}
LAYERS = np.split(np.arange(610), [512, 520, 600])
ROUNDS = 4
QUICK: dict[str, dict[str, Any]] = {
    "cgsv": {"gamma": 0.4, "alpha": 0.7, "beta": 2, "epochs": 1, "batch_size": 16},
    "rffl": {"gamma": 0.4, "alpha": 0.3, "after": 2, "threshold": 0.9, "epochs": 1, "batch_size": 16},
    "cffl": {"clip": 0.02, "upload": 0.3, "memory": 0.4, "threshold": 0.85, "epochs": 1, "batch_size": 16},
}


@dataclass
class Watched:
    """A run, and what went in and out of its calls: by peer, a round's worth after the other."""

    run: Run | None = None
    changes: dict[str, list[Vector]] = field(default_factory=dict)
    sent: dict[str, list[Vector]] = field(default_factory=dict)
    decisions: dict[str, list[list[bool] | None]] = field(default_factory=dict)

    @property
    def runtimes(self) -> Any:
        assert self.run
        return self.run.runtimes

    def notes(self, name: str) -> list[Vector]:
        """Of the first peer, round by round; all others noted the same."""
        assert self.run
        told = {peer: [one["notes"][name] for one in self.run.result(peer)["history"]] for peer in self.run.ids}
        first = told[self.run.ids[0]]
        assert all(one == first for one in told.values())
        return [np.array(one) for one in first]


def watch(directory: Path, protocol: dict[str, Any], peers: int, **keys: Any) -> Watched:
    seen = Watched()
    train, all_gather, agree = LocalPeer.train, LocalPeer.all_gather, LocalPeer.agree

    async def watched_train(self: LocalPeer, *phases: Phase) -> float:
        before = self.model.clone()
        loss = await train(self, *phases)
        seen.changes.setdefault(self.id, []).append((self.model - before).double().numpy())
        return loss

    async def watched_gather(self: LocalPeer, share: str, /, **scalars: float) -> Any:
        seen.sent.setdefault(self.id, []).append(self.state[share].double().numpy())
        return await all_gather(self, share, **scalars)

    async def watched_agree(self: LocalPeer, record: str, decision: Tensor | None) -> None:
        seen.decisions.setdefault(self.id, []).append(None if decision is None else decision.tolist())
        await agree(self, record, decision)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPeer, "train", watched_train)
        patch.setattr(LocalPeer, "all_gather", watched_gather)
        patch.setattr(LocalPeer, "agree", watched_agree)
        seen.run = federate(directory, protocol, peers, data=DATA, **keys)
    return seen


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Watched]:
    directory = tmp_path_factory.mktemp("rewards")
    return {name: watch(directory / name, {"name": name, **keys}, 4, rounds=ROUNDS) for name, keys in QUICK.items()}


# -- in numpy, from the papers --


def top(vector: Vector, count: int) -> Vector:
    """The largest entries, zero elsewhere; NaN for those as large as the least of them, where not all have room."""
    sizes = np.abs(vector)
    least = np.sort(sizes)[-count] if count else np.inf
    undecided = (np.abs(sizes - least) < 1e-8) & (sizes > 1e-8) & ((sizes > least - 1e-8).sum() > count)
    return np.where(undecided, np.nan, np.where(sizes > least - 1e-8, vector, 0))


def top_by_layer(vector: Vector, share: float) -> Vector:
    return np.concatenate([top(vector[layer], int(np.ceil(share * len(layer)))) for layer in LAYERS])


def assert_close(found: Any, expected: Vector) -> None:
    known = ~np.isnan(expected)
    assert known.mean() > 0.95
    np.testing.assert_allclose(np.asarray(found)[known], expected[known], atol=2e-6)


def cosine(a: Vector, b: Vector) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@dataclass
class Expected:
    sent: Vector
    """(N, p) a round."""
    after: Vector
    reputation: Vector
    reward: Vector


def shapes(watched: Watched) -> tuple[Vector, Vector, Vector]:
    """Models at the start of each round, changes (rounds, N, p), samples (N,)."""
    assert watched.run
    start = np.stack([[one["start"] for one in watched.run.traces(t + 1).values()] for t in range(ROUNDS)])
    changes = np.stack([watched.changes[peer] for peer in watched.run.ids], axis=1)
    samples = np.array([runtime.peer.samples for runtime in watched.runtimes.values()], float)
    return start, changes, samples


def cgsv(watched: Watched) -> Iterator[Expected]:
    models, changes, samples = shapes(watched)
    weights, r = samples / samples.sum(), np.zeros(len(samples))
    for start, change, told in zip(models, changes, told_by_round(watched), strict=True):
        scaled = 0.4 * told / np.linalg.norm(told, axis=1, keepdims=True)
        u = weights @ scaled
        r = np.maximum(0.7 * r + 0.3 * np.array([cosine(one, u) for one in scaled]), 1e-3)
        r = weights = r / r.sum()
        q = np.tanh(2 * r) / np.tanh(2 * r).max()
        yield Expected(change, start + np.stack([top_by_layer(u, share) for share in q]), r, q)


def rffl(watched: Watched) -> Iterator[Expected]:
    models, changes, samples = shapes(watched)
    weights, r, staying = samples / samples.sum(), np.zeros(len(samples)), np.ones(len(samples), bool)
    for t, (start, change, told) in enumerate(zip(models, changes, told_by_round(watched), strict=True), 1):
        norms = np.linalg.norm(change, axis=1, keepdims=True)
        own = change * np.minimum(1, 0.4 / norms)
        sent = own * staying[:, None]
        u = weights @ told
        found = [cosine(one, u) if stays else 0 for one, stays in zip(told, staying, strict=True)]
        r = np.maximum(0.3 * r + 0.7 * np.array(found), 0)
        r = r / r.sum()
        if t > 2:
            staying = staying & (r >= 0.9 / staying.sum())
            r = np.where(staying, r, 0) / r[staying].sum()
        weights, q = r, r / r.max()
        rewards = [top_by_layer(u, share) * stays for share, stays in zip(q, staying, strict=True)]
        yield Expected(sent, start + own + np.stack(rewards), r, q)


def cffl(watched: Watched) -> Iterator[Expected]:
    models, changes, samples = shapes(watched)
    public = watched.runtimes["peer0"].peer.validation
    shared, c, staying = models[0, 0], np.zeros(len(samples)), np.ones(len(samples), bool)
    for t, (start, change, told) in enumerate(zip(models, changes, told_by_round(watched), strict=True)):
        sent = np.stack([np.clip(top(one, int(0.3 * 610)), -0.02, 0.02) for one in change]) * staying[:, None]
        scores = np.array([right(shared + one, public) for one in told]) * staying
        c = 0.4 * c + 0.6 * scores / scores.sum()
        c = np.sinh(5 * (1 + t / ROUNDS) * c) * staying
        c = c / c.sum()
        staying = staying & (c >= 0.85 / staying.sum())
        c = np.where(staying, c, 0) / c[staying].sum()
        parts = samples * staying / samples[staying].sum()
        total = parts @ told
        q = c / c.max() * parts / parts.max()
        rewards = [top(total, int(share * 610)) - part * one for share, part, one in zip(q, parts, told, strict=True)]
        shared = shared + total
        yield Expected(sent, start + change + np.stack(rewards) * staying[:, None], c, q)


def right(model: Vector, samples: Any) -> float:
    """The accuracy of `federations:tiny`."""
    w1, b1, w2, b2 = (model[layer] for layer in LAYERS)
    hidden = np.maximum(samples.x.numpy().reshape(-1, 64) @ w1.reshape(8, 64).T + b1, 0)
    return float(((hidden @ w2.reshape(10, 8).T + b2).argmax(1) == samples.y.numpy()).mean())


def told_by_round(watched: Watched) -> Vector:
    assert watched.run
    return np.stack([watched.sent[peer] for peer in watched.run.ids], axis=1)


@pytest.mark.parametrize(("name", "paper"), [("cgsv", cgsv), ("rffl", rffl), ("cffl", cffl)])
def test_every_round_in_numpy(runs: dict[str, Watched], name: str, paper: Any) -> None:
    watched = runs[name]
    assert watched.run
    told, reputations, rewards = told_by_round(watched), watched.notes("reputation"), watched.notes("reward")
    for t, expected in enumerate(paper(watched)):
        assert_close(told[t], expected.sent)
        np.testing.assert_allclose(reputations[t], expected.reputation, atol=1e-6)
        np.testing.assert_allclose(rewards[t], expected.reward, atol=1e-6)
        after = [trace["after"] for trace in watched.run.traces(t + 1).values()]
        assert_close(after, expected.after)
        assert sum(reputations[t]) == pytest.approx(1)
        assert max(rewards[t]) <= 1


def test_some_but_not_all_were_dropped_and_train_on_alone(runs: dict[str, Watched]) -> None:
    for name in ("rffl", "cffl"):
        watched = runs[name]
        assert watched.run
        last, told = watched.notes("reputation")[-1], told_by_round(watched)
        assert 0 < sum(last == 0) < 4
        for i in np.flatnonzero(last == 0):
            dropped_at = [one[i] for one in watched.notes("reputation")].index(0)
            assert not told[dropped_at + 1 :, i].any()
            assert told[: dropped_at + 1, i].any(1).all()


def test_all_agree_on_who_remains_and_the_dropped_only_relay(runs: dict[str, Watched]) -> None:
    assert not runs["cgsv"].decisions
    for name, calls in (("rffl", ROUNDS - 2), ("cffl", ROUNDS)):
        decisions = runs[name].decisions
        reputations = runs[name].notes("reputation")[-calls:]
        assert {len(one) for one in decisions.values()} == {calls}
        for t, reputation in enumerate(reputations):
            told = [one[t] for one in decisions.values() if one[t] is not None]
            assert told == [(reputation > 0).tolist()] * len(told)
            before = reputations[t - 1] if t else np.ones(4)
            assert len(told) == (before > 0).sum()


def test_state_is_the_same_at_all_peers(runs: dict[str, Watched]) -> None:
    kept = {"cgsv": {"reputation"}, "rffl": {"reputation", "remaining"}, "cffl": {"credit", "remaining", "global"}}
    for name, names in kept.items():
        run = runs[name].run
        assert run
        found = [run.result(peer)["replicated"] for peer in run.ids]
        assert {*found[0]} == names
        assert found == found[:1] * 4
        assert all("update" not in runtime.peer.state for runtime in run.runtimes.values())


def test_updates_go_to_the_right_and_nothing_else_does(runs: dict[str, Watched]) -> None:
    for watched in runs.values():
        run = watched.run
        assert run
        edges = set()
        for peer, right_one in zip(run.ids, [*run.ids[1:], run.ids[0]], strict=True):
            lines = [line for record in run.audit(peer)[1:] for line in record["sent"]]
            assert {line["to"] for line in lines} == {right_one}
            told = [line for line in lines if line["vector"] == "update"]
            assert [line["bytes"] for line in told] == [3 * 4 * 610] * ROUNDS
            assert [line["head_bytes"] for line in told] == [3 * 4 * 90] * ROUNDS
            assert {line["vector"] for line in lines} - {"update"} <= {"remaining"}
            edges |= {(peer, line["to"]) for line in lines}
        assert fit_on_a_ring(edges, run.ids)


# -- properties --

VECTORS = arrays.arrays(np.float32, 30, elements=st.floats(-8, 8, width=32))
LAYOUT = (
    Entry("a", (4, 5), "float32", "extractor", 0, 20, True),
    Entry("b", (7,), "float32", "extractor", 20, 7, True),
    Entry("c", (3,), "float32", "head", 27, 3, True),
)


@settings(max_examples=30)
@given(VECTORS, st.floats(0, 1))
def test_a_reward_is_the_largest_entries_of_each_tensor(values: Any, share: float) -> None:
    vector = torch.from_numpy(values)
    masked = largest_of_each(LAYOUT, vector, share)
    for entry in LAYOUT:
        whole, part = entry.view(vector).flatten(), entry.view(masked).flatten()
        kept = part != 0
        assert torch.equal(part[kept], whole[kept])
        count = int(np.ceil(share * entry.size))
        assert kept.sum() == min(count, int((whole != 0).sum()))
        if kept.any() and not kept.all():
            assert whole[kept].abs().min() >= whole[~kept].abs().max() or count > kept.sum()


@settings(max_examples=30)
@given(VECTORS, st.floats(0, 1), st.floats(0, 1))
def test_the_higher_reward_holds_the_lower_one(values: Any, one: float, other: float) -> None:
    vector = torch.from_numpy(values) + torch.arange(30) * 1e-3
    less, more = (largest_of_each(LAYOUT, vector, share) for share in sorted((one, other)))
    assert ((less == 0) | (less == more)).all()
    assert torch.equal(largest_of_each(LAYOUT, vector, 1.0), vector)
    assert not largest_of_each(LAYOUT, vector, 0.0).any()
    assert torch.equal(largest_of_each(LAYOUT, vector, one), largest_of_each(LAYOUT, vector.clone(), one))


def test_few_and_no_entries() -> None:
    vector = torch.tensor([0.1, -3.0, 2.0])
    assert largest(vector, 0).tolist() == [0, 0, 0]
    assert largest(vector, 1).tolist() == [0, -3, 0]
    assert torch.equal(largest(vector, 9), vector)


@settings(max_examples=30)
@given(arrays.arrays(np.float64, 6, elements=st.floats(0, 1)), arrays.arrays(np.bool_, 6).filter(np.any))
def test_reputations_are_parts_of_a_whole_and_somebody_always_remains(values: Any, among: Any) -> None:
    mask = torch.from_numpy(among)
    found = portions(torch.from_numpy(values), mask)
    assert float(found.sum()) == pytest.approx(1)
    assert not found[~mask].any()
    staying = reputable(found, mask, 1 / 3)
    assert staying.any()
    assert not (staying & ~mask).any()


@settings(max_examples=30)
@given(st.integers(2, 9), st.floats(0.001, 50))
def test_equal_peers_get_equal_and_full_rewards(peers: int, beta: float) -> None:
    even = torch.full((peers,), 1 / peers, dtype=torch.float64)
    assert (CGSV(beta=beta).rewards(even) == 1).all()
    everyone = torch.ones(peers, dtype=torch.bool)
    credits = CFFL().credited(even, even, everyone, 0.5)
    np.testing.assert_allclose(credits, even)
    assert reputable(credits, everyone, 1).all() or torch.allclose(credits, even)


def test_a_larger_beta_makes_rewards_more_alike() -> None:
    reputation = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
    rewards = [CGSV(beta=beta).rewards(reputation) for beta in (1, 3, 9)]
    assert rewards[0][0] < rewards[1][0] < rewards[2][0] < 1


def test_credits_that_remember_much_leave_one_peer_over() -> None:
    """With .8 of the old credit, a lead of 1 % grows until the others are dropped; with .2 it stays small."""
    scores, everyone = torch.tensor([0.909, 0.9, 0.9, 0.9, 0.9], dtype=torch.float64), torch.ones(5, dtype=torch.bool)
    last = {}
    for memory in (0.2, 0.8):
        credit = torch.zeros(5, dtype=torch.float64)
        for t in range(30):
            credit = CFFL(memory=memory).credited(credit, scores, everyone, t / 30)
        last[memory] = credit
    assert reputable(last[0.2], everyone, 1 / 3).all()
    assert last[0.2][0] < 0.21
    assert reputable(last[0.8], everyone, 1 / 3).tolist() == [True, False, False, False, False]


# -- free riders, running statistics, wrong settings --


@pytest.mark.parametrize(
    ("name", "settings"), [("CGSV", {}), ("RFFL", {"after": 3, "alpha": 0.5}), ("CFFL", {"clip": 0.2})]
)
def test_a_free_rider_has_the_lowest_reputation(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    protocol = {"name": f"free_riders:Ridden{name}", "batch_size": 16, **settings}
    run = federate(tmp_path, protocol, 4, rounds=6, data={**DATA, "partition": {"kind": "iid"}})
    history = run.result("peer0")["history"]
    reputation, reward = (history[-1]["notes"][key] for key in ("reputation", "reward"))
    assert reputation[3] < 0.5 * min(reputation[:3])
    assert reward[3] < 0.6 * min(reward[:3])
    if name == "RFFL":
        assert [one["notes"]["reputation"][3] > 0 for one in history] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("name", QUICK)
def test_running_statistics_are_averaged_whole(tmp_path: Path, name: str) -> None:
    protocol = {"name": name, "epochs": 1, "batch_size": 16, **({"threshold": 0} if name == "cffl" else {})}
    watched = watch(tmp_path, protocol, 3, rounds=2, model={"name": "free_riders:normalised"}, trace=True)
    assert watched.run
    (entries,) = {runtime.peer.layout for runtime in watched.runtimes.values()}
    where = np.concatenate([np.full(entry.size, not entry.trainable) for entry in entries])
    assert where.sum() == 16
    samples = [runtime.peer.samples for runtime in watched.runtimes.values()]
    for t in (1, 2):
        mean = np.average([watched.changes[peer][t - 1] for peer in watched.run.ids], axis=0, weights=samples)
        for trace in watched.run.traces(t).values():
            np.testing.assert_allclose((trace["after"] - trace["start"])[where], mean[where], atol=1e-6)
    assert mean[where].any()


def test_cffl_without_public_samples_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fed.yaml").write_text("protocol: cffl\nrounds: 2\n")
    assert main(["check", str(tmp_path / "fed.yaml"), "--peers", "3"]) == 2
    assert "`data.validation` sets none aside; write `validation: 0.2` into `data`" in capsys.readouterr().err
    with pytest.raises(InputError, match="sets none aside"):
        federate(tmp_path / "run", "cffl", 3)
