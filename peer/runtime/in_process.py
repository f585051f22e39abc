"""A whole federation in one process: the same links, keys and checkpoints, but the bytes go through memory.

It serves tests, and studies with hundreds of peers. Training runs in one thread, peer after peer. `federate` goes from
a federation's file to the files that its peers leave, and is meant for tests of user code.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from peer.learning.data.sources import Source
from peer.network.transport import DurabilityBoard
from peer.network.transport.memory import MemoryNetwork
from peer.process import raise_open_files, return_memory
from peer.runtime.data_and_model import SharedData
from peer.runtime.lifecycle import RuntimeLimits
from peer.runtime.membership.view_runner import ViewRunner
from peer.runtime.runtime import Runtime
from peer.runtime.setup import prepare
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.spec.peer import PeerConfig, check_device, peer_data
from peer.telemetry.results import traced
from peer.telemetry.telemetry import Telemetry


async def run_in_process(
    spec: Spec,
    out: Path,
    bounds: RuntimeLimits = RuntimeLimits(),
    own: Mapping[str, Source] | None = None,
    device: str = "cpu",
) -> dict[str, Runtime]:
    """Run every peer of `spec` to its end, each writing into `out`/<id>; return the finished runtimes by id.

    own: data of individual peers, by id, in place of their part of the federation's data. device: that of all models.
    """
    torch.set_num_threads(1)
    raise_open_files()
    return_memory()
    # A board has the rounds of all peers; if views change, not all of them count.
    board = None if spec.on_loss == "bypass" else DurabilityBoard()
    network, runners = MemoryNetwork(board), dict[str, ViewRunner]()
    bounds = bounds.in_one_process(len(spec.ring), spec.patience)
    addresses, common = spec.addresses, SharedData(spec)
    configs = [_config(id, spec, out, (own or {}).get(id), device) for id in spec.ids]
    with ThreadPoolExecutor(1, "train") as executor:
        for config in configs:
            transport = partial(network.transport, addresses[config.id])
            runners[config.id] = ViewRunner(prepare(config, spec, common), transport, executor, Telemetry(), bounds)
        async with asyncio.TaskGroup() as group:
            for runner in runners.values():
                group.create_task(runner.run())
    return {id: runner.runtime for id, runner in runners.items() if runner.runtime}


def _config(id: str, spec: Spec, out: Path, own: Source | None, device: str) -> PeerConfig:
    federation = out / "federation.yaml"
    return PeerConfig(federation=federation, id=id, device=device, out=out / id, data=peer_data(id, spec, own))


@dataclass(frozen=True)
class Federated:
    """What a finished federation left in the directory `out`, in a folder for each of the peers `ids`."""

    out: Path
    ids: tuple[str, ...]

    def trace(self, peer: str, round: int) -> dict[str, NDArray[np.float32]]:
        """The shared vector, float32 (n,), at the round's `start`, and `before` and `after` it was communicated."""
        return load_file(self.out / peer / traced(round))

    def result(self, peer: str) -> dict[str, Any]:
        """A peer's `result.json`: figures, and what it noted in each round."""
        content: dict[str, Any] = json.loads((self.out / peer / "result.json").read_text())
        return content


def federate(
    federation: str | Path,
    out: str | Path,
    *,
    peers: int | None = None,
    overrides: Sequence[str] = (),
    device: str = "cpu",
) -> Federated:
    """Run the federation of the file `federation`, with all its peers in this process, and leave its files in `out`.

    `peers`, `overrides` and `device` correspond to `--peers`, `--set` and `--device` of `dfl-launch run`. InputError if
    the settings are wrong; an ExceptionGroup of the peers' errors if they fail.
    """
    check_device(device, "device")
    spec = load_spec(Path(federation), peers=peers, overrides=["trace=true", *overrides])
    asyncio.run(run_in_process(spec, Path(out), device=device))
    return Federated(Path(out), tuple(spec.ids))
