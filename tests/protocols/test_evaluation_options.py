"""Rounds without figures, samples held back, the best model, an end agreed by all, and fine-tuning after it."""

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from federations import Run, federate, resolve
from safetensors.numpy import load_file

from launcher.commands.check import traffic
from launcher.plan import plan
from launcher.reports import summary_json
from launcher.reports.summary import TimeSpent, summarise
from peer.errors import InputError
from peer.telemetry.results import history

FEDAVG = {"name": "fedavg", "epochs": 1, "lr": 0.1}
HELD: dict[str, Any] = {"hold_back": 0.25, "trace": False}
STOPPING: dict[str, Any] = HELD | {"rounds": 30, "stop_early": {"patience": 2, "min_rounds": 3, "margin": 0.02}}
NEW = {"validation", "best", "before_finetuning", "stopped_early"}


def arrays_digest(path: Path) -> str:
    arrays, digest = load_file(path), hashlib.sha256()
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return federate(tmp_path_factory.mktemp("plain"), FEDAVG, 3, rounds=4, trace=False)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return federate(tmp_path_factory.mktemp("stopped"), FEDAVG, 3, **STOPPING)


def test_what_is_not_asked_for_is_not_written(plain: Run) -> None:
    for peer in plain.ids:
        result = plain.result(peer)
        assert not NEW & result.keys()
        assert all("validation" not in one for one in result["history"])
        assert not (plain.out / peer / "model.best.safetensors").exists()
    assert "hold_back" not in plain.runtimes["peer0"].setup.spec.dump()
    content = json.loads(summary_json.dump(summarise(plain.runtimes["peer0"].setup.spec, plain.out, TimeSpent(1, 0))))
    assert not NEW & content.keys()
    assert not NEW & content["per_peer"][0].keys()


def test_rounds_without_an_evaluation_have_no_figures_and_change_nothing(plain: Run, tmp_path: Path) -> None:
    seldom = federate(tmp_path, FEDAVG, 3, rounds=4, trace=False, evaluate_every=3)
    assert seldom.models() == plain.models()
    for peer in seldom.ids:
        rounds = {one.round: one for one in history(tmp_path / peer)}
        assert [at for at, one in rounds.items() if one.figures] == [3, 4]
        assert [at for at, one in rounds.items() if one.accuracy or one.test_loss is not None] == [3, 4]
        assert all(one.loss is not None for one in rounds.values())
        assert seldom.result(peer)["figures"] == plain.result(peer)["figures"]
    summary = summarise(seldom.runtimes["peer0"].setup.spec, tmp_path, TimeSpent(1, 0))
    assert [one["round"] for one in summary.history] == [3, 4]
    assert summary.r50 in (None, 3, 4)
    assert summary.plateau_sigma is not None


def test_all_peers_end_after_the_same_round_with_the_model_of_that_round(stopped: Run, tmp_path: Path) -> None:
    (rounds,) = {stopped.result(peer)["rounds"] for peer in stopped.ids}
    assert 3 <= rounds < 30
    assert all(stopped.result(peer)["stopped_early"] for peer in stopped.ids)
    assert {len(stopped.result(peer)["history"]) for peer in stopped.ids} == {rounds}
    counted = federate(tmp_path, FEDAVG, 3, **HELD | {"rounds": rounds})
    assert counted.models() == stopped.models()
    assert all((stopped.out / peer / "complete").exists() for peer in stopped.ids)


def test_it_is_by_the_mean_of_what_everybody_has_found(stopped: Run) -> None:
    rounds = stopped.result("peer0")["rounds"]
    found = [[one["validation"]["accuracy"] for one in stopped.result(peer)["history"]] for peer in stopped.ids]
    means = [sum(figures) / len(figures) for figures in zip(*found, strict=True)]
    kept = [means[0], 0]
    for at, mean in enumerate(means):
        kept = [mean, at] if mean - kept[0] > 0.02 else kept
    assert rounds - 1 - kept[1] == 2
    events = [json.loads(line) for line in (stopped.out / "peer1" / "events.jsonl").read_text().splitlines()]
    assert [one["round"] for one in events if one["event"] == "stopped_early"] == [rounds]


