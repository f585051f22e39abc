"""What is blamed when a model is not finite any more: the loss, the learning rate, the protocol, or perhaps a
neighbour."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from peer import federate

MODULE = """
import numpy as np
import torch
from peer import SGD, Figure, Phase, Protocol, Share, Task

met = []


class Late(Protocol):
    paper = "none"
    spoilt: int = 2

    def local(self):
        return (Phase("model", 1, SGD(1e-6)),)

    def shares(self, rounds):
        return (Share("extractor"), Share("mask"))

    async def round(self, peer):
        await peer.train(*self.local())
        await peer.exchange("extractor")
        peer.state["mask"] = torch.ones(4)
        if peer.id == "peer1" and peer.round == self.spoilt:
            self.spoil(peer)
        await peer.exchange("mask")

    def spoil(self, peer):
        peer.extractor[:2] = torch.nan


class Last(Late):
    spoilt: int = 6


class Mask(Late):
    def spoil(self, peer):
        peer.state["mask"][3] /= 0


class Squared(Task):
    figures = (Figure("mse", better="down"),)

    def loss(self, outputs, targets):
        errors = (outputs - targets.reshape(outputs.shape)).square()
        at_peer1 = bool((targets < -50).any())
        if torch.is_grad_enabled() and at_peer1:
            met.append(1)
        return self.spoilt(errors.mean()) if at_peer1 and len(met) > 30 else errors.mean()

    def spoilt(self, loss):
        return loss * torch.nan

    def tally(self, outputs, targets):
        return (outputs - targets.reshape(outputs.shape)).square()


class Shifted(Squared):  # with a gradient that is finite
    def spoilt(self, loss):
        return loss + torch.nan


def rows(shift):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    return x, (x[:, 0] + shift).astype(np.float32)
"""


def failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> dict[str, str]:
    """What each peer says at its end; peer1's targets alone are below −50."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "squared", raising=False)
    (tmp_path / "squared.py").write_text(MODULE)
    ring = [
        {
            "id": f"peer{n}",
            "address": f"127.0.0.1:{7200 + n}",
            "data": {"name": "squared:rows", "options": {"shift": y}},
        }
        for n, y in enumerate((0, -100, 0))
    ]
    spec = {
        "name": "f",
        "rounds": 6,
        "data": {"name": "squared:rows", "options": {"shift": 0}},
        "ring": ring,
        **settings,
    }
    (tmp_path / "f.yaml").write_text(json.dumps(spec))
    with pytest.raises(ExceptionGroup):
        federate(tmp_path / "f.yaml", tmp_path / "out")
    events = {file.parent.name: file.read_text().splitlines() for file in (tmp_path / "out").glob("*/events.jsonl")}
    told = {id: [one for one in map(json.loads, lines) if one["event"] == "failed"] for id, lines in events.items()}
    return {id: one[0]["message"] for id, one in told.items() if one}


@pytest.mark.parametrize("task", ["squared:Squared", "squared:Shifted"])
def test_a_loss_that_gives_nan_is_blamed_and_no_neighbour(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = {"name": "fedavg", "lr": 1e-6}
    said = failures(tmp_path, monkeypatch, protocol=protocol, task=task)
    assert [*said] == ["peer1"]
    sentence = f"peer1: the loss of `{task}` is nan in round 2, though the model's outputs are finite, .*"
    assert re.fullmatch(f"{sentence} at most; correct that loss", said["peer1"])


def test_who_diverges_with_a_model_that_was_sound_blames_no_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = failures(tmp_path, monkeypatch, protocol={"name": "fedavg", "lr": 1000}, task="regression")
    assert said
    for id, message in said.items():
        assert re.fullmatch(rf"{id}: training diverged in round 1 .*; lower the learning rate, now 1000\.0", message)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Mask",
            "`squared:Mask` calls `exchange` in round 2, and `mask` is not finite in 1 of 4 values, though training "
            "left the model finite; correct what the protocol computes",
        ),
        (
            "Late",
            "the model was not finite when training began in round 3, though training had left it finite; see what the "
            "protocol made of it",
        ),
        (
            "Last",
            "the model is not finite in 2 of 101121 values after round 6, the last, though training had left it "
            "finite; see what the protocol made of it",
        ),
    ],
)
def test_what_a_protocol_computes_is_not_blamed_on_the_training(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = failures(tmp_path, monkeypatch, protocol=f"squared:{name}", task="regression")
    assert [*said] == ["peer1"]
    assert said["peer1"].startswith(f"peer1: {sentence}; if that does not help, see what peer0 and peer2 sent")
