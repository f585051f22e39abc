"""Samples, and what all sources share."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from loading import everything, load, source

from peer.learning.data.samples import InMemory
from peer.learning.data.sources import SOURCES, UserSource, source_type
from peer.settings import field_docs
from peer.spec.agreement import PLACES


def test_samples_know_their_shape_and_refuse_other_types() -> None:
    samples = InMemory(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))
    assert len(samples) == 4
    assert samples.shape == (1, 8, 8)
    assert samples.to("cpu").x is samples.x
    with pytest.raises(TypeError):
        InMemory(torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="do not go with"):
        InMemory(torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64))


def test_registry_names_agree_with_the_classes() -> None:
    for name, kind in SOURCES.items():
        assert kind.model_fields["name"].annotation.__args__ == (name,)  # type: ignore[union-attr]
        undocumented = kind.model_fields.keys() - field_docs(kind).keys()
        assert undocumented == set()
        places = {
            key for key, field in kind.model_fields.items() if Path in (field.annotation, *get_args(field.annotation))
        }
        assert places <= {*PLACES}, "where data lie is each machine's own business, and not compared"


def test_unknown_names_get_the_nearest_one() -> None:
    assert source_type("mnist") is SOURCES["mnist"]
    assert source_type("my.module:load") is UserSource


def test_relative_paths_are_taken_from_a_folder(tmp_path: Path) -> None:
    assert source("npz", path="x.npz").relative_to(tmp_path).path == tmp_path / "x.npz"  # type: ignore[attr-defined]
    assert source("mnist", root="/data").relative_to(tmp_path).root == Path("/data")  # type: ignore[attr-defined]
    assert source("digits").relative_to(tmp_path).partition == source("digits").partition


def test_limit_keeps_a_seeded_choice_of_training_samples() -> None:
    whole, some, again = load("digits"), load("digits", limit=100), load("digits", limit=100)
    assert len(some.train_targets) == 100
    assert len(some.parts["test"].targets) == 360
    np.testing.assert_array_equal(some.train_targets, again.train_targets)
    kept = np.sort(np.random.default_rng(42).permutation(1437)[:100])
    assert torch.equal(everything(some)[0].x, whole.train(kept).x)
    assert len(load("digits", limit=5000).train_targets) == 1437
