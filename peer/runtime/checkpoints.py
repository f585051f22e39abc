"""What survives a peer's death, file by file.

A round's end on disk: all state, and every message a neighbour may still ask for (rules R2, R3 and R6).

checkpoint/round-0003.safetensors    the state after round 3 checkpoint/messages-0003.safetensors the frames sent in
round 3, with their receivers checkpoint/round-0003.json           written last: checksums of both, so that what is
whole can be told from what is not checkpoint/kept-*.safetensors        each a tensor that never changes, written once
and named by its checksum checkpoint/.spare-*                  files that nobody needs any more: the next ones are
written over them

And what is drawn, measured or encrypted once: on disk before anything that depends on it leaves (rule R1).

journal/round-0003-0.safetensors     the first value of round 3; a replay of the round reads it again

All reading and writing here blocks; it runs in a thread. When a checkpoint is made, and how a peer goes on from one,
is said in `peer.runtime.checkpointer`.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.numpy
import safetensors.torch
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from peer.errors import FailedError
from peer.files import Buffer, read, sync, write_atomically
from peer.network.streams.link import KeptFrames
from peer.network.wire.frames import BadFrameError, decode
from peer.telemetry.trace import copy


class CheckpointLostError(FailedError):
    """What this peer had on disk is gone, and no replay brings it back."""


class Journal:
    """The values of one peer. Reading and writing block; they run in a thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def recall(self, round: int, number: int) -> Tensor | None:
        """The value that was written; None if none was. FailedError where it is damaged: another must not be drawn."""
        path = self._path(round, number)
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                value: Tensor = file.get_tensor("value")
                whole = (file.metadata() or {}).get("digest") == tensor_digest(value)
        except (SafetensorError, OSError):
            whole = False
        if not whole:
            raise FailedError(
                f"{path}: is damaged, and neighbours may have got what depends on it; put a copy of this peer's files "
                "in its place, or begin the federation again (`dfl-launch run --fresh`)"
            )
        return value

    def write(self, round: int, number: int, value: Tensor) -> Tensor:
        """Keep a value; it is on disk when this returns. What is returned is what a replay will read."""
        kept = copy(value)
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True)
            sync(self.directory.parent)
        content = safetensors.torch.save({"value": kept}, {"digest": tensor_digest(kept)})
        write_atomically(self._path(round, number), content)
        sync(self.directory)
        return kept

    def prune(self, before: int) -> None:
        """Remove the values of earlier rounds: no checkpoint is left from which they could be replayed."""
        for path, round in self._values():
            if round < before:
                path.unlink()

    def drop_after(self, round: int) -> None:
        """Remove the values of later rounds: they are void, and are played again among other members."""
        for path, at in self._values():
            if at > round:
                path.unlink()
        if self.directory.is_dir():
            sync(self.directory)

    def _values(self) -> list[tuple[Path, int]]:
        """The files that are this journal's, and the round of each."""
        found = (
            (path, re.fullmatch(r"round-(\d{4,})-\d+", path.stem)) for path in self.directory.glob("*.safetensors")
        )
        return [(path, int(ours[1])) for path, ours in found if ours]

    def _path(self, round: int, number: int) -> Path:
        return self.directory / f"round-{round:04d}-{number}.safetensors"


