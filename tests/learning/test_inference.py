"""Tests on other inputs than in training: a task's `infer`, samples of any kind by `collate`, whole volumes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from launcher.commands.check import ResourceEstimate, heading
from launcher.plan import plan
from peer.errors import InputError
from peer.learning.data.samples import InMemory
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.tasks import Classification, Regression, Segmentation
from peer.learning.training.evaluation import measure
from peer.runtime.in_process import federate
from peer.spec.loading import load_spec

SIDE = 4
Sample = dict[str, Any]


class Windows(Segmentation):
    """Of windows one beside the other, SIDE wide."""

    name: str
    evaluation_batch = 1

    def infer(self, forward: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        return torch.cat([forward(window) for window in inputs.split(SIDE, 3)], 3)


class Plain(Segmentation):
    name: str
    evaluation_batch = 1


class Scans(Dataset[Any]):
    """Images of any width as dicts; for training lists of two crops."""

    def __init__(self, samples: int, trains: bool) -> None:
        rng = np.random.default_rng(7)
        widths = [SIDE * (2 + number % 3) for number in range(samples)]
        self.labels = [rng.integers(0, 2, (SIDE, width)) for width in widths]
        self.trains = trains

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> Any:
        label = torch.from_numpy(self.labels[number])
        whole = {"image": label.float()[None], "label": label}
        if not self.trains:
            return whole
        starts = np.random.randint(0, label.shape[1] - SIDE, 2)
        return [{key: value[..., at : at + SIDE] for key, value in whole.items()} for at in starts]


def scans() -> tuple[Scans, Scans]:
    return Scans(12, True), Scans(5, False)


def collate(samples: list[Any]) -> tuple[Tensor, Tensor]:
    flat = [one for sample in samples for one in (sample if isinstance(sample, list) else [sample])]
    return torch.stack([one["image"] for one in flat]), torch.stack([one["label"] for one in flat])


class Narrow(nn.Module):
    """Takes SIDE columns and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.columns = nn.Conv2d(1, 2, 1), nn.Parameter(torch.zeros(SIDE))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.columns


def narrow(shape: Any, classes: int) -> nn.Module:
    return Narrow()


class Listed(Dataset[Any]):
    """Samples that are dicts, and classes that are listed."""

    def __init__(self, listed: bool = True) -> None:
        if listed:
            self.targets = [number % 3 for number in range(30)]

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> Sample:
        return {"x": torch.full((4,), float(number % 3))}


def listed() -> Listed:
    return Listed()


def unlisted() -> Listed:
    return Listed(False)


def of_dicts(samples: list[Sample]) -> tuple[Tensor, None]:
    return torch.stack([one["x"] for one in samples]), None


