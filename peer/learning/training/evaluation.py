"""How good a model is: one forward pass over the test set, from which every accuracy is counted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from peer.learning.data.samples import Samples
from peer.learning.model.model import Model
from peer.learning.training import metrics

BATCH = 256


@dataclass(frozen=True)
class Measured:
    """One forward pass: `correct` bool (n,), labels `y` int64 (n,), `loss` the mean cross-entropy in nats."""

    correct: NDArray[np.bool_]
    y: NDArray[np.int64]
    classes: int
    loss: float

    @property
    def accuracy(self) -> float:
        """The share of correct predictions."""
        return float(self.correct.mean())

    @property
    def recall(self) -> NDArray[np.float64]:
        """The share of each class predicted correctly, (classes,); NaN for a class without samples."""
        return metrics.recalls(self.correct, self.y, self.classes)


@dataclass(frozen=True)
class Evaluation:
    """A model's accuracies in 0..1, as protocols.md defines them; None where they do not apply."""

    matched: float | None
    """Σ q_c·recall_c over the classes with test samples, q the peer's own class proportions, renormalised."""
    global_: float | None
    """On the whole global test set."""
    paper: float | None
    """On the peer's part of the test set, split as published: independently of the training set."""
    local: float | None
    """On the test part of the peer's own data."""
    loss: float
    """Mean cross-entropy on the test set, in nats."""
    balanced: float | None
    """The mean recall of the classes that have test samples."""

    def as_dict(self) -> dict[str, float | None]:
        """The four accuracies by the names that events and summaries use."""
        return {"matched": self.matched, "global": self.global_, "paper": self.paper, "local": self.local}

    def by(self, test: str) -> float | None:
        """The accuracy by this test; a peer with data of its own has only `local`."""
        chosen = self.as_dict()[test]
        return self.local if chosen is None else chosen


def measure(model: Model, samples: Samples, batch: int = BATCH) -> Measured:
    """One forward pass in evaluation mode over `samples`: not empty, on the model's device."""
    model.train(False)
    correct: list[Tensor] = []
    loss = torch.zeros((), dtype=torch.float64, device=model.device)
    with torch.inference_mode():
        for x, y in zip(torch.split(samples.x, batch), torch.split(samples.y, batch), strict=True):
            logits = model.forward(x)
            correct.append(logits.argmax(1) == y)
            loss += functional.cross_entropy(logits, y, reduction="sum")
    hits = torch.cat(correct).cpu().numpy()
    return Measured(hits, samples.y.cpu().numpy(), model.classes, float(loss) / len(samples))


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
    recall = measured.recall
    subset = measured.correct[paper] if paper is not None and not own else np.empty(0)
    return Evaluation(
        matched=metrics.matched_accuracy(recall, np.asarray(proportions)),
        global_=None if own else measured.accuracy,
        paper=float(subset.mean()) if len(subset) else None,
        local=measured.accuracy if own else None,
        loss=measured.loss,
        balanced=metrics.balanced_accuracy(recall),
    )
