"""What is drawn, measured or encrypted once: on disk before anything that depends on it leaves (rule R1).

journal/round-0003-0.safetensors    the first value of round 3; a replay of the round reads it again
"""

import hashlib
import re
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from peer.errors import FailedError
from peer.files import sync, write_atomically
from peer.telemetry.trace import copy


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
