"""One module that is divided into extractor and head by names, and the options of a user's own maker."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import backward

from peer.errors import InputError
from peer.learning.data.samples import InMemory
from peer.learning.export import export_state_dict, load_model, save_model
from peer.learning.model.layout import Patterned
from peer.learning.model.model import Model
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer

EXAMPLE = Example.zeros((2, 3), 3)
OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes, width=4, tied=False):
        super().__init__()
        self.stem, self.norm = nn.Linear(6, width), nn.BatchNorm1d(width)
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.5))
        self.drop = nn.Dropout(0.5)
        self.heads = nn.ModuleDict({"a": nn.Linear(width, classes), "b": nn.Linear(width, classes)})
        self.last = nn.BatchNorm1d(classes)
        if tied:
            self.heads["b"].weight = self.heads["a"].weight

    def forward(self, x):
        x = self.drop(self.inner(torch.relu(self.norm(self.stem(x.flatten(1))))))
        return self.last(self.heads["a"](x) + self.heads["b"](x))

class Across(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes, width=3)
        self.inner[0].weight = self.heads["a"].weight
"""
HEAD = ("heads.*", "last.weight", "last.bias")


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "divided.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def made(name: str = "divided:Net", head: tuple[str, ...] | None = HEAD, **settings: object) -> Model:
    return build(ModelSettings(name=name, head=head, **settings), EXAMPLE, seed=1)  # type: ignore[arg-type]


def test_names_say_what_is_the_head_and_stay_as_they_are_in_the_module() -> None:
    model = made()
    assert [entry.name for entry in model.entries("head")] == [
        *("heads.a.weight", "heads.a.bias", "heads.b.weight", "heads.b.bias", "last.weight", "last.bias"),
        *("last.running_mean", "last.running_var"),
    ], "a layer's statistics go with its parameters"
    assert {entry.name.partition(".")[0] for entry in model.entries("extractor")} == {"stem", "norm", "inner"}
    assert model.sizes["extractor"] + model.sizes["head"] == model.sizes["model"]
    assert model.halves is None


def test_without_a_head_all_is_extractor() -> None:
    model = made(head=())
    assert model.head.numel() == 0
    assert model.sizes["extractor"] == made().sizes["model"]


@pytest.mark.parametrize(
    ("part", "training"),
    [
        ("extractor", {"", "stem", "norm", "inner", "inner.0", "inner.1", "drop"}),
        ("head", {"", "drop", "heads", "heads.a", "heads.b", "last"}),
        ("model", {"", "stem", "norm", "inner", "inner.0", "inner.1", "drop", "heads", "heads.a", "heads.b", "last"}),
    ],
)
def test_a_layer_is_in_training_mode_with_the_parameters_it_goes_with(part: str, training: set[str]) -> None:
    """`inner.1`, a dropout, goes with `inner`, and `drop` with the whole module, of which some part always learns."""
    model = made()
    model.learn(part)  # type: ignore[arg-type]
    assert {name for name, layer in model.module.named_modules() if layer.training} == training
    asking = {name for name, parameter in model.module.named_parameters() if parameter.requires_grad}
    assert asking == {entry.name for entry in model.entries(part) if entry.trainable}  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["extractor", "head"])
def test_training_a_part_leaves_the_other_as_it_is(part: str) -> None:
    model = made()
    other = model.part("head" if part == "extractor" else "extractor")
    before, counters = model.vector.clone(), {name: int(counter) for name, counter in model.counters.items()}
    samples = InMemory(torch.rand(20, 2, 3), torch.arange(20) % 3)
    Trainer(model, samples, 1, "peer0").train(Phase(part, 2, SGD(0.1), batch_size=8), 1)  # type: ignore[arg-type]
    assert torch.equal(model.vector[other], before[other])
    assert not torch.equal(model.vector, before)
    still = "last.num_batches_tracked" if part == "extractor" else "norm.num_batches_tracked"
    assert {name for name in counters if int(model.counters[name]) == counters[name]} == {still}


def test_a_whole_module_learns_as_in_a_plain_loop() -> None:
    """To the bit, dropout left out: every gradient lies at its place."""
    model = made(options={"width": 5})
    plain = made(options={"width": 5}).module
    for layer in [*plain.modules(), *model.module.modules()]:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    x, y = torch.rand(8, 2, 3), torch.arange(8) % 3
    model.learn("model")
    backward(nn.functional.cross_entropy(model(x), y))
    gradients = torch.autograd.grad(nn.functional.cross_entropy(plain.train()(x), y), [*plain.parameters()])
    for (name, _), gradient in zip(plain.named_parameters(), gradients, strict=True):
        entry = next(entry for entry in model.layout if entry.name == name)
        assert torch.equal(entry.view(model.gradient), gradient), name


def test_one_parameter_within_a_part_and_one_across_the_parts() -> None:
    model = made(options={"tied": True})
    names = [entry.name for entry in model.layout]
    assert "heads.a.weight" in names
    assert "heads.b.weight" not in names
    sentence = (
        r"inner\.0\.weight and heads\.a\.weight are one parameter.*let the patterns .* match both names or neither"
    )
    with pytest.raises(InputError, match=sentence):
        made("divided:Across")
    assert made("divided:Across", ("heads.*", "inner.0.weight")).sizes["head"] > 0
    assert made("divided:Across", freeze=("heads.a.weight",)).frozen


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"head": ("classifier.*",)}, r"no tensor whose name matches `classifier\.\*` of `head`; it has stem.weight"),
        ({"head": None}, r"one module of which `head` in `model` says by patterns"),
        (
            {"options": {"widht": 4}},
            r"cannot be called with the options given: got an unexpected keyword argument 'widht'",
        ),
        ({"name": "builtins:divmod", "head": None}, "cannot be made"),
        ({"name": "divided:torch", "head": None}, "must be a callable"),
    ],
)
def test_what_cannot_be_divided_or_made_is_said_in_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        made(**{"name": "divided:Net", "head": HEAD, **settings})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["options", "head"])
def test_a_model_of_the_zoo_takes_neither_options_nor_patterns(key: str) -> None:
    with pytest.raises(ValueError, match=f"`mlp` takes no `{key}`, which is for a `module:Name` of your own"):
        ModelSettings.model_validate({"name": "mlp", key: {"a": 1} if key == "options" else ("head.*",)})


def test_the_file_gives_the_model_and_the_plain_module_back(tmp_path: Path) -> None:
    model = made(options={"width": 5})
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m", user_model="divided:Net")
    assert loaded.sha256() == model.sha256()
    assert loaded.sizes == model.sizes
    export_state_dict(tmp_path / "m", tmp_path / "m.pt")
    fresh = made(options={"width": 5}).module
    fresh.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    x = torch.rand(4, 2, 3)
    assert torch.equal(fresh.eval()(x), loaded(x))


def test_a_parameter_at_the_top_of_a_module() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.ones(3)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1)) * self.scale

    model = Model(Patterned(Scaled(), ("scale",)), settings="m", example=EXAMPLE)
    assert [entry.name for entry in model.entries("head")] == ["scale"]
