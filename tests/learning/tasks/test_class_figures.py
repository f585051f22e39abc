"""Figures that a clinician believes, beside scikit-learn's; what they are where they are not defined."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from launcher.headline import Headline
from launcher.reports.summary import rare_classes
from peer.errors import InputError
from peer.learning.model.shape_check import task_problem
from peer.learning.tasks import Classification
from peer.learning.training.evaluation import EvaluationPass
from peer.learning.training.metrics import Judged, auroc, average_precision, calibration_error
from peer.spec.loading import load_spec
from peer.telemetry.events import DataSummary

ALL = (
    "auroc", "average-precision", "balanced-accuracy", "sensitivity", "specificity", "precision", "f1",
    "calibration-error", "accuracy",
)  # fmt: skip


def judged(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """As an evaluation makes them: in batches, and from the rows of all of them."""
    task = Classification(judged_by=ALL)
    rows = [task.tally(*batch) for batch in zip(logits.split(7), labels.split(7), strict=True)]
    return task.judge(torch.cat(rows).double().numpy())


def some(classes: int, seed: int, samples: int = 60, rounded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=draw)
    labels[:classes] = torch.arange(classes)
    logits = torch.randn(samples, classes, generator=draw) + torch.nn.functional.one_hot(labels, classes)
    return (logits.round() if rounded else logits), labels


@given(seed=st.integers(0, 2**20), rounded=st.booleans())
def test_of_two_classes_as_scikit_learn_has_it(seed: int, rounded: bool) -> None:
    """Rounded logits: many scores are equal."""
    from sklearn import metrics as oracle  # here, since it takes seconds, and the other workers have no need of it

    logits, labels = some(2, seed, rounded=rounded)
    scores, said, true = logits.double().softmax(1)[:, 1].numpy(), logits.argmax(1).numpy(), labels.numpy()
    ours = judged(logits, labels)
    assert ours["auroc"] == pytest.approx(oracle.roc_auc_score(true, scores))
    assert ours["average-precision"] == pytest.approx(oracle.average_precision_score(true, scores))
    assert ours["balanced-accuracy"] == pytest.approx(oracle.balanced_accuracy_score(true, said))
    assert ours["sensitivity"] == pytest.approx(oracle.recall_score(true, said))
    assert ours["specificity"] == pytest.approx(oracle.recall_score(true, said, pos_label=0))
    assert ours["f1"] == pytest.approx(oracle.f1_score(true, said))
    assert ours["accuracy"] == pytest.approx(oracle.accuracy_score(true, said))
    if said.any():
        assert ours["precision"] == pytest.approx(oracle.precision_score(true, said))


@given(seed=st.integers(0, 2**20), classes=st.integers(3, 6))
def test_of_several_classes_the_mean_over_those_for_which_it_is_defined(seed: int, classes: int) -> None:
    from sklearn import metrics as oracle

    logits, labels = some(classes, seed)
    scores, said, true = logits.double().softmax(1).numpy(), logits.argmax(1).numpy(), labels.numpy()
    ours = judged(logits, labels)
    assert ours["auroc"] == pytest.approx(oracle.roc_auc_score(true, scores, multi_class="ovr", average="macro"))
    one_hot = np.eye(classes)[true]
    assert ours["average-precision"] == pytest.approx(oracle.average_precision_score(one_hot, scores, average="macro"))
    assert ours["sensitivity"] == ours["balanced-accuracy"]
    assert ours["sensitivity"] == pytest.approx(oracle.recall_score(true, said, average="macro"))
    assert ours["f1"] == pytest.approx(oracle.f1_score(true, said, average="macro"))
    inverse = [oracle.recall_score(true != one, said != one) for one in range(classes)]
    assert ours["specificity"] == pytest.approx(np.mean(inverse))


def test_calibration_by_hand() -> None:
    """Two bins: 4 samples at 0.95, of which 3 are right; 2 at 0.55, both wrong."""
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.55])
    correct = np.array([True, True, True, False, False, False])
    assert calibration_error(confidence, correct) == pytest.approx((4 * abs(0.75 - 0.95) + 2 * 0.55) / 6)
    assert calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0


def test_what_a_site_without_positives_has_is_none_and_not_zero() -> None:
    logits, labels = torch.tensor([[2.0, 1.0], [1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 0, 0])
    ours = judged(logits, labels)
    for name in ("auroc", "average-precision", "sensitivity", "f1"):
        assert np.isnan(ours[name]), name
    assert ours["specificity"] == pytest.approx(2 / 3)
    assert ours["balanced-accuracy"] == pytest.approx(2 / 3), "of the classes that have samples"
    assert np.isnan(auroc(np.array([1]), np.array([1])))
    assert np.isnan(average_precision(np.array([0]), np.array([1])))


@pytest.mark.parametrize("classes", [2, 3])
def test_a_model_that_has_diverged_has_no_figure_of_its_scores(classes: int) -> None:
    """Not one that goes by the order of the samples."""
    labels = torch.tensor([1] * 5 + [0] * 20 + [classes - 1])
    ours = judged(torch.full((len(labels), classes), float("nan")), labels)
    assert all(np.isnan(ours[name]) for name in ("auroc", "average-precision", "calibration-error")), ours


def test_an_unknown_figure_is_an_error() -> None:
    empty = np.zeros((1, 3))
    with pytest.raises(KeyError, match="speed"):
        Judged(empty, empty > 0, empty > 0).figure("speed")


def spec(tmp_path: Path, **keys: Any) -> Path:
    path = tmp_path / "federation.yaml"
    path.write_text(json.dumps({"protocol": "fedavg", **keys}))
    return path


def test_the_first_one_is_the_headline(tmp_path: Path) -> None:
    usual = load_spec(spec(tmp_path), peers=3)
    assert (usual.test, Headline.from_spec(usual).words) == ("matched", "matched accuracy")
    made = load_spec(spec(tmp_path, task={"name": "classification", "judged_by": ["auroc", "f1"]}), peers=3)
    assert made.test is None
    assert Headline.from_spec(made).words == "auroc"
    assert [one.name for one in made.task.figures] == ["auroc", "f1", "accuracy"]
    assert [one.better for one in Classification(judged_by=("calibration-error",)).figures] == ["down", "up"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["auroc", "auroc"], "wants a list of different ones"),
        ([], "judged_by"),
        (["auc"], "auroc"),
        (["mine:accuracy"], "have `accuracy` already; rename the function `mine:accuracy`"),
        (["auroc", "mine:loss"], "have `loss` already; rename the function `mine:loss`"),
    ],
)
def test_wrong_names_are_refused(tmp_path: Path, names: list[str], said: str) -> None:
    path = spec(tmp_path, task={"name": "classification", "judged_by": names})
    with pytest.raises(InputError, match=said):
        load_spec(path, peers=3)


def test_weights_of_classes_weigh_the_loss() -> None:
    """Σ w_y·(−log p_y) / Σ w_y over the batch."""
    logits, labels = some(3, 5)
    weights = (1.0, 20.0, 0.5)
    loss = Classification(class_weights=weights).loss(logits, labels)
    p = logits.double().softmax(1).numpy()[np.arange(len(labels)), labels.numpy()]
    w = np.array(weights)[labels.numpy()]
    assert float(loss) == pytest.approx(float((w * -np.log(p)).sum() / w.sum()), rel=1e-5)


@pytest.mark.parametrize("weights", [None, (1.0, 20.0, 0.5)])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_focal_loss_weighs_what_is_missed(gamma: float, weights: tuple[float, ...] | None) -> None:
    """Σ w_y·(1 − p_y)^γ·(−log p_y) / Σ w_y over the batch; and its gradient is finite where p_y rounds to 1."""
    logits, labels = some(3, 5)
    logits[0, labels[0]] = 200
    logits.requires_grad_()
    loss = Classification(class_weights=weights, focal=gamma).loss(logits, labels)
    p = logits.detach().double().softmax(1).numpy()[np.arange(len(labels)), labels.numpy()]
    w = np.array(weights or (1, 1, 1))[labels.numpy()]
    assert loss.item() == pytest.approx(float((w * (1 - p) ** gamma * -np.log(p)).sum() / w.sum()), rel=1e-5)
    loss.backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_are_of_the_type_of_what_the_model_gives(dtype: torch.dtype) -> None:
    """As with `model: {dtype: bfloat16}`."""
    logits, labels = some(2, 5)
    task = Classification(class_weights=(1.0, 20.0), focal=2.0)
    assert task_problem(task, logits.to(dtype), labels) is None
    assert float(task.loss(logits.to(dtype), labels)) == pytest.approx(float(task.loss(logits, labels)), rel=0.05)


def test_weights_that_fit_no_classes_are_refused() -> None:
    with pytest.raises(InputError, match="has 3 classes, and `class_weights` has 2 weights"):
        Classification(class_weights=(1.0, 2.0)).outputs([np.array([0, 1, 2])], None, "the data")


class Found(Classification):
    """A user's own task with classes, whose headline is no accuracy."""

    name: str = "tests:Found"  # type: ignore[assignment]

    def judge(self, rows: Any) -> dict[str, float]:
        return {"auroc": 0.123, "accuracy": 0.0}


