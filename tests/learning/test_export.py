"""The exported model: the same predictions, the same digest, and no file half written or run blindly."""

import hashlib
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file

from peer.errors import FailedError, InputError
from peer.learning.export import export_state_dict, load_model, read_if_intact, save_model, state_dict
from peer.learning.model.layout import Patterned
from peer.learning.model.model import Model
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.tasks import Classification

READING = """
import torch
from torch import nn


class Net(nn.Module):
    rebuilt_names = ("base.weight",)

    def __init__(self, shape, classes, path):
        super().__init__()
        self.base, self.head = nn.Linear(shape[0], 5), nn.Linear(5, classes)
        self.base.requires_grad_(False).weight.copy_(torch.load(path))

    def forward(self, x):
        return self.head(self.base(x))


def net(shape, classes, path):
    return Net(shape, classes, path)
"""


def test_a_saved_model_predicts_the_same_after_three_lines(tmp_path: Path) -> None:
    trained = build("cnn-small", Example.zeros((1, 8, 8), 10), seed=5)
    save_model(trained, tmp_path / "model.safetensors")
    x = torch.rand(20, 1, 8, 8)

    model = load_model(tmp_path / "model.safetensors")
    predictions = model.predict(x)
    assert torch.equal(predictions, trained.predict(x))
    assert torch.equal(predictions, load_model(str(tmp_path / "model.safetensors")).predict(x.numpy()))
    assert model.sha256() == trained.sha256()
    assert (model.name, model.shape, model.classes) == ("cnn-small", (1, 8, 8), 10)


def test_the_file_is_plain_safetensors_whose_bytes_give_the_digest(tmp_path: Path) -> None:
    model = build("mlp", Example.zeros((4,), 3), seed=5)
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    arrays = load_file(path)
    assert all(name.startswith(("extractor.", "head.")) for name in arrays)
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    assert digest.hexdigest() == model.sha256()
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    assert {key: json.loads(value) for key, value in metadata.items()} == {
        "model": "mlp",
        "shape": [4],
        "classes": 3,
        "task": {"name": "classification"},
    }


def test_batch_norm_counters_are_saved(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    model = build("resnet18", Example.zeros((3, 16, 16), 4), seed=5)
    model.counters["extractor.bn1.num_batches_tracked"] += 7
    save_model(model, tmp_path / "m")
    assert load_model(tmp_path / "m").sha256() == model.sha256()


def test_what_a_maker_reads_again_is_left_out_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reading.py").write_text(READING)
    monkeypatch.syspath_prepend(tmp_path)
    torch.save(torch.ones(5, 4), tmp_path / "base.pt")
    settings = ModelSettings(name="reading:net", head=("head.*",), options={"path": str(tmp_path / "base.pt")})
    trained = build(settings, Example.zeros((4,), 3), seed=5)
    save_model(trained, tmp_path / "m")
    assert load_file(tmp_path / "m").keys() == {"head.weight", "head.bias", "base.bias"}

    model = load_model(tmp_path / "m", user_model="reading:net")
    assert (model.sha256(), model.frozen["base.weight"].sum()) == (trained.sha256(), 20)
    again = build(settings, Example.zeros((4,), 3), seed=6)
    weights = read_if_intact(again, tmp_path / "m", trained.sha256())
    assert weights
    again.load(weights)
    assert again.sha256() == trained.sha256()
    begun = build(settings.model_copy(update={"weights": tmp_path / "m"}), Example.zeros((4,), 3), seed=7)
    assert begun.sha256() == trained.sha256()

    torch.save(torch.zeros(5, 4), tmp_path / "base.pt")
    with pytest.raises(InputError, match=r"goes with frozen weights sha256:.* give it the files"):
        load_model(tmp_path / "m", user_model="reading:net")
    other = build(settings, Example.zeros((4,), 3), seed=6)
    assert read_if_intact(other, tmp_path / "m", trained.sha256()) is None


def test_a_plain_state_dict_loads_into_the_plain_modules(tmp_path: Path) -> None:
    model = build("mlp", Example.zeros((4,), 3), seed=5)
    save_model(model, tmp_path / "model.safetensors")
    export_state_dict(tmp_path / "model.safetensors", tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert loaded.keys() == state_dict(model).keys()
    other = build("mlp", Example.zeros((4,), 3), seed=6)
    other.module.load_state_dict(loaded)
    assert other.sha256() == model.sha256()


def test_writing_replaces_at_once_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for seed in (1, 2):
        save_model(build("mlp", Example.zeros((4,), 3), seed=seed), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]
    assert load_model(path).sha256() == build("mlp", Example.zeros((4,), 3), seed=2).sha256()
    (tmp_path / "taken").mkdir()
    with pytest.raises(FailedError, match="taken"):
        save_model(build("mlp", Example.zeros((4,), 3), seed=1), tmp_path / "taken")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.safetensors", "taken"]


def test_what_is_no_model_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match="there is no model file"):
        load_model(path)
    save_model(build("mlp", Example.zeros((4,), 3), seed=1), path)
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="truncated or not a safetensors file"):
            load_model(path)
    with pytest.raises(InputError, match="is a directory; give the path"):
        load_model(tmp_path)
    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="does not say which model it holds"):
        load_model(path)
    description = {"model": '"mlp"', "shape": "[4]", "classes": "3"}
    save_file({"w": torch.zeros(2)}, path, description)
    with pytest.raises(InputError, match="not the tensors of model mlp"):
        load_model(path)
    save_file({"w": torch.zeros(2)}, path, description | {"shape": "4"})
    with pytest.raises(InputError, match="does not say which model"):
        load_model(path)


