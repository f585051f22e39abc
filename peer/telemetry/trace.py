"""`trace: true`: each round's shared vectors on disk, so that anyone can recompute every blend."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor

from peer.files import write_atomically
from peer.telemetry.results import traced


class Trace:
    """The vectors and facts of one round."""

    def __init__(self, out: Path, round: int, shared: str, start: Tensor) -> None:
        self.shared = shared
        """Name of the vector whose course is traced."""
        self._path = out / traced(round)
        self._vectors = {"start": copy(start)}
        self.facts: dict[str, object] = {"accuracy": None, "gamma": None}
        self._exchanges = 0

    def communicates(self, vector: Tensor) -> None:
        """A communication is about to begin; what the vector is before the first one counts."""
        if "before" not in self._vectors:
            self._vectors["before"] = copy(vector)

    def sends(self, vector: Tensor) -> None:
        """Something other than the vector leaves; what leaves first counts."""
        if "sent" not in self._vectors:
            self._vectors["sent"] = copy(vector)

    def passes(self, vector: Tensor) -> None:
        """An exchange is about to begin: if it is not the first, a pass has ended."""
        if self._exchanges:
            self._vectors[f"pass-{self._exchanges}"] = copy(vector)
        self._exchanges += 1

    def write(self, end: Tensor, facts: Mapping[str, object]) -> None:
        """Write the file; its metadata are Python literals."""
        self._vectors.setdefault("before", copy(end))
        self._vectors["after"] = copy(end)
        if self._exchanges > 1:
            self._vectors[f"pass-{self._exchanges}"] = copy(end)
        every = {**self.facts, **facts}
        metadata = {name: value if isinstance(value, str) else repr(value) for name, value in every.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, safetensors.torch.save(self._vectors, metadata))


def copy(vector: Tensor) -> Tensor:
    """What it is now, on the CPU and in one piece, as safetensors wants it."""
    return vector.detach().to("cpu", copy=True).contiguous()
