"""A whole federation in one process: the same links, keys and checkpoints, only the bytes go through memory.

For tests, and for studies with hundreds of peers. Training runs in one thread, peer after peer.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from peer.learning.data.sources import Source
from peer.network.transport.board import Board
from peer.network.transport.memory import MemoryNetwork
from peer.process import raise_open_files, return_memory
from peer.runtime.bounds import Bounds
from peer.runtime.common import Common
from peer.runtime.membership.lives import Lives
from peer.runtime.runtime import Runtime
from peer.runtime.setup import prepare
from peer.spec.federation import Spec
from peer.spec.own_data import own_data
from peer.spec.peer import PeerConfig
from peer.telemetry.telemetry import Telemetry


async def run_in_process(
    spec: Spec, out: Path, bounds: Bounds = Bounds(), own: Mapping[str, Source] | None = None
) -> dict[str, Runtime]:
    """Run every peer of `spec` to its end, each writing into `out`/<id>; the finished runtimes by id.

    own: data of a peer's own, by id, in place of its part of the federation's.
    """
    torch.set_num_threads(1)
    raise_open_files()
    return_memory()
    board = None if spec.on_loss == "bypass" else Board()  # where views change, so does whose word counts
    network, everyone = MemoryNetwork(board), dict[str, Lives]()
    bounds = bounds.in_one_process(len(spec.ring), spec.patience)
    addresses, common = spec.addresses, Common(spec)
    configs = [_config(id, spec, out, (own or {}).get(id)) for id in spec.ids]
    with ThreadPoolExecutor(1, "train") as executor:
        for config in configs:
            transport = partial(network.transport, addresses[config.id])
            everyone[config.id] = Lives(prepare(config, spec, common), transport, executor, Telemetry(), bounds)
        async with asyncio.TaskGroup() as group:
            for lives in everyone.values():
                group.create_task(lives.run())
    return {id: lives.runtime for id, lives in everyone.items() if lives.runtime}


def _config(id: str, spec: Spec, out: Path, own: Source | None) -> PeerConfig:
    federation = out / "federation.yaml"
    return PeerConfig(federation=federation, id=id, device="cpu", out=out / id, data=own_data(id, spec, own))
