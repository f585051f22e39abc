"""Protocols and settings beside a task without classes: those that go by classes say so, the others train."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from every_protocol import SETTINGS, keys
from federations import federate, resolve
from torch.nn import functional

from launcher.cli import main
from launcher.reports.summary import summarise
from launcher.reports.summary_json import write
from peer.errors import InputError
from peer.learning.data.samples import InMemory
from peer.learning.model.dry_pass import Example
from peer.learning.model.zoo import build
from peer.learning.tasks import Regression
from peer.protocols.base import Peer
from peer.protocols.blocks.local_gradient import local_gradient
from peer.spec.peer import load_spec

BY_CLASSES = {"fibfl++", "hearth", "def-kt", "vpdl", "cycle-pdl"}
BY_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"test": "matched"}, "`test: matched` goes by classes, and the task `regression` has none; leave out `test`"),
    ({"test": "paper"}, "leave out `test`"),
    ({"behaviour": {"peer1": {"kind": "label-flip"}}}, "`label-flip` of `peer1` goes by classes"),
    ({"data": {"name": "digits", "drift": [{"round": 2, "labels": [1, 0]}]}}, "`labels` of a `drift` go by classes"),
    (
        {"data": {"name": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5}}},
        "goes by classes, and the task `regression` has none; choose one of iid, imbalanced, quantity",
    ),
    (
        {"data": {"name": "digits", "drift": [{"round": 2, "partition": {"kind": "homogeneous"}}]}},
        "the homogeneous split goes by classes",
    ),
]


@pytest.mark.parametrize("name", SETTINGS)
def test_protocols_that_go_by_classes_say_so(name: str, tmp_path: Path) -> None:
    ids = [f"peer{i}" for i in range(4)]
    how = {"protocol": {"name": name, **SETTINGS[name]}, "peers": 4, "task": "regression", **keys(name, ids)}
    if name not in BY_CLASSES:
        assert resolve(tmp_path, **how).test is None
        return
    with pytest.raises(InputError, match="and the task `regression` has none; choose another protocol"):
        resolve(tmp_path, **how)


@pytest.mark.parametrize(("wrong", "said"), BY_SETTINGS)
def test_settings_that_go_by_classes_say_so(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(tmp_path, "fibfl", 3, task="regression", **wrong)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["ri-fedavg", "cycle-gossip", "cffl", "fibfl+"])
def test_protocols_that_take_a_loss_or_a_score_take_the_tasks(name: str, tmp_path: Path) -> None:
    """The digits as numbers to foretell."""
    data = {"name": "digits", "limit": 120, **({"validation": 0.2} if name == "cffl" else {})}
    run = federate(tmp_path, {"name": name, **SETTINGS[name]}, 3, task={"name": "regression", "error": "l1"}, data=data)
    for id in run.ids:
        result = run.result(id)
        assert set(result["accuracy"].values()) == {None}
        assert {*result["figures"]} == {"rmse", "mae", "r2"}
        assert result["test_loss"] == pytest.approx(result["figures"]["mae"], rel=1e-4)
    if name == "fibfl+":
        assert 0 <= run.trace("peer0", 2).facts["accuracy"] <= 1


def test_the_local_gradient_is_that_of_the_tasks_loss() -> None:
    """However many samples are taken at a time."""
    samples, task = InMemory(torch.randn(300, 4), torch.randn(300, 1)), Regression(name="regression")
    model = build("mlp", Example.of(samples, 1, task), seed=1)
    peer = SimpleNamespace(data=samples, task=task, model=model.vector, logits=model.logits)
    functional.mse_loss(model.forward(samples.x), samples.y).backward()  # type: ignore[no-untyped-call]
    assert torch.allclose(local_gradient(cast(Peer, peer)), model.gradient, atol=1e-6)


def test_compared_with_training_alone_less_error_is_a_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs: dict[str, dict[str, Any]] = {"run": {"name": "fedavg"}, "alone": {"name": "solo", "like": "fedavg"}}
    ring = [{"id": f"peer{i}", "address": f"127.0.0.1:{7700 + i}"} for i in range(2)]
    for name, protocol in runs.items():
        federate(tmp_path / name, protocol, 2, ring=ring, task={"name": "regression"})
        spec = load_spec(tmp_path / name / "federation.yaml")
        write(tmp_path / name / "summary.json", summarise(spec, tmp_path / name, wall_seconds=1.0, restarts=0))
    assert main(["compare", str(tmp_path / "run"), str(tmp_path / "alone"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    ours, theirs = (
        [one["figures"]["rmse"] for one in json.loads((tmp_path / name / "summary.json").read_text())["per_peer"]]
        for name in runs
    )
    assert (said["test"], said["figure"]) == (None, "rmse")
    assert list(said["gain"].values()) == pytest.approx([alone - run for run, alone in zip(ours, theirs, strict=True)])
    assert main(["compare", str(tmp_path / "run"), str(tmp_path / "alone")]) == 0
    assert "gain over training alone (rmse, positive is better)" in capsys.readouterr().out
