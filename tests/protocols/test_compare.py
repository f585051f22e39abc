"""`dfl-launch compare`: the gains of real runs, against counting them again."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from federations import federate

from launcher.cli import main
from launcher.reports.summary import TimeSpent, summarise
from launcher.reports.summary_json import write
from peer.spec.loading import load_spec

ALONE = {"name": "solo", "like": "fedavg"}


def finished(directory: Path, protocol: str | dict[str, str], peers: int = 3, **spec: Any) -> Path:
    ring = [{"id": f"peer{i}", "address": f"127.0.0.1:{7700 + i}"} for i in range(peers)]
    federate(directory, {"name": protocol} if isinstance(protocol, str) else protocol, peers, ring=ring, **spec)
    spec = load_spec(directory / "federation.yaml")
    write(directory / "summary.json", summarise(spec, directory, TimeSpent(1.0, 0)))
    return directory


def test_gains_over_training_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, alone = finished(tmp_path / "run", "fedavg"), finished(tmp_path / "alone", ALONE)
    assert main(["compare", str(run), str(alone), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    ours, theirs = (
        [peer["accuracy"]["matched"] for peer in json.loads((one / "summary.json").read_text())["per_peer"]]
        for one in (run, alone)
    )
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    assert list(said["gain"].values()) == pytest.approx(gains)
    assert said["mcg"] == pytest.approx(statistics.fmean(gains))
    assert said["cgs"] == pytest.approx(statistics.stdev(gains))
    assert said["pearson"] == pytest.approx(statistics.correlation(ours, theirs))
    assert said["weight_divergence"] == pytest.approx(0, abs=1e-7), "fedavg ends in one model"

    assert main(["compare", str(alone), str(alone), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    models = [safetensors.numpy.load_file(alone / f"peer{i}" / "model.safetensors") for i in range(3)]
    one, two, three = (np.concatenate([m[name].ravel() for name in m]).astype(np.float64) for m in models)
    pairs = np.stack([np.abs(one - two), np.abs(one - three), np.abs(two - three)])
    assert said["weight_divergence"] == pytest.approx(pairs.mean())
    assert said["mcg"] == 0

    (run / "peer1" / "model.safetensors").unlink()  # it has stayed where its peer ran
    assert main(["compare", str(run), str(alone)]) == 0
    assert f"(MCG): {statistics.fmean(gains):+.4f}" in capsys.readouterr().out


def test_the_figure_that_judges_the_task_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = {"name": "classification", "judged_by": ["auroc"]}
    run, alone = finished(tmp_path / "run", "fedavg", task=task), finished(tmp_path / "alone", ALONE, task=task)
    assert main(["compare", str(run), str(alone), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    ours, theirs = (
        [peer["figures"]["auroc"] for peer in json.loads((one / "summary.json").read_text())["per_peer"]]
        for one in (run, alone)
    )
    assert said["figure"] == "auroc"
    assert list(said["gain"].values()) == pytest.approx([a - b for a, b in zip(ours, theirs, strict=True)])


def test_alone_each_standardises_by_its_own_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = np.random.default_rng(1)
    np.savez(tmp_path / "x.npz", x=drawn.normal(3, 2, (90, 4)), y=drawn.integers(0, 2, 90))
    data, model = {"name": "npz", "path": str(tmp_path / "x.npz")}, {"name": "mlp"}
    run = finished(tmp_path / "run", "fedavg", data=data | {"standardize": "federation"}, model=model)
    alone = finished(tmp_path / "alone", ALONE, data=data | {"standardize": "own"}, model=model)
    assert main(["compare", str(run), str(alone)]) == 0, "`solo` has no other way"
    raw = finished(tmp_path / "raw", ALONE, data=data, model=model)
    assert main(["compare", str(run), str(raw)]) == 2
    assert "differ in data" in capsys.readouterr().err


def test_runs_that_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, fewer = finished(tmp_path / "run", "solo"), finished(tmp_path / "fewer", "solo", peers=2)
    assert main(["compare", str(run), str(fewer)]) == 2
    assert "differ in ring" in capsys.readouterr().err
    less = finished(tmp_path / "less", "solo", hold_back=0.5)
    assert main(["compare", str(less), str(run)]) == 2, "of half the training samples"
    assert "differ in hold_back" in capsys.readouterr().err
    other = finished(tmp_path / "other", "fedavg")
    assert main(["compare", str(run), str(other)]) == 2
    assert "is a run of `fedavg`" in capsys.readouterr().err
    assert main(["compare", str(other), str(run)]) == 2
    said = capsys.readouterr().err
    assert "differ in local training; run `solo` with those of" in said
    assert 'write `protocol: {"name": "solo", "like": {"name": "fedavg"}}`' in said
    longer = finished(tmp_path / "longer", ALONE, rounds=3)
    assert main(["compare", str(other), str(longer)]) == 2
    assert "differ in rounds" in capsys.readouterr().err
    (run / "summary.json").unlink()
    assert main(["compare", str(run), str(run)]) == 2
    assert "holds no finished run" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "nowhere"), str(fewer)]) == 2
    assert "nowhere holds no run: there is no federation.yaml in it" in capsys.readouterr().err
