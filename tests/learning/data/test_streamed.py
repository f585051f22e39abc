"""Samples that are not in memory: the same bits as in memory, whoever reads them, and inputs of every kind."""

import multiprocessing
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load, source
from torch import nn

from peer.errors import FailedError, InputError
from peer.learning.data.batch_loader import StreamedSamples
from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import Batch, InMemory, Samples
from peer.learning.data.shard import CommonData, open_own, own_data_errors
from peer.learning.data.transforms import Transform
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.tasks import Segmentation, Task
from peer.learning.training.evaluation import measure
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer

MODULE = '''
import multiprocessing
import random
import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

class Noisy(Dataset):
    """Draws from all three generators."""
    def __init__(self, samples=24, listed=True):
        self.samples = samples
        if listed:
            self.targets = [number % 3 for number in range(samples)]
    def __len__(self):
        return self.samples
    def __getitem__(self, number):
        drawn = torch.rand(4) + np.random.rand() + random.random()
        return drawn + number, number % 3

class Several(Noisy):
    def __getitem__(self, number):
        return {"a": torch.full((2,), float(number)), "b": torch.ones(3)}, number % 3

class Ragged(Noisy):
    def __getitem__(self, number):
        return torch.ones(1 + number % 4), number % 3

class Masks(Noisy):
    def __getitem__(self, number):
        image = torch.zeros(1, 6, 6)
        image[0, number % 6, 0] = 1
        return image, image[0]

class Classes(Noisy):
    def __getitem__(self, number):
        return torch.zeros(1, 6, 6), torch.full((6, 6), 5 if number == 1 else number % 3)

class Tables(Noisy):
    def __getitem__(self, number):
        return torch.ones(1, 6, 6), torch.ones(3, 3)

class Breaks(Noisy):
    def __getitem__(self, number):
        if number == 5:
            raise ValueError("no such picture")
        return super().__getitem__(number)

class Liar(Noisy):
    def __getitem__(self, number):
        return torch.ones(4), 1

class Says(Noisy):
    def __init__(self, says, listed=False):
        super().__init__(listed=listed)
        self.says = says
    def __len__(self):
        if self.says is None:
            raise OSError("no index")
        return self.says
    def __getitem__(self, number):
        if number >= 24:
            raise IndexError("beyond the last")
        return super().__getitem__(number)

class Odd(Noisy):
    def __getitem__(self, number):
        x, y = super().__getitem__(number)
        return x, torch.zeros(1 + number % 2)

def says(count, listed=False): return Says(count, listed)
def odd(): return Odd()
def noisy(**options): return Noisy(**options)
def two(): return Subset(Noisy(), range(0, 24, 2)), Noisy(6, listed=False)
def several(): return Several()
def ragged(): return Ragged()
def masks(): return Masks()
def classes(): return Classes()
def tables(): return Tables()
def breaks(): return Breaks()
def liar(): return Liar()
def closure():
    made = Noisy()
    made.change = lambda x: x
    return made
def shared():
    made = Noisy()
    made.weights, made.table = torch.ones(9), np.ones(9)
    made.seen = multiprocessing.get_context("spawn").Value("i")
    return made
def padded(samples):
    inputs = [x for x, _ in samples]
    return torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True), [y for _, y in samples]
def doubled(x): return 2 * x
'''


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_sets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_sets", raising=False)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (60, 8, 8, 1), np.uint8), generator.integers(0, 3, 60)
    np.savez(tmp_path / "some.npz", x=x, y=y)
    return tmp_path / "some.npz"


def everything(dataset: Dataset) -> Samples:
    return dataset.train(np.arange(len(dataset.train_targets)))


