"""What survives a crash of a peer: its checkpoints and its journal, and how it resumes from them.

Checkpoints hold the end of a round: all state, and every message a neighbour may still ask for (rules R2, R3 and R6).

- checkpoint/round-0003.safetensors: the state after round 3
- checkpoint/messages-0003.safetensors: the frames sent in round 3, with their receivers
- checkpoint/round-0003.json: the seal, written last; its checksums of both tell whether the checkpoint is intact
- checkpoint/kept-*.safetensors: each a tensor that never changes, written once and named by its checksum
- checkpoint/archive/: older checkpoints that are kept for a rewind (`keep`), without messages of other rounds
- checkpoint/.spare-*: files that are no longer needed; the next ones are written over them

The journal holds what is drawn, measured or encrypted once, on disk before anything that depends on it leaves (R1).

- journal/round-0003-0.safetensors: the first value of round 3; a replay of the round reads it again

`Checkpoints` and `Journal` are the files; their methods block, and run in a thread once the peer plays. `Checkpointer`
writes a round's checkpoint while the next round trains. A round is announced as durable when the next one is on disk,
too, and the last one once it has been read back.

A resume takes these steps: what a killed process left half written is removed; the newest intact checkpoint is looked
for; if none is as new as the last round that this peer may have announced, it cannot go on, as the neighbours have
dropped their messages of that time; what lies after that checkpoint is dropped; state, links and messages are
restored; and the others hear up to which round this peer has its rounds on disk. A checkpoint of an earlier view
provides only the state with which the peer enters the present view.
"""

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.numpy
import safetensors.torch
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from peer.errors import FailedError
from peer.files import Buffer, read, retry_without_descriptors, sync, write_atomically
from peer.network.streams.link import KeptFrame, KeptFrames
from peer.network.wire.frames import BadFrameError, decode
from peer.process import LARGE_BYTES, trim_memory
from peer.runtime.lifecycle import CheckpointLostError
from peer.spec.blocks import Keep
from peer.tasks import shielded
from peer.telemetry.events import CheckpointDamaged, Resumed, RoundDurable
from peer.telemetry.results import RESULT, sync_lines
from peer.telemetry.trace import copy
from peer.views.view import STALENESS_BOUND

if TYPE_CHECKING:
    from peer.runtime.rounds.local_peer import Participant
    from peer.runtime.rounds.reports import RunProgress


class Journal:
    """Values that are made only once, and reused in a replay. Reading and writing block."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def recall(self, round: int, number: int) -> Tensor | None:
        """Read a value; None if none was written. FailedError if it is damaged, as it must not be drawn anew."""
        path = self._path(round, number)
        if not path.exists():
            return None
        sync(self.directory)  # a process that was killed after it had renamed the file may not have done so
        try:
            with safe_open(path, "pt") as file:
                value: Tensor = file.get_tensor("value")
                whole = (file.metadata() or {}).get("digest") == tensor_digest(value)
        except (SafetensorError, OSError):
            whole = False
        if not whole:
            raise FailedError(
                f"{path}: is damaged, and neighbours may have got what depends on it; put a copy of this peer's files "
                "in its place, or have all go back (`dfl-launch rewind`)"
            )
        return value

    def write(self, round: int, number: int, value: Tensor) -> Tensor:
        """Write a value, which is on disk when this returns; return it as a replay will read it."""
        kept = copy(value)
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True)
            sync(self.directory.parent)
        content = safetensors.torch.save({"value": kept}, {"digest": tensor_digest(kept)})
        write_atomically(self._path(round, number), content)
        sync(self.directory)
        return kept

    def prune(self, before: int) -> None:
        """Remove the values of rounds before `before`: no checkpoint is left from which those could be replayed."""
        for path, round in self._values():
            if round < before:
                path.unlink()

    def drop_after(self, round: int) -> None:
        """Remove the values of rounds after `round`, which are void and will be played again with other members."""
        for path, at in self._values():
            if at > round:
                path.unlink()
        if self.directory.is_dir():
            sync(self.directory)

    def _values(self) -> list[tuple[Path, int]]:
        """The files of this journal, each with its round."""
        found = (
            (path, re.fullmatch(r"round-(\d{4,})-\d+", path.stem)) for path in self.directory.glob("*.safetensors")
        )
        return [(path, int(ours[1])) for path, ours in found if ours]

    def _path(self, round: int, number: int) -> Path:
        return self.directory / f"round-{round:04d}-{number}.safetensors"


def tensor_digest(value: Tensor) -> str:
    """The SHA-256 (hex) of dtype, shape and content of a tensor on the CPU.

    It names files that can hold what neighbours sent, so it must be collision-proof: no neighbour may be able to find
    other content for the same name.
    """
    digest = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode())
    digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, under the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


SAFETENSORS_DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes' names in safetensors, the widest first, so that every tensor in a file is aligned."""


