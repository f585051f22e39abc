"""`dfl-launch export`: it answers as the peer's model does, and code of somebody's own runs where one allows it."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from launcher.cli import main
from peer import load_model
from peer.learning.data.samples import Names, Standardisation
from peer.learning.export import save_model
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.plugins import installed

OWN = "from torch import nn\ndef net(shape, classes):\n    return nn.Flatten(), nn.Linear(shape[0], classes)\n"


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    """The directory of a peer with a model of a table, whose columns are standardised and one imputed."""
    model = build("mlp", Example.zeros((4,), 2), seed=5)
    model.names = Names.imputing(["a", "b", "c"], {"b": "category"})
    imputed = torch.tensor([torch.nan, 3.0, torch.nan, torch.nan])
    model.standard = Standardisation(torch.arange(4.0), torch.full((4,), 2.0), imputed)
    (tmp_path / "peer0").mkdir()
    save_model(model, tmp_path / "peer0" / "model.safetensors")
    return tmp_path / "peer0"


def test_a_state_dict(peer: Path, tmp_path: Path) -> None:
    assert main(["export", str(peer), "--to", str(tmp_path / "model.pt")]) == 0
    tensors = torch.load(tmp_path / "model.pt", weights_only=True)
    assert tensors.keys() == load_model(peer / "model.safetensors").state().keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_takes_inputs_as_they_lie_in_the_data(peer: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.ts"
    assert main(["export", str(peer), "--to", str(target), "--format", "torchscript"]) == 0
    x = torch.tensor([[1.0, torch.nan, 2.0], [0.5, 9.0, 4.0], [7.0, 1.0, 1.0]])
    assert torch.equal(torch.jit.load(target)(x).argmax(1), load_model(peer / "model.safetensors").predict(x))  # type: ignore[no-untyped-call]


def test_a_package_brings_a_format(peer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brought.py").write_text("def card(peer, target):\n    target.write_text(peer.name)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def with_card(kind: str) -> Mapping[str, EntryPoint]:
        return {"card": EntryPoint("card", "brought:card", "dfl.exports")} if kind == "exports" else installed(kind)

    monkeypatch.setattr("launcher.commands.models.installed", with_card)
    assert main(["export", str(peer), "--to", str(tmp_path / "card"), "--format", "card"]) == 0
    assert (tmp_path / "card").read_text() == "peer0"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_own_code_runs_only_from_where_one_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own_export.py").write_text(OWN)
    with monkeypatch.context() as there:
        there.syspath_prepend(tmp_path / "code")
        save_model(
            build(ModelSettings(name="own_export:net"), Example.zeros((4,), 2), seed=0), tmp_path / "model.safetensors"
        )
    command = ["export", str(tmp_path), "--to", str(tmp_path / "out.ts"), "--format", "torchscript"]
    assert main(command) == 2
    assert "needs code, own_export:net; if you trust it" in capfd.readouterr().err
    assert main([*command, "--code", str(tmp_path / "code")]) == 0


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["{peer}/..", "--to", "{peer}/x"], "has no model.safetensors; give the directory of a peer"),
        (["{peer}", "--to", "{peer}"], "exists already; choose another place with --to"),
        (["{peer}", "--to", "{peer}/x", "--format", "onx"], "--format onx: did you mean `onnx`?"),
    ],
)
def test_wrong_input(command: list[str], told: str, peer: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *(word.format(peer=peer) for word in command)]) == 2
    assert told in capfd.readouterr().err
