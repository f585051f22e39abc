"""Small federations that only communicate, over memory pipes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.network.collectives import Arrived, Collectives, Expected, Neighbourhood, Outgoing
from peer.network.network import Network
from peer.network.streams.handshake import Identity
from peer.network.streams.stream import NetworkCallbacks, NetworkState
from peer.network.transport.memory import MemoryNetwork
from peer.network.wire.manifest import Kind, Manifest, PayloadSpec, TopKBlock
from peer.network.wire.messages import Resources
from peer.topology import Graph, receivers, senders


@dataclass
class Member:
    """One peer of a small federation that only communicates."""

    id: str
    network: Network
    around: Neighbourhood
    collectives: Collectives

    def sent(self, round: int = 1) -> dict[str, int]:
        """Bytes of tensors by receiver."""
        return {line["to"]: line["bytes"] for line in self.network.audit.close(round)["sent"]}


@asynccontextmanager
async def members(
    size: int,
    floats: int,
    graph: Graph = "directed ring",
    doubles: int = 3,
    kind: Kind = "float32",
    blocks: tuple[TopKBlock, ...] = (),
) -> AsyncIterator[list[Member]]:
    """Peers whose manifest is one vector `v` of so many floats, with scalars beside it, in round 1."""
    ring = tuple(f"peer{i}" for i in range(size))
    manifest = Manifest(
        (PayloadSpec("v", floats, doubles, 0, 9, kind, blocks=blocks), PayloadSpec("record", 0, doubles, 0, 9))
    )
    pipes, made = MemoryNetwork(), []
    async with AsyncExitStack() as running, asyncio.timeout(20):
        for id in ring:
            state = NetworkState(
                Identity(id, {}, manifest.digest), dict(zip(ring, ring, strict=True)), pipes.transport(id)
            )
            network = Network(
                state, manifest, NetworkCallbacks(lambda *_, **__: None, lambda: ("training", 1), Resources)
            )
            around = Neighbourhood(ring, receivers(graph, ring, id), senders(graph, ring, id))
            await network.listen()
            await running.enter_async_context(network.running())
            network.set_edges(0, around.receivers, around.senders)
            network.begin_round(1)
            made.append(Member(id, network, around, Collectives(network, 1)))
        await asyncio.gather(*(member.network.edges.wait_complete() for member in made))
        yield made


def exchange(
    member: Member,
    vector: Tensor,
    scalars: Mapping[str, float] | None = None,
    *,
    to: Collection[str] | None = None,
    expected: Expected | None = None,
) -> Coroutine[Any, Any, dict[str, Arrived]]:
    """An exchange of one vector, of the same length everywhere, with all neighbours or some."""
    around = member.around
    outgoing = Outgoing(dict.fromkeys(around.receivers if to is None else to, vector), scalars or {})
    everyone = Expected(vector.nbytes, around.senders, around.senders)
    return member.collectives.exchange(around, "v", outgoing, expected or everyone)


def all_of(made: list[Member], call: Callable[[int, Member], Awaitable[object]]) -> "asyncio.Future[list[object]]":
    return asyncio.gather(*(call(i, member) for i, member in enumerate(made)))


def vectors(size: int, floats: int) -> list[Tensor]:
    rng = np.random.default_rng(size * 1000 + floats)
    return [torch.tensor(rng.standard_normal(floats), dtype=torch.float32) for _ in range(size)]
