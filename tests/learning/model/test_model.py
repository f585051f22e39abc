"""The model on one flat vector: views, layout, and everything that must keep them so."""

import hashlib
from typing import Any

import pytest
import torch
from safetensors.numpy import load
from safetensors.torch import save
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn import functional

from peer.errors import InputError
from peer.learning.export import state_dict
from peer.learning.model.layout import GradientWriter, Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build


def batch_norm_model(head: nn.Module | None = None) -> Model:
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU())
    return Model(Split(extractor, head or nn.Linear(4, 3)), settings="bn", example=Example.zeros((2, 3), 3))


def assert_views(model: Model) -> None:
    """Every named tensor of the module, and its gradient, lies at its place in the flat tensors."""
    tensors = dict(model.module.named_parameters()) | dict(model.module.named_buffers())
    for entry in model.layout:
        assert tensors[entry.name].data_ptr() == model.vector[entry.offset :].data_ptr(), entry.name
        assert tuple(tensors[entry.name].shape) == entry.shape
        if entry.trainable:
            gradient = tensors[entry.name].grad
            assert gradient is not None
            assert gradient.data_ptr() == model.gradient[entry.offset :].data_ptr()


def test_the_layout_is_parameters_then_float_buffers_of_extractor_then_of_head() -> None:
    model = batch_norm_model()
    assert [entry.name for entry in model.layout] == [
        "extractor.1.weight",
        "extractor.1.bias",
        "extractor.2.weight",
        "extractor.2.bias",
        "extractor.2.running_mean",
        "extractor.2.running_var",
        "head.weight",
        "head.bias",
    ]
    assert model.part("extractor") == slice(0, 44)
    assert model.part("head") == slice(44, 59)
    assert model.part("model") == slice(0, 59)
    assert model.trainable("extractor") == (slice(0, 36),)
    assert model.trainable("model") == (slice(0, 36), slice(44, 59))
    assert [entry.offset for entry in model.layout] == [0, 24, 28, 32, 36, 40, 44, 56]
    assert list(model.counters) == ["extractor.2.num_batches_tracked"]
    assert_views(model)


def test_a_model_without_buffers_is_one_trainable_slice() -> None:
    model = build("mlp", Example.zeros((4,), 3), seed=1)
    assert model.trainable("model") == (slice(0, len(model.vector)),)


def test_training_steps_and_load_state_dict_keep_the_views() -> None:
    model = batch_norm_model()
    optimiser = torch.optim.SGD(model.module.parameters(), lr=0.1)
    before = model.vector.clone()
    model.train()
    for _ in range(3):
        model.gradient.zero_()
        backward(functional.cross_entropy(model(torch.rand(5, 2, 3)), torch.tensor([0, 1, 2, 0, 1])))
        optimiser.step()
    assert_views(model)
    assert model.counters["extractor.2.num_batches_tracked"] == 3
    assert not torch.equal(model.vector[36:44], before[36:44]), "running statistics move in the vector"
    other = batch_norm_model()
    other.module.load_state_dict(model.module.state_dict())
    assert_views(other)
    assert torch.equal(other.vector, model.vector)
    assert other.sha256() == model.sha256()


def test_gradients_accumulate_in_the_flat_tensor() -> None:
    model = build("mlp", Example.zeros((4,), 3), seed=1)
    x, y = torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    backward(functional.cross_entropy(model(x), y))
    once = model.gradient.clone()
    backward(functional.cross_entropy(model(x), y))
    assert once.abs().sum() > 0
    assert torch.equal(model.gradient, 2 * once)
    plain = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.module.parameters()))
    assert torch.equal(torch.cat([g.flatten() for g in plain]), once)


def test_blending_in_place_changes_what_the_model_computes() -> None:
    a, b = (build("mlp", Example.zeros((4,), 3), seed=7, stream=peer) for peer in ("peer0", "peer1"))
    assert not torch.equal(a.vector, b.vector)
    a.vector.mul_(0).add_(b.vector)
    x = torch.rand(5, 4)
    assert torch.equal(a(x), b(x))


def test_rebind_takes_back_a_buffer_that_was_assigned_anew() -> None:
    class Assigning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.seen = torch.full((2,), 5.0)
            return x.flatten(1)

    model = Model(Split(Assigning(), nn.Linear(6, 3)), settings="assigning", example=Example.zeros((2, 3), 3))
    model.train()
    model(torch.zeros(2, 2, 3))
    model.rebind()
    assert_views(model)
    assert model.extractor.tolist() == [5.0, 5.0]


def test_the_digest_is_that_of_the_file_and_does_not_depend_on_the_layout() -> None:
    model = batch_norm_model()
    arrays = load(save(state_dict(model)))
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    assert model.sha256() == digest.hexdigest()
    before = model.sha256()
    model.counters["extractor.2.num_batches_tracked"] += 1
    assert model.sha256() != before


