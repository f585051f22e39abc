"""Targets that a task takes and refuses, models that do not fit it, and a task of the user's own."""

import asyncio
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import peer
from extras.monai_bundle import of_monai
from extras.surfaces import Surfaces
from launcher.plan import plan
from peer.errors import InputError
from peer.learning.export import load_model
from peer.learning.model.shape_check import Example, task_problem
from peer.learning.model.zoo import build
from peer.learning.tasks import (
    TASKS,
    ClassFigure,
    Figure,
    LanguageModel,
    Multilabel,
    Regression,
    Segmentation,
    Task,
    task_class,
)
from peer.runtime.in_process import run_in_process
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.telemetry.results import read_result

ROOT = Path(__file__).parents[3]
LABELS, NUMBERS = Multilabel(name="multilabel"), Regression(name="regression")
MASKS, TOKENS = Segmentation(name="segmentation", ignore=255), LanguageModel(name="language-model", vocabulary=5)


def test_distances_say_that_monai_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    of_monai.cache_clear()
    monkeypatch.setitem(sys.modules, "monai", None)
    task, outputs, targets = Surfaces(name="surfaces"), torch.zeros(2, 2, 3, 3), torch.zeros(2, 3, 3, dtype=torch.int64)
    with pytest.raises(InputError, match=r"^MONAI is missing .*; pip install -c constraints.txt 'dfl\[monai\]'$"):
        task_problem(task, outputs, targets)


@pytest.mark.parametrize(
    ("task", "y", "said"),
    [
        (LABELS, np.array([[0, 1], [2, 0]]), "must be 0 or 1, but sample 1"),
        (LABELS, np.zeros((2, 3, 4)), "\\(n, k\\), a row of labels a sample, not \\(2, 3, 4\\)"),
        (LABELS, np.array(["a"]), "must hold numbers"),
        (NUMBERS, np.array([1.0, np.nan]), "not a finite float32 in sample 1"),
        (NUMBERS, np.array([1e300]), "not a finite float32 in sample 0"),
        (NUMBERS, np.zeros((2, 3, 4)), "a number or a row of them"),
        (MASKS, np.zeros((2, 3)), "\\(n, D, H, W\\), a class for each pixel, not \\(2, 3\\)"),
        (MASKS, np.zeros((2, 3, 3)), "must be integers from 0"),
        (MASKS, np.full((2, 3, 3), -1), "must not be negative, but sample 0"),
        (TOKENS, np.zeros((2, 3)), "\\(n, T\\), a whole number for each token, not \\(2, 3\\) of float64"),
        (TOKENS, np.full((2, 3), 5), "has the token 5, and `vocabulary` is 5"),
    ],
)
def test_targets_of_another_kind_are_refused(task: Task, y: "NDArray[np.generic]", said: str) -> None:
    with pytest.raises(InputError, match=rf"^file: .*{said}"):
        task.outputs((task.targets(y, "file", "y"),), None, "file")


def test_targets_become_what_the_loss_takes() -> None:
    columns = LABELS.targets(np.array([0, 1]), "file", "y"), NUMBERS.targets(np.array([3, 4]), "file", "y")
    assert [(one.shape, one.dtype) for one in columns] == [((2, 1), np.float32)] * 2
    masks = MASKS.targets(np.full((2, 1, 3, 3), 255, np.uint8), "file", "y")
    assert (masks.shape, masks.dtype) == ((2, 3, 3), np.int64)
    assert MASKS.outputs((masks, np.ones_like(masks)), None, "file") == 2
    assert TOKENS.outputs((TOKENS.targets(np.full((1, 2), -100), "file", "y"),), None, "file") == 5


def test_a_class_beyond_those_of_the_data_is_told_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"class 254 does not fit 3 classes.*write `ignore: 254` into `task`"):
        MASKS.outputs((np.full((1, 2, 2), 254),), 3, "file")


@pytest.mark.parametrize(
    ("task", "outputs", "targets", "classes"),
    [
        (LABELS, torch.zeros(2, 4), torch.zeros(2, 3), 3),
        (NUMBERS, torch.zeros(2), torch.zeros(2, 1), 1),
        (NUMBERS, torch.zeros(2, 1), torch.zeros(2, 3), 3),
        (MASKS, torch.zeros(2, 3, 4, 4), torch.zeros(2, 8, 8).long(), 3),
        (TOKENS, torch.zeros(2, 5), torch.zeros(2, 3).long(), 5),
        (TOKENS, torch.zeros(2, 3, 5).long(), torch.zeros(2, 3).long(), 5),
    ],
)
def test_outputs_of_another_shape_are_told(
    task: Task, outputs: torch.Tensor, targets: torch.Tensor, classes: int
) -> None:
    """Some of them would be broadcast, and learnt wrongly."""
    said = task.misfit(outputs, targets, classes)
    assert said
    assert "not outputs (2" in said