def test_a_file_cannot_choose_code_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from torch import nn\ndef Net(shape, classes): return nn.Flatten(), nn.Linear(4, classes)\n"
    (tmp_path / "exported_model.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = build("exported_model:Net", Example.zeros((4,), 3), seed=1)
    save_model(model, tmp_path / "m")
    with pytest.raises(InputError, match=r"load_model\(path, user_model='exported_model:Net'\)"):
        load_model(tmp_path / "m")
    assert load_model(tmp_path / "m", user_model="exported_model:Net").sha256() == model.sha256()


GIANTS = {
    "wide inputs": {"shape": "[1000000000]"},
    "many classes": {"classes": "1000000000"},
    "a side of thirty digits": {"shape": "[1" + "0" * 30 + "]"},
    "an image of which no tensor tells": {"model": '"resnet18"', "shape": "[3, 100000, 100000]"},
    "no number": {"shape": "[1e400]"},
    "less than nothing": {"shape": "[-4]"},
    "deep": {"shape": "[" * 100_000},
    "a name of megabytes": {"model": '"' + "x" * 1_000_000 + '"'},
}


@pytest.mark.parametrize("case", GIANTS)
def test_a_small_file_cannot_ask_for_a_huge_model(tmp_path: Path, case: str) -> None:
    """What it says of itself is held against the tensors that it has, before anything is built."""
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(2)}, path, {"model": '"mlp"', "shape": "[4]", "classes": "3"} | GIANTS[case])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError):
        load_model(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100 << 10, "kilobytes; the first time, torch makes itself at home"


def test_a_pipe_in_place_of_a_model_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m")
    with pytest.raises(InputError, match="it is not a plain file"):
        load_model(tmp_path / "m")


class Sum(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.head(left + right)  # type: ignore[no-any-return]


@pytest.mark.parametrize("names", [(), ("left", "right")])
def test_a_model_of_several_inputs_predicts(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sums.py").write_text(f"from {__name__} import Sum\ndef made(shape, classes):\n    return Sum()\n")
    monkeypatch.syspath_prepend(tmp_path)
    path, inputs = tmp_path / "model.safetensors", (torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int64))
    given = dict(zip(names, inputs, strict=True)) if names else inputs
    example = Example(given, Classification(), 3, torch.ones(2).long())
    settings = ModelSettings(name="sums:made", head=("head.*",))
    save_model(Model(Patterned(Sum(), ("head.*",)), settings=settings, example=example), path)
    model = load_model(path, user_model="sums:made")
    left, right = np.random.default_rng(0).normal(size=(5, 4)), np.arange(20).reshape(5, 4)
    asked = dict(zip(names, (left, right), strict=True)) if names else (left, right)
    weight, bias = (tensor.numpy() for tensor in load_tensors(path).values())
    weight, bias = (weight, bias) if weight.ndim == 2 else (bias, weight)
    np.testing.assert_allclose(model.outputs(asked), (left + right) @ weight.T + bias, rtol=1e-5, atol=1e-5)
    assert torch.equal(model.predict(asked), model.outputs(asked).argmax(1))
    wrong = {**asked, "third": left} if isinstance(asked, dict) else (*asked, left)
    with pytest.raises(InputError, match=r"takes the inputs .*, not "):
        model.predict(wrong)
    narrow = {**asked, "right": right[:, :3]} if isinstance(asked, dict) else (left, right[:, :3])
    with pytest.raises(InputError, match=r"takes the input (right|1) as \(n, 4\), not \(5, 3\)"):
        model.predict(narrow)
    export_state_dict(path, tmp_path / "model.pt")
    Sum().load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


def test_a_file_that_does_not_say_what_its_inputs_hold_is_refused(tmp_path: Path) -> None:
    example = Example((torch.zeros(2, 4), torch.zeros(2, 4)), Classification(), 3, torch.ones(2).long())
    path = tmp_path / "model.safetensors"
    save_model(Model(Patterned(Sum(), ("head.*",)), settings="sums:made", example=example), path)
    with safe_open(path, "pt") as file:
        told = {key: value for key, value in file.metadata().items() if key != "dtypes"}
    save_file(load_tensors(path), path, told)
    with pytest.raises(InputError, match="does not say which model it holds"):
        load_model(path, user_model="sums:made")
