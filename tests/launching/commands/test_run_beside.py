"""`dfl-launch run --beside solo`: the same peers alone, and what taking part was worth to each."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_runs import Run, summary

from launcher.reports.summary_json import read, write
from launcher.reports.worth import solo_spec, with_worth, worth_lines
from peer.errors import InputError
from peer.spec.federation import Spec
from peer.spec.loading import load_spec


def federation(directory: Path, peers: int = 4, **keys: Any) -> Spec:
    path = directory / "clinics.yaml"
    path.write_text(json.dumps({"protocol": {"name": "fedavg", "lr": 0.3}, "data": {"name": "digits"}, **keys}))
    return load_spec(path, peers=peers)


def with_accuracies(summary: Path, **matched: float) -> None:
    content = json.loads(summary.read_text())
    for one in content["per_peer"]:
        one["accuracy"]["matched"] = matched[one["id"]]
    summary.write_text(json.dumps(content))


def test_each_peer_trains_alone_first_and_every_report_says_what_taking_part_was_worth(
    run: Run, tmp_path: Path
) -> None:
    code, text = run(beside=True)
    assert code == 0
    assert text.index("first each peer alone") < text.index("small-solo: solo, 3 peers, 3 rounds in ")
    assert text.index("now all together") < text.index("small: fibfl, 3 peers, 3 rounds in ")
    assert "taking part was worth it for 0 of 3 peers" in text
    assert "no difference: peer0 +0.0000 (0.3000 alone), peer1 +0.0000 (0.3000 alone), peer2" in text
    assert load_spec(tmp_path / "out-solo" / "federation.yaml").protocol.name == "solo"
    assert summary(tmp_path)["worth"]["gain"] == {"peer0": 0, "peer1": 0, "peer2": 0}
    assert "No difference: peer0 +0.0000 (0.3000 alone)" in (tmp_path / "out" / "report.html").read_text()


def test_a_finished_run_is_judged_once_its_peers_have_trained_alone(run: Run, tmp_path: Path) -> None:
    run()
    assert "worth" not in summary(tmp_path)
    code, text = run(beside=True)
    assert (code, "taking part was worth it" in text) == (0, True)
    assert summary(tmp_path)["worth"]["mcg"] == 0
    assert "taking part was worth it" in (tmp_path / "out" / "report.html").read_text().lower()
    assert "taking part was worth it" in run()[1]


def test_peers_that_refuse_to_train_alone_leave_nothing(run: Run, tmp_path: Path) -> None:
    code, _ = run(beside=True, peer1="wrong")
    assert code == 2
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out-solo").exists()


def test_the_verdict_names_each_peer(run: Run, small: Path, tmp_path: Path) -> None:
    run(beside=True)
    with_accuracies(tmp_path / "out" / "summary.json", peer0=0.9, peer1=0.5, peer2=0.7)
    with_accuracies(tmp_path / "out-solo" / "summary.json", peer0=0.8, peer1=0.6, peer2=0.7)
    found = read(tmp_path / "out" / "summary.json")
    assert found
    found = with_worth(found, load_spec(small, peers=3), tmp_path / "out")
    assert found.worth
    assert worth_lines(found.worth) == [
        "taking part was worth it for 1 of 3 peers: matched accuracy beside training alone, gain +0.0000 on average",
        "  worth it: peer0 +0.1000 (0.8000 alone)",
        "  not worth it: peer1 -0.1000 (0.6000 alone)",
        "  no difference: peer2 +0.0000 (0.7000 alone)",
    ]
    write(tmp_path / "again.json", found)
    assert read(tmp_path / "again.json") == found


def test_a_run_of_other_settings_is_not_taken_for_it(run: Run, tmp_path: Path) -> None:
    run(beside=True)
    run(fresh=True, seed=7)
    assert "worth" not in summary(tmp_path)


def test_alone_peers_train_as_in_the_federation_without_what_needs_others(tmp_path: Path) -> None:
    flip, noise = {"kind": "label-flip"}, {"kind": "noise", "scale": 1}
    spec = federation(
        tmp_path,
        rounds=3,
        wire="bfloat16",
        hold_back=0.2,
        on_loss="bypass",
        start_with=3,
        behaviour={"peer1": flip, "peer2": noise},
        training={"clip_gradient": 1},
        rewinds=[2],
    )
    by_itself = solo_spec(spec)
    assert by_itself.protocol.local()[0].optimiser == spec.protocol.local()[0].optimiser
    assert (by_itself.on_loss, by_itself.wire.kind, [*by_itself.behaviour]) == ("wait", "float32", ["peer1"])
    assert not by_itself.rewinds, "alone they hold other rounds"
    for key in ("data", "model", "task", "training", "seed", "init", "rounds", "hold_back"):
        assert getattr(by_itself, key) == getattr(spec, key)
    early = federation(tmp_path, hold_back=0.2, stop_early={"patience": 2})
    assert solo_spec(early).stop_early is None
    with pytest.raises(InputError, match="train alone as it is; leave out `--beside`"):
        solo_spec(by_itself)


def test_columns_that_are_standardised_together_are_each_peers_own_when_alone(tmp_path: Path) -> None:
    data = {"name": "csv", "path": "{id}.csv", "standardize": "federation"}
    assert solo_spec(federation(tmp_path, data=data, model={"name": "mlp"})).data.standardize == "own"
