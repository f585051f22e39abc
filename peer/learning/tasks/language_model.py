"""The next token."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from peer.errors import InputError
from peer.learning.tasks.base import Figure, Targets, Task
from peer.learning.tasks.trial import misshapen


class LanguageModel(Task):
    """Cross entropy of logits (n, T, vocabulary) and tokens int64 (n, T), the mean over the tokens that are not to be
    ignored; the answers are the likeliest tokens, (n, T).

    The data give both: `x, y = tokens[:, :-1], tokens[:, 1:]` for the next token, anything else for another task.
    `perplexity` is exp of the cross entropy of all tokens, `accuracy` the share of tokens that were the likeliest. The
    score is 1/perplexity: the geometric mean of the probabilities that the right tokens were given.
    """

    name: Literal["language-model"]
    """What comes next: tokens for tokens."""
    vocabulary: Annotated[int, Field(ge=2)]
    """How many tokens there are, numbered from 0."""
    ignore: int = -100
    """What stands among the targets where nothing is asked for, such as padding."""

    figures: ClassVar[tuple[Figure, ...]] = (Figure("perplexity", better="down"), Figure("accuracy"))
    inputs: ClassVar[Literal["float32", "int64"]] = "int64"

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        if y.dtype.kind not in "biu" or y.ndim != 2:
            raise InputError(
                f"{where}: {name} must be of shape (n, T), a whole number for each token, not {y.shape} of {y.dtype}"
            )
        tokens = y.astype(np.int64)
        wrong = ((tokens < 0) | (tokens >= self.vocabulary)) & (tokens != self.ignore)
        if wrong.any():
            raise InputError(
                f"{where}: {name} has the token {tokens[wrong][0]}, and `vocabulary` is {self.vocabulary}, numbered "
                f"from 0; mend one of them, or write `ignore` into `task`"
            )
        return tokens

    def outputs(self, parts: Sequence[Targets], given: int | None, where: str) -> int:
        if given not in (None, self.vocabulary):
            raise InputError(
                f"{where}: `classes` is {given} and the task's `vocabulary` {self.vocabulary}; leave it out"
            )
        return self.vocabulary

    def outputs_in_words(self, count: int) -> str:
        return f"{count} token{'s' * (count != 1)}"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._each(outputs, targets).sum() / (targets != self.ignore).sum().clamp(min=1)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        asked = targets != self.ignore
        right = (outputs.argmax(2) == targets) & asked
        return torch.stack([self._each(outputs, targets).double().sum(1), right.sum(1), asked.sum(1)], 1)

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        entropy, right, asked = sums / sums[2].clamp(min=1)
        return {"perplexity": float(entropy.exp()), "accuracy": float(right) if asked else 1.0}

    def score(self, results: Mapping[str, float]) -> float:
        return 1 / results["perplexity"]

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(2)

    def misfit(self, outputs: object, targets: Tensor, classes: int) -> str | None:
        shape = (*targets.shape[1:], classes)
        return misshapen(outputs, shape, "a logit for each token of the vocabulary at each place")

    def _each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The cross entropy at each place, (n, T); 0 where nothing is asked for."""
        return functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none", ignore_index=self.ignore)
