"""The accuracies, against counting by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from peer.learning.data.samples import InMemory, Samples
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.tasks import Classification
from peer.learning.training import metrics
from peer.learning.training.evaluation import EvaluationPass, evaluate, measure


def saying(predictions: list[int], y: list[int], classes: int) -> tuple[Model, Samples]:
    """A model that gives these predictions for these samples: its input is the logits."""
    model = Model(Split(nn.Identity(), nn.Identity()), settings="echo", example=Example.zeros((classes,), classes))
    return model, InMemory(functional.one_hot(torch.tensor(predictions), classes).float(), torch.tensor(y))


def test_every_accuracy_of_a_small_case() -> None:
    # Class 0: 2 of 3, class 1: 0 of 1, class 2: 1 of 2, class 3: no test samples.
    model, test = saying([0, 0, 1, 2, 2, 3], [0, 0, 0, 1, 2, 2], 4)
    evaluation = evaluate(model, test, [6, 0, 2, 4], paper=np.array([0, 3, 4]))
    assert evaluation.matched == pytest.approx((6 * 2 / 3 + 2 * 1 / 2) / 8)
    assert evaluation.global_ == pytest.approx(3 / 6)
    assert evaluation.paper == pytest.approx(2 / 3)
    assert evaluation.local is None
    assert evaluation.balanced == pytest.approx((2 / 3 + 0 + 1 / 2) / 3)
    hit, miss = -np.log(np.e / (np.e + 3)), -np.log(1 / (np.e + 3))
    assert evaluation.loss == pytest.approx((3 * hit + 3 * miss) / 6)
    assert evaluation.as_dict() == {
        "matched": evaluation.matched,
        "global": evaluation.global_,
        "paper": evaluation.paper,
        "local": None,
    }


def test_own_data_gives_local_and_matched_only() -> None:
    model, test = saying([0, 1, 1], [0, 0, 1], 2)
    evaluation = evaluate(model, test, [1, 3], paper=np.array([0]), own=True)
    assert evaluation.as_dict() == {
        "matched": (0.5 + 3) / 4,
        "global": None,
        "paper": None,
        "local": pytest.approx(2 / 3),
    }


def test_where_an_accuracy_does_not_apply_it_is_none() -> None:
    model, test = saying([0, 1], [0, 1], 3)
    assert evaluate(model, test, [0, 0, 5]).matched is None, "none of the peer's classes is tested"
    assert evaluate(model, test, [1, 1, 1]).paper is None
    assert evaluate(model, test, [1, 1, 1], paper=np.array([], dtype=np.int64)).paper is None


@given(st.data())
def test_matched_is_the_global_accuracy_of_a_peer_with_the_global_mix(data: st.DataObject) -> None:
    y = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=40)))
    correct = np.array(data.draw(st.lists(st.booleans(), min_size=len(y), max_size=len(y))))
    measured = EvaluationPass(Classification(), correct[:, None].astype(float), y, 5, 0.0)
    matched = metrics.matched_accuracy(measured.recall, np.bincount(y, minlength=5))
    assert matched == pytest.approx(measured.score)


def test_one_pass_whatever_the_batch_and_in_evaluation_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    model = Model(Split(extractor, nn.Linear(8, 3)), settings="bn", example=Example.zeros((4,), 3))
    model.train()
    test = InMemory(torch.rand(50, 4), torch.randint(0, 3, (50,)))
    before = model.sha256()
    calls: list[int] = []
    handle = model.module.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    at_once = measure(model, test)
    monkeypatch.setattr(Classification, "evaluation_batch", 8)
    by_eight = measure(model, test)
    handle.remove()
    assert sum(calls) == 100
    assert np.array_equal(by_eight.rows, at_once.rows)
    assert by_eight.loss == pytest.approx(at_once.loss)
    assert model.sha256() == before
    assert by_eight.score == (model.predict(test.x) == test.y).double().mean().item()
