"""Validation samples and groups that come with a user's data."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import load, source

from launcher.cli import main
from peer.errors import InputError
from peer.learning.data.shard import CommonData, HoldBack, Shard, own_shard
from peer.runtime.in_process import federate

MODULE = """
import numpy as np
import torch
def some(rows, first):
    return np.arange(first, first + 2 * rows, dtype=np.float32).reshape(rows, 2), np.arange(rows) % 2
def six():
    return (*some(40, 0), *some(6, 1000), *some(10, 2000))
def uneven():
    return (*some(40, 0), *some(0, 1000), *some(10, 2000))
def others():
    return (*some(40, 0), np.ones((6, 2), np.float32), np.full(6, 2), *some(10, 2000))
class Rows(torch.utils.data.Dataset):
    def __init__(self, rows, first):
        x, y = some(rows, first)
        self.x, self.targets = torch.from_numpy(x), torch.from_numpy(y)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, at):
        return self.x[at], self.targets[at]
def three():
    return Rows(40, 0), Rows(6, 1000), Rows(10, 2000)
def patients():
    return (*some(60, 0), [f"p{row // 4}" for row in range(60)])
def patients_read():
    made = Rows(60, 0)
    made.groups = [row // 4 for row in range(60)]
    return made
def wider():
    return Rows(40, 0), Wide(6, 1000), Rows(10, 2000)
class Wide(Rows):
    def __getitem__(self, at):
        return self.x[at].repeat(2), self.targets[at]
def some_without():
    return (*some(60, 0), [*range(59), None])
def too_few_groups():
    return (*some(60, 0), [1, 2])
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "parts", raising=False)


def shared(name: str) -> Shard:
    return CommonData(source(f"parts:{name}"), ["p", "q"]).shard("p", hold_back=HoldBack("given", 42, "p"))


def own(name: str) -> Shard:
    return own_shard(source(f"parts:{name}"), source("digits"), hold_back=HoldBack("given", 42, "p"))


@pytest.mark.parametrize("shard", [shared, own])
@pytest.mark.parametrize("name", ["six", "three"])
def test_given_validation_samples_are_held_back_whole(name: str, shard: Callable[[str], Shard]) -> None:
    made = shard(name)
    assert made.held_back is not None
    (held,) = made.held_back.in_order(100)
    (tested,) = made.test.in_order(100)
    assert torch.equal(held.inputs, torch.arange(1000.0, 1012).reshape(6, 2))
    assert torch.equal(held.targets, torch.arange(6) % 2)
    assert tested.inputs.min() == 2000
    assert len(made.train) == (20 if shard is shared else 40)


def test_they_are_asked_for_and_only_where_they_are() -> None:
    with pytest.raises(InputError, match="come with validation samples; write `hold_back: given`"):
        CommonData(source("parts:six"), ["p"]).shard("p")
    with pytest.raises(InputError, match="come with validation samples; write `hold_back: given`"):
        CommonData(source("parts:six"), ["p"]).shard("p", hold_back=HoldBack(0.5, 42, "p"))
    with pytest.raises(InputError, match="`hold_back: given` wants data with validation samples"):
        CommonData(source("digits"), ["p"]).shard("p", hold_back=HoldBack("given", 42, "p"))
    with pytest.raises(InputError, match="there are no validation samples"):
        load("parts:uneven")
    assert load("parts:others").classes == 3, "a class may be in the validation samples alone"


def test_a_run_is_judged_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = "rounds: 3\nprotocol: fedavg\ndata: 'parts:six'\nhold_back: {}\nstop_early: {{patience: 2}}\n"
    (tmp_path / "f.yaml").write_text(spec.format("given"))
    assert main(["check", str(tmp_path / "f.yaml"), "--peers", "2"]) == 0
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    told = json.loads((tmp_path / "run/peer0/result.json").read_text())
    assert set(told["validation"]) == {"accuracy"}
    assert (tmp_path / "run/peer0/model.best.safetensors").exists()
    (tmp_path / "f.yaml").write_text(spec.format("some"))
    assert main(["check", str(tmp_path / "f.yaml"), "--peers", "2"]) == 2
    assert "`hold_back` wants a share between 0 and 1, such as 0.1, or `given`" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["patients", "patients_read"])
def test_no_group_is_on_both_sides(name: str) -> None:
    made = own_shard(source(f"parts:{name}", holdout=0.3), source("digits"), hold_back=HoldBack(0.25, 42, "p"))
    assert made.held_back is not None
    whose = []
    for samples in (made.train, made.held_back, made.test):
        inputs = np.concatenate([batch.inputs.numpy() for batch in samples.in_order(100)])
        whose.append({int(first) // 8 for first in inputs[:, 0]})  # four rows of two numbers each
    assert sum(map(len, whose)) == 15 == len(set.union(*whose))


def test_given_validation_samples_of_a_flipper_are_not_flipped(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(
        "rounds: 1\nprotocol: fedavg\ndata: 'parts:six'\nhold_back: given\n"
        "behaviour: {peer0: {kind: label-flip, rate: 1}}\n"
    )
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    told = [json.loads((tmp_path / f"run/peer{n}/result.json").read_text())["validation"] for n in (0, 1)]
    assert told[0] == told[1]


def test_streamed_validation_samples_are_of_one_shape_with_the_others() -> None:
    with pytest.raises(InputError, match=r"training inputs are \(2,\) and validation inputs \(4,\)"):
        load("parts:wider")


def test_each_sample_needs_a_group() -> None:
    with pytest.raises(InputError, match="sample 59 has no group"):
        load("parts:some_without")
    with pytest.raises(InputError, match=r"`groups` must have a value for each of 60 samples, not \(2,\)"):
        load("parts:too_few_groups")