def drawn(samples: Samples, seed: int = 7) -> list[torch.Tensor]:
    order = torch.split(torch.randperm(len(samples), generator=torch.Generator().manual_seed(1)), 5)
    return [batch.inputs for batch in samples.drawn(order, seed)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def trained(samples: Samples) -> tuple[str, float]:
    model = build("mlp", Example.from_samples(samples, 3, source("digits").load().task), seed=3)
    Trainer(model, samples, 5, "peer0").train(Phase("model", 2, SGD(0.1), 8), 1)
    return model.sha256(), measure(model, samples).loss


def test_streamed_is_as_in_memory(archive: Path) -> None:
    in_memory, streamed = (everything(load("npz", path=archive, stream=stream)) for stream in (False, True))
    assert isinstance(in_memory, InMemory)
    assert isinstance(streamed, StreamedSamples)
    assert trained(streamed) == trained(in_memory)
    assert torch.equal(streamed.labels, in_memory.labels)
    two = torch.tensor([3, 1])
    assert torch.equal(streamed.batch(two).inputs, in_memory.batch(two).inputs)


def test_they_drift_as_in_memory(archive: Path) -> None:
    drift = [{"round": 2, "rotate": 90, "labels": [1, 0, 2]}]
    found = []
    for stream in (False, True):
        shard = CommonData(source("npz", path=archive, stream=stream, drift=drift), ["a", "b"]).shard("a", round=2)
        batches = [*shard.train.in_order(5), *shard.test.in_order(5)]
        found.append((torch.cat([b.inputs for b in batches]), torch.cat([b.targets for b in batches])))
        assert shard.proportions.tolist() == pytest.approx(shard.train.labels.bincount().div(len(shard.train)).tolist())
    assert same([*found[0]], [*found[1]])


def test_files_of_every_kind_are_as_in_memory(tmp_path: Path) -> None:
    pillow, frames = pytest.importorskip("PIL.Image"), pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    generator = np.random.default_rng(0)
    for number in range(12):
        (tmp_path / "images" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (5, 5, 3), np.uint8)
        pillow.fromarray(pixels).save(tmp_path / "images" / "ab"[number % 2] / f"{number}.png")
    columns = {
        "u": generator.normal(size=50),
        "v": np.arange(50),
        "label": ["yes" if n % 3 else "no" for n in range(50)],
    }
    frames.DataFrame(columns).to_parquet(tmp_path / "table.parquet", row_group_size=7)
    for name, where in (
        ("image-folder", {"root": tmp_path / "images"}),
        ("parquet", {"path": tmp_path / "table.parquet"}),
    ):
        whole, streamed = (load(name, **where, stream=stream) for stream in (False, True))
        assert (streamed.names, streamed.classes, streamed.shape) == (whole.names, whole.classes, whole.shape)
        for one, other in ((everything(whole), everything(streamed)), (whole.test(), streamed.test())):
            assert isinstance(one, InMemory)
            assert torch.equal(torch.cat([batch.inputs for batch in other.in_order(4)]), one.x)
            assert torch.equal(torch.cat([batch.targets for batch in other.in_order(4)]), one.y)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["a"] * 9, "column 'u' holds (large_)?string and no numbers"),
        ([1.0] * 4 + [float("nan")] + [2.0] * 4, "column 'u' has no finite value in row 5"),
    ],
)
def test_wrong_tables_are_told(column: list[Any], message: str, tmp_path: Path) -> None:
    frames = pytest.importorskip("pandas")
    path = tmp_path / "table.parquet"
    frames.DataFrame({"u": column, "label": [0, 1, 0] * 3}).to_parquet(path, row_group_size=3)
    with pytest.raises(InputError, match=message):
        [*everything(load("parquet", path=path, stream=True)).in_order(2)]


def test_the_number_of_workers_changes_nothing(archive: Path) -> None:
    """Neither of a data set that draws, nor of transforms, nor of what is memory-mapped; a break is made up for."""
    settings: dict[str, Any] = {"path": archive, "stream": True, "transforms": ["RandomHorizontalFlip"]}
    for name, given in (("own_sets:noisy", {"transforms": ["own_sets:doubled"]}), ("npz", settings)):
        alone, helped = (everything(load(name, workers=workers, **given)) for workers in (0, 2))
        try:
            expected = drawn(alone)
            begun: Iterator[Any] = helped.drawn(torch.split(torch.arange(len(helped)), 2), 1)
            next(begun)
            assert same(drawn(helped), expected), "while another reading is under way"
            begun.close()  # type: ignore[attr-defined]
            assert same(drawn(helped), expected), "after one that was given up"
            assert same([b.inputs for b in helped.in_order(4)], [b.inputs for b in alone.in_order(4)])
        finally:
            helped.close()


