"""CGSV, RFFL, CFFL: whole runs against the papers in numpy, free riders, and what leaves a peer."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from federations import federate
from pydantic import ValidationError
from rewards import DATA, QUICK, ROUNDS, Watched, watch
from rewards_in_numpy import assert_close, cffl, cgsv, rffl

from launcher.cli import main
from launcher.reports.privacy import why_no_ring
from peer.errors import InputError
from peer.learning.data.samples import InMemory
from peer.learning.tasks import Classification
from peer.protocols.cffl import CFFL, score


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Watched]:
    directory = tmp_path_factory.mktemp("rewards")
    return {name: watch(directory / name, {"name": name, **keys}, 4, rounds=ROUNDS) for name, keys in QUICK.items()}


@pytest.mark.parametrize(("name", "paper"), [("cgsv", cgsv), ("rffl", rffl), ("cffl", cffl)])
def test_every_round_in_numpy(runs: dict[str, Watched], name: str, paper: Any) -> None:
    watched = runs[name]
    assert watched.run
    told, reputations, rewards = watched.told(), watched.notes("reputation"), watched.notes("reward")
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
        last, told = watched.notes("reputation")[-1], watched.told()
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
        assert not why_no_ring(edges, run.ids)


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
    watched = watch(tmp_path, protocol, 3, rounds=2, model={"name": "federations:normalised"}, trace=True)
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


class Mirrored(Classification):
    """Judges one sample after the other, by the mean over its mirror image."""

    evaluation_batch: ClassVar[int] = 1

    def infer(self, forward: Callable[[Any], torch.Tensor], inputs: Any) -> torch.Tensor:
        return forward(inputs) + forward(-inputs)


def test_cffl_scores_as_a_task_evaluates() -> None:
    asked = list[torch.Tensor]()

    def logits(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        asked.append(x)
        return x * vector

    peer: Any = SimpleNamespace(task=Mirrored(), logits=logits)
    x = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    score(peer, torch.ones(2), InMemory(x, torch.tensor([1, 0])))
    assert [one.tolist() for one in asked] == [[[1, 2]], [[-1, -2]], [[2, 1]], [[-2, -1]]]


def test_credits_of_cffl_are_numbers_for_each_alpha() -> None:
    found = CFFL(alpha=100).credited(torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 0.0]), torch.ones(2) > 0, 1)
    assert found.tolist() == [1, 0]
    with pytest.raises(ValidationError, match="less than or equal to 100"):
        CFFL(alpha=101)
