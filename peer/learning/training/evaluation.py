"""How good a model is: one forward pass over the test set, from which every figure is made."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.learning.data.samples import Samples
from peer.learning.device import device_errors
from peer.learning.model.model import Model
from peer.learning.randomness import derive, draw_from, generators_in, global_stream, sample_streams
from peer.learning.tasks import Task
from peer.learning.training import metrics
from peer.plugins import user_code_errors

EVALUATION_BATCH = 256


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

    def results(self) -> dict[str, float]:
        """The task's figures."""
        with user_code_errors(self.task.name):
            return self.task.judge(self.rows)

    @property
    def score(self) -> float:
        """The task's own, 0..1."""
        results = self.results()
        with user_code_errors(self.task.name):
            return self.task.score(results)

    def accuracy(self, among: NDArray[np.int64] | slice = slice(None)) -> float:
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


def measure(model: Model, samples: Samples, batch: int | None = None) -> EvaluationPass:
    """One pass in evaluation mode over `samples`, not empty, on the model's device; batch: else as the task says."""
    model.train(False)
    task, rows = model.task, list[Tensor]()
    loss = torch.zeros((), dtype=torch.float64, device=model.device)
    with torch.inference_mode(), _repeating(task, model.device):
        for some in samples.in_order(batch or task.evaluation_batch):
            outputs = task.inferred(model.forward, some.inputs)
            with user_code_errors(task.name), device_errors():
                rows.append(task.tally(outputs, some.targets))
                loss += task.loss(outputs, some.targets).double() * len(some.positions)
    tallied = torch.cat(rows).double().cpu().numpy()
    targets = samples.labels.cpu().numpy() if task.has_classes else np.empty(0)
    return EvaluationPass(task, tallied, targets, model.classes, float(loss) / len(samples))


@contextmanager
def _repeating(task: Task, device: torch.device) -> Iterator[None]:
    """What an `infer` of the user's draws is the same in each evaluation."""
    if not task.infers:
        yield
        return
    seed = derive(0, "infer")
    with global_stream(seed, device), sample_streams():
        draw_from(seed, generators_in(task))
        yield


def evaluate(
    model: Model,
    test: Samples,
    proportions: Sequence[float] | NDArray[np.float64],
    *,
    paper: NDArray[np.int64] | None = None,
    own: bool = False,
) -> Evaluation:
    """Evaluate on `test`: the global test set, or with `own` the test part of the peer's own data.

    `proportions` is q (classes,), the class proportions (or counts) of the peer's training data; `paper` the
    indices of the peer's part of the global test set, for the published accuracy.
    """
    measured = measure(model, test)
    figures = measured.results()
    if not model.task.has_classes:
        return Evaluation(figures, measured.loss)
    recall, accuracy = measured.recall, measured.accuracy()
    return Evaluation(
        figures,
        measured.loss,
        matched=metrics.matched_accuracy(recall, np.asarray(proportions)),
        global_=None if own else accuracy,
        paper=measured.accuracy(paper) if paper is not None and len(paper) and not own else None,
        local=accuracy if own else None,
        balanced=metrics.balanced_accuracy(recall),
    )
