"""Protocols and settings beside a task without classes: those that go by classes say so, the others train."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from every_protocol import SETTINGS, keys
from federations import federate, resolve
from torch.nn import functional

from launcher.cli import main
from launcher.plan import plan
from launcher.reports.summary import TimeSpent, summarise
from launcher.reports.summary_json import write
from peer.errors import InputError
from peer.learning.data.samples import InMemory
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.tasks import Regression, task_class
from peer.protocols.base import Peer
from peer.protocols.cycle_gossip import local_gradient
from peer.spec.loading import load_spec

BY_CLASSES = {"hearth", "def-kt", "vpdl", "cycle-pdl"}
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
    with pytest.raises(InputError) as refused:
        resolve(tmp_path, **how)
    said, _, named = str(refused.value).partition("; choose a protocol that does not: ")
    assert f"`{name}` goes by classes, and the task `regression` has none" in said
    assert {*named.split(", ")} == SETTINGS.keys() - BY_CLASSES - {"solo"}


def test_a_task_without_kinds_of_targets_names_the_protocols_that_need_none(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        resolve(tmp_path, "fibfl++", 3, task={"name": "language-model", "vocabulary": 17})
    assert "`fibfl++` goes by kinds of targets, and the task `language-model` has none; choose a protocol" in str(
        refused.value
    )
    assert " fibfl, fibfl+, " in str(refused.value)


def test_too_few_peers_are_told_which_protocols_go_with_so_few(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        resolve(tmp_path, "fibfl", 2)
    said, _, named = str(refused.value).partition(" that goes with fewer: ")
    assert "`fibfl` needs at least 3 peers and the ring has 2; add peers, or choose a protocol" in said
    for name in named.split(", "):
        resolve(tmp_path, {"name": name, **SETTINGS[name]}, 2, **keys(name, ["peer0", "peer1"]))
    with pytest.raises(InputError, match=r"that goes with fewer: solo$"):
        resolve(tmp_path, "fibfl", 1)


def low_and_high(folder: Path, ids: list[str]) -> None:
    """The first half of the peers has targets below 1, the other half above 9."""
    for number, id in enumerate(ids):
        x = np.random.default_rng(number).normal(size=(40, 3)).astype(np.float32)
        high = 10 * (number >= len(ids) / 2)
        np.savez(folder / f"{id}.npz", x=x, y=(x[:, 0].clip(-1, 1) + high).astype(np.float32))


def test_the_ring_is_ordered_by_ranges_of_a_target(tmp_path: Path) -> None:
    """By `edges`, as the data are the peers' own: neighbours have other targets than a peer itself."""
    ids = [f"peer{i}" for i in range(4)]
    low_and_high(tmp_path, ids)
    run = federate(
        tmp_path,
        {"name": "fibfl++", **SETTINGS["fibfl++"]},
        4,
        rounds=1,
        task={"name": "regression", "edges": [1, 5, 9]},
        data={"name": "npz", "path": "{id}.npz"},
        model={"name": "mlp"},
    )
    result = run.result("peer0")
    assert [id in ids[:2] for id in result["ring"]] in ([True, False] * 2, [False, True] * 2)
    assert result["ring_cost"]["after"] < result["ring_cost"]["before"]
    assert run.runtimes["peer3"].peer.proportions.tolist() == pytest.approx([0, 0, 0.12, 0.88], abs=0.2)


def test_data_that_are_dealt_give_the_ranges_themselves(tmp_path: Path) -> None:
    """The deciles of all training targets, of each column."""
    run = federate(
        tmp_path,
        {"name": "fibfl++", **SETTINGS["fibfl++"]},
        3,
        rounds=1,
        task="regression",
        data={"name": "test_other_tasks:two_columns"},
        model={"name": "mlp"},
        code=str(Path(__file__).parent),
    )
    mixes = torch.stack([one.peer.proportions for one in run.runtimes.values()])
    assert mixes.shape == (3, 20)
    assert torch.allclose(mixes.sum(1), torch.ones(3, dtype=torch.float64))
    sizes = torch.tensor([one.peer.samples for one in run.runtimes.values()])
    assert torch.allclose(sizes.double() @ mixes / sizes.sum(), torch.full((20,), 0.05).double(), atol=0.005)