def test_a_phase_that_fails_leaves_the_workers_to_the_next() -> None:
    def fail(outputs: torch.Tensor, targets: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        raise OSError("the loss's own")

    ended = list[bool]()

    class Watched(InMemory):
        def drawn(self, order: Iterable[torch.Tensor], seed: int) -> Generator[Batch]:
            try:
                yield from super().drawn(order, seed)
            finally:
                ended.append(True)

        def to(self, device: torch.device | str) -> "Watched":
            return self

    whole = Watched(torch.randn(12, 4), torch.arange(12) % 3)
    trainer = Trainer(
        build("mlp", Example.from_samples(whole, 3, source("digits").load().task), seed=3), whole, 5, "peer0"
    )
    with pytest.raises(OSError, match="own") as error:
        trainer.train(Phase("model", 1, SGD(), 4, loss=fail), 1)
    assert error.tb, "which holds on to all frames"
    assert ended


def test_draws_derive_from_the_seed_alone() -> None:
    samples = everything(load("own_sets:noisy"))
    before = torch.get_rng_state()
    first = drawn(samples)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert same(drawn(samples), first)
    assert not same(drawn(samples, seed=8), first)
    epochs = [b.inputs for b in samples.drawn([torch.arange(4), torch.arange(4)], 1)]
    assert not torch.equal(*epochs)
    assert torch.equal(*(next(samples.in_order(4)).inputs for _ in range(2)))


def test_training_and_test_sets_and_their_classes() -> None:
    dataset = load("own_sets:two", validation=0.3)
    assert (dataset.shape, dataset.classes) == ((4,), 3)
    assert dataset.train_targets.tolist() == [number % 3 for number in range(0, 24, 2)]
    assert (len(dataset.test()), len(dataset.validation_samples() or ())) == (4, 2)
    assert len(load("own_sets:noisy", limit=7).train_targets) == 7


def test_several_inputs_are_what_the_model_is_called_with() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.cat([a, b], 1))  # type: ignore[no-any-return]

    dataset = load("own_sets:several")
    samples = everything(dataset)
    assert dataset.shape == {"a": (2,), "b": (3,)}
    model = Model(
        Split(Both(), nn.Linear(4, 3)), settings="both", example=Example.from_samples(samples, 3, dataset.task)
    )
    before = model.sha256()
    Trainer(model, samples, 5, "peer0").train(Phase("model", 1, SGD(0.01), 8), 1)
    assert model.sha256() != before
    assert measure(model, dataset.test()).loss > 0


def test_inputs_of_several_sizes_are_put_together_by_collate() -> None:
    samples = everything(load("own_sets:ragged", collate="own_sets:padded"))
    for batch in samples.in_order(4):
        assert batch.inputs.shape[0] == len(batch.targets)
    with pytest.raises(
        InputError,
        match=r"the input of sample \d+ is \(\d,\), .*; give tensors of one shape, or a `collate`",
    ):
        load("own_sets:ragged")


class Pixels(Task):
    """Not quite segmentation: how far off each pixel is."""

    name: str = "pixels"
    figures = ()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets) ** 2).mean()

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets) ** 2).flatten(1).mean(1, keepdim=True)


def test_a_mask_is_turned_with_its_image() -> None:
    flips: list[Any] = [{"RandomVerticalFlip": {"p": 0.5}}, {"RandomHorizontalFlip": {"p": 0.5}}]
    samples = everything(source("own_sets:masks", transforms=flips).load(Pixels()))
    corners = set()
    for batch in samples.drawn([torch.arange(len(samples))] * 2, 1):
        assert torch.equal(batch.inputs[:, 0], batch.targets)
        corners |= {int(image.flatten().argmax()) for image in batch.inputs}
    assert len(corners) > 6


def test_classes_of_masks_that_are_not_all_read_are_said() -> None:
    task = Segmentation(name="segmentation")
    with pytest.raises(InputError, match=r"not all read to count the classes; say how many .*classes: 3"):
        source("own_sets:classes").load(task)
    assert source("own_sets:classes", classes=6).load(task).classes == 6
    with pytest.raises(InputError, match="class 2 does not fit 2 classes"):
        source("own_sets:classes", classes=2).load(task)


