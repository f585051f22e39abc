"""Modules of 16 bits: the vector stays float32, and the module is its rounding whenever it is asked."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn import functional

from peer.errors import InputError
from peer.learning.data.samples import InMemory, Samples
from peer.learning.export import load_model, save_model
from peer.learning.model.layout import Split
from peer.learning.model.low_precision import set_precision
from peer.learning.model.model import Model
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.optimiser import SGD, Adam
from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer

IMAGES = Example.zeros((1, 8, 8), 10)
HALVES = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def small(dtype: str, name: str = "mlp-square") -> Model:
    return build(ModelSettings(name=name, dtype=dtype), IMAGES, seed=3)  # type: ignore[arg-type]


def samples(n: int = 40) -> Samples:
    generator = torch.Generator().manual_seed(4)
    y = torch.arange(n) % 10
    return InMemory(torch.rand(n, 1, 8, 8, generator=generator) + y.view(-1, 1, 1, 1) / 5, y)


def tensors(model: Model) -> dict[str, Tensor]:
    return dict(model.module.named_parameters()) | dict(model.module.named_buffers())


@HALVES
def test_the_vector_is_float32_and_answers_are(dtype: str) -> None:
    model = small(dtype)
    assert model.vector.dtype == model.gradient.dtype == torch.float32
    assert {entry.dtype for entry in model.layout} == {dtype}
    assert {tensor.dtype for tensor in tensors(model).values()} == {getattr(torch, dtype)}
    assert model(samples().x).dtype == torch.float32


@HALVES
def test_what_is_written_into_the_vector_counts_in_the_next_pass(dtype: str) -> None:
    model, x = small(dtype), samples().x
    before = model(x)
    model.head.mul_(2)
    doubled = model(x)
    torch.testing.assert_close(doubled, 2 * before, rtol=0.05, atol=0.05)
    for entry in model.layout:
        assert torch.equal(tensors(model)[entry.name].data, entry.view(model.vector).to(getattr(torch, dtype)))


@HALVES
def test_gradients_are_added_up_in_float32(dtype: str) -> None:
    model, data = small(dtype), samples()
    model.learn("model")
    backward(functional.cross_entropy(model(data.x), data.y))
    once = model.gradient.clone()
    assert bool(once.any())
    small_gradient = once / 4096  # that much beside the first would be lost in 16 bits
    model.gradient.copy_(small_gradient)
    backward(functional.cross_entropy(model(data.x), data.y))
    assert torch.equal(model.gradient, small_gradient + once)
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_small_steps_are_not_lost() -> None:
    """Each is a thousandth of what bfloat16 can tell apart."""
    model = small("bfloat16")
    before = model.vector.clone()
    for _ in range(4):
        model.vector.add_(before.abs() * 1e-5)
        model(samples().x)
    moved = model.vector - before
    assert bool((moved[before != 0] > 0).all())


@HALVES
@pytest.mark.parametrize("part", ["model", "head"])
def test_training_goes_as_in_float32_and_twice_the_same(dtype: str, part: str) -> None:
    def trained(how: str) -> tuple[float, Model]:
        model = small(how)
        trainer = Trainer(model, samples(), 1, "peer0")
        losses = [trainer.train(Phase(part, 3, Adam(0.01), batch_size=8, keep="a"), round) for round in range(2)]  # type: ignore[arg-type]
        return losses[-1], model

    (loss, model), (again, other), (exact, _) = trained(dtype), trained(dtype), trained("float32")
    assert loss == again
    assert torch.equal(model.vector, other.vector)
    assert loss == pytest.approx(exact, rel=0.15, abs=0.05)


def test_statistics_of_a_normalisation_come_back_into_the_vector() -> None:
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4)).bfloat16()
    settings = {"settings": "m", "example": Example.zeros((2, 3), 3)}

    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = extractor

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x.bfloat16()).float()

    model = Model(Split(Casting(), nn.Linear(4, 3)), **settings)  # type: ignore[arg-type]
    assert {entry.dtype for entry in model.entries("extractor")} == {"bfloat16"}
    assert {entry.dtype for entry in model.entries("head")} == {"float32"}
    mean = next(entry for entry in model.layout if entry.name.endswith("running_mean"))
    model.learn("model")
    model(torch.rand(8, 2, 3))
    model.rebind()
    told = mean.view(model.vector).clone()
    assert bool(told.any())
    mean.view(model.vector).mul_(3)
    model.train(False)
    model(torch.rand(8, 2, 3))
    assert torch.equal(mean.view(model.vector), 3 * told), "a pass in evaluation mode writes nothing"
    assert torch.equal(extractor[2].running_mean, (3 * told).bfloat16())


@HALVES
def test_the_answer_with_other_weights_is_that_of_a_model_that_has_them(dtype: str) -> None:
    model, other, x = small(dtype), small(dtype), samples().x
    other.vector.add_(0.01)
    vector = other.vector.clone().requires_grad_()
    before = model(x)
    logits = model.logits(vector, x)
    assert torch.equal(logits, other(x))
    assert torch.equal(model(x), before)
    (gradient,) = torch.autograd.grad(logits.sum(), vector)
    assert gradient.dtype == torch.float32
    assert bool(gradient.any())


@HALVES
def test_two_passes_before_a_backward_one(dtype: str) -> None:
    model, x = small(dtype), samples().x
    model.learn("model")
    backward((model(x[:20]) + model(x[20:])).sum())
    assert bool(torch.isfinite(model.gradient).all())


@HALVES
def test_the_file_has_the_modules_own_dtype(dtype: str, tmp_path: Path) -> None:
    model = small(dtype)
    Trainer(model, samples(), 1, "peer0").train(Phase("model", 1, SGD(0.01), batch_size=8), 1)
    save_model(model, tmp_path / "m")
    assert {tensor.dtype for tensor in load_file(tmp_path / "m").values()} == {getattr(torch, dtype)}
    loaded = load_model(tmp_path / "m")
    assert loaded.sha256() == model.sha256()
    assert torch.equal(loaded.predict(samples().x), model.predict(samples().x))


class OfMyOwn(dict[str, Any]):
    """What torch does not know to walk through."""


@pytest.mark.parametrize("kind", [dict, OfMyOwn, list, tuple])
def test_nested_inputs_of_any_kind_are_cast(kind: type) -> None:
    class Unwrapped(nn.Linear):
        def forward(self, given: Any) -> Tensor:
            return super().forward(given["x"] if isinstance(given, dict) else given[0])

    split = Split(Unwrapped(2, 3), nn.Identity())
    set_precision(split, torch.bfloat16)
    answer = split(kind({"x": torch.ones(4, 2)}) if issubclass(kind, dict) else kind([torch.ones(4, 2)]))
    assert answer.dtype == torch.float32


def test_a_module_of_64_bits_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from torch import nn\ndef Net(shape, classes): return nn.Flatten(), nn.Linear(64, classes).double()\n"
    (tmp_path / "of_64_bits.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = build(ModelSettings(name="of_64_bits:Net", dtype="float32"), IMAGES, seed=1)
    assert {entry.dtype for entry in model.layout} == {"float32"}
    with pytest.raises(InputError, match="model of_64_bits:Net"):
        build("of_64_bits:Net", IMAGES, seed=1)
