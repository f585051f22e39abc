"""A checkpoint with a byte missing anywhere is told from a whole one."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
import safetensors.torch
import torch

from faults.disk import Disk, half_written
from peer.errors import FailedError
from peer.files import Buffer, write_atomically
from peer.learning.data.samples import InMemory
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer
from peer.network.streams.link import KeptFrame, Outbox
from peer.network.wire.frames import Heading, Key, decode, encode_frame
from peer.runtime.checkpoints import Checkpointer, Checkpoints, Snapshot
from peer.runtime.in_process import run_in_process
from peer.spec.blocks import Keep
from peer.spec.loading import load_spec
from peer.telemetry.trace import copy


def saved(directory: Path) -> Checkpoints:
    checkpoints = Checkpoints(directory)
    for round in range(3):
        facts = {"seconds": {"train": 1.25}, "edges": [["send", "peer1", 0, None]], "loss": float("nan")}
        frames = [(["peer1", "peer2"], bytes(range(40))), (["peer1"], b"frame")]
        checkpoints.save(Snapshot(round, {"model": torch.arange(5.0)}, facts), frames)
    return checkpoints


def test_a_missing_byte_is_always_found(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    before = checkpoints.load(2)[0].facts
    for path in sorted(tmp_path.glob("*-0002.*")):
        content = path.read_bytes()
        for at in range(len(content)):
            path.write_bytes(content[:at] + content[at + 1 :])
            # A space less in JSON changes nothing.
            assert checkpoints.verify(2) or repr(checkpoints.load(2)[0].facts) == repr(before), (path, at)
            assert checkpoints.verify(1) is None
        path.write_bytes(content)
    assert checkpoints.verify(2) is None


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    snapshot, messages = saved(tmp_path).load(2)
    assert snapshot.tensors["model"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sorted(messages) == [0, 1, 2]
    assert messages[2] == [(["peer1", "peer2"], bytes(range(40))), (["peer1"], b"frame")]


def test_the_store_is_bounded_by_the_floor(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    checkpoints.prune(low_watermark=1, wanted={2})
    assert checkpoints.rounds() == [1, 2]
    assert sorted(path.name for path in tmp_path.glob("messages-*")) == ["messages-0002.safetensors"]
    checkpoints.drop_after(1)
    assert checkpoints.rounds() == [1]
    assert checkpoints.verify(1) is None, "pruned messages are no damage"


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff"])
def test_a_damaged_checkpoint_is_left_out_of_the_archive(tmp_path: Path, damage: bytes) -> None:
    """It once ended the peer at each start, though nobody needs it."""
    checkpoints = saved(tmp_path)
    (tmp_path / "round-0001.json").write_bytes(damage)
    checkpoints.save(Snapshot(3, {}, {}), [])
    checkpoints.save(Snapshot(4, {}, {}), [])
    checkpoints.prune(low_watermark=3, wanted=(), keep=Keep(every=1, last=2))
    assert (checkpoints.rounds(), checkpoints.archive.rounds()) == ([3, 4], [2])


def test_what_is_pruned_is_written_over(tmp_path: Path) -> None:
    """The files stay the same ones, also when what is written next is shorter; of what is left over one is kept."""
    checkpoints = saved(tmp_path)
    kept = {path.stat().st_ino for path in tmp_path.iterdir()}
    checkpoints.prune(low_watermark=2, wanted=())
    assert len(list(tmp_path.iterdir())) == 7, "two states and seals, and one of each kind to write over"
    checkpoints.save(Snapshot(3, {"model": torch.arange(2.0)}, {}), [(["peer1"], b"short")])
    assert {path.stat().st_ino for path in tmp_path.iterdir()} <= kept
    assert checkpoints.verify(3) is None
    snapshot, messages = checkpoints.load(3)
    assert snapshot.tensors["model"].tolist() == [0.0, 1.0]
    assert messages == {3: [(["peer1"], b"short")]}


def test_a_power_cut_brings_no_name_back_with_other_content(tmp_path: Path) -> None:
    class Worst(Random):
        """All that can be lost is lost."""

        def random(self) -> float:
            return 0.0

    def write_and_die(path: Path, content: Buffer | Sequence[Buffer], over: Path | None = None) -> None:
        half_written(path, content, over)
        raise InterruptedError

    disk = Disk()
    with patch("faults.disk.here"), disk.under():
        checkpoints = saved(tmp_path)
        checkpoints.prune(low_watermark=1, wanted={2})
        with patch("peer.runtime.checkpoints.write_atomically", write_and_die), pytest.raises(InterruptedError):
            checkpoints.save(Snapshot(3, {"another model": torch.arange(9.0)}, {}), [(["peer1"], b"short")])
        disk.power_cut(tmp_path, Worst())
    assert checkpoints.verify(2) is checkpoints.verify(1) is None
    assert checkpoints.verify_messages(before=3) == {}
    assert all(checkpoints.verify(at) is None for at in checkpoints.rounds())


def test_the_next_round_does_not_change_what_is_being_written() -> None:
    """A checkpoint is written while the next round trains, also the first one after a resume."""
    samples = InMemory(torch.randn(20, 4), torch.randint(0, 3, (20,)))
    trainer = Trainer(build("mlp", Example.zeros((4,), 3), seed=1), samples, 1, "peer0")
    phase = Phase("model", 1, SGD(0.1, 0.9), keep="model")
    trainer.train(phase, 1)
    trainer.load_state(trainer.state())
    snapshot = trainer.state()
    before = {name: tensor.clone() for name, tensor in snapshot.items()}
    trainer.train(phase, 2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot.items())


def test_messages_are_kept_in_the_order_in_which_they_are_consumed(tmp_path: Path) -> None:
    """Records go to the right alone and vectors to both: a replaying neighbour asks for the records first."""
    protocol = {"name": "fibfl++", "head_epochs": 1, "extractor_epochs": 1, "reorder_every": 1}
    (tmp_path / "federation.yaml").write_text(
        json.dumps({"rounds": 3, "protocol": protocol, "data": {"name": "digits", "limit": 200}, "model": "mlp"})
    )
    asyncio.run(run_in_process(load_spec(tmp_path / "federation.yaml", peers=4), tmp_path))
    mixed = 0
    for id in ("peer0", "peer1", "peer2", "peer3"):
        store = Checkpoints(tmp_path / id / "checkpoint")
        _, messages = store.load(store.rounds()[-1])
        for frames in messages.values():
            steps = [decode(data).key.step for _, data in frames]
            assert steps == sorted(steps)
            mixed += len({len(receivers) for receivers, _ in frames}) > 1
    assert mixed


def test_a_frame_is_read_again_as_it_was(tmp_path: Path) -> None:
    heading = Heading(Key(0, 1, 1 << 16), 0, 0, 0, 0, 8)
    frames = [encode_frame(heading, index, b"", memoryview(b"abcd")) for index in range(2)]
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Snapshot(1, {}, {}), [(["peer1"], data) for data in frames])
    assert [checkpoints.frame(1, number) for number in range(2)] == frames
    path = tmp_path / "messages-0001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert checkpoints.frame(1, 0) == frames[0]
    for round in (1, 2):
        with pytest.raises(FailedError, match=f"messages-000{round}.safetensors: cannot be read"):
            checkpoints.frame(round, 1)


def test_messages_on_disk_take_no_memory(tmp_path: Path) -> None:
    """What a neighbour may still ask for is read again, the same bytes."""
    leave, left = Checkpointer._leave_on_disk, 0

    def compared(checkpointer: Checkpointer, round: int, frames: Sequence[KeptFrame]) -> None:
        nonlocal left
        before = [frame.data for frame in frames]
        leave(checkpointer, round, frames)
        assert [frame.data() for frame in frames if not isinstance(frame.data, bytes)] == before
        left += len(frames)

    (tmp_path / "federation.yaml").write_text(
        json.dumps({"rounds": 2, "protocol": "gossip-sgd", "data": {"name": "digits", "limit": 200}, "model": "mlp"})
    )
    on_disk = patch("peer.runtime.checkpoints.LARGE_BYTES", 0)
    with on_disk, patch.object(Checkpointer, "_leave_on_disk", compared):
        asyncio.run(run_in_process(load_spec(tmp_path / "federation.yaml", peers=3), tmp_path))
    assert left == 3 * 2


async def test_what_was_released_need_not_be_there() -> None:
    def gone() -> bytes:
        raise FailedError("it is gone")

    outbox, frame = Outbox(), KeptFrame(0, Key(0, 1, 0), 0, gone)
    outbox.append(frame)
    with pytest.raises(FailedError, match="it is gone"):
        await outbox.content(0, frame)
    outbox.release(1)
    assert await outbox.content(0, frame) is None


def test_a_view_that_is_not_in_one_piece_is_kept() -> None:
    transposed = torch.arange(6.0).reshape(2, 3).T
    assert copy(transposed).is_contiguous()
    assert torch.equal(copy(transposed), transposed)


def test_a_checkpoint_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    """This holds for empty, transposed and single values of each dtype, which are written from their own memory."""
    kinds = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(kind).removeprefix("torch."): (torch.arange(6) % 2).to(kind).reshape(2, 3).T for kind in kinds}
    tensors |= {"empty": torch.empty(0, 3), "one": torch.tensor(7.0), "unsigned": torch.arange(3).to(torch.uint16)}
    for chosen in (tensors, {name: tensor for name, tensor in tensors.items() if name != "unsigned"}):
        Checkpoints(tmp_path).save(Snapshot(1, chosen, {}), [(["peer1"], b"short"), (["peer2"], b"")])
        read = safetensors.torch.load_file(tmp_path / "round-0001.safetensors")
        assert read.keys() == chosen.keys()
        for name, tensor in chosen.items():
            assert read[name].dtype == tensor.dtype
            torch.testing.assert_close(read[name], tensor.contiguous(), rtol=0, atol=0)
        assert Checkpoints(tmp_path).load(1)[1] == {1: [(["peer1"], b"short"), (["peer2"], b"")]}


def test_more_buffers_than_one_call_takes_are_written_in_order(tmp_path: Path) -> None:
    buffers = [bytes([at % 251]) * (at % 7) for at in range(5000)]
    write_atomically(tmp_path / "file", buffers)
    assert (tmp_path / "file").read_bytes() == b"".join(buffers)
