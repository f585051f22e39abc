"""A federation within this process, from its file to what it left: for tests of code of one's own."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from peer.runtime.in_process import run_in_process
from peer.spec.peer import load_spec
from peer.telemetry.results import traced


@dataclass(frozen=True)
class Federated:
    """What a finished federation left in the directory `out`, in a folder for each of the peers `ids`."""

    out: Path
    ids: tuple[str, ...]

    def trace(self, peer: str, round: int) -> dict[str, NDArray[np.float32]]:
        """The shared vector, float32 (n,), at the round's `start`, `before` it was communicated, and `after`."""
        return load_file(self.out / peer / traced(round))

    def result(self, peer: str) -> dict[str, Any]:
        """Its `result.json`: figures, and what it noted in each round."""
        content: dict[str, Any] = json.loads((self.out / peer / "result.json").read_text())
        return content


def federate(federation: Path, out: Path, *, peers: int | None = None, overrides: Sequence[str] = ()) -> Federated:
    """Run what the file `federation` says, every peer of it within this process, and leave all of it in `out`.

    `peers` and `overrides` are as `--peers` and `--set` of `dfl-launch run`. InputError where something is wrong; an
    ExceptionGroup of what ended the peers, where they failed.
    """
    spec = load_spec(federation, peers=peers, overrides=["trace=true", *overrides])
    asyncio.run(run_in_process(spec, out))
    return Federated(out, tuple(spec.ids))