def test_a_number_a_round_leaves_each_peer_for_it_and_is_in_the_audit(stopped: Run) -> None:
    for line in stopped.audit("peer1")[1:]:
        (sent,) = [entry for entry in line["sent"] if entry["vector"] == "stop_early"]
        assert (sent["bytes"], sent["scalar_bytes"], line["told"]["stop_early"]) == (0, 16, 1)
    summary = summarise(stopped.runtimes["peer0"].setup.spec, stopped.out, TimeSpent(1, 0))
    assert summary.privacy["violations"] == []
    assert summary.stopped_early
    assert summary.rounds == stopped.result("peer0")["rounds"]
    assert summary_json.dump(summary).count('"stopped_early": true') == 1


def test_the_best_model_is_that_of_the_first_round_with_the_best_figure(stopped: Run, tmp_path: Path) -> None:
    for peer in stopped.ids:
        best = stopped.result(peer)["best"]
        found = [one["validation"]["accuracy"] for one in stopped.result(peer)["history"]]
        assert (best["round"], best["figure"]) == (found.index(max(found)) + 1, max(found))
        assert arrays_digest(stopped.out / peer / "model.best.safetensors") == best["model_sha256"]
    first = stopped.result("peer2")["best"]
    until = federate(tmp_path, FEDAVG, 3, **HELD | {"rounds": first["round"]})
    assert until.models()["peer2"] == first["model_sha256"]


@pytest.mark.parametrize("lost", ["gone", "of another round"])
def test_the_best_model_is_the_one_that_the_result_names(lost: str, tmp_path: Path) -> None:
    """Also where the file is not that of the checkpoint from which a peer goes on, as after a round became void."""
    first = federate(tmp_path, FEDAVG, 3, **HELD | {"rounds": 2})
    assert first.result("peer0")["best"]["round"] == 1
    best = tmp_path / "peer0" / "model.best.safetensors"
    if lost == "gone":
        best.unlink()
    else:
        best.write_bytes((tmp_path / "peer0" / "model.safetensors").read_bytes())
    again = federate(tmp_path, FEDAVG, 3, **HELD | {"rounds": 4})
    found = again.result("peer0").get("best")
    assert best.exists() == bool(found)
    assert not found or (found["round"] > 2 and arrays_digest(best) == found["model_sha256"])
    other = again.result("peer1")["best"]
    assert arrays_digest(tmp_path / "peer1" / "model.best.safetensors") == other["model_sha256"]


def test_who_has_stopped_stays_so_with_more_rounds(tmp_path: Path) -> None:
    keys = STOPPING | {"stop_early": {"patience": 1, "margin": 1.0}}
    first = federate(tmp_path, FEDAVG, 2, **keys)
    again = federate(tmp_path, FEDAVG, 2, **keys | {"rounds": 40})
    assert first.models() == again.models()
    assert [again.result(peer)["rounds"] for peer in again.ids] == [2, 2]


def test_a_last_round_is_not_gone_past_later(tmp_path: Path) -> None:
    keys = STOPPING | {"stop_early": {"patience": 1, "margin": 1.0}}
    first = federate(tmp_path, FEDAVG, 2, **keys | {"rounds": 2})
    assert "stopped_early" not in first.result("peer0")
    again = federate(tmp_path, FEDAVG, 2, **keys | {"rounds": 5})
    assert again.models() == first.models()
    assert (again.result("peer0")["rounds"], again.result("peer0")["stopped_early"]) == (2, True)


@pytest.mark.parametrize("topology", ["ring", "exponential", "complete"])
def test_it_goes_round_every_graph(tmp_path: Path, topology: str) -> None:
    keys = STOPPING | {"stop_early": {"patience": 1, "margin": 1.0}, "data": {"name": "digits", "limit": 60}}
    run = federate(tmp_path, {"name": "gossip-sgd", "topology": topology}, 5, **keys)
    assert [run.result(peer)["rounds"] for peer in run.ids] == [2] * 5