def tensor_digest(value: Tensor) -> str:
    """SHA-256, in hex, of the type, shape and content of a tensor on the CPU.

    It names files of what neighbours sent: none of them may find other content of the same name.
    """
    digest = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode())
    digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class ImmutableTensors:
    """Those in one directory, by their checksums."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, digest: str) -> Path:
        return self._directory / f"kept-{digest}.safetensors"

    def read(self, digest: str) -> Tensor:
        """Whole or not; ValueError or KeyError where the file is none of these."""
        try:
            return safetensors.torch.load(read(self.path(digest)))["value"]
        except SafetensorError as error:
            raise ValueError(str(error)) from None

    def damage(self, digests: Collection[str]) -> str | None:
        """What is wrong with the first of these that is not whole; None if all are. Raises what `read` does."""
        for digest in digests:
            if tensor_digest(self.read(digest)) != digest:
                return f"the checksum of {self.path(digest).name} is wrong"
        return None

    def drop_all_but(self, digests: Collection[str]) -> None:
        for path in self._directory.glob("kept-*.safetensors"):
            if path.stem.removeprefix("kept-") not in digests:
                path.unlink()


DTYPES = {
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
"""As safetensors names them, the largest first: so every tensor in a file is aligned."""


def tensor_file(tensors: Mapping[str, Tensor]) -> list[Buffer]:
    """A safetensors file of tensors on the CPU, as buffers: what the library's `save` joins by copying it all twice."""
    if not all(tensor.dtype in DTYPES for tensor in tensors.values()):
        return [safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})]
    kinds = [*DTYPES]
    ordered = sorted(tensors.items(), key=lambda named: (kinds.index(named[1].dtype), named[0]))
    return _safetensors(
        (name, DTYPES[tensor.dtype], [*tensor.shape], tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        for name, tensor in ordered
    )


def pack_frames(frames: KeptFrames) -> list[Buffer]:
    """A safetensors file, too: a frame a tensor, in order, and in its metadata who is to have which."""
    parts = ((f"{number:08d}", "U8", [len(data)], data) for number, (_, data) in enumerate(frames))
    return _safetensors(parts, {"receivers": json.dumps([to for to, _ in frames])})


def _safetensors(
    parts: Iterable[tuple[str, str, list[int], Buffer]], metadata: Mapping[str, str] | None = None
) -> list[Buffer]:
    """By tensor its name, type, shape and content: the length of the header, the header, and all content in order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    contents, end = list[Buffer](), 0
    for name, dtype, shape, content in parts:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end := end + len(content)]}
        contents.append(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *contents]


def unpack_frames(content: bytes) -> KeptFrames:
    """ValueError or KeyError where that is no such file."""
    try:
        tensors = safetensors.numpy.load(content)
        size = int.from_bytes(content[:8], "little")
        receivers = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["receivers"])
    except (SafetensorError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return [(to, tensors[f"{number:08d}"].tobytes()) for number, to in enumerate(receivers)]


def check_frames(content: bytes) -> None:
    """By the frames' own checksums: BadFrameError, ValueError or KeyError where they are damaged."""
    for _, data in unpack_frames(content):
        decode(data)


@dataclass(frozen=True)
class Snapshot:
    """Everything a peer needs to go on after `round`."""

    round: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    """Plain JSON."""
    unchanging: Mapping[str, str] = field(default_factory=dict)
    """By name, the checksums of tensors that are the same in every later checkpoint."""
    new: Mapping[str, Tensor] = field(default_factory=dict)
    """By checksum, those of them that no earlier checkpoint of this process has."""


class Checkpoints:
    """The checkpoints of one peer. Reading and writing block; they run in a thread."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._kept = directory, ImmutableTensors(directory)

    def save(self, snapshot: Snapshot, frames: KeptFrames) -> None:
        """Write a checkpoint and the messages of its round; they are on disk when this returns."""
        self.directory.mkdir(parents=True, exist_ok=True)
        state = tensor_file(snapshot.tensors)
        messages = pack_frames(frames)
        for digest, tensor in snapshot.new.items():
            write_atomically(self._kept.path(digest), tensor_file({"value": tensor}))
        self._write("round", snapshot.round, "safetensors", state)
        self._write("messages", snapshot.round, "safetensors", messages)
        sync(self.directory)
        content = {"state": _content_digest(state), "messages": _content_digest(messages), "facts": snapshot.facts}
        if snapshot.unchanging:
            content["unchanging"] = dict(snapshot.unchanging)
        seal = {"content": content, "digest": _content_digest(json.dumps(content).encode())}
        self._write("round", snapshot.round, "json", json.dumps(seal).encode())
        sync(self.directory)

    def rounds(self) -> list[int]:
        """Rounds of which a checkpoint was sealed, oldest first, whole or not."""
        return self._numbers("round", "json")

    def newest_whole(self) -> int:
        """The newest round whose checkpoint is whole; -1 if none is."""
        return next((round for round in reversed(self.rounds()) if self.damage(round) is None), -1)

    def damage(self, round: int) -> str | None:
        """What is wrong with a checkpoint and the messages of its round; None if it is whole.

        What never changes is part of every checkpoint that has it.
        """
        return self._damage(round, ("state", "messages"))

    def damaged_messages(self, before: int) -> dict[int, str]:
        """Earlier rounds whose kept messages are damaged, and how: a checkpoint stands on them as well."""
        found = {at: self._damaged_messages(at) for at in self._message_rounds() if at < before}
        return {at: why for at, why in found.items() if why}

    def load(self, round: int) -> tuple[Snapshot, dict[int, KeptFrames]]:
        """A checkpoint that is whole, and all messages up to its round that are still kept and whole."""
        seal = self._seal(round)
        tensors = safetensors.torch.load(read(self._path("round", round, "safetensors")))
        damaged = self.damaged_messages(round)
        kept = {
            at: unpack_frames(read(self._path("messages", at, "safetensors")))
            for at in self._message_rounds()
            if at <= round and at not in damaged
        }
        unchanging = seal["unchanging"]
        tensors |= {name: self._kept.read(digest) for name, digest in unchanging.items()}
        return Snapshot(round, tensors, seal["facts"], unchanging), kept

    def tidy(self) -> None:
        """After a process that was killed: its renames are put on disk, as they will be announced; what it had not
        sealed or only half written is removed."""
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

    def drop_after(self, round: int) -> None:
        """Remove what lies after a round that is gone back to."""
        if beyond := [at for at in {*self.rounds(), *self._message_rounds()} if at > round]:
            self._drop(beyond)
        self._drop_unsealed()

    def _drop(self, beyond: Collection[int]) -> None:
        # A power cut must not leave a seal over files that are gone: pruned messages look the same.
        for at in beyond:
            self._path("round", at, "json").unlink(missing_ok=True)
        sync(self.directory)
        for at in beyond:
            for kind in ("round", "messages"):
                self._path(kind, at, "safetensors").unlink(missing_ok=True)

    def _drop_unsealed(self) -> None:
        """Of what never changes, that which no checkpoint has: it is written once more when its round is replayed."""
        try:
            sealed = {digest for at in self.rounds() for digest in self._seal(at)["unchanging"].values()}
        except (OSError, ValueError, KeyError):
            return  # a seal that cannot be read may be brought back from a copy
        self._kept.drop_all_but(sealed)

    def prune(self, low_watermark: int, wanted: Collection[int]) -> None:
        """Set aside what nobody will ask for: messages, but of `wanted` rounds, and older checkpoints but two.

        The newest of those up to `low_watermark` stays, too: that may be the last round to which all can go back.
        """
        for at in self._message_rounds():
            if at not in wanted:
                self._set_aside("messages", at, "safetensors")
        rounds = self.rounds()
        last_resort = max((at for at in rounds if at <= low_watermark), default=-1)
        for at in rounds[:-2]:
            if at < last_resort:
                self._set_aside("round", at, "json")  # the seal first
                self._set_aside("round", at, "safetensors")
        # Before they are written over: a power cut must not bring an old name back with other content.
        sync(self.directory)

    def _write(self, kind: str, round: int, suffix: str, content: Buffer | Sequence[Buffer]) -> None:
        write_atomically(self._path(kind, round, suffix), content, self._spare(kind, suffix))

    def _set_aside(self, kind: str, round: int, suffix: str) -> None:
        """Remove a file, but keep the newest so removed of each kind: the next one is written over it."""
        with suppress(FileNotFoundError):
            self._path(kind, round, suffix).replace(self._spare(kind, suffix))

    def _spare(self, kind: str, suffix: str) -> Path:
        return self.directory / f".spare-{kind}.{suffix}"

    def _damage(self, round: int, parts: Iterable[str]) -> str | None:
        try:
            seal = self._seal(round)
            for part in parts:
                path = self._path("round" if part == "state" else part, round, "safetensors")
                if part == "messages" and not path.exists():
                    continue  # pruned: nobody will ask for them
                if _content_digest(read(path)) != seal[part]:
                    return f"the checksum of its {part} is wrong"
            return self._kept.damage(seal["unchanging"].values())
        except (OSError, ValueError, KeyError) as error:
            return f"it cannot be read ({type(error).__name__})"

    def _damaged_messages(self, round: int) -> str | None:
        """By the round's seal, or by the frames' own checksums where the seal is what is damaged."""
        try:
            content = read(self._path("messages", round, "safetensors"))
            try:
                sealed = self._seal(round)["messages"]
            except (OSError, ValueError, KeyError):
                check_frames(content)
                return None
            if _content_digest(content) != sealed:
                raise ValueError("wrong checksum")
        except (OSError, ValueError, KeyError, BadFrameError) as error:
            return f"the messages of round {round} are damaged ({error})"
        return None

    def _seal(self, round: int) -> dict[str, Any]:
        """What was sealed; ValueError or KeyError when that is damaged itself."""
        try:
            seal = json.loads(read(self._path("round", round, "json")))
            content: dict[str, Any] = seal["content"]
            if _content_digest(json.dumps(content).encode()) != seal["digest"]:
                raise ValueError("the seal's own checksum is wrong")
        except (TypeError, RecursionError) as error:
            raise ValueError("it is no seal") from error
        return {"unchanging": {}} | content

    def _message_rounds(self) -> list[int]:
        return self._numbers("messages", "safetensors")

    def _numbers(self, kind: str, suffix: str) -> list[int]:
        """The rounds of the files that `_path` could have named; anything else there is somebody else's."""
        try:
            with os.scandir(self.directory) as entries:
                files = {entry.name for entry in entries if entry.is_file()}
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []
        middles = (name.removeprefix(f"{kind}-").removesuffix(f".{suffix}") for name in files)
        return sorted(
            at for at in {int(one) for one in middles if one.isdecimal()} if _file_name(kind, at, suffix) in files
        )

    def _path(self, kind: str, round: int, suffix: str) -> Path:
        return self.directory / _file_name(kind, round, suffix)


def _file_name(kind: str, round: int, suffix: str) -> str:
    return f"{kind}-{round:04d}.{suffix}"


def _content_digest(content: Buffer | Sequence[Buffer]) -> str:
    digest = xxhash.xxh3_128()
    for buffer in [content] if isinstance(content, Buffer) else content:
        digest.update(buffer)
    return digest.hexdigest()
