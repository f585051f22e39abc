"""The model's answer with other weights: the same as a module that has them, and nothing of the model moves."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build


def seeded(make: Callable[[], Model]) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make()


def plain() -> Model:
    return build("mlp", Example.zeros((2, 3), 3), seed=1)


def batch_norm(dropout: float = 0.0) -> Model:
    def make() -> Model:
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(dropout))
        return Model(Split(extractor, nn.Linear(4, 3)), settings="bn", example=Example.zeros((2, 3), 3))

    return seeded(make)


def recurrent() -> Model:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)[0][:, -1]
            return out

    return seeded(lambda: Model(Split(Last(), nn.Linear(4, 3)), settings="lstm", example=Example.zeros((2, 3), 3)))


def other_weights(model: Model) -> Tensor:
    """Unlike the model's own; where variances lie they stay positive."""
    return model.vector + torch.rand(len(model.vector), generator=torch.Generator().manual_seed(5))


def inputs(n: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(6)
    return torch.randn(n, 2, 3, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def loaded(model: Model, vector: Tensor, training: bool = False) -> nn.Module:
    """A copy of the module, in the vector's dtype, into which the vector was written."""
    module = copy.deepcopy(model.module).to(vector.dtype)
    tensors = module.state_dict()
    with torch.no_grad():
        for entry in model.layout:
            tensors[entry.name].copy_(vector[entry.offset : entry.offset + entry.size].reshape(entry.shape))
    return module.train(training)


def everything(model: Model) -> tuple[object, ...]:
    return (
        model.vector.tolist(),
        model.gradient.tolist(),
        {name: counter.tolist() for name, counter in model.counters.items()},
        [module.training for module in model.module.modules()],
        [parameter.requires_grad for parameter in model.module.parameters()],
        [tensor.data_ptr() for tensor in model.module.state_dict(keep_vars=True).values()],
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("make", [plain, batch_norm, recurrent])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answer_and_gradients_are_those_of_a_module_with_these_weights(
    make: Callable[[], Model], training: bool, dtype: torch.dtype
) -> None:
    model = make()
    vector = other_weights(model).to(dtype).requires_grad_()
    x, y = inputs()
    x = x.to(dtype).requires_grad_()
    module = loaded(model, vector, training)
    expected = module(x)
    logits = model.logits(vector, x, training=training)
    assert logits.dtype == dtype
    torch.testing.assert_close(logits, expected)

    gradients = torch.autograd.grad(functional.cross_entropy(logits, y), [vector, x])
    parameters = dict(module.named_parameters())
    *theirs, at_x = torch.autograd.grad(functional.cross_entropy(expected, y), [*parameters.values(), x])
    torch.testing.assert_close(gradients[1], at_x)
    of = dict(zip(parameters, theirs, strict=True))
    whole = [of.get(entry.name, torch.zeros(entry.shape, dtype=dtype)).flatten() for entry in model.layout]
    torch.testing.assert_close(gradients[0], torch.cat(whole))


@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_is_to_the_last_flag(training: bool) -> None:
    model = batch_norm(0.5)
    model.learn("head")
    model.gradient.fill_(3.0)
    before = everything(model)
    vector = other_weights(model).requires_grad_()
    given = vector.detach().clone()
    logits = model.logits(vector, inputs()[0], training=training, seed=4)
    torch.autograd.backward(logits.sum())
    assert everything(model) == before
    assert torch.equal(vector, given), "nor do the statistics in `vector` move"


def test_it_does_so_also_when_a_layer_raises() -> None:
    model = batch_norm(0.5)
    model.learn("head")
    before = everything(model)
    with pytest.raises(ValueError, match="more than 1 value"):
        model.logits(model.vector, inputs(1)[0], training=True, seed=4)
    assert everything(model) == before


def test_training_normalises_by_the_batch_and_evaluation_by_the_statistics_in_the_vector() -> None:
    model = batch_norm()
    x, _ = inputs()
    shifted = model.vector.clone()
    mean = next(entry for entry in model.layout if entry.name == "extractor.2.running_mean")
    mean.view(shifted).add_(0.5)
    assert not torch.equal(model.logits(shifted, x), model.logits(model.vector, x))
    assert torch.equal(model.logits(shifted, x, training=True), model.logits(model.vector, x, training=True))


def test_gradients_of_single_samples_are_those_of_a_loop() -> None:
    model = plain()
    vector, (x, y) = other_weights(model).double(), inputs()

    def loss(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model.logits(vector, x[None], training=True), y[None])

    single = vmap(grad(loss), in_dims=(None, 0, 0))(vector, x.double(), y)
    module = loaded(model, vector)
    for row, one, label in zip(single, x.double(), y, strict=True):
        theirs = torch.autograd.grad(
            functional.cross_entropy(module(one[None]), label[None]), list(module.parameters())
        )
        torch.testing.assert_close(row, torch.cat([g.flatten() for g in theirs]))


def test_gradients_of_single_samples_with_batch_norm_in_evaluation_mode() -> None:
    model = batch_norm()
    vector, (x, y) = other_weights(model), inputs()

    def loss(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model.logits(vector, x[None]), y[None])

    single = vmap(grad(loss), in_dims=(None, 0, 0))(vector, x, y)
    for row, one, label in zip(single, x, y, strict=True):
        torch.testing.assert_close(row, grad(loss)(vector, one, label))


def test_several_models_at_once_even_with_batch_norm_in_training() -> None:
    model = batch_norm()
    x, _ = inputs()
    vectors = torch.stack([model.vector, other_weights(model)])
    together = vmap(lambda vector: model.logits(vector, x, training=True))(vectors)
    for logits, vector in zip(together, vectors, strict=True):
        torch.testing.assert_close(logits, model.logits(vector, x, training=True))


def test_dropout_replays_by_its_seed_alone() -> None:
    model = batch_norm(0.5)
    x, _ = inputs()
    first = model.logits(model.vector, x, training=True, seed=4)
    torch.rand(3)
    assert torch.equal(model.logits(model.vector, x, training=True, seed=4), first)
    assert not torch.equal(model.logits(model.vector, x, training=True, seed=5), first)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        torch.testing.assert_close(loaded(model, model.vector, training=True)(x), first)
    with pytest.raises(ValueError, match="give `logits` a seed"):
        model.logits(model.vector, x, training=True)


def test_dropout_under_vmap_draws_from_the_seed_too() -> None:
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(6, 40), nn.Dropout(0.5))
    model = seeded(lambda: Model(Split(extractor, nn.Linear(40, 3)), settings="drop", example=Example.zeros((2, 3), 3)))
    x = torch.ones(4, 2, 3)

    def each(seed: int, randomness: str) -> Tensor:
        return vmap(lambda x: model.logits(model.vector, x[None], training=True, seed=seed), randomness=randomness)(x)

    state = torch.get_rng_state()
    different = each(1, "different")
    assert not torch.equal(different[0], different[1]), "each sample has a mask of its own"
    assert torch.equal(each(1, "different"), different)
    assert not torch.equal(each(2, "different"), different)
    same = each(1, "same")
    torch.testing.assert_close(same, same[:1].expand_as(same))
    assert torch.equal(torch.get_rng_state(), state)


def test_buffers_that_are_not_kept_go_along_in_the_dtype_of_the_weights() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(36.0).view(6, 6), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x.flatten(1) @ self.table
            self.table += 1
            return out

    model = seeded(lambda: Model(Split(Mixing(), nn.Linear(6, 3)), settings="mixing", example=Example.zeros((2, 3), 3)))
    table = model.module.get_buffer("extractor.table").clone()
    x = inputs()[0].double()
    expected = functional.linear(x.flatten(1) @ table.double(), *(p.double() for p in model.module.head.parameters()))
    torch.testing.assert_close(model.logits(model.vector.double(), x), expected)
    assert torch.equal(model.module.get_buffer("extractor.table"), table)


def test_a_frozen_parameter_is_used_and_has_no_place_in_the_vector() -> None:
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(6, 4))
    extractor[1].weight.requires_grad_(False)
    model = seeded(
        lambda: Model(Split(extractor, nn.Linear(4, 3)), settings="frozen", example=Example.zeros((2, 3), 3))
    )
    assert [entry.name for entry in model.layout] == ["extractor.1.bias", "head.weight", "head.bias"]
    gradient = grad(lambda vector: model.logits(vector, inputs()[0].double()).square().sum())(
        other_weights(model).double()
    )
    assert bool((gradient != 0).all())
    vector, x = model.vector.clone(), inputs()[0]
    before = model.logits(vector, x)
    model.frozen["extractor.1.weight"].add_(1)
    assert not torch.equal(model.logits(vector, x), before)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda vector, x: (vector[1:], x), r"the weights are 59 floating-point numbers, not \(58,\)"),
        (lambda vector, x: (vector.long(), x), r"not \(59,\) of torch.int64"),
        (lambda vector, x: (vector.double(), x), r"weights are torch.float64 and x is torch.float32; use x.to"),
    ],
)
def test_weights_that_do_not_fit_are_told(
    change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], reason: str
) -> None:
    model = batch_norm()
    with pytest.raises(ValueError, match=reason):
        model.logits(*change(model.vector, inputs()[0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool, torch.int32])
def test_an_entry_is_a_view_of_any_vector_of_the_layout(dtype: torch.dtype) -> None:
    model = batch_norm()
    vector = torch.zeros(len(model.vector), dtype=dtype)
    for number, entry in enumerate(model.layout):
        entry.view(vector).fill_(number % 2)
        assert entry.view(vector).shape == entry.shape
    expected = torch.cat([torch.full((entry.size,), i % 2) for i, entry in enumerate(model.layout)])
    assert torch.equal(vector.int(), expected.int())
    columns = torch.arange(3.0 * len(vector)).view(-1, 3)
    assert torch.equal(model.layout[0].view(columns[:, 1]).flatten(), columns[:24, 1])


def test_an_entry_lets_gradients_through() -> None:
    model = batch_norm()
    vector = torch.rand(len(model.vector), dtype=torch.float64, requires_grad=True)
    first = model.layout[0]
    (gradient,) = torch.autograd.grad(first.view(vector).square().sum(), vector)
    assert torch.equal(gradient, torch.cat([2 * vector[:24].detach(), torch.zeros(len(vector) - 24)]))
    assert torch.equal(grad(lambda v: first.view(v).square().sum())(vector.detach()), gradient)