def test_parts_without_parameters() -> None:
    headless = Model(
        Split(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), nn.Identity()),
        settings="h",
        example=Example.zeros((2, 3), 3),
    )
    assert headless.head.numel() == 0
    assert headless.trainable("head") == ()
    bodiless = Model(Split(nn.Flatten(), nn.Linear(6, 3)), settings="b", example=Example.zeros((2, 3), 3))
    assert bodiless.extractor.numel() == 0
    assert bodiless.part("head") == slice(0, 21)


def test_what_the_module_froze_stays_out_of_the_vector() -> None:
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Linear(4, 4))
    extractor[1].weight.requires_grad_(False)
    model = Model(Split(extractor, nn.Linear(4, 3)), settings="frozen", example=Example.zeros((2, 3), 3))
    assert model.trainable("model") == (slice(0, 39),)
    assert len(model.vector) == 39
    assert [*model.frozen] == ["extractor.1.weight"]
    assert model.state().keys() == {*model.frozen, *(entry.name for entry in model.layout)}
    model.learn("model")
    assert not model.module.get_parameter("extractor.1.weight").requires_grad


def test_learn_freezes_the_other_part() -> None:
    model = batch_norm_model()
    model.learn("head")
    assert not model.module.extractor.training
    assert model.module.head.training
    assert [p.requires_grad for p in model.module.parameters()] == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("extractor", "head", "reason"),
    [
        (nn.Linear(6, 4), nn.Linear(4, 3), r"model m does not take inputs of shape \(2, 3\)"),
        (nn.Flatten(), nn.Linear(6, 4), "must give 3 float32 logits"),
        (nn.Sequential(nn.Flatten(), nn.LSTM(6, 3)), nn.Identity(), "one tensor of logits, not a tuple"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_one_sentence(extractor: Any, head: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        Model(Split(extractor, head), settings="m", example=Example.zeros((2, 3), 3))
    assert "\n" not in str(caught.value)


def test_no_float64_and_only_parameters_of_one_part() -> None:
    double = nn.Sequential(nn.Flatten(), nn.Linear(6, 4))
    double.register_buffer("scale", torch.ones(1, dtype=torch.float64))
    with pytest.raises(InputError, match=r"extractor.scale is float64; a peer learns .* `dtype: float32`"):
        Model(Split(double, nn.Linear(4, 3)), settings="m", example=Example.zeros((2, 3), 3))
    tied = nn.Linear(3, 3)
    with pytest.raises(InputError, match="are one parameter, which belongs to extractor and head; give one module"):
        Model(
            Split(nn.Sequential(nn.Flatten(), nn.Linear(6, 3), tied), tied),
            settings="m",
            example=Example.zeros((2, 3), 3),
        )


def test_the_dry_pass_leaves_no_trace_and_notices_dropout() -> None:
    state = torch.get_rng_state()
    model = batch_norm_model(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)))
    assert model.draws
    assert not build("mlp", Example.zeros((4,), 3), seed=1).draws
    assert model.state()["extractor.2.running_mean"].tolist() == [0.0] * 4
    assert model.counters["extractor.2.num_batches_tracked"] == 0
    torch.set_rng_state(state)


def test_predict_takes_batches_and_single_samples_and_nothing_else() -> None:
    model = build("mlp", Example.zeros((1, 2, 2), 3), seed=1)
    x = torch.rand(5, 1, 2, 2)
    assert torch.equal(model.predict(x), model(x).argmax(1))
    assert model.predict(x.numpy()[0]).shape == ()
    with pytest.raises(InputError, match=r"model mlp takes \(n, 1, 2, 2\), not \(5, 3\)"):
        model.predict(torch.rand(5, 3))


def test_load_refuses_foreign_tensors() -> None:
    model = build("mlp", Example.zeros((4,), 3), seed=1)
    with pytest.raises(InputError, match="not the tensors of model mlp"):
        model.load(build("mlp", Example.zeros((5,), 3), seed=1).state())
    with pytest.raises(InputError, match="not the tensors of model mlp"):
        model.load({})


class OnlyPartlyUsed(nn.Module):
    """A layer that every pass goes through, and one that none does; BatchNorm's buffers lie among their places."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.norm, self.unused = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.used(x))
        return found


@pytest.mark.parametrize("passes", [1, 3])
def test_a_gradient_that_is_written_is_the_one_that_is_added_to_zeros(passes: int) -> None:
    model = Model(Split(OnlyPartlyUsed(), nn.Linear(3, 3)), settings="m", example=Example.zeros((4,), 3))
    x = torch.randn(passes, 5, 4, generator=torch.Generator().manual_seed(1))
    model.learn("model")
    model.gradient.zero_()
    for one in x:
        backward(model(one).square().sum())
    wanted = model.gradient.clone()
    model.gradient.fill_(torch.nan)
    with GradientWriter(model.module, model.entries(), model.gradient).writing():
        for one in x:
            backward(model(one).square().sum())
    assert torch.equal(model.gradient, wanted)
    backward(model(x[0]).square().sum())
    assert not torch.equal(model.gradient, wanted), "passes outside add to it as before"