def test_an_accuracy_is_an_accuracy_whatever_the_headline() -> None:
    rows = np.array([[1.0], [1.0], [1.0], [0.0]])
    measured = EvaluationPass(Found(judged_by=("auroc",)), rows, np.array([0, 1, 0, 1]), 2, 0.0)
    assert measured.results()["auroc"] == 0.123
    assert measured.accuracy() == 0.75
    assert measured.accuracy(np.array([2, 3])) == 0.5


class Costed(Classification):
    """A user's own task with classes, with a figure of sums beside the one that it is judged by."""

    name: str = "tests:Costed"  # type: ignore[assignment]

    def results(self, sums: torch.Tensor, samples: int) -> dict[str, float]:
        return super().results(sums, samples) | {"sensitivity": 0.25}


def test_results_of_ones_own_count_and_make_no_other_figure_undefined() -> None:
    task = Costed(judged_by=("auroc", "sensitivity"))
    logits, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 1, 1])
    assert task_problem(task, logits, labels) is None
    assert task.judge(task.tally(logits, labels).double().numpy()) == {
        "auroc": 1.0,
        "sensitivity": 0.25,
        "accuracy": 1.0,
    }


class Bare(Costed):
    def results(self, sums: torch.Tensor, samples: int) -> dict[str, float]:
        return {"sensitivity": 0.25}


