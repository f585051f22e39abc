"""A round's end on disk: all state, and every message a neighbour may still ask for (rules R2, R3 and R6).

checkpoint/round-0003.safetensors    the state after round 3
checkpoint/messages-0003.safetensors the frames sent in round 3, with their receivers
checkpoint/round-0003.json           written last: checksums of both, so that what is whole can be told from what is not
checkpoint/kept-*.safetensors        each a tensor that never changes, written once and named by its checksum
checkpoint/.spare-*                  files that nobody needs any more: the next ones are written over them
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import xxhash
from torch import Tensor

from peer.files import read, sync, write_atomically
from peer.network.streams.outbox import Frames
from peer.network.wire.frames import BadFrameError
from peer.runtime.kept_tensors import KeptTensors, as_file
from peer.runtime.message_file import check_frames, packed, unpacked


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
        self.directory, self._kept = directory, KeptTensors(directory)

    def save(self, snapshot: Snapshot, frames: Frames) -> None:
        """Write a checkpoint and the messages of its round; they are on disk when this returns."""
        self.directory.mkdir(parents=True, exist_ok=True)
        state = safetensors.torch.save(dict(snapshot.tensors))
        messages = packed(frames)
        for digest, tensor in snapshot.new.items():
            write_atomically(self._kept.path(digest), as_file(tensor))
        self._write("round", snapshot.round, "safetensors", state)
        self._write("messages", snapshot.round, "safetensors", messages)
        sync(self.directory)
        content = {"state": _digest(state), "messages": _digest(messages), "facts": snapshot.facts}
        if snapshot.unchanging:
            content["unchanging"] = dict(snapshot.unchanging)
        seal = {"content": content, "digest": _digest(json.dumps(content).encode())}
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

    def load(self, round: int) -> tuple[Snapshot, dict[int, Frames]]:
        """A checkpoint that is whole, and all messages up to its round that are still kept and whole."""
        seal = self._seal(round)
        tensors = safetensors.torch.load(read(self._path("round", round, "safetensors")))
        damaged = self.damaged_messages(round)
        kept = {
            at: unpacked(read(self._path("messages", at, "safetensors")))
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

    def _write(self, kind: str, round: int, suffix: str, content: bytes) -> None:
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
                if _digest(read(path)) != seal[part]:
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
            if _digest(content) != sealed:
                raise ValueError("wrong checksum")
        except (OSError, ValueError, KeyError, BadFrameError) as error:
            return f"the messages of round {round} are damaged ({error})"
        return None

    def _seal(self, round: int) -> dict[str, Any]:
        """What was sealed; ValueError or KeyError when that is damaged itself."""
        try:
            seal = json.loads(read(self._path("round", round, "json")))
            content: dict[str, Any] = seal["content"]
            if _digest(json.dumps(content).encode()) != seal["digest"]:
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
        return sorted(at for at in {int(one) for one in middles if one.isdecimal()} if _name(kind, at, suffix) in files)

    def _path(self, kind: str, round: int, suffix: str) -> Path:
        return self.directory / _name(kind, round, suffix)


def _name(kind: str, round: int, suffix: str) -> str:
    return f"{kind}-{round:04d}.{suffix}"


def _digest(content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(content)
