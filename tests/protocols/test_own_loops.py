"""Every protocol under a training loop of the user's own: it trains by it, or says why it cannot."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from every_protocol import SETTINGS, keys

from peer.errors import InputError
from peer.protocols.registry import PROTOCOLS
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

REFUSED = {"scaffold", "feddyn", "fedisp", "def-kt", "hearth", "vpdl", "cycle-pdl"}
PAGE = (Path(__file__).parents[2] / "docs" / "loops.md").read_text("utf-8")
FIT = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)[0]
QUICK = ("fibfl++", "fedprox", "gossip-sgd")
NAMES = [pytest.param(one, marks=[] if one in QUICK else pytest.mark.long) for one in PROTOCOLS if one not in REFUSED]
IDS = ("peer0", "peer1", "peer2")


def federation(name: str, directory: Path, loop: bool) -> Path:
    spec = {
        "name": "loops",
        "rounds": 2,
        "protocol": {"name": name, **SETTINGS[name]},
        "data": {"name": "digits", "limit": 120, "validation": 0.2},
        "ring": [{"id": id, "address": f"127.0.0.1:{7700 + number}"} for number, id in enumerate(IDS)],
        **({"training": {"loop": "page_loop:fit"}} if loop else {}),
        **keys(name, IDS),
    }
    directory.mkdir()
    (directory / "page_loop.py").write_text(FIT)
    (directory / "federation.yaml").write_text(json.dumps(spec))
    return directory / "federation.yaml"


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_by_the_loop_as_it_does_by_itself(name: str, tmp_path: Path) -> None:
    vectors = []
    for loop in (True, False):
        file = federation(name, tmp_path / str(loop), loop)
        vectors.append({id: one.setup.model.vector for id, one in run(file).items()})
        history = json.loads((file.parent / "run" / "peer0" / "result.json").read_text())["history"]
        trained = any(one["loss"] is not None for one in history)
        assert any("local_steps" in one["notes"] for one in history) == (loop and trained)
    for id in IDS:
        torch.testing.assert_close(vectors[0][id], vectors[1][id], rtol=1e-3, atol=1e-4)


def run(file: Path) -> dict[str, Any]:
    return asyncio.run(run_in_process(load_spec(file), file.parent / "run"))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_it_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"`{name}` cannot train by `training.loop`: .+; leave it out"):
        load_spec(federation(name, tmp_path / "one", loop=True))


def test_training_alone_is_refused_where_the_compared_protocol_is(tmp_path: Path) -> None:
    file = federation("solo", tmp_path / "one", loop=True)
    load_spec(file)
    with pytest.raises(InputError, match=r"`solo` cannot train by `training.loop`: .+ control"):
        load_spec(file, overrides=["protocol={name: solo, like: {name: scaffold, epochs: 1}}"])
