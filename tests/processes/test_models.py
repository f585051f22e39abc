"""Models as people have them, in real peers: what is frozen stays at home, and the bits are the same after a kill."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.accidents import start_and_die
from real_peers import Build, SmallFederation, digests, until
from safetensors.torch import load_file, save_file

from peer.errors import FailedError
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

PROTOCOL = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}
OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes, width):
        super().__init__()
        self.stem, self.norm, self.body = nn.Linear(64, width), nn.BatchNorm1d(width), nn.Linear(width, width)
        self.drop, self.classifier = nn.Dropout(0.1), nn.Linear(width, classes)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x.flatten(1))))
        return self.classifier(self.drop(torch.relu(self.body(x))))
"""
WIDTH = 24
LEARNT = 4 * (WIDTH * WIDTH + WIDTH)
"""Bytes of `body`, which is all of the extractor that is not frozen."""
MODEL: dict[str, Any] = {
    "name": "own_models:Net",
    "options": {"width": WIDTH},
    "head": ["classifier.*"],
    "freeze": ["stem.*", "norm.*"],
    "weights": "stem.safetensors",
    "partial": True,
}


def made(federation: Build, **model: Any) -> SmallFederation:
    one = federation("solo", 3, rounds=3, patience=60)
    path = one.directory / "federation.yaml"
    content = json.loads(path.read_text()) | {"protocol": PROTOCOL, "model": MODEL | model}
    (one.directory / "own_models.py").write_text(OWN)
    write_stem(one.directory / "stem.safetensors", seed=1)
    path.write_text(json.dumps(content))
    return one


def write_stem(path: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    save_file({"stem.weight": torch.randn(WIDTH, 64, generator=generator) / 8}, path)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_frozen_weights_stay_at_home_and_a_killed_peer_ends_with_the_same_bits(dtype: str, federation: Build) -> None:
    one = made(federation, dtype=dtype)
    start_and_die(one, {"peer1": "training:7", "peer2": "communicating:3"})
    assert one.wait() == dict.fromkeys(one.ids, 0), one.account()
    spec = load_spec(one.directory / "federation.yaml")
    runtimes = asyncio.run(run_in_process(spec, one.directory / "in-process"))
    assert digests(one.results()) == {id: runtime.setup.model.sha256() for id, runtime in runtimes.items()}
    stem = load_file(one.directory / "stem.safetensors")["stem.weight"].to(getattr(torch, dtype))
    for id in one.ids:
        lines = [json.loads(line) for line in (one.directory / id / "audit.jsonl").read_text().splitlines()]
        sent = [entry for line in lines for entry in line["sent"]]
        assert {(entry["vector"], entry["bytes"], entry["head_bytes"]) for entry in sent} == {("extractor", LEARNT, 0)}
        saved = load_file(one.directory / id / "model.safetensors")
        assert torch.equal(saved["stem.weight"], stem)
        assert {str(tensor.dtype) for name, tensor in saved.items() if "tracked" not in name} == {f"torch.{dtype}"}
        kept = [load_file(path) for path in (one.directory / id / "checkpoint").glob("round-*.safetensors")]
        assert {len(state["model"]) for state in kept} == {LEARNT // 4 + WIDTH * 10 + 10}


def test_peers_with_other_frozen_weights_refuse_each_other(federation: Build) -> None:
    """The file is each machine's own affair, what is in it is not."""
    one = made(federation)
    elsewhere = one.directory / "elsewhere"
    elsewhere.mkdir()
    for name in ("federation.yaml", "own_models.py"):
        (elsewhere / name).write_text((one.directory / name).read_text())
    write_stem(elsewhere / "stem.safetensors", seed=2)
    one.configure("peer2", federation="elsewhere/federation.yaml")
    one.start()
    until(lambda: "refused: its data has frozen weights sha256:" in one.log("peer2"), 60, "the refusal is told")
    assert ", and this peer's frozen weights sha256:" in one.log("peer2")
    assert "make the two alike" in one.log("peer2")


def test_a_resumed_peer_needs_the_frozen_weights_that_it_had(federation: Build) -> None:
    one = made(federation)

    def run(rounds: int) -> dict[str, str]:
        spec = load_spec(one.directory / "federation.yaml", overrides=[f"rounds={rounds}"])
        runtimes = asyncio.run(run_in_process(spec, one.directory / "run"))
        return {id: runtime.setup.model.sha256() for id, runtime in runtimes.items()}

    run(1)
    write_stem(one.directory / "stem.safetensors", seed=2)
    with pytest.raises(ExceptionGroup) as caught:
        run(2)
    assert all(isinstance(error, FailedError) for error in caught.value.exceptions)
    assert "the frozen weights are others than in round 1 (sha256:" in str(caught.value.exceptions[0])
    write_stem(one.directory / "stem.safetensors", seed=1)
    assert run(2) != run(3)
