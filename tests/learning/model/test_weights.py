"""Weights to begin with: every kind of file, what does not fit, and what is no file of weights at all."""

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from peer.errors import InputError
from peer.learning.export import export_state_dict, save_model
from peer.learning.model.model import Model
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build

EXAMPLE = Example.zeros((4,), 3)
LAYERS = ("1", "2", "4", "5", "7")


def begun(path: Path, *, example: Example = EXAMPLE, partial: bool = False, **settings: object) -> Model:
    return build(ModelSettings(name="mlp", weights=path, partial=partial, **settings), example, seed=9)  # type: ignore[arg-type]


@pytest.fixture
def pretrained() -> Model:
    return build("mlp", EXAMPLE, seed=1)


def copies(model: Model) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state().items()}


def test_every_way_of_writing_them_gives_the_same_model(pretrained: Model, tmp_path: Path) -> None:
    ours, plain = tmp_path / "ours", copies(pretrained)
    save_model(pretrained, ours)
    export_state_dict(ours, tmp_path / "a.pt")
    torch.save({"state_dict": plain, "epoch": 3}, tmp_path / "lightning.ckpt")
    torch.save({name: nn.Parameter(tensor) for name, tensor in plain.items()}, tmp_path / "parameters.pt")
    save_file({name: tensor.double() for name, tensor in plain.items()}, tmp_path / "double.safetensors")
    for file in sorted(tmp_path.iterdir()):
        model = begun(file)
        assert model.sha256() == pretrained.sha256(), file.name
        assert model.loaded == f"12 of 12 tensors from {file}"
        assert len(model.facts) == 1
        assert model.facts[0].startswith("initial weights sha256:")


def test_names_without_the_parts_in_front(pretrained: Model, tmp_path: Path) -> None:
    short = {name.partition(".")[2]: tensor for name, tensor in copies(pretrained).items() if name.startswith("extr")}
    head = {name: tensor for name, tensor in copies(pretrained).items() if name.startswith("head")}
    save_file(short | head, tmp_path / "m")
    assert begun(tmp_path / "m").sha256() == pretrained.sha256()


def test_one_tensor_under_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
from torch import nn
def Net(shape, classes):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, classes))
    net[1].weight = net[0].weight
    return net
"""
    (tmp_path / "tied_model.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    net[1].weight = net[0].weight
    settings = ModelSettings(name="tied_model:Net", head=("2.*",), weights=tmp_path / "tied.pt")
    torch.save(net.state_dict(), tmp_path / "tied.pt")
    x = torch.rand(5, 4)
    assert torch.equal(build(settings, EXAMPLE, 1)(x), net(x))
    torch.save({**net.state_dict(), "1.weight": torch.zeros(4, 4)}, tmp_path / "tied.pt")
    with pytest.raises(InputError, match=r"1\.weight and 0\.weight differ, and are one tensor in model"):
        build(settings, EXAMPLE, 1)


def test_frozen_weights_come_from_the_file_and_tell_by_their_digest(pretrained: Model, tmp_path: Path) -> None:
    save_model(pretrained, tmp_path / "m")
    model = begun(tmp_path / "m", freeze=("extractor.*",))
    assert model.sha256() == pretrained.sha256()
    assert model.extractor.numel() == 0
    other = build(ModelSettings(name="mlp", freeze=("extractor.*",)), EXAMPLE, seed=9)
    assert other.facts[0] != model.facts[0]


def test_another_number_of_classes(pretrained: Model, tmp_path: Path) -> None:
    save_model(pretrained, tmp_path / "m")
    ten, fresh = Example.zeros((4,), 10), build("mlp", Example.zeros((4,), 10), seed=9)
    with pytest.raises(InputError, match=r"head.bias is \(3,\) and model mlp has \(10,\); give .* `partial: true`"):
        begun(tmp_path / "m", example=ten)
    model = begun(tmp_path / "m", example=ten, partial=True)
    assert model.loaded.startswith("10 of 12 tensors")
    assert torch.equal(model.extractor, pretrained.extractor)
    assert torch.equal(model.head, fresh.head), "what the file has not begins as without it"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"head.bias": None}, r"lacks head\.bias of model mlp; give .* `partial: true`"),
        ({"fc.weight": torch.zeros(2)}, r"has fc\.weight, which model mlp lacks; give .* `partial: true`"),
        (
            {"head.bias": torch.zeros(3, dtype=torch.int64)},
            "is torch.int64 and the model has torch.float32; convert it",
        ),
        ({"head.bias": torch.tensor([0, float("nan"), 0])}, "not finite"),
        ({"head.bias": torch.zeros(3).expand(3, 3)[0:3]}, r"head.bias is \(3, 3\)"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(
    change: dict[str, Tensor | None], sentence: str, pretrained: Model, tmp_path: Path
) -> None:
    tensors = {name: tensor for name, tensor in (copies(pretrained) | change).items() if tensor is not None}
    torch.save(tensors, tmp_path / "m")
    with pytest.raises(InputError, match=sentence) as caught:
        begun(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_nothing_that_fits_is_refused_even_as_a_part(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "m")
    with pytest.raises(InputError, match="has no tensor that fits model mlp: it has a, and the model has extractor"):
        begun(tmp_path / "m", partial=True)


class Runs:
    """What pickle would run on loading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def zipped(path: Path) -> None:
    """A gigabyte of zeros in a megabyte."""
    torch.save({"a": torch.zeros(1 << 20)}, path)
    with zipfile.ZipFile(path) as archive:
        content = {one.filename: archive.read(one) for one in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def wide(path: Path) -> None:
    torch.save({"extractor.1.weight": torch.zeros(1).expand(10**9, 10**6)}, path)


def cut(path: Path) -> None:
    torch.save({"a": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:300])


HOSTILE = {
    "code": (lambda path: torch.save({"a": Runs(path.parent / "ran")}, path), "cannot be read as plain tensors"),
    "a plain pickle": (lambda path: path.write_bytes(pickle.dumps(Runs(path.parent / "ran"))), "truncated or neither"),
    "a compressed archive": (zipped, "it is compressed"),
    "a tensor of petabytes": (wide, "lacks"),
    "a part of a file": (cut, "cannot be read as plain tensors"),
    "an empty file": (lambda path: path.write_bytes(b""), "truncated or neither"),
    "a header of terabytes": (lambda path: path.write_bytes(b"\xff" * 7 + b"\x00{}"), "truncated or neither"),
    "a whole module": (lambda path: torch.save(nn.Linear(2, 2), path), "cannot be read as plain tensors"),
    "a list": (lambda path: torch.save([torch.zeros(1)], path), "holds other things than tensors by name"),
    "an optimiser's state": (lambda path: torch.save({"a": torch.zeros(1), "lr": 0.1}, path), "holds other things"),
    "a sparse tensor": (lambda path: torch.save({"a": torch.zeros(2).to_sparse()}, path), "holds other things"),
    "a pipe": (os.mkfifo, "it is not a plain file"),
    "a directory": (os.mkdir, "is a directory"),
    "nothing": (lambda path: None, "there is no file of weights"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_of_somebody_elses_runs_nothing_and_takes_no_memory(case: str, tmp_path: Path) -> None:
    write, sentence = HOSTILE[case]
    path = tmp_path / "m"
    write(path)  # type: ignore[operator]
    with pytest.raises(InputError, match=sentence) as caught:
        begun(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_partial_goes_with_weights() -> None:
    with pytest.raises(ValueError, match="`partial` says how to read `weights`, of which there are none; leave it out"):
        ModelSettings(partial=True)
