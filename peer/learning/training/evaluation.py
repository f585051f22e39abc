"""How good a model is: one forward pass over the test set, from which every figure is made.

After the last round a peer may look closer: how much each figure depends on the choice of test samples, which classes
are taken for which, and, for its own eyes, what the model says of each sample.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from math import isfinite, nan
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.learning.data.samples import Indices, Samples
from peer.learning.device import device_errors
from peer.learning.model.model import Model
from peer.learning.randomness import derive, draw_from, generators_in, global_stream, sample_streams
from peer.learning.tasks import Classification, Multilabel, Task
from peer.learning.training import metrics
from peer.learning.training.metrics import Float64, Judged
from peer.plugins import UserCodeError, user_code_errors

EVALUATION_BATCH = 256
Among = Indices | slice
"""Positions of samples."""
Key = TypeVar("Key")


@dataclass(frozen=True)
class EvaluationPass:
    """One forward pass over some samples with targets; `loss` is the mean of the task's."""

    task: Task
    rows: NDArray[np.float64]
    """What the task's figures are made of, (n, k)."""
    targets: NDArray[Any]
    """The classes, int64 (n,); (0,) where the task has none."""
    classes: int
    loss: float
    judged: Judged | None = None
    """What the model says of each class or label, where the task itself has no figures of these."""

    def results(self, among: Among = slice(None)) -> dict[str, float]:
        """The task's figures, on all samples or those at some positions, of which each may occur several times."""
        with user_code_errors(self.task.name):
            return self.task.judge(self.rows[among])

    def of_classes(self, among: Among) -> dict[tuple[int, str], float]:
        """The figures of each class, by number and name, NaN where one is not defined; none if the task fails."""
        with suppress(UserCodeError), user_code_errors(self.task.name):
            found: Mapping[str, Any] = (
                self.judged.of_classes(among)
                if self.judged
                else self.task.of_classes(torch.from_numpy(self.rows[among].sum(0)))
            )
            return {(at, name): value for name, of in found.items() for at, value in enumerate(map(float, of))}
        return {}

    def if_defined(self, among: Among) -> dict[str, float]:
        """The figures on some samples; none where a task of the user's cannot judge just these, but all."""
        with suppress(UserCodeError):
            return self.results(among)
        return {}

    @property
    def score(self) -> float:
        """The task's own, 0..1."""
        results = self.results()
        with user_code_errors(self.task.name):
            return self.task.score(results)

    def accuracy(self, among: Among = slice(None)) -> float:
        """The share of the samples that was predicted correctly, of all or of those at some positions."""
        return float((self.rows[among, 0] > 0).mean())

    @property
    def recall(self) -> NDArray[np.float64]:
        """The share of each class predicted correctly, (classes,); NaN for a class without samples."""
        return metrics.recalls(self.rows[:, 0] > 0, self.targets, self.classes)


@dataclass(frozen=True)
class Evaluation:
    """A model's figures on its test set, and, where the task has classes, its accuracies in 0..1, as protocols.md
    defines them; None where they do not apply."""

    figures: Mapping[str, float]
    """The task's, by name."""
    loss: float
    """The task's mean loss on the test set: of classification, cross entropy in nats."""
    matched: float | None = None
    """Σ q_c·recall_c over the classes with test samples, q the peer's own class proportions, renormalised."""
    global_: float | None = None
    """Accuracy on the whole global test set."""
    paper: float | None = None
    """Accuracy on the peer's part of the test set, split as published, independently of the training set."""
    local: float | None = None
    """Accuracy on the test part of the peer's own data."""
    balanced: float | None = None
    """The mean recall of the classes that have test samples."""

    def as_dict(self) -> dict[str, float | None]:
        """The four accuracies by the names that events and summaries use."""
        return {"matched": self.matched, "global": self.global_, "paper": self.paper, "local": self.local}

    def by(self, test: str) -> float | None:
        """The accuracy by this test; a peer with data of its own has only `local`."""
        chosen = self.as_dict()[test]
        return self.local if chosen is None else chosen


def measure(model: Model, samples: Samples, seen: Callable[[Any, Tensor], None] | None = None) -> EvaluationPass:
    """One pass in evaluation mode over `samples`, not empty, on the model's device. seen: called with each batch's
    outputs and targets (n, ...)."""
    model.train(False)
    task, rows = model.task, list[Tensor]()
    loss = torch.zeros((), dtype=torch.float64, device=model.device)
    with torch.inference_mode(), repeating(task, model.device):
        for some in samples.in_order(task.evaluation_batch):
            outputs = task.inferred(model.forward, some.inputs)
            with user_code_errors(task.name), device_errors():
                rows.append(task.tally(outputs, some.targets))
                loss += task.loss(outputs, some.targets).double() * len(some.positions)
                if seen is not None:
                    seen(outputs, some.targets)
    tallied = torch.cat(rows).double().cpu().numpy()
    targets = samples.labels.cpu().numpy() if task.has_classes else np.empty(0)
    return EvaluationPass(task, tallied, targets, model.classes, float(loss) / len(samples))