def test_a_target_that_may_be_a_mask_is_not_left_behind() -> None:
    with pytest.raises(InputError, match="neither a number nor a mask"):
        source("own_sets:tables", transforms=["RandomVerticalFlip"]).load(Pixels(name="pixels"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transforms": ["RandomHorizontalFlop"]}, "unknown transform `RandomHorizontalFlop`.*RandomHorizontalFlip"),
        (
            {"transforms": [{"RandomCrop": {"sise": 3}}]},
            "`transforms`: the transform `RandomCrop` has no argument `sise`; did you mean `size`?",
        ),
        ({"test_transforms": ["CenterCrop"]}, "`test_transforms`: the transform `CenterCrop` needs `size`; write"),
        ({"transforms": [{"RandomHorizontalFlip": {"p": 3}}]}, "`transforms`: .* does not take .* `p` should be"),
        ({"transforms": ["own_sets:absent"]}, r"`own_sets` \(.*\) has no `absent`"),
        ({"transforms": [{"Pad": {"padding": 1}}]}, r"training inputs are \(1, 10, 10\) and test inputs \(1, 8, 8\)"),
        ({"workers": 2}, "all samples are in memory, and `workers` would do nothing"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load("digits", **settings)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("breaks", r"own_sets:breaks fails at sample 5: ValueError: no such picture"),
        ("liar", "`targets` of its data set has not the class that sample 0 has"),
        ("odd", r"not of one shape: the target of sample 0 is \(1,\), and that of sample 3 \(2,\)"),
    ],
)
def test_wrong_data_sets_are_told(function: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        drawn(everything(load(f"own_sets:{function}")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -3}, "`Says` says by `__len__` that it has -3 samples; return how many, from 1$"),
        ({"count": 0}, "that it has 0 samples; return how many, from 1$"),
        ({"count": "many"}, "that it has 'many' samples; return how many, from 1$"),
        ({"count": 3.5}, r"that it has 3\.5 samples; return how many, from 1$"),
        ({"count": 10**30}, "that it has 10+ samples; return how many, from 1$"),
        ({"count": None}, r"`Says.__len__` fails: OSError: no index \(.*own_sets.py:\d+\)$"),
        ({"count": 30}, "fails at sample 2[4-9]: IndexError: .*; `Says` says by `__len__` that it has 30$"),
        ({"count": 10**9}, "fails at sample .*: IndexError: .*; `Says` says by `__len__` that it has 1000000000$"),
        (
            {"count": 20, "listed": True},
            "`Says` says by `__len__` that it has 20 samples, and its `targets` are 24; make",
        ),
    ],
)
def test_a_length_that_is_none_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^own_sets:says.*{message}"):
        load("own_sets:says", options=options)


def test_whose_own_data_are_wrong_is_told() -> None:
    federation = source("own_sets:noisy")
    with (
        pytest.raises(InputError, match=r"^the data of clinic: own_sets:says: `Says` says by `__len__`"),
        own_data_errors("clinic"),
    ):
        open_own(source("own_sets:says", options={"count": -3}), federation)


def test_what_cannot_be_given_to_workers_is_told() -> None:
    with pytest.raises(InputError, match=r"own_sets:closure cannot be given to `workers`: .*use no lambda"):
        load("own_sets:closure", workers=1)
    assert not load("own_sets:closure").stream.workers  # type: ignore[union-attr]


def test_what_only_a_process_that_is_started_may_be_given_is_not_refused() -> None:
    """Numbers are not even looked at: that they go through costs no memory before the start."""
    data = load("own_sets:shared", workers=1)
    assert not data.stream.reading.parts["train"].inputs.weights.is_shared()  # type: ignore[union-attr]
    assert len(drawn(everything(data))) > 0
    data.stream.close()  # type: ignore[union-attr]


def test_a_worker_that_is_killed_is_told() -> None:
    samples = everything(load("own_sets:noisy", workers=1))
    reading = samples.drawn(torch.split(torch.arange(24), 1), 1)
    next(reading)
    for worker in multiprocessing.active_children():
        worker.kill()
    with pytest.raises(FailedError, match="a worker that reads own_sets:noisy was ended, perhaps for want of memory"):
        list(reading)
    samples.close()


def test_arguments_that_yaml_has_no_word_for() -> None:
    image = torch.zeros(1, 4, 4, dtype=torch.uint8)
    steps: list[Any] = [
        {"ToDtype": {"dtype": "float32", "scale": True}},
        {"Resize": {"size": 2, "interpolation": "bilinear"}},
    ]
    changed, _ = Transform(steps)(image, 0)
    assert (changed.dtype, changed.shape) == (torch.float32, (1, 2, 2))