def two_columns() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(375, 3)).astype(np.float32)
    return x, np.stack([x[:, 0], 1000 + x[:, 1]], 1)


def test_data_of_a_peers_own_need_edges(tmp_path: Path) -> None:
    low_and_high(tmp_path, ["peer0", "peer1", "peer2"])
    own = {"task": "regression", "data": {"name": "npz", "path": "{id}.npz"}, "model": {"name": "mlp"}}
    said = r"mix of targets, and that of peer0 is not known: .* edges: .*such as (?!.*fibfl\+\+)fibfl, fibfl\+,"
    with pytest.raises(InputError, match=said):
        plan(resolve(tmp_path, "fibfl++", 3, **own))
    with pytest.raises(InputError, match="is not known"):
        federate(tmp_path, "fibfl++", 3, **own)
    plan(resolve(tmp_path, "fibfl+", 3, **own))
    with pytest.raises(InputError, match="edges ascend, each above the one before, and not"):
        resolve(tmp_path, "fibfl++", 3, **own | {"task": {"name": "regression", "edges": [2, 1]}})


@pytest.mark.parametrize("mix", ["np.zeros(3)", "[1, -1]", "[1, float('nan')]", "['a', 'b']"])
def test_a_mix_of_a_users_own_that_is_none_is_refused(mix: str, tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(
        "import numpy as np\nfrom peer.learning.tasks import Regression\nclass Mixed(Regression):\n    name: str\n"
        f"    def kinds(self, outputs): return 2\n    def mix(self, targets, outputs): return {mix}\n"
    )
    how = {"task": "mixed:Mixed", "code": str(tmp_path), "model": {"name": "mlp"}}
    with pytest.raises(InputError, match="`mixed:Mixed`: its `mix` must return 2 finite numbers from 0"):
        plan(resolve(tmp_path, "fibfl++", 3, **how))


@pytest.mark.parametrize(
    ("task", "targets", "outputs", "mix"),
    [
        ({"name": "multilabel"}, [[1, 0, 1], [1, 0, 0]], 3, [2, 0, 1]),
        ({"name": "segmentation", "ignore": 9}, [[[0, 1], [9, 1]]], 3, [1, 2, 0]),
        ({"name": "regression", "edges": [0, 2]}, [[-1, 0], [0, 5], [1, 5]], 2, [1, 2, 0, 0, 1, 2]),
    ],
)
def test_what_a_task_counts(task: dict[str, Any], targets: list[Any], outputs: int, mix: list[int]) -> None:
    made = task_class(task["name"]).model_validate_json(json.dumps(task))
    counted = made.mix(np.array(targets), outputs)
    assert counted is not None
    assert counted.tolist() == mix
    assert len(mix) == made.kinds(outputs)


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
    model = build("mlp", Example.from_samples(samples, 1, task), seed=1)
    peer = SimpleNamespace(data=samples, task=task, model=model.vector, logits=model.logits)
    functional.mse_loss(model.forward(samples.x), samples.y).backward()  # type: ignore[no-untyped-call]
    assert torch.allclose(local_gradient(cast(Peer, peer)), model.gradient, atol=1e-6)


def test_compared_with_training_alone_less_error_is_a_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs: dict[str, dict[str, Any]] = {"run": {"name": "fedavg"}, "alone": {"name": "solo", "like": "fedavg"}}
    ring = [{"id": f"peer{i}", "address": f"127.0.0.1:{7700 + i}"} for i in range(2)]
    for name, protocol in runs.items():
        federate(tmp_path / name, protocol, 2, ring=ring, task={"name": "regression"})
        spec = load_spec(tmp_path / name / "federation.yaml")
        write(tmp_path / name / "summary.json", summarise(spec, tmp_path / name, TimeSpent(1.0, 0)))
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
