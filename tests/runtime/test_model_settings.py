"""The `model` block: what peers agree on in it, where its file lies, and what a reader of models learns of heads."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from launcher.cli import main
from peer.errors import InputError
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

OWN = (
    "from torch import nn\ndef Net(shape, classes):\n    return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, classes))\n"
)


def spec(directory: Path, model: Any) -> Spec:
    path = directory / "federation.yaml"
    path.write_text(dump_yaml({"protocol": "fibfl", "model": model}))
    return load_spec(path, peers=3)


@pytest.mark.parametrize(
    "model", ["mlp", {}, {"freeze": []}, {"name": "mlp", "freeze": [], "partial": False, "options": {}}]
)
def test_what_is_not_given_stands_nowhere(model: Any, tmp_path: Path) -> None:
    """So that a run from before goes on, and a spec's digest says nothing new."""
    assert spec(tmp_path, model).agreement.content["model"] == {"name": "mlp"}


def test_where_the_weights_lie_is_each_machines_own_affair(tmp_path: Path) -> None:
    there = spec(tmp_path, {"name": "mlp", "weights": "sub/base.pt", "freeze": ["extractor.1.*"]})
    elsewhere = spec(tmp_path, {"name": "mlp", "weights": "/data/base.pt", "freeze": ["extractor.1.*"]})
    assert there.model.weights == tmp_path.resolve() / "sub" / "base.pt"
    assert there.agreement.digest == elsewhere.agreement.digest
    assert there.agreement.digest != spec(tmp_path, {"name": "mlp", "weights": "/data/base.pt"}).agreement.digest
    again = tmp_path / "again.yaml"
    again.write_text(there.dump())
    assert load_spec(again).model == there.model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"name": "mlp", "frezee": ["a"]}, "unknown key `frezee`; did you mean `freeze`?"),
        ({"name": "mlp", "dtype": "float8"}, "`model.dtype`: input should be 'float32', 'bfloat16' or 'float16'"),
        (
            {"name": "mlp", "head": ["a"]},
            "`mlp` takes no `head`, which is for a `module:Name` of your own; leave it out",
        ),
        ({"name": "mlp", "partial": True}, "`partial` says how to read `weights`, of which there are none"),
        ({"name": "mlp", "freeze": "extractor.*"}, "`model.freeze`: input should be a valid"),
    ],
)
def test_a_wrong_key_is_said_with_its_line(model: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        spec(tmp_path, model)
    assert sentence in str(caught.value)


def test_a_check_says_what_is_frozen_and_what_the_file_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = build("mlp", Example.zeros((1, 8, 8), 10), seed=1)
    backbone = {name: tensor for name, tensor in plain.state().items() if name.startswith("extractor.")}
    save_file(backbone, tmp_path / "base.safetensors")
    model = {"weights": "base.safetensors", "partial": True, "freeze": ["extractor.1.*"]}
    spec(tmp_path, model)
    assert main(["check", str(tmp_path / "federation.yaml"), "--peers", "3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "head 1,290 values (5.2 kB), 16,640 frozen values, 10 of 12 tensors from" in said


def test_nothing_left_to_learn_is_refused() -> None:
    with pytest.raises(
        InputError, match="has nothing left to learn, as all of its parameters are frozen; freeze fewer"
    ):
        build(ModelSettings(name="mlp", freeze=("*",)), Example.zeros((4,), 3), seed=1)
