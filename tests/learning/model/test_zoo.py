"""The zoo: sizes, seeds, what fits what, and models of the user's own."""

from pathlib import Path

import pytest
import torch

from peer.errors import InputError
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import MODELS, build


@pytest.mark.parametrize(
    ("name", "shape", "extractor", "head"),
    [
        # The digits mlp's and the MNIST mlp3's figures are published; the others are counted layer by layer.
        ("mlp", (1, 8, 8), 116_352, 1_290),
        ("mlp3", (1, 28, 28), 567_434 - 1_290, 1_290),
        ("cnn", (1, 28, 28), (9 * 32 + 32) + (9 * 32 * 64 + 64) + (7 * 7 * 64 * 512 + 512), 5_130),
        ("cnn-small", (1, 28, 28), (9 * 16 + 16) + (14 * 14 * 16 * 128 + 128), 1_290),
        (
            "cnn5",
            (3, 32, 32),
            (75 * 16 + 16) + (25 * 16 * 32 + 32) + (800 * 240 + 240) + (240 * 120 + 120),
            1_210,
        ),
        ("mlp-square", (1, 8, 8), 64 * 16 + 16, 170),
        ("cnn-xu", (3, 32, 32), 121_182 - 850, 850),
        ("cnn", (1, 8, 8), (9 * 32 + 32) + (9 * 32 * 64 + 64) + (2 * 2 * 64 * 512 + 512), 5_130),
    ],
)
def test_sizes(name: str, shape: tuple[int, ...], extractor: int, head: int) -> None:
    model = build(name, Example.zeros(shape, 10), seed=1)
    assert (model.extractor.numel(), model.head.numel()) == (extractor, head)
    assert model(torch.zeros(3, *shape)).shape == (3, 10)


def test_every_model_of_the_list_is_there() -> None:
    names = {"mlp", "cnn", "cnn-small", "mlp3", "mlp-square", "cnn5", "cnn-xu", "mobilenet_v2", "resnet18"}
    assert set(MODELS) == names


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_181_642), ("mobilenet_v2", 2_236_682)])
def test_vision_models_take_small_images(name: str, parameters: int) -> None:
    pytest.importorskip("PIL")
    model = build(name, Example.zeros((3, 16, 16), 10), seed=1)
    assert sum(where.stop - where.start for where in model.trainable("model")) == parameters
    assert {entry.name.partition(".")[0] for entry in model.entries("head")} == {"head"}
    assert model.draws == (name == "mobilenet_v2")


def test_weights_depend_on_seed_and_stream_alone() -> None:
    def weights(seed: int, stream: str) -> torch.Tensor:
        torch.rand(3)
        return build("mlp", Example.zeros((4,), 3), seed=seed, stream=stream).vector

    assert torch.equal(weights(1, "shared"), weights(1, "shared"))
    assert not torch.equal(weights(1, "shared"), weights(2, "shared"))
    assert not torch.equal(weights(1, "peer0"), weights(1, "peer1"))


def test_lazy_layers_take_their_weights_from_the_stream_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from torch import nn\ndef Net(shape, classes): return nn.Flatten(), nn.LazyLinear(classes)\n"
    (tmp_path / "lazy_model.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    a, b, again = (
        build("lazy_model:Net", Example.zeros((2, 3), 4), 1, stream).vector for stream in ("peer0", "peer1", "peer0")
    )
    assert torch.equal(a, again)
    assert not torch.equal(a, b)


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build("mlp", Example.zeros((4,), 3), seed=1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn", (784,), "model cnn takes images .* not inputs of shape"),
        ("cnn5", (1, 8, 8), "at least 16×16 pixels"),
        ("cnn-small", (1, 1, 8), "at least 2×2 pixels"),
        ("resnet18", (1, 8, 8), r"model resnet18 does not take inputs of shape \(1, 8, 8\): .*3 channels"),
        ("mpl", (4,), "there is no model mpl; did you mean `mlp`?"),
        ("transformer", (4,), "there is no model transformer; known: cnn, cnn-small"),
        ("no_such_module:Net", (4,), "`no_such_module:Net`: no module `no_such_module`"),
        (":Net", (4,), "cannot be imported"),
        ("json:Net", (4,), r"the module `json` \(.*\) has no `Net`"),
        ("json:", (4,), r"the module `json` \(.*\) has no name after the colon"),
        ("json:__doc__", (4,), "must be a callable"),
        ("json:loads", (4,), "cannot be made"),
        ("builtins:divmod", (4,), "cannot be made"),
        ("builtins:isinstance", (4,), "cannot be made"),
    ],
)
def test_wrong_models_are_refused_in_one_sentence(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build(name, Example.zeros(shape, 10), seed=1)
    assert "\n" not in str(caught.value)


OWN = """
from torch import nn

def pair(shape, classes):
    return nn.Flatten(), nn.Linear(6, classes)

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.extractor, self.head = pair(shape, classes)

class Stray(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.extra = nn.Linear(2, 2)

def nothing(shape, classes):
    return None
"""


def test_a_model_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zoo_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("zoo_models:pair", "zoo_models:Net"):
        model = build(name, Example.zeros((2, 3), 4), seed=1)
        assert [entry.name for entry in model.layout] == ["head.weight", "head.bias"]
        assert model.name == name
    with pytest.raises(InputError, match=r"extra.weight is in neither extractor nor head"):
        build("zoo_models:Stray", Example.zeros((2, 3), 4), seed=1)
    with pytest.raises(InputError, match=r"must give \(extractor, head\)"):
        build("zoo_models:nothing", Example.zeros((2, 3), 4), seed=1)