def backwards(samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """In another order, as for packed sequences; its classes go with its inputs."""
    x = of_dicts(samples[::-1])[0]
    return x, x[:, 0].long()


def doubled(samples: list[Sample]) -> tuple[Tensor, None]:
    return torch.cat([of_dicts(samples)[0]] * 2), None


def federation(tmp_path: Path, **keys: Any) -> Path:
    (tmp_path / "inferring.py").write_text(Path(__file__).read_text())
    content = {"protocol": {"name": "fedavg", "epochs": 1, "batch_size": 3, "lr": 0.5}, "rounds": 4, **keys}
    (tmp_path / "federation.yaml").write_text(json.dumps(content))
    return tmp_path / "federation.yaml"


WHOLE = {"model": {"name": "inferring:narrow", "head": ["columns"]}}
DATA = {"name": "inferring:scans", "collate": "inferring:collate", "classes": 2}


def test_crops_are_trained_on_and_whole_images_of_any_width_tested(tmp_path: Path) -> None:
    file = federation(tmp_path, task="inferring:Windows", data=DATA, **WHOLE)
    assert plan(load_spec(file, peers=2)).model.shape == (1, SIDE, SIDE)
    runs = [federate(file, tmp_path / name, peers=2) for name in ("one", "two")]
    assert runs[0].result("peer0")["figures"]["pixels"] == 1.0
    assert runs[0].result("peer1")["model_sha256"] == runs[1].result("peer1")["model_sha256"]


def test_a_model_that_cannot_be_tested_is_found_before_the_start(tmp_path: Path) -> None:
    file = federation(tmp_path, task="inferring:Plain", data=DATA, **WHOLE)
    with pytest.raises(
        InputError,
        match=r"does not take test inputs of shape \(1, 4, 8\): .*give the task an `infer`",
    ):
        plan(load_spec(file, peers=2))


def test_samples_held_back_with_random_crops_are_told(tmp_path: Path) -> None:
    file = federation(tmp_path, task="inferring:Windows", data=DATA, **WHOLE)
    for keys, told in (([], False), (["hold_back=0.3"], True)):
        made = plan(load_spec(file, peers=2, overrides=keys))
        lines = heading(ResourceEstimate(made, {id: [0, 1] for id in made.spec.ids}))
        assert any("changes its samples at random, those of `hold_back` too" in line for line in lines) == told


def test_dicts_have_the_classes_that_their_data_set_lists(tmp_path: Path) -> None:
    data = {"name": "inferring:listed", "collate": "inferring:of_dicts"}
    file = federation(tmp_path, data=data)
    assert plan(load_spec(file, peers=2)).sites["peer0"].sizes == (12,)
    assert federate(file, tmp_path / "run", peers=2).result("peer0")["accuracy"]["matched"] > 0
    for wrong, words in (
        (
            {"name": "inferring:unlisted", "collate": "inferring:of_dicts"},
            "classes are then read from the data set's `targets`",
        ),
        ({"name": "inferring:listed"}, "a `collate` makes"),
        ({"name": "inferring:listed", "collate": "inferring:doubled"}, "`collate` must make an input of each sample"),
        ({"name": "inferring:listed", "collate": "inferring:backwards"}, "keep the order of the samples"),
    ):
        with pytest.raises(InputError, match=words):
            plan(load_spec(federation(tmp_path, data=wrong), peers=2))


def test_infer_makes_the_outputs_that_are_judged() -> None:
    class Twice(Regression):
        name: str

        def infer(self, forward: Callable[[Any], Tensor], inputs: Any) -> Tensor:
            return 2 * forward(inputs)

    task = Twice(name="my:Twice")
    made = Model(Split(nn.Linear(3, 3), nn.Linear(3, 1)), settings="twice", example=Example(torch.zeros(2, 3), task, 1))
    x = torch.randn(6, 3)
    with torch.no_grad():
        wanted = 2 * made.forward(x)
    judged = measure(made, InMemory(x, wanted.clone())).results()
    assert judged["rmse"] == 0
    assert torch.equal(made.predict(x), task.answers(wanted))


def test_predict_takes_other_sizes_where_the_task_does() -> None:
    made = [
        Model(
            Split(nn.Conv2d(1, 2, 1), nn.Identity()),
            settings="sizes",
            example=Example(torch.zeros(2, 1, SIDE, SIDE), task, 2),
        )
        for task in (Windows(name="my:Windows"), Plain(name="my:Plain"))
    ]
    assert made[0].predict(torch.zeros(3, 1, SIDE, 3 * SIDE)).shape == (3, SIDE, 3 * SIDE)
    assert made[0].predict(torch.zeros(1, SIDE, 2 * SIDE)).shape == (SIDE, 2 * SIDE)
    for wrong in (torch.zeros(3, 2, SIDE, SIDE), torch.zeros(SIDE, SIDE)):
        with pytest.raises(InputError, match=r"takes \(n, 1, 4, 4\)"):
            made[0].predict(wrong)
    with pytest.raises(InputError, match=r"takes \(n, 1, 4, 4\), not \(3, 1, 4, 8\)"):
        made[1].predict(torch.zeros(3, 1, SIDE, 2 * SIDE))


class Failing(Windows):
    def infer(self, forward: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        raise LookupError("no window")


def test_an_infer_that_fails_is_named_before_the_start(tmp_path: Path) -> None:
    file = federation(tmp_path, task="inferring:Failing", data=DATA, **WHOLE)
    with pytest.raises(InputError, match=r"`inferring:Failing` failed: LookupError: no window .*test inputs of shape"):
        plan(load_spec(file, peers=2))


class Drawing(Windows):
    def infer(self, forward: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        noise = torch.rand(()) + np.random.random()
        return super().infer(forward, inputs) * torch.tensor([noise, 1.0])[:, None, None]


def test_what_infer_draws_is_the_same_in_each_evaluation() -> None:
    task = Drawing(name="my:Drawing")
    example = Example(torch.zeros(2, 1, SIDE, SIDE), task, 2)
    made = Model(Split(nn.Conv2d(1, 2, 1), nn.Identity()), settings="draws", example=example)
    data = InMemory(torch.randn(5, 1, SIDE, SIDE), torch.randint(0, 2, (5, SIDE, SIDE)))
    first, again = measure(made, data), measure(made, data)
    assert first.loss == again.loss
    assert first.results() == again.results()


class Halved(Classification):
    """Judged in 16 bits."""

    name: str

    def infer(self, forward: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16):
            return forward(inputs).float()


def test_infer_may_choose_the_precision_of_evaluations() -> None:
    task = Halved(name="my:Halved")
    example = Example(torch.zeros(2, 16), task, 3)
    made = Model(Split(nn.Linear(16, 64), nn.Linear(64, 3)), settings="halved", example=example)
    data = InMemory(torch.randn(300, 16), torch.randint(0, 3, (300,)))
    before = made.sha256()
    first, again = measure(made, data), measure(made, data)
    assert (first.loss, first.results()) == (again.loss, again.results())
    with torch.no_grad():
        x = data.x.bfloat16()
        for weight, bias in (part.parameters() for part in (made.module.extractor, made.module.head)):
            x = nn.functional.linear(x, weight.bfloat16(), bias.bfloat16())
        exact = nn.functional.cross_entropy(made.forward(data.x), data.y)
    assert first.loss == pytest.approx(float(nn.functional.cross_entropy(x.float(), data.y)), abs=1e-6)
    assert first.loss != pytest.approx(float(exact), abs=1e-6), "which is that of float32"
    assert made.sha256() == before


def test_another_precision_of_evaluations_changes_no_training(tmp_path: Path) -> None:
    runs = [
        federate(federation(tmp_path, task=task, data={"name": "digits"}, rounds=1), tmp_path / out, peers=2)
        for out, task in (("one", "inferring:Halved"), ("two", "inferring:Halved"), ("plain", "classification"))
    ]
    one, two, plain = (run.result("peer0") for run in runs)
    assert (one["accuracy"], one["model_sha256"]) == (two["accuracy"], two["model_sha256"])
    assert one["model_sha256"] == plain["model_sha256"]


def as_graphs(samples: list[Sample]) -> tuple[dict[str, Tensor], None]:
    """Three nodes a sample, and to which each belongs."""
    nodes = torch.cat([one["x"].repeat(3, 1) for one in samples])
    return {"nodes": nodes, "of": torch.arange(len(samples)).repeat_interleave(3)}, None


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, nodes: Tensor, of: Tensor) -> Tensor:
        return torch.zeros(int(of.max()) + 1, 3).index_add(0, of, self.layer(nodes))


def pooled(shape: Any, classes: int) -> nn.Module:
    return Pooled()


def test_graphs_have_more_nodes_than_samples(tmp_path: Path) -> None:
    data = {"name": "inferring:listed", "collate": "inferring:as_graphs"}
    file = federation(tmp_path, data=data, model={"name": "inferring:pooled", "head": ["layer.bias"]})
    assert federate(file, tmp_path / "run", peers=2).result("peer0")["accuracy"]["matched"] > 0