@contextmanager
def repeating(task: Task, device: torch.device) -> Iterator[None]:
    """What an `infer` of the user's draws is the same in each evaluation."""
    if not task.infers:
        yield
        return
    seed = derive(0, "infer")
    with global_stream(seed, device), sample_streams():
        draw_from(seed, generators_in(task))
        yield


def evaluate(
    model: Model, test: Samples, proportions: Sequence[float] | Float64, paper: Indices | None = None, own: bool = False
) -> Evaluation:
    """Evaluate on `test`: the global test set, or with `own` the test part of the peer's own data.

    `proportions` is q (classes,), the class proportions (or counts) of the peer's training data; `paper` the
    indices of the peer's part of the global test set, for the published accuracy.
    """
    measured = measure(model, test)
    if not model.task.has_classes:
        return Evaluation(measured.results(), measured.loss)
    recall, accuracy = measured.recall, measured.accuracy()
    return Evaluation(
        measured.results(),
        measured.loss,
        matched=metrics.matched_accuracy(recall, np.asarray(proportions)),
        global_=None if own else accuracy,
        paper=measured.accuracy(paper) if paper is not None and len(paper) and not own else None,
        local=accuracy if own else None,
        balanced=metrics.balanced_accuracy(recall),
    )


def intervals(
    figures: Callable[[Among], Mapping[Key, float]], n: int, resamples: int, seed: int, check_stop: Callable[[], None]
) -> dict[Key, tuple[float, float] | None]:
    """The 95 % interval of each figure by the percentile bootstrap over n samples (Efron, 1979); None for a figure that
    is defined in less than half of the resamples. figures: on some samples; check_stop: raises what ends it early."""
    rng, wanted, drawn = np.random.default_rng(seed), figures(slice(None)), list[Mapping[Key, float]]()
    for _ in range(resamples if wanted else 0):
        check_stop()
        drawn.append(figures(rng.integers(n, size=n)))
    found: dict[Key, tuple[float, float] | None] = {}
    for name in wanted:
        known = [value for one in drawn if isfinite(value := one.get(name, nan))]
        low, high = np.percentile(known or [nan], [2.5, 97.5]).tolist()
        found[name] = (low, high) if 2 * len(known) > resamples else None
    return found


MAX_NUMBERS = 100
"""Of a sample: a larger target, answer or output is no column of a table."""


class Predictions:
    """What a model says of each sample, gathered by `measure`: targets, answers and outputs (n, k) by these names, of
    classification the probabilities in place of outputs. What differs in size from sample to sample is left out."""

    def __init__(self, task: Task) -> None:
        self._task, self._parts = task, {name: list[NDArray[Any]]() for name in ("target", "answer", "output")}

    def __call__(self, outputs: Any, targets: Tensor) -> None:
        told = outputs.double().softmax(1) if isinstance(self._task, Classification) else outputs
        for name, part in {"target": targets, "answer": self._task.answers(outputs), "output": told}.items():
            if name not in self._parts:
                continue
            parts, fits = self._parts[name], isinstance(part, Tensor) and len(part) == len(targets)
            rows = part.reshape(len(part), -1).cpu().numpy() if fits and part[0].numel() <= MAX_NUMBERS else None
            if rows is None or (parts and parts[0].shape[1] != rows.shape[1]):
                del self._parts[name]
            else:
                parts.append(rows.astype(np.int64) if rows.dtype == bool else rows)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        return {name: np.concatenate(parts) for name, parts in self._parts.items()}

    def judged(self, classes: int) -> Judged | None:
        """What answers and outputs tell of each class or label; None where they tell none."""
        known, labels, numbers = self.columns, isinstance(self._task, Multilabel), np.arange(classes)
        target, answer, scores = (known.get(name, np.empty(0)) for name in ("target", "answer", "output"))
        alike = answer.dtype == np.int64 and answer.shape == target.shape and len(answer) == len(scores)
        if not alike or not (labels or np.isin(answer, numbers).all()):
            return None
        return Judged(scores, *(one > 0 if labels else one == numbers for one in (target, answer)))

    def table(self, measured: EvaluationPass, names: Sequence[str]) -> str:
        """A line of CSV for each sample, in the order of the test set; a task without classes has its figures of that
        sample alone, too. names: of the classes or labels, if they have any."""
        made = {"sample": np.arange(len(measured.rows))[:, None], **self.columns}
        heads = list[str]()
        for name, values in made.items():
            each = len(names) == values.shape[1] and (name == "output" or isinstance(self._task, Multilabel))
            named = names if each else range(values.shape[1])
            heads += [name] if values.shape[1] == 1 else [f"{name} {one}" for one in named]
        alone = () if measured.task.has_classes else [figure.name for figure in measured.task.figures]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*heads, *alone])
        for at, rows in enumerate(zip(*made.values(), strict=True)):
            figures = measured.if_defined(slice(at, at + 1)) if alone else {}
            writer.writerow([*chain.from_iterable(row.tolist() for row in rows), *map(figures.get, alone)])
        return text.getvalue()
