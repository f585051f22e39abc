"""Tensors that never change: each in a file of its own, named by its checksum and written once."""

from collections.abc import Collection
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from peer.files import read
from peer.runtime.journal import tensor_digest


class KeptTensors:
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


def as_file(tensor: Tensor) -> bytes:
    return safetensors.torch.save({"value": tensor})
