"""What never changes is written once, is part of every checkpoint that has it, and comes back the same."""

import asyncio
import json
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
import torch

from faults.disk import kept_by_the_newest_alone
from faults.scenarios import specification
from faults.simulation import Kill, simulate, undisturbed
from peer.runtime.checkpoints import Checkpoints, Snapshot, tensor_digest
from peer.runtime.dry_run import DryRunFigures, disk_needed
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

LARGE = torch.arange(1 << 16, dtype=torch.uint8)
SMALL = torch.tensor([0.5, -1.0])
KEPT = {tensor_digest(tensor): tensor for tensor in (LARGE, SMALL)}
NAMES = dict(zip(("protocol/large", "protocol/small"), KEPT, strict=True))


def saved(directory: Path, rounds: int = 3) -> Checkpoints:
    """Kept from round 1 on."""
    checkpoints = Checkpoints(directory)
    for round in range(rounds):
        new = KEPT if round == 1 else {}
        model = {"model": torch.arange(5.0)}
        checkpoints.save(Snapshot(round, model, {}, NAMES if round else {}, new), [(["peer1"], b"frame")])
    return checkpoints


def test_each_is_a_file_of_its_own_and_comes_back(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    snapshot, _ = checkpoints.load(2)
    assert torch.equal(snapshot.tensors["protocol/large"], LARGE)
    assert torch.equal(snapshot.tensors["protocol/small"], SMALL)
    assert snapshot.unchanging == NAMES
    assert checkpoints.load(0)[0].unchanging == {}
    assert {path.name for path in tmp_path.glob("kept-*")} == {f"kept-{digest}.safetensors" for digest in KEPT}
    assert max(path.stat().st_size for path in tmp_path.glob("round-*")) < 1000


def test_a_missing_byte_damages_every_checkpoint_that_has_it(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    path = tmp_path / f"kept-{tensor_digest(SMALL)}.safetensors"
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + content[at + 1 :])
        assert checkpoints.verify(2), at
        assert checkpoints.verify(1), at
        assert checkpoints.verify(0) is None
    path.unlink()
    assert "cannot be read" in str(checkpoints.verify(2))
    path.write_bytes(content)
    assert checkpoints.verify(2) is None


def test_what_no_checkpoint_has_is_removed_and_no_more(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    checkpoints.drop_after(1)
    assert len([*tmp_path.glob("kept-*")]) == 2
    (tmp_path / "round-0001.json").write_bytes(b"{}")
    checkpoints.drop_after(1)
    assert len([*tmp_path.glob("kept-*")]) == 2, "what an unreadable seal has may be needed by a copy of it"
    checkpoints.drop_after(0)
    assert not [*tmp_path.glob("kept-*")]


def test_what_was_half_written_is_removed(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    beside = tmp_path / f".kept-{tensor_digest(LARGE)}.safetensors.part"
    beside.write_bytes(b"half")
    (tmp_path / ".kept-notes.safetensors.part").write_bytes(b"somebody else's")
    checkpoints.recover()
    assert not beside.exists()
    assert (tmp_path / ".kept-notes.safetensors.part").exists()


def damage_what_is_kept(directory: Path, random: Random) -> int | None:
    """Damage the unchanging tensors that only the newest checkpoint has; return its round, None if there are none."""
    seals = sorted(directory.glob("round-*.json"))
    victims = kept_by_the_newest_alone(directory, seals) if seals else []
    for path in victims:
        path.write_bytes(path.read_bytes()[:-1])
        damaged.append(path)
    return int(seals[-1].stem.split("-")[1]) if victims else None


damaged: list[Path] = []


def test_death_while_it_is_written() -> None:
    """Kept from round 2 on, that is in the second half of a fifth of what is done to the disk in five rounds."""
    damaged.clear()
    expected = undisturbed("keeping")
    steps = expected.steps["peer1"]["disk"]
    with patch("faults.simulation.delete_a_byte", damage_what_is_kept):
        for number, count in enumerate(range(steps * 2 // 5, steps * 3 // 5, 7)):
            kill = Kill("peer1", "disk", count, power=bool(number % 2), damage=True)
            outcome = simulate("keeping", count, [kill])
            assert not outcome.faults, (count, outcome.faults)
            assert outcome.digests == expected.digests, count
    assert damaged, "none of them was ever damaged"


def test_the_estimate_of_the_disk_has_it_once() -> None:
    spec = specification("keeping")
    without = disk_needed(spec, 35, DryRunFigures(100, 0))
    assert disk_needed(spec, 35, DryRunFigures(100, 5000)) == without + 5000


PROTOCOL = """
import torch
from peer import Protocol, Share
from peer import SGD, Phase
class Careless(Protocol):
    paper, min_peers, unchanging = "none", 2, ("table",)
    replace: bool = False
    def shares(self, rounds): return (Share("model"),)
    def local(self): return (Phase("model", 1, SGD()),)
    async def round(self, peer):
        await peer.exchange("model")
        if peer.round == 1: peer.state["table"] = torch.zeros(3000)
        if peer.round == 3 and self.replace: peer.state["table"] = torch.zeros(2999)
        if peer.round == 3: peer.state["table"][0] += 1
"""


@pytest.mark.parametrize("replace", [False, True])
def test_who_changes_it_is_told(tmp_path: Path, replace: bool) -> None:
    (tmp_path / "careless.py").write_text(PROTOCOL)
    protocol = {"name": "careless:Careless", "replace": replace}
    content = {"rounds": 5, "protocol": protocol, "data": {"name": "digits", "limit": 60}, "model": "mlp"}
    (tmp_path / "federation.yaml").write_text(json.dumps(content))
    spec = load_spec(tmp_path / "federation.yaml", peers=2)
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(run_in_process(spec, tmp_path))
    told = {str(error) for error in raised.value.exceptions}
    assert all("declares peer.state['table'] as unchanging and changed it in round 3" in line for line in told)