def tensor_file(tensors: Mapping[str, Tensor]) -> list[Buffer]:
    """A safetensors file of CPU tensors as a list of buffers, which spares the two copies that the library makes."""
    if not all(tensor.dtype in SAFETENSORS_DTYPES for tensor in tensors.values()):
        return [safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})]
    kinds = [*SAFETENSORS_DTYPES]
    ordered = sorted(tensors.items(), key=lambda named: (kinds.index(named[1].dtype), named[0]))
    return _safetensors(
        (
            name,
            SAFETENSORS_DTYPES[tensor.dtype],
            [*tensor.shape],
            tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data,
        )
        for name, tensor in ordered
    )


def pack_frames(frames: KeptFrames) -> list[Buffer]:
    """A safetensors file with one uint8 tensor per frame, in order, and the receivers in its metadata."""
    parts = ((f"{number:08d}", "U8", [len(data)], data) for number, (_, data) in enumerate(frames))
    return _safetensors(parts, {"receivers": json.dumps([to for to, _ in frames])})


def _safetensors(
    parts: Iterable[tuple[str, str, list[int], Buffer]], metadata: Mapping[str, str] | None = None
) -> list[Buffer]:
    """The buffers of a safetensors file: header length, header, and all content. parts: name, dtype, shape, content."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    contents, end = list[Buffer](), 0
    for name, dtype, shape, content in parts:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end := end + len(content)]}
        contents.append(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *contents]


def unpack_frames(content: bytes) -> KeptFrames:
    """The frames in a file of `pack_frames`; ValueError or KeyError if it is no such file."""
    try:
        tensors = safetensors.numpy.load(content)
        size = int.from_bytes(content[:8], "little")
        receivers = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["receivers"])
    except (SafetensorError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return [(to, tensors[f"{number:08d}"].tobytes()) for number, to in enumerate(receivers)]


@dataclass(frozen=True)
class Snapshot:
    """Everything that a peer needs to go on after `round`."""

    round: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    """All other state, as plain JSON."""
    unchanging: Mapping[str, str] = field(default_factory=dict)
    """The checksums, by name, of tensors that stay the same in all later checkpoints."""
    new: Mapping[str, Tensor] = field(default_factory=dict)
    """Of these, the tensors, by checksum, that are in no earlier checkpoint of this process."""


class Checkpoints:
    """The checkpoints of one peer. Reading and writing block."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_messages(self, round: int, frames: KeptFrames) -> str:
        """Write the messages of a round; return the checksum that `save` takes to make them part of a checkpoint."""
        self.directory.mkdir(parents=True, exist_ok=True)
        messages = pack_frames(frames)
        self._write("messages", round, "safetensors", messages)
        return _content_digest(messages)

    def save(self, snapshot: Snapshot, messages: KeptFrames | str) -> None:
        """Write a checkpoint, its seal last. messages: those of its round, or the checksum of those already written.
        All of it is on disk when this returns."""
        if not isinstance(messages, str):
            messages = self.write_messages(snapshot.round, messages)
        state = tensor_file(snapshot.tensors)
        for digest, tensor in snapshot.new.items():
            write_atomically(self._kept_path(digest), tensor_file({"value": tensor}))
        self._write("round", snapshot.round, "safetensors", state)
        sync(self.directory)
        content = {"state": _content_digest(state), "messages": messages, "facts": snapshot.facts}
        if snapshot.unchanging:
            content["unchanging"] = dict(snapshot.unchanging)
        self._write_seal(snapshot.round, content)

    def _write_seal(self, round: int, content: Mapping[str, Any]) -> None:
        text = json.dumps(content)  # not twice: it names every peer
        seal = f'{{"content": {text}, "digest": "{_content_digest(text.encode())}"}}'
        self._write("round", round, "json", seal.encode())
        sync(self.directory)

    def copy(self, round: int, to: "Checkpoints") -> None:
        """Copy a checkpoint with the messages of its round, its seal last; all of it is on disk when this returns.

        It may be damaged there, as the process that keeps these checkpoints may write over files meanwhile; raises
        OSError, ValueError or KeyError if one is gone.
        """
        to.directory.mkdir(parents=True, exist_ok=True)
        seal = read(self._path("round", round, "json"))
        files = [self._kept_path(digest) for digest in self._seal(round)["unchanging"].values()]
        files += [self._path(kind, round, "safetensors") for kind in ("round", "messages")]
        for path in files:
            with suppress(FileNotFoundError):  # messages are pruned first
                write_atomically(to.directory / path.name, read(path))
        sync(to.directory)
        write_atomically(to._path("round", round, "json"), seal)
        sync(to.directory)

    def facts(self, round: int) -> dict[str, Any]:
        """The plain JSON in an intact checkpoint."""
        facts: dict[str, Any] = self._seal(round)["facts"]
        return facts

    def replace_facts(self, round: int, facts: Mapping[str, Any]) -> None:
        """Seal an intact checkpoint anew, with other plain JSON in it."""
        self._write_seal(round, self._seal(round) | {"facts": facts})

    @property
    def archive(self) -> "Checkpoints":
        """The older checkpoints that are kept for a rewind; a resume does not look at them."""
        return Checkpoints(self.directory / "archive")

    def rounds(self) -> list[int]:
        """The rounds with a sealed checkpoint, intact or not, in ascending order."""
        return self._numbers("round", "json")

    def newest_intact(self) -> int:
        """The newest round with an intact checkpoint; -1 if there is none."""
        return next((round for round in reversed(self.rounds()) if self.verify(round) is None), -1)

    def verify(self, round: int) -> str | None:
        """Say what is wrong with a checkpoint or the messages of its round; None if it is intact.

        Unchanging tensors are part of every checkpoint that lists them.
        """
        try:
            seal = self._seal(round)
            for part, kind in (("state", "round"), ("messages", "messages")):
                path = self._path(kind, round, "safetensors")
                if part == "messages" and not path.exists():
                    continue  # pruned: no neighbour will ask for them
                if _content_digest(read(path)) != seal[part]:
                    return f"the checksum of its {part} is wrong"
            for digest in seal["unchanging"].values():
                if tensor_digest(self._read_kept(digest)) != digest:
                    return f"the checksum of {self._kept_path(digest).name} is wrong"
            return None
        except (OSError, ValueError, KeyError) as error:
            return f"it cannot be read ({type(error).__name__})"

    def verify_messages(self, before: int) -> dict[int, str]:
        """The rounds before `before` whose kept messages are damaged, and how: a checkpoint needs them, too."""
        found = {at: self._verify_messages(at) for at in self._message_rounds() if at < before}
        return {at: why for at, why in found.items() if why}

    def load(self, round: int) -> tuple[Snapshot, dict[int, KeptFrames]]:
        """Read an intact checkpoint, and all messages up to its round that are still kept and intact."""
        seal = self._seal(round)
        tensors = safetensors.torch.load(read(self._path("round", round, "safetensors")))
        damaged = self.verify_messages(round)
        kept = {
            at: unpack_frames(read(self._path("messages", at, "safetensors")))
            for at in self._message_rounds()
            if at <= round and at not in damaged
        }
        unchanging = seal["unchanging"]
        tensors |= {name: self._read_kept(digest) for name, digest in unchanging.items()}
        return Snapshot(round, tensors, seal["facts"], unchanging), kept

    def frame(self, round: int, number: int) -> bytes:
        """Read one frame of a round's messages; FailedError if it is damaged or gone."""
        path = self._path("messages", round, "safetensors")
        try:
            with retry_without_descriptors(path.open, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                start, end = json.loads(file.read(size))[f"{number:08d}"]["data_offsets"]
                file.seek(8 + size + start)
                content = file.read(end - start)
            decode(content)
        except (OSError, ValueError, KeyError, BadFrameError) as error:
            raise FailedError(
                f"{path}: cannot be read ({error}), and a neighbour asks for what was in it; start this peer again"
            ) from None
        return content

    def recover(self) -> None:
        """Clean up after a process that was killed.

        Its renames are synced first, as the checkpoints that they completed will be announced; what it had not sealed,
        or only half written, is removed.
        """
        if not self.directory.is_dir():
            return
        sync(self.directory)
        sealed = self.rounds()
        for path in self.directory.glob(".*.part"):
            if re.fullmatch(r"\.((round|messages)-\d{4,}|kept-[0-9a-f]{64})\.(safetensors|json)\.part", path.name):
                path.unlink()
        for at in self._numbers("round", "safetensors"):
            if at not in sealed:
                self._path("round", at, "safetensors").unlink()
        self.archive.recover()

    def drop_after(self, round: int) -> None:
        """Remove all that lies after `round`, to which the peer goes back."""
        if beyond := [at for at in {*self.rounds(), *self._message_rounds()} if at > round]:
            self.drop(beyond)
        self._drop_unsealed()

    def drop_before(self, last: int) -> None:
        """Remove all but the `last` newest checkpoints."""
        self.drop(self.rounds()[:-last])
        self._drop_unsealed()

    def drop(self, rounds: Collection[int]) -> None:
        """Remove the checkpoints of these rounds."""
        # A power cut must not leave a seal whose files are gone: missing messages would count as pruned.
        for at in rounds:
            self._path("round", at, "json").unlink(missing_ok=True)
        sync(self.directory)
        for at in rounds:
            for kind in ("round", "messages"):
                self._path(kind, at, "safetensors").unlink(missing_ok=True)

    def _drop_unsealed(self) -> None:
        """Remove unchanging tensors that are in no checkpoint: they are written again when their round is replayed."""
        try:
            sealed = {digest for at in self.rounds() for digest in self._seal(at)["unchanging"].values()}
        except (OSError, ValueError, KeyError):
            return  # a seal that cannot be read may be brought back from a copy
        for path in self.directory.glob("kept-*.safetensors"):
            if path.stem.removeprefix("kept-") not in sealed:
                path.unlink()

    def prune(self, low_watermark: int, wanted: Collection[int], keep: Keep | None = None) -> None:
        """Set aside what nobody will need: messages except those of `wanted` rounds, and all but two checkpoints.

        The newest checkpoint up to `low_watermark` stays, with all later ones: it may be the last one that all can go
        back to. Of the others, the archive gets those that `keep` names.
        """
        for at in self._message_rounds():
            if at not in wanted:
                self._set_aside("messages", at, "safetensors")
        rounds = self.rounds()
        last_resort = max((at for at in rounds if at <= low_watermark), default=-1)
        for at in rounds[:-2]:
            if at < last_resort:
                if keep and at and at % keep.every == 0 and self.verify(at) is None:
                    self.copy(at, self.archive)
                    self.archive.drop_before(keep.last)
                self._set_aside("round", at, "json")  # the seal first
                self._set_aside("round", at, "safetensors")
        # Sync before they are written over: a power cut must not bring an old name back with other content.
        sync(self.directory)

    def _write(self, kind: str, round: int, suffix: str, content: Buffer | Sequence[Buffer]) -> None:
        write_atomically(self._path(kind, round, suffix), content, self._spare(kind, suffix))

    def _set_aside(self, kind: str, round: int, suffix: str) -> None:
        """Remove a file; the newest one removed of each kind is kept as a spare, to be written over by the next."""
        with suppress(FileNotFoundError):
            self._path(kind, round, suffix).replace(self._spare(kind, suffix))

    def _spare(self, kind: str, suffix: str) -> Path:
        return self.directory / f".spare-{kind}.{suffix}"

    def _verify_messages(self, round: int) -> str | None:
        """Say what is wrong with a round's messages, by its seal or, if that is damaged, by the frames' checksums."""
        try:
            content = read(self._path("messages", round, "safetensors"))
            try:
                sealed = self._seal(round)["messages"]
            except (OSError, ValueError, KeyError):
                for _, data in unpack_frames(content):
                    decode(data)
                return None
            if _content_digest(content) != sealed:
                raise ValueError("wrong checksum")
        except (OSError, ValueError, KeyError, BadFrameError) as error:
            return f"the messages of round {round} are damaged ({error})"
        return None

    def _seal(self, round: int) -> dict[str, Any]:
        """The content of a round's seal; ValueError or KeyError if the seal itself is damaged."""
        try:
            seal = json.loads(read(self._path("round", round, "json")))
            content: dict[str, Any] = seal["content"]
            if _content_digest(json.dumps(content).encode()) != seal["digest"]:
                raise ValueError("the seal's own checksum is wrong")
        except (TypeError, RecursionError) as error:
            raise ValueError("it is no seal") from error
        return {"unchanging": {}} | content

    def _read_kept(self, digest: str) -> Tensor:
        """Read an unchanging tensor, intact or not; ValueError or KeyError if the file holds none."""
        try:
            return safetensors.torch.load(read(self._kept_path(digest)))["value"]
        except SafetensorError as error:
            raise ValueError(str(error)) from None

    def _kept_path(self, digest: str) -> Path:
        return self.directory / f"kept-{digest}.safetensors"

    def _message_rounds(self) -> list[int]:
        return self._numbers("messages", "safetensors")

    def _numbers(self, kind: str, suffix: str) -> list[int]:
        """The rounds of the files that `_path` could have named; other files are not this peer's."""
        try:
            with os.scandir(self.directory) as entries:
                files = {entry.name for entry in entries if entry.is_file()}
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []
        middles = (name.removeprefix(f"{kind}-").removesuffix(f".{suffix}") for name in files)
        numbers = {int(one) for one in middles if one.isdecimal()}
        return sorted(at for at in numbers if _name(kind, at, suffix) in files)

    def _path(self, kind: str, round: int, suffix: str) -> Path:
        return self.directory / _name(kind, round, suffix)


def drop_after(out: Path, round: int) -> None:
    """Remove what is void in a peer's directory: all after that round, and a result, whose model may be of it."""
    Checkpoints(out / "checkpoint").drop_after(round)
    Journal(out / "journal").drop_after(round)
    (out / RESULT).unlink(missing_ok=True)


def _name(kind: str, round: int, suffix: str) -> str:
    return f"{kind}-{round:04d}.{suffix}"


def _content_digest(content: Buffer | Sequence[Buffer]) -> str:
    digest = xxhash.xxh3_128()
    for buffer in [content] if isinstance(content, Buffer) else content:
        digest.update(buffer)
    return digest.hexdigest()


class Checkpointer:
    """Writes a checkpoint while the next round trains, at most one at a time, and resumes from the newest one."""

    def __init__(
        self, files: Checkpoints, participant: "Participant", progress: "RunProgress", tasks: asyncio.TaskGroup
    ) -> None:
        """tasks: the group in which checkpoints are written; at its end one that is under way is still written."""
        self._files, self._participant, self._progress, self._tasks = files, participant, progress, tasks
        self._network, self._journal = participant.network, participant.journal
        self._gate, self._view = participant.setup.gate, participant.setup.view
        self._report = participant.lifecycle.report
        self._writing: asyncio.Task[None] | None = None

    async def save(self, round: int) -> None:
        """Take the state as it is now and write it in the background, once the checkpoint before is written."""
        await self._wait_idle()
        kept = self._network.outgoing_frames(round)
        messages: KeptFrames | asyncio.Task[str] = [(to, await frame.content()) for to, frame in kept]
        if sum(len(data) for _, data in messages) >= LARGE_BYTES:  # to make room for the copy of the state
            frames = [frame for _, frame in kept]
            messages = self._tasks.create_task(shielded(self._move_to_disk, round, frames, messages))
        unchanging, new = await self._participant.unchanging()
        tensors, facts = await asyncio.to_thread(self._participant.state_dict)
        facts = {"peer": facts, "network": self._network.state_dict()}
        if progress := self._progress.state_dict():
            facts["course"] = progress
        snapshot = Snapshot(round, tensors, facts, unchanging, new)
        self._writing = self._tasks.create_task(shielded(self._write, snapshot, messages))

    async def _wait_idle(self) -> None:
        """Wait for the checkpoint under way; what goes wrong with it is raised where the block ends."""
        if self._writing:
            await asyncio.wait((self._writing,))

    async def _move_to_disk(self, round: int, frames: Sequence[KeptFrame], content: KeptFrames) -> str:
        """Write a round's messages and free their memory; return their checksum."""
        digest = await asyncio.to_thread(self._files.write_messages, round, content)
        content.clear()
        self._leave_on_disk(round, frames)
        await asyncio.to_thread(trim_memory)
        return digest

    async def _write(self, snapshot: Snapshot, messages: KeptFrames | asyncio.Task[str]) -> None:
        written = await messages if isinstance(messages, asyncio.Task) else messages
        await asyncio.to_thread(sync_lines, self._files.directory.parent)
        await asyncio.to_thread(self._files.save, snapshot, written)
        if len(rounds := self._files.rounds()) > 1:
            self._announce(rounds[-2])  # the newest may prove damaged (R3)
        network = self._network
        wanted = {snapshot.round, *network.rounds_still_needed()}  # the newest can go after the next checkpoint
        oldest = self._gate.oldest_needed_round(network.durability)
        await asyncio.to_thread(self._files.prune, oldest, wanted, self._participant.setup.spec.keep)
        await asyncio.to_thread(self._journal.prune, self._files.rounds()[0])

    def _leave_on_disk(self, round: int, frames: Sequence[KeptFrame]) -> None:
        """Free the memory of a round's frames, given in the order in which they are in its file."""
        for number, frame in enumerate(frames):
            frame.data = partial(self._files.frame, round, number)

    def _announce(self, durable: int) -> None:
        self._gate.announce(self._network, durable)
        self._report(RoundDurable(round=durable))

    async def verify_last(self) -> None:
        """Read the last checkpoint back and announce it itself."""
        await self._wait_idle()
        if not (rounds := self._files.rounds()):
            return  # admitted to a view that was over before its first round
        last = rounds[-1]
        why = await asyncio.to_thread(self._files.verify, last)
        if why:
            raise FailedError(f"the last checkpoint was not written well: {why}; start this peer again")
        self._announce(last)

    async def resume(self) -> int:
        """Go back to the newest intact checkpoint; its round, or -1 when there is none.

        FailedError: what this peer may have announced is damaged. It cannot be replayed, as the neighbours have dropped
        their messages of that time: this peer would wait for them for ever.
        """
        self._files.recover()
        newest = max(self._files.rounds(), default=-1)
        # By R3 it has announced at least the round before its newest. If it had announced the newest itself (the last
        # round, or after a resume where members change), the neighbours refuse it (`Durability.lost`); where members
        # change, it then returns as one that lost its disk (`watch_own_regression`). Where no later one than that of
        # the view's first round was written, `_enter` or `_begin_anew` checks what this peer has brought.
        announced = newest - 1 if newest > self._view.first else -1
        intact = []
        for round in reversed(self._files.rounds()):
            why = await asyncio.to_thread(self._files.verify, round)
            if why:
                self._report(CheckpointDamaged(round=round, reason=why))
            else:
                intact.append(round)
        if max(intact, default=-1) < announced:
            raise self._lost(f"no checkpoint of round {announced} or later is whole")
        if not intact:
            self._files.drop_after(-1)
            return self._begin_anew()
        snapshot, messages = await asyncio.to_thread(self._files.load, intact[0])
        if intact[0] >= self._view.first:
            await self._check_kept_messages(snapshot)
        self._files.drop_after(intact[0])
        self._participant.load_state_dict(snapshot.round, snapshot.tensors, snapshot.facts["peer"], snapshot.unchanging)
        if intact[0] < self._view.first:
            return self._enter(snapshot)
        self._network.load_state_dict(snapshot.round, snapshot.facts["network"])
        self._progress.load_state_dict(snapshot.facts.get("course", {}))
        for at in sorted(messages):
            content = messages.pop(at)
            frames = self._network.load_frames(content)
            if sum(len(data) for _, data in content) >= LARGE_BYTES:
                self._leave_on_disk(at, frames)
        # Announce the second newest intact round, as the newest may yet prove damaged (R3), or the one before the
        # newest if no older one is left: nothing earlier can be asked for again. But by R6 a peer that announced W
        # rounds or more before its own would wait for itself. Where members change, announce the newest: this peer may
        # have announced that round before, and the others may have dropped older states.
        one_back = max(intact[1] if len(intact) > 1 else intact[0] - 1, intact[0] - STALENESS_BOUND + 1)
        self._announce(intact[0] if self._gate.can_be_excluded else one_back)
        self._report(Resumed(round=intact[0]))
        return intact[0]

    def _enter(self, snapshot: Snapshot) -> int:
        """Enter a later view than that of the checkpoint; return the round before its first one."""
        brought = dict(self._view.entrants).get(self._participant.face.id, self._view.first - 1)
        if snapshot.round != brought:
            raise self._lost(f"this peer is to go on from its round {brought}, and that checkpoint is not whole")
        self._progress.load_state_dict(snapshot.facts.get("course", {}))
        self._participant.take_members()
        before = self._enter_network(snapshot.facts["network"])
        self._report(Resumed(round=snapshot.round))
        return before

    def _begin_anew(self) -> int:
        """Begin with nothing on disk: at the start of the run, or admitted with new private state."""
        before = self._view.first - 1
        if before < 0:
            return before
        if (brought := dict(self._view.entrants).get(self._participant.face.id, before)) >= 0:
            raise self._lost(f"this peer is to go on from its round {brought}, and no checkpoint is whole")
        return self._enter_network(self._network.state_dict())

    def _enter_network(self, state: Mapping[str, Any]) -> int:
        """Let the links begin with this view; the round before its first one.

        Members that went back to that round are known to have it on disk without saying so. Before a planned view only
        neighbours have waited for each other.
        """
        before, id = self._view.first - 1, self._participant.face.id
        others = [] if self._view.planned else [member for member in self._view.members if member != id]
        self._network.begin_view(self._view.first, state, dict.fromkeys(others, before))
        self._announce(before)
        return before

    async def _check_kept_messages(self, snapshot: Snapshot) -> None:
        """Report damaged older messages that every receiver has on disk; CheckpointLostError if one does not."""
        for at, why in (await asyncio.to_thread(self._files.verify_messages, snapshot.round)).items():
            asking = self._network.receivers_without(at, snapshot.facts["network"])
            if asking:
                raise self._lost(f"{why}, and {', '.join(asking)} may still ask for them")
            self._report(CheckpointDamaged(round=at, reason=f"{why}; every neighbour has them"))

    def _lost(self, what: str) -> CheckpointLostError:
        """The error for what no replay brings back; nothing is deleted, so that a copy can be put in its place."""
        return CheckpointLostError(
            f"{self._files.directory}: {what}, so this peer cannot go on; put a copy of its files there, or have "
            "all peers go back (`dfl-launch rewind`)"
        )
