"""Columns of one scale: the values against NumPy's, of one peer and of several together, and where they apply."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load, source
from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.data.samples import InMemory, Names, Standardisation, first_pass, second_pass, standardisation_of
from peer.learning.data.shard import CommonData, own_shard

COLUMNS = {
    "plain": lambda draw: draw.normal(50, 12, 5000),
    "large": lambda draw: draw.normal(3e7, 4, 5000),
    "tiny": lambda draw: draw.normal(0, 1e-27, 5000),
    "huge": lambda draw: draw.normal(1e25, 1e24, 5000),
    "skewed": lambda draw: draw.lognormal(0, 3, 5000),
    "same": lambda draw: np.full(5000, 0.1),
    "nothing": lambda draw: np.zeros(5000),
}


def columns() -> Tensor:
    draw = np.random.default_rng(3)
    return torch.from_numpy(np.stack([make(draw) for make in COLUMNS.values()], 1).astype(np.float32))


def samples(x: Tensor) -> InMemory:
    return InMemory(x, torch.zeros(len(x), dtype=torch.int64))


def weighted(vectors: list[Tensor], weights: list[int]) -> Tensor:
    """The weighted mean as it results from the ring, in float32."""
    total = torch.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        total += vector * weight
    return total / sum(weights)


@pytest.mark.parametrize("cuts", [[5000], [1, 700, 4299], [2500, 2500]])
def test_the_values_are_those_of_all_samples_together(cuts: list[int]) -> None:
    x = columns()
    parts = [samples(part) for part in x[torch.argsort(x[:, 0])].split(cuts)]
    first = weighted([first_pass(part) for part in parts], cuts)
    second = weighted([second_pass(part, first) for part in parts], cuts)
    standard = standardisation_of(first, second)
    exact = x.double().numpy()
    wanted = exact.std(0)
    wanted[-2:] = 1
    assert np.allclose(standard.deviations, wanted, rtol=1e-4)
    assert np.all(np.abs(standard.means.double().numpy() - exact.mean(0)) <= 1e-3 * wanted + 1e-7 * np.abs(exact[0]))
    after = standard(x)
    assert np.allclose(after[:, :-2].double().std(0, correction=0), 1, rtol=1e-3)
    assert after[:, :2].mean(0).abs().max() < 0.2
    assert after[:, -2:].abs().max() < 1e-6


def test_what_goes_to_disk_and_to_others_comes_back() -> None:
    standard = standardisation_of(first_pass(samples(columns())), torch.zeros(14))
    back = Standardisation.from_vector(standard.vector, Names())
    assert torch.equal(back.means, standard.means)
    assert torch.equal(back.deviations, standard.deviations)


def test_streamed_samples_become_the_same(tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame({"a": np.arange(40.0), "b": np.arange(40) ** 2, "label": np.arange(40) % 2})
    frame.to_parquet(tmp_path / "t.parquet")
    both = [
        CommonData(source("parquet", path=tmp_path / "t.parquet", stream=how), ["p"]).shard("p")
        for how in (True, False)
    ]
    standard = standardisation_of(first := first_pass(both[0].train), second_pass(both[0].train, first))
    assert torch.equal(first, first_pass(both[1].train))
    streamed, held = (shard.standardised(standard) for shard in both)
    for part in ("train", "test"):
        one, other = (next(iter(getattr(shard, part).in_order(100))) for shard in (streamed, held))
        assert torch.equal(one.inputs, other.inputs)
        drawn = next(getattr(streamed, part).drawn([torch.arange(4)], 1))
        assert torch.equal(drawn.inputs, other.inputs[:4])
    assert held.train.batch(torch.arange(32)).inputs.mean(0).abs().max() < 1e-6


def test_images_are_refused() -> None:
    with pytest.raises(InputError, match="`standardize` is for rows of numbers, and inputs are "):
        load("digits", standardize="own")


@pytest.mark.parametrize(("given", "meant"), [(True, "own"), (False, None), ("federation", "federation")])
def test_true_means_each_peers_own(tmp_path: Path, given: Any, meant: Any) -> None:
    assert source("csv", path=tmp_path / "t.csv", standardize=given).standardize == meant


def test_it_is_set_for_all_alike(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n1,0\n2,1\n3,0\n")
    federation, own = (source("csv", path=tmp_path / "t.csv", standardize=how) for how in (None, "own"))
    with pytest.raises(InputError, match="`standardize` in a peer's own data would not hold for the other peers"):
        own_shard(own, federation)
    x = own_shard(federation, own).train.batch(torch.arange(2)).inputs
    assert x.shape == (2, 1)


@pytest.mark.parametrize(
    ("means", "deviations"), [([0.0, float("inf")], [1.0, 1.0]), ([0.0, 0.0], [1.0, 0.0]), ([0.0, 0.0], [-1e-38, 1.0])]
)
def test_what_others_made_useless_is_refused(means: list[float], deviations: list[float]) -> None:
    with pytest.raises(FailedError, match="of no use; look for a column"):
        Standardisation.from_vector(torch.tensor(means + deviations), Names())
