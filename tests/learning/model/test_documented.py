"""The model of one's own that docs/running.md shows, as it stands there."""

import re
from pathlib import Path

import pytest
import torch

from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.spec.loading import load_spec

RUNNING = Path(__file__).parents[3] / "docs" / "running.md"


def test_the_model_in_the_documentation_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = RUNNING.read_text(encoding="utf-8").partition("## A model of your own")[2]
    code, block = re.findall(r"```(?:python|yaml)\n(.*?)```", section, re.DOTALL)[:2]
    (tmp_path / "my_models.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    example = Example.zeros((1, 8, 8), 10)
    (tmp_path / "federation.yaml").write_text(block)
    settings = load_spec(tmp_path / "federation.yaml", peers=3).model
    assert settings.weights
    plain = build(ModelSettings(name=settings.name, options=settings.options, head=()), example, 1)
    backbone = {name: tensor for name, tensor in plain.state().items() if name.startswith("backbone.")}
    torch.save(backbone, settings.weights)
    model = build(settings, example, 2)
    assert model.frozen.keys() == backbone.keys()
    assert {entry.name.partition(".")[0] for entry in model.entries("head")} == {"classifier"}
    assert {entry.dtype for entry in model.layout} == {"bfloat16"}