def test_a_model_for_another_task_is_refused_before_it_trains() -> None:
    example = Example(torch.zeros(2, 1, 8, 8), MASKS, 3, torch.zeros(2, 8, 8).long())
    with pytest.raises(InputError, match=r"must give a logit for each class of each pixel, \(n, 3, 8, 8\)"):
        build("mlp", example, seed=0)


def test_a_task_of_ones_own_as_the_page_shows_it(tmp_path: Path) -> None:
    code = (ROOT / "examples" / "own_task.py").read_text(encoding="utf-8")
    (tmp_path / "shown_task.py").write_text(code, encoding="utf-8")
    example = (ROOT / "examples" / "own-task.yaml").read_text(encoding="utf-8").replace("own_task:", "shown_task:")
    (tmp_path / "federation.yaml").write_text(example, encoding="utf-8")
    spec = load_spec(tmp_path / "federation.yaml", peers=3)
    runtimes = asyncio.run(run_in_process(spec, tmp_path / "run"))
    task = runtimes["peer0"].peer.task
    assert sum(bool(line.strip()) for line in inspect.getsource(type(task)).splitlines()) <= 20
    result = read_result(tmp_path / "run" / "peer0")
    assert result
    before, *_, after = (event.figures["deviance"] for event in result.history)
    assert before
    assert after
    assert after < before

    path, x = tmp_path / "run" / "peer0" / "model.safetensors", torch.zeros(3, 4)
    with pytest.raises(InputError, match=r"needs your own code.*user_task='shown_task:Counts'"):
        load_model(path)
    model = load_model(path, user_task="shown_task:Counts")
    assert torch.equal(model.predict(x), model.forward(x).exp()[:, 0])


def test_every_task_and_figure_is_told() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    for name, task in TASKS.items():
        figures = task.model_construct().figures
        assert re.search(rf"^\| `{name}` .*" + ".*".join(f"`{one.name}`" for one in figures), page, re.MULTILINE)
    for figure in get_args(ClassFigure):
        assert f"`{figure}`" in page
    assert {"Figure", "Task"} <= set(peer.__all__)


class Detached(Regression):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(outputs, targets).detach()


def test_a_loss_without_a_gradient_is_told_before_anything_is_trained() -> None:
    with pytest.raises(InputError, match=r"^the task `regression`: its `loss` must be calculated by torch, without"):
        task_problem(Detached(name="regression"), torch.zeros(2, 1), torch.zeros(2, 1))
    assert task_problem(Regression(name="regression"), torch.zeros(2, 1), torch.zeros(2, 1)) is None


class Silent(Regression):
    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        return {}


class Thick(Regression):
    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        return {figure.name: sums for figure in self.figures}  # type: ignore[misc]


class Columnless(Regression):
    results = Task.results

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, :0]


class Boundless(Regression):
    def score(self, results: Mapping[str, float]) -> float:
        return 2.0


class Unknown(Regression):
    def score(self, results: Mapping[str, float]) -> float:
        return float("nan")


class Divided(Regression):
    def score(self, results: Mapping[str, float]) -> float:
        return 1 / 0


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Silent, "its `results` must return a number for each of rmse"),
        (Thick, "its `results` must return a number for each of rmse"),
        (Columnless, "of a tally of 0 columns its `results` cannot be made: "),
        (Boundless, r"its `score` must return a number in 0\.\.1, not 2\.0"),
        (Unknown, r"its `score` must return a number in 0\.\.1, not nan"),
        (Divided, "its `score` cannot be made: ZeroDivisionError: division by zero"),
    ],
)
def test_figures_that_cannot_be_made_are_told_before_anything_is_trained(kind: type[Task], said: str) -> None:
    with pytest.raises(InputError, match=rf"^the task `regression`: {said}"):
        task_problem(kind(name="regression"), torch.zeros(2, 1), torch.zeros(2, 1))


def test_of_figures_that_cannot_be_told_there_is_no_score() -> None:
    assert task_problem(Regression(name="regression"), torch.full((2, 1), torch.nan), torch.zeros(2, 1)) is None


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "NoneType"),
        ([1.0, 2.0], "list"),
        (np.zeros(3), "an array (3,) of float64"),
        (np.int64([1]), "an array (1,)"),
    ],
)
def test_targets_that_no_loss_could_take_are_told(made: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Regression, "targets", lambda *_: made)
    with pytest.raises(InputError) as told:
        NUMBERS.read_targets(np.zeros(3), "file", "y")
    assert str(told.value).startswith(
        "the task `regression`: its `targets` must return a NumPy array of float32 or int64"
    )
    assert f"not {said}" in str(told.value)


OWN = """
from peer import Figure, Task

class Failing(Task):
    figures = (Figure("error", better="down"),)
    least: int = 2

    def loss(self, outputs, targets):
        if len(targets) >= self.least:
            raise KeyError("weights")
        return (outputs[:, 0] - targets).square().mean()

    def tally(self, outputs, targets):
        return (outputs[:, :1] - targets[:, None]).abs()
"""