def test_one_peer_alone_ends_by_its_own_figure(tmp_path: Path) -> None:
    keys = STOPPING | {"stop_early": {"patience": 1, "margin": 1.0}}
    run = federate(tmp_path, {"name": "solo", "like": "fedavg", "settings": {"epochs": 1}}, 1, **keys)
    assert run.result("peer0")["rounds"] == 2


@pytest.mark.parametrize(
    ("protocol", "keys", "why"),
    [
        (FEDAVG, {"hold_back": None}, "add `hold_back: 0.1`"),
        ({"name": "solo"}, {}, "not connected"),
        ({"name": "dp-fedavg"}, {}, "without noise"),
        (FEDAVG, {"stop_early": {"patience": 0}}, "greater than or equal to 1"),
        (FEDAVG, {"finetune": {"part": "extractor"}}, "'head' or 'model'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, protocol: dict[str, Any], keys: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        resolve(tmp_path, protocol, 3, **STOPPING | keys)


def test_a_share_that_leaves_nothing_is_found_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leaves none of"):
        plan(resolve(tmp_path, FEDAVG, 3, hold_back=0.999))


def test_what_counts_as_samples_is_what_is_trained_on(stopped: Run) -> None:
    made = plan(stopped.runtimes["peer0"].setup.spec)
    for peer, runtime in stopped.runtimes.items():
        held = runtime.setup.shard.held_back
        assert held is not None
        assert (runtime.peer.samples, len(held)) == (30, 10)
        assert stopped.result(peer)["samples"] == made.sites[peer].sizes[0] == 30


def test_fine_tuning_changes_the_head_alone_and_nothing_leaves(tmp_path: Path) -> None:
    keys = HELD | {"rounds": 2}
    before = federate(tmp_path / "before", FEDAVG, 3, **keys)
    after = federate(tmp_path / "after", FEDAVG, 3, **keys, finetune={"epochs": 3, "part": "head", "lr": 0.1})
    for peer in after.ids:
        ours, theirs = (load_file(run.out / peer / "model.safetensors") for run in (after, before))
        same = {name for name, array in ours.items() if (array == theirs[name]).all()}
        assert same == {name for name in ours if name.startswith("extractor.")}
        result, plain = after.result(peer), before.result(peer)
        assert {key: plain[key] for key in result["before_finetuning"]} == result["before_finetuning"]
        assert result["test_loss"] != plain["test_loss"]
        assert result["tensor_bytes_sent"] == plain["tensor_bytes_sent"]
        assert result["best"] == plain["best"]


def fine_tunings(run: Run) -> dict[str, int]:
    """How often each peer has fine-tuned."""
    return {id: (run.out / id / "events.jsonl").read_text().count('"finetuned"') for id in run.ids}


def test_a_finished_peer_fine_tunes_once_more_only_where_its_result_is_not_whole_or_of_other_settings(
    tmp_path: Path,
) -> None:
    keys = HELD | {"rounds": 2}
    tuned = {"finetune": {"epochs": 2, "part": "model", "lr": 0.1}}
    first = federate(tmp_path, FEDAVG, 3, **keys, **tuned)
    models, results = first.models(), {id: first.result(id) for id in first.ids}
    with (tmp_path / "peer0" / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"torn")
    (tmp_path / "peer1" / "result.json").write_text("{")
    again = federate(tmp_path, FEDAVG, 3, **keys, **tuned)
    assert fine_tunings(again) == {"peer0": 2, "peer1": 2, "peer2": 1}
    assert again.models() == models
    assert again.result("peer2") == results["peer2"]
    assert [one.setup.model.sha256() for one in again.runtimes.values()] == [*models.values()]
    other = federate(tmp_path, FEDAVG, 3, **keys, finetune={"epochs": 1, "part": "model", "lr": 0.1})
    assert fine_tunings(other) == {"peer0": 3, "peer1": 3, "peer2": 2}
    assert other.models() != models


def test_fine_tuning_goes_by_its_own_settings(tmp_path: Path) -> None:
    keys = HELD | {"rounds": 2, "finetune": {"epochs": 2, "lr": 0.01}}
    clipped = federate(tmp_path / "clipped", FEDAVG, 3, **keys, training={"clip_gradient": 1.0})
    training = {
        "clip_gradient": 1.0,
        "scheduler": {"name": "ConstantLR", "factor": 1.0, "every": "step"},
        "patience": 9,
    }
    scheduled = federate(tmp_path / "scheduled", FEDAVG, 3, **keys, training=training)
    assert scheduled.models() == clipped.models(), "fine-tuning keeps a rate of its own"


def test_fine_tuning_that_diverges_leaves_the_model_of_the_last_round_and_can_be_mended(tmp_path: Path) -> None:
    keys = HELD | {"rounds": 2}
    plain = federate(tmp_path / "plain", FEDAVG, 3, **keys)
    with pytest.raises(ExceptionGroup) as failed:
        federate(tmp_path / "run", FEDAVG, 3, **keys, finetune={"lr": 1e38})
    assert all(
        "lower `lr` in `finetune` and start again, or leave it out" in str(one) for one in failed.value.exceptions
    )
    kept = {path.parent.name: load_file(path) for path in (tmp_path / "run").glob("peer*/model.safetensors")}
    assert kept
    for peer, arrays in kept.items():
        for name, array in load_file(plain.out / peer / "model.safetensors").items():
            assert (arrays[name] == array).all()
    mended = federate(tmp_path / "run", FEDAVG, 3, **keys, finetune={"lr": 1e-3})
    assert mended.result("peer0")["before_finetuning"]["test_loss"] == plain.result("peer0")["test_loss"]


def test_more_rounds_go_on_from_before_the_fine_tuning(tmp_path: Path) -> None:
    keys = HELD | {"finetune": {"epochs": 1, "part": "model"}}
    federate(tmp_path / "longer", FEDAVG, 2, **keys | {"rounds": 1})
    longer = federate(tmp_path / "longer", FEDAVG, 2, **keys | {"rounds": 3})
    assert longer.models() == federate(tmp_path / "once", FEDAVG, 2, **keys | {"rounds": 3}).models()


def test_what_was_best_before_the_data_drifted_is_so_no_more(tmp_path: Path) -> None:
    data = {"name": "digits", "limit": 120, "drift": [{"round": 4, "labels": [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]}]}
    keys = STOPPING | {"stop_early": {"patience": 3, "margin": 1.0}, "data": data}
    run = federate(tmp_path, FEDAVG, 3, **keys, behaviour={"peer1": {"kind": "label-flip", "rate": 0.5}})
    # Without the drift the fourth round, which is no better by the margin than the first, would be the last.
    assert [run.result(peer)["rounds"] for peer in run.ids] == [7] * 3
    assert all(run.result(peer)["best"]["round"] >= 4 for peer in run.ids)


def test_no_record_is_declared_but_where_peers_may_end_early(plain: Run, stopped: Run) -> None:
    for run, names in ((plain, ["model"]), (stopped, ["model", "stop_early"])):
        payloads = run.runtimes["peer0"].network.manifest.payloads
        assert [one.name for one in payloads] == names
        assert [(one.size, one.doubles) for one in payloads[1:]] == [(0, 1)] * (len(names) - 1)


def test_what_is_told_to_end_early_is_counted_in_the_rounds_in_which_it_is(tmp_path: Path) -> None:
    keys = STOPPING | {"rounds": 5, "evaluate_every": 2}
    told = resolve(tmp_path, FEDAVG, 3, **keys | {"stop_early": {"patience": 5}})
    silent = resolve(tmp_path, FEDAVG, 3, **keys | {"stop_early": None})
    (with_figures,), (without,) = [asyncio.run(traffic(plan(spec), ["peer1"])).values() for spec in (told, silent)]
    assert [one - other for one, other in zip(with_figures, without, strict=True)] == [0, 0, 16, 0, 16, 0]
    run = federate(tmp_path, FEDAVG, 3, **keys | {"stop_early": {"patience": 5}})
    audited = [any(entry["vector"] == "stop_early" for entry in line["sent"]) for line in run.audit("peer1")]
    assert audited == [False, False, True, False, True, False]
    assert [told.evaluates(round) for round in range(1, 6)] == [False, True, False, True, True]