def test_results_of_ones_own_without_the_accuracy_are_refused() -> None:
    logits = torch.zeros(2, 2)
    with pytest.raises(InputError, match="its `results` must return a number for each of auroc, accuracy"):
        task_problem(Bare(judged_by=("auroc",)), logits, torch.tensor([0, 1]))


OWN = """
import numpy as np
def youden(labels, probabilities):
    said = probabilities.argmax(1)
    return (said[labels == 1] == 1).mean() + (said[labels == 0] == 0).mean() - 1
def seen(labels, probabilities):
    assert labels.dtype == np.int64 and np.allclose(probabilities.sum(1), 1)
    return np.array(len(labels) + probabilities.shape[1])
def several(labels, probabilities):
    return probabilities
def fails(labels, probabilities):
    raise LookupError("no such thing")
"""


def test_a_function_of_ones_own_is_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_figures.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    logits, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1, 1, 0])

    def judged(*names: str) -> dict[str, float]:
        task = Classification(judged_by=names)  # type: ignore[arg-type]
        assert task_problem(task, logits, labels) is None
        assert task.headline.name == names[0].rpartition(":")[2]
        return task.judge(task.tally(logits, labels).double().numpy())

    plain = judged("sensitivity", "specificity")
    assert judged("own_figures:youden", "own_figures:seen") == {
        "youden": plain["sensitivity"] + plain["specificity"] - 1,
        "seen": 6.0,
        "accuracy": 0.75,
    }
    for name, words in (
        ("several", "it must return a number, not a ndarray"),
        ("fails", "`own_figures:fails` failed: LookupError: no such thing"),
        ("missing", "has no `missing`"),
    ):
        with pytest.raises(InputError, match=words):
            judged(f"own_figures:{name}")
    with pytest.raises(ValidationError, match="a list of different ones of"):
        Classification(judged_by=("f1", "own_figures:f1"))


def place(tmp_path: Path, id: str, samples: int, **classes: float) -> Path:
    (tmp_path / id).mkdir()
    told = [{"time": 1.0, **DataSummary(round=round, samples=samples, classes=classes).as_json()} for round in (1, 2)]
    (tmp_path / id / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in told))
    return tmp_path / id


def test_classes_that_are_rare_among_all_peers_together_are_named(tmp_path: Path) -> None:
    ill, well = place(tmp_path, "a", 100, sick=0.1, well=0.9), place(tmp_path, "b", 300, sick=0.0, well=1.0)
    assert rare_classes({"a": ill}) == {}
    assert rare_classes({"a": ill, "b": well}) == {"sick": pytest.approx(10 / 400)}
    many = place(tmp_path, "c", 100, **{f"class{n}": 0.01 for n in range(100)})
    assert rare_classes({"c": many}) == {}, "a hundredth each is no rarity among a hundred"
    assert rare_classes({"d": tmp_path / "nothing"}) == {}


@pytest.mark.parametrize("samples", [-5, 10**400])
def test_impossible_numbers_of_samples_count_for_nothing(tmp_path: Path, samples: int) -> None:
    """In a file of somebody hostile."""
    wrong, right = place(tmp_path, "a", samples, sick=0.5, well=0.5), place(tmp_path, "b", 5, sick=0.0, well=1.0)
    assert rare_classes({"a": wrong, "b": right}) == {"sick": 0.0}


@pytest.mark.parametrize(
    ("protocol", "allowed"), [("hearth", False), ("def-kt", False), ("fedavg", True), ("solo", True)]
)
@pytest.mark.parametrize("key", ["focal", "class_weights", "sampler"])
def test_classes_are_weighed_only_where_the_loss_is_the_tasks(
    tmp_path: Path, protocol: str, allowed: bool, key: str
) -> None:
    weighed = {"focal": 2.0, "class_weights": [1, 2]}
    task = {"name": "classification", **({key: weighed[key]} if key in weighed else {})}
    training = {"sampler": "balanced"} if key == "sampler" else {}
    path = spec(tmp_path, protocol=protocol, task=task, training=training)
    if allowed:
        load_spec(path, peers=4)
        return
    with pytest.raises(InputError, match=f"cannot weigh classes by `[a-z]+.{key}`"):
        load_spec(path, peers=4)