def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> Spec:
    """A federation of one whose task fails at batches of so many."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_task.py").write_text(OWN)
    task = f"task: {{name: 'failing_task:Failing', least: {least}}}"
    (tmp_path / "fed.yaml").write_text(f"protocol: solo\ndata: {{name: digits, limit: 90}}\n{task}\n")
    return load_spec(tmp_path / "fed.yaml", peers=1)


def test_a_loss_that_fails_is_the_task_s_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as told:
        asyncio.run(run_in_process(failing(tmp_path, monkeypatch, least=2), tmp_path / "run"))
    assert re.match(r"`failing_task:Failing` failed: KeyError: 'weights' \(.*failing_task.py:10\)", str(told.value))
    assert "given outputs (2, 1) of float32 and targets (2,) of int64; correct the task, or" in str(told.value)
    assert "mlp" not in str(told.value)


def test_a_loss_that_fails_in_training_ends_the_run_in_a_sentence_and_is_traced_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ExceptionGroup) as told:
        asyncio.run(run_in_process(failing(tmp_path, monkeypatch, least=3), tmp_path / "run"))
    assert re.match("`failing_task:Failing` failed: KeyError: 'weights' ", str(told.value.exceptions[0]))
    assert 'raise KeyError("weights")' in caplog.text


WORDS = """
import numpy as np
from torch import nn

def words(train=10, tested=10):
    x = np.full((40, 6), 3)
    x[17, 2], x[33, 5] = train, tested
    y = np.zeros_like(x)
    return x[:30], y[:30], x[30:], y[30:]

def model(shape, classes):
    return nn.Embedding(classes, 4), nn.Linear(4, classes)
"""


@pytest.mark.parametrize("where", ["train", "tested"])
def test_a_token_that_the_model_has_not_is_found_wherever_it_lies_in_memory(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_words.py").write_text(WORDS)
    (tmp_path / "fed.yaml").write_text(
        f"protocol: solo\ndata: {{name: 'some_words:words', options: {{{where}: 70}}}}\nmodel: some_words:model\n"
        "task: {name: language-model, vocabulary: 64}\nrounds: 1\n"
    )
    spec = load_spec(tmp_path / "fed.yaml", peers=1)
    said = r"does not take inputs of shape \(6,\) with tokens from 3 to 70 \(the task has 64 tokens\): IndexError"
    with pytest.raises(InputError, match=said):
        plan(spec)
    with pytest.raises(InputError, match=said):
        asyncio.run(run_in_process(spec, tmp_path / "run"))


class Lossy(Regression):
    figures = (Figure("rmse", better="down"), Figure("loss", better="down"))


class Twice(Regression):
    figures = (Figure("rmse", better="down"), Figure("rmse", better="down"))


class Bare(Regression):
    figures = Figure("rmse", better="down")  # type: ignore[assignment]


class Untaken(Regression):
    figures = (Figure("error", better="down"), Figure("accuracy"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Lossy", "has a figure `loss`, which tables or summaries have already; rename it"),
        ("Twice", "has two figures that are called `rmse`; give each its own name"),
        ("Bare", "has no figures; write figures = "),
    ],
)
def test_figures_that_cannot_stand_beside_others_are_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"^`test_named_tasks:{name}` {said}"):
        task_class(f"test_named_tasks:{name}")
    assert task_class("test_named_tasks:Untaken") is Untaken


class AtNone(Regression):
    evaluation_batch = 0


class AtAll(Regression):
    evaluation_batch = "all"  # type: ignore[assignment]


@pytest.mark.parametrize(("name", "given"), [("AtNone", "0"), ("AtAll", "'all'")])
def test_samples_evaluated_together_are_a_number_from_1_on(name: str, given: str) -> None:
    said = f"`evaluation_batch` of `test_named_tasks:{name}` is {given}; it is a number from 1 on"
    with pytest.raises(InputError, match=said):
        task_class(f"test_named_tasks:{name}")


class Unreduced(Regression):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square()


class Summed(Regression):
    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().tally(outputs, targets).sum(0)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Unreduced, r"its `loss` must be a floating-point tensor of shape \(\), not \(2, 3\) of float32$"),
        (Summed, r"its `tally` must be of shape \(2, k\), a row for each sample, not \(12,\) of float64$"),
    ],
)
def test_a_shape_that_is_wrong_is_told_with_the_one_that_is_right(task: type[Regression], said: str) -> None:
    with pytest.raises(InputError, match=f"^the task `regression`: {said}"):
        task_problem(task(name="regression"), torch.zeros(2, 3), torch.zeros(2, 3))


class First(Regression):
    def infer(self, forward: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        return forward(inputs)[:1]


def test_an_infer_that_drops_samples_is_refused_before_it_is_judged_by_those_it_keeps() -> None:
    inputs = {"x": torch.ones(2, 3)}
    with pytest.raises(InputError, match=r"its `infer` must return outputs \(2, ...\), of each sample, not \(1, 3\)"):
        First(name="regression").inferred(lambda given: given["x"], inputs)
