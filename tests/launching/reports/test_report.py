"""summary.json and its metrics from hand-made results, and what a person is told of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launcher.reports import summary_json, summary_text
from launcher.reports.peer_files import AuditedRound, audits
from launcher.reports.summary import TimeSpent, summarise
from peer.errors import FailedError
from peer.learning.export import save_model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.spec.blocks import LabelFlip
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

COURSE = {
    "peer0": [0.2, 0.6, 0.8, 0.9],
    "peer1": [0.4, 0.5, 0.6, 0.7],
    "peer2": [0.3, 0.4, 0.4, 0.2],
}


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    file = tmp_path / "three.yaml"
    file.write_text("name: three\nrounds: 4\nprotocol: {name: fibfl}\ndata: {name: digits}\n")
    return load_spec(file, peers=3)


def accuracy(value: float) -> dict[str, float | None]:
    return {"matched": value, "global": value / 2, "paper": None, "local": None}


def result(id: str, course: Sequence[float]) -> dict[str, Any]:
    return {
        "id": id,
        "samples": 10,
        "rounds": len(course),
        "accuracy": accuracy(course[-1]),
        "model_sha256": "0" * 64,
        "bytes_sent": 1000,
        "bytes_received": 1000,
        "tensor_bytes_sent": 900,
        "sent_to": {"peer1": 1000},
        "seconds": {"train": 1.0, "communicate": 0.5, "evaluate": 0.1},
        "ring": ["peer0", "peer2", "peer1"],
        "ring_cost": {"before": 1.28, "after": 0.06},
        "history": [{"round": n, "accuracy": accuracy(a)} for n, a in enumerate(course, start=1)],
        "head_accuracy": 0.5,
    }


def write_results(directory: Path, results: Sequence[dict[str, Any]]) -> None:
    for one in results:
        (directory / one["id"]).mkdir()
        (directory / one["id"] / "result.json").write_text(json.dumps(one))
        rounds = [{"round": n, "edges": {}, "sent": [], "received": []} for n in range(5)]
        (directory / one["id"] / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))


def test_summary_has_every_name_and_the_right_numbers(tmp_path: Path, spec: Spec) -> None:
    write_results(tmp_path, [result(id, course) for id, course in COURSE.items()])
    summary = summarise(spec, tmp_path, TimeSpent(12.3456, 2))
    summary_json.write(tmp_path / "summary.json", summary)
    assert summary_json.read(tmp_path / "summary.json") == summary
    written = json.loads((tmp_path / "summary.json").read_text())
    assert list(written) == [
        *("name", "protocol", "task", "figures", "peers", "rounds", "seed", "ring", "wall_seconds", "mean_accuracy"),
        *("worst_accuracy", "gini", "r50", "plateau_sigma", "history", "ring_cost", "restarts"),
        *("per_peer", "privacy"),
    ]
    assert summary.mean_accuracy == {
        "matched": pytest.approx(0.6),
        "global": pytest.approx(0.3),
        "paper": None,
    }
    assert summary.worst_accuracy == 0.2
    # x = .2, .7, .9: 2(1·.2 + 2·.7 + 3·.9)/(3·1.8) − 4/3
    assert summary.gini == pytest.approx(8.6 / 5.4 - 4 / 3)
    # means .3, .5, .6, .6: one half in round 2; rounds 3 and 4 are equal
    assert summary.r50 == 2
    assert summary.plateau_sigma == pytest.approx(0.0, abs=1e-12)
    assert [one["matched"] for one in summary.history] == pytest.approx([0.3, 0.5, 0.6, 0.6])
    assert [one["round"] for one in summary.history] == [1, 2, 3, 4]
    assert summary.ring == ("peer0", "peer2", "peer1")
    assert summary.ring_cost == {"before": 1.28, "after": 0.06}
    assert (summary.peers, summary.restarts, summary.protocol) == (3, 2, "fibfl")
    assert list(written["per_peer"][0]) == [
        *(
            "id",
            "samples",
            "accuracy",
            "figures",
            "balanced",
            "test_loss",
            "model_sha256",
            "bytes_sent",
            "bytes_received",
        ),
        *("tensor_bytes_sent", "sent_to", "seconds", "notes"),
    ]
    assert summary.privacy["violations"] == []


def test_rounds_without_an_evaluation_are_left_out(tmp_path: Path, spec: Spec) -> None:
    results = [result(id, course) for id, course in COURSE.items()]
    for one in results:
        one["history"][0]["accuracy"] = one["history"][2]["accuracy"] = {}
    write_results(tmp_path, results)
    summary = summarise(spec, tmp_path, TimeSpent(1.0, 0))
    assert [one["round"] for one in summary.history] == [2, 4]
    assert summary.r50 == 2
    assert summary.plateau_sigma == pytest.approx(0.0, abs=1e-12)


def test_a_result_of_fewer_rounds_counts_if_all_agreed_to_end_then(tmp_path: Path, spec: Spec) -> None:
    short = spec.model_copy(update={"rounds": 9})
    write_results(tmp_path, [result(id, course) for id, course in COURSE.items()])
    with pytest.raises(FailedError, match="no result of peer0, peer1, peer2"):
        summarise(short, tmp_path, TimeSpent(1.0, 0))
    for id, course in COURSE.items():
        content = result(id, course) | {"stopped_early": True, "best": {"round": 3, "figure": 0.5, "model_sha256": "0"}}
        (tmp_path / id / "result.json").write_text(json.dumps(content))
    summary = summarise(short, tmp_path, TimeSpent(1.0, 0))
    assert (summary.rounds, summary.stopped_early, summary.privacy["violations"]) == (4, True, [])
    said = summary_text.summary_lines(summary, short)
    assert said[0].startswith("three: fibfl, 3 peers, 4 rounds of 9, ended early, in")
    assert "best rounds on the samples held back: peer0 3 (0.5000), peer1 3" in "\n".join(said)


def test_headline_metrics_follow_the_specs_test(tmp_path: Path, spec: Spec) -> None:
    write_results(tmp_path, [result(id, course) for id, course in COURSE.items()])
    by_global = spec.model_copy(update={"test": "global"})
    summary = summarise(by_global, tmp_path, TimeSpent(1, 0))
    assert summary.worst_accuracy == pytest.approx(0.1)
    assert summary.r50 is None


def test_own_data_gives_a_local_mean(tmp_path: Path, spec: Spec) -> None:
    results = [result(id, course) for id, course in COURSE.items()]
    own = {"matched": None, "global": None, "paper": None, "local": 0.3}
    results[2]["accuracy"] = own
    for event in results[2]["history"]:
        event["accuracy"] = own
    write_results(tmp_path, results)
    summary = summarise(spec, tmp_path, TimeSpent(1, 0))
    assert summary.mean_accuracy["local"] == 0.3
    assert summary.mean_accuracy["matched"] == pytest.approx(0.8)
    assert summary.worst_accuracy == 0.3


def test_who_misbehaved_by_the_settings_is_said_and_the_others_have_a_mean(tmp_path: Path, spec: Spec) -> None:
    write_results(tmp_path, [result(id, course) for id, course in COURSE.items()])
    experiment = spec.model_copy(update={"behaviour": {"peer2": LabelFlip(kind="label-flip")}})
    summary = summarise(experiment, tmp_path, TimeSpent(1, 0))
    summary_json.write(tmp_path / "summary.json", summary)
    assert summary_json.read(tmp_path / "summary.json") == summary
    assert summary.behaviour == {"peer2": "label-flip, rate 0.5"}
    assert summary.honest_accuracy == pytest.approx(0.8)
    said = summary_text.summary_lines(summary, experiment)
    assert "simulated adversaries: peer2 (label-flip, rate 0.5); mean of the honest peers: 0.8000" in said


def test_unknown_accuracies_give_no_numbers(tmp_path: Path, spec: Spec) -> None:
    results = [result(id, [0.5]) for id in COURSE]
    for one in results:
        one["accuracy"] = one["history"][0]["accuracy"] = dict.fromkeys(accuracy(0.5))
    write_results(tmp_path, results)
    once = spec.model_copy(update={"rounds": 1})
    summary = summarise(once, tmp_path, TimeSpent(1, 0))
    assert [summary.worst_accuracy, summary.gini, summary.r50, summary.plateau_sigma] == [None] * 4


def test_heads_are_private_round_by_round(spec: Spec) -> None:
    from peer.protocols.fibfl_plus_plus import FibFLPlusPlus

    assert spec.protocol.declarations(spec.rounds).heads_stay(1)
    warm_up = FibFLPlusPlus(warmup=2, warmup_shares="model").declarations(spec.rounds)
    assert [warm_up.heads_stay(round) for round in range(5)] == [True, False, False, True, True]


def test_audits_as_lines_count_each_round_once(tmp_path: Path) -> None:
    (tmp_path / "peer0").mkdir()
    sent = {"to": "peer1", "vector": "extractor", "bytes": 8}
    first, second = ({"round": round, "edges": {}, "sent": [sent], "received": []} for round in (1, 2))
    spoilt = [
        {"round": 3},
        first | {"round": "1"},
        first | {"sent": ["torn"]},
        first | {"sent": [{"to": "peer1", "vector": "extractor"}]},
        first | {"received": [sent]},
        first | {"edges": {"peer1": "send"}},
        first | {"told": {"extractor": "25"}},
        first | {"told": [25]},
    ]
    lines = [first | {"sent": []}, second, first, *spoilt]
    (tmp_path / "peer0" / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert audits({id: tmp_path / id for id in ("peer0", "peer1")}) == {
        "peer0": [AuditedRound.model_validate(one) for one in (first, second)]
    }


def test_missing_result_is_named(tmp_path: Path, spec: Spec) -> None:
    write_results(tmp_path, [result("peer0", [0.5]), result("peer2", [0.5])])
    with pytest.raises(FailedError, match="peer1"):
        summarise(spec, tmp_path, TimeSpent(1, 0))


@pytest.mark.parametrize("spoilt", ['{"id": "pee', "[]", "3", "null", "{}"])
def test_result_that_cannot_be_read_is_no_result(tmp_path: Path, spec: Spec, spoilt: str) -> None:
    write_results(tmp_path, [result(id, course) for id, course in COURSE.items()])
    (tmp_path / "peer1" / "result.json").write_text(spoilt)
    with pytest.raises(FailedError, match="no result of peer1;"):
        summarise(spec, tmp_path, TimeSpent(1, 0))


def test_result_of_another_length_is_no_result(tmp_path: Path, spec: Spec) -> None:
    results = [result(id, course) | {"rounds": 4} for id, course in COURSE.items()]
    results[1]["rounds"] = 3
    write_results(tmp_path, results)
    with pytest.raises(FailedError, match="no result of peer1;"):
        summarise(spec, tmp_path, TimeSpent(1, 0))


def test_what_a_protocol_noted_is_in_the_summary(tmp_path: Path, spec: Spec) -> None:
    results = [result(id, course) for id, course in COURSE.items()]
    results[0]["history"][0]["notes"] = {"gamma": 0.5}
    results[0]["history"][2]["notes"] = {"gamma": 0.25, "weights": [0.5, 1.0]}
    write_results(tmp_path, results)
    summary_json.write(tmp_path / "summary.json", summarise(spec, tmp_path, TimeSpent(1, 0)))
    first, second, _ = json.loads((tmp_path / "summary.json").read_text())["per_peer"]
    assert first["notes"] == [{"round": 1, "gamma": 0.5}, {"round": 3, "gamma": 0.25, "weights": [0.5, 1.0]}]
    assert second["notes"] == []


def test_a_summary_leaves_no_draft(tmp_path: Path, spec: Spec) -> None:
    write_results(tmp_path, [result(id, course) for id, course in COURSE.items()])
    (tmp_path / "run").mkdir()
    summary_json.write(tmp_path / "run" / "summary.json", summarise(spec, tmp_path, TimeSpent(1, 0)))
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["summary.json"]


@pytest.mark.parametrize("spoilt", ["", "[]", "3", "null", "{}", '{"rounds": 4', b"\xff"])
def test_a_summary_that_cannot_be_read_is_none(tmp_path: Path, spoilt: str | bytes) -> None:
    assert summary_json.read(tmp_path / "summary.json") is None
    (tmp_path / "summary.json").write_bytes(spoilt if isinstance(spoilt, bytes) else spoilt.encode())
    assert summary_json.read(tmp_path / "summary.json") is None


def test_what_a_person_reads(tmp_path: Path, spec: Spec) -> None:
    write_results(tmp_path, [result(id, course) for id, course in COURSE.items()])
    summary = summarise(spec, tmp_path, TimeSpent(75, 2))
    save_model(build("mlp", Example.zeros((4,), 3), seed=1), tmp_path / "peer0" / "model.safetensors")
    breach = {
        "round": 2,
        "from": "peer0",
        "to": "peer2",
        "vector": "head",
        "bytes": 8,
        "reason": "a private head",
    }
    summary.privacy["violations"] = [breach]
    with (tmp_path / "screen").open("w") as screen:
        summary_text.show(summary, spec, tmp_path, Console(file=screen, width=100))
    text = (tmp_path / "screen").read_text()
    for part in (
        "three: fibfl, 3 peers, 4 rounds in 1 min 15 s, 2 restarts",
        "mean 0.6000, worst 0.2000",
        "ring cost: 1.2800 before, 0.0600 after",
        "1 VIOLATION",
        "round 2, peer0 to peer2: a private head",
        f"{tmp_path}/peer0/model.safetensors",
    ):
        assert part in text
