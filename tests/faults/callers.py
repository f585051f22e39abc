"""Protocols that make every call there is, for the simulation: one with the same bits in each run, one with secrets."""

from collections.abc import Mapping
from itertools import count
from random import Random
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from peer.learning.data.samples import Batch
from peer.learning.training.step import TrainingStep
from peer.protocols.base import Init, Peer, Protocol
from peer.protocols.blocks.training import PlainSGD
from peer.protocols.blocks.vectors import blend
from peer.protocols.declarations import Record, Share
from peer.topology import Graph

calls = count()
"""Grows with each draw of any peer in this process: a value that is drawn again is another one."""


class EveryCall(PlainSGD, Protocol):
    """On a complete graph: sends before it trains, masks, sends each its own, relays, agrees, trains by itself."""

    name: Literal["callers:EveryCall"] = "callers:EveryCall"
    paper: ClassVar[str] = "none: for tests of the calls"
    records: ClassVar[tuple[Record, ...]] = (Record("scores", "peers"), Record("drop"))
    replicated: ClassVar[tuple[str, ...]] = ("total",)
    by_peer: ClassVar[Mapping[str, float]] = {"opinion": 1.0}
    graph: ClassVar[Graph] = "complete"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (
            Share("model", scalars=2),
            Share("update", like="model", scalars=1),
            Share("own", size=40),
            Share("sealed", size=99, bytes=True),
        )

    async def start(self, peer: Peer, init: Init) -> None:
        peer.state["total"] = torch.zeros_like(peer.model)

    async def round(self, peer: Peer) -> None:
        travelling = peer.exchange("model", loss=0.5, accuracy=await peer.accuracy())
        await peer.train(*self.local())
        received = await travelling
        weight = 1 / len(peer.members)
        blend(peer.model, weight, [(weight, received[j].vector) for j in peer.members if j in received])
        await self.whisper(peer)
        await self.share_updates(peer)

    async def whisper(self, peer: Peer) -> None:
        """To drawn neighbours; and each its own, under a mask that both ends know."""
        others, me = [j for j in peer.members if j != peer.id], peer.members.index(peer.id)
        drawn = peer.shared_generator("mask").random((len(peer.members),) * 2) < 0.5
        to = [j for j in others if drawn[me, peer.members.index(j)]]
        of = [j for j in others if drawn[peer.members.index(j), me]]
        heard = await peer.exchange("model", to=to)
        assert sorted(heard) == sorted(of)
        mine = {j: torch.full((1 + peer.members.index(j),), float(me + peer.round)) for j in to}
        own = await peer.exchange("own", to=mine, of=of)
        assert [len(own[j].vector) for j in of] == [1 + me] * len(of)
        peer.state["sealed"] = torch.arange(7 * me + peer.round, dtype=torch.uint8)
        sealed = await peer.exchange("sealed", to=to, of=of)
        for j in of:
            peer.state["opinion"][peer.members.index(j)] = own[j].vector.mean() + len(sealed[j].vector)

    async def share_updates(self, peer: Peer) -> None:
        before = peer.model.clone()
        await peer.compute(self.descend, peer)
        peer.state["update"] = peer.model - before
        updates = await peer.all_gather("update", samples=peer.samples)
        total = sum((one.vector * one.scalars["samples"] for one in updates.values()), torch.zeros_like(before))
        peer.state["total"] = total
        scores = await peer.gather("scores", torch.linspace(0, 1, len(peer.members)))
        best = torch.stack([*scores.values()]).sum(0).argmax()
        await peer.agree("drop", best if peer.round % 2 or peer.position else None)
        await peer.weighted_mean("update", weight=peer.position)
        peer.model.add_(peer.state["update"], alpha=0.1)
        peer.note(norms=[float(one.vector.norm()) for one in updates.values()], best=float(best))

    def descend(self, peer: Peer) -> None:
        for batch in peer.batches(16):
            vector = peer.model.detach().clone().requires_grad_()
            logits = peer.logits(vector, peer.data.x[batch], training=True)
            (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, peer.data.y[batch]), vector)
            peer.model.sub_(gradient, alpha=0.05)


class Updates(PlainSGD, Protocol):
    """Blends extractors with its neighbours and adds everybody's update: all that top-k can send."""

    name: Literal["callers:Updates"] = "callers:Updates"
    paper: ClassVar[str] = "none: for tests of the calls"
    replicated: ClassVar[tuple[str, ...]] = ("total",)

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("extractor", scalars=1), Share("update", like="model", update=True), Share("own", size=3))

    async def round(self, peer: Peer) -> None:
        before = peer.model.clone()
        await peer.train(*self.local())
        peer.state["update"] = peer.model - before
        peer.state["own"] = torch.full((peer.position + 1,), float(peer.round))
        near = await peer.exchange("update", to=[peer.right])
        own = await peer.exchange("own")
        everyone = await peer.all_gather("update")
        peer.state["total"] = sum((one.vector for one in everyone.values()), torch.zeros_like(before))
        peer.model.copy_(before).add_(peer.state["total"], alpha=1 / len(peer.members))
        peer.model.add_(near[peer.left].vector, alpha=float(own[peer.left].vector.sum()) / 100)
        received = await peer.exchange("extractor", loss=0.5)
        blend(peer.extractor, 0.5, [(0.25, received[side].vector) for side in (peer.left, peer.right)])


class Secrets(PlainSGD, Protocol):
    """Each peer draws noise in secret and tells all others, who add it; nothing evens out what one had drawn again."""

    name: Literal["callers:Secrets"] = "callers:Secrets"
    paper: ClassVar[str] = "none: for tests of what is drawn once"
    graph: ClassVar[Graph] = "directed ring"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"), Share("noise", like="model", scalars=2))

    async def start(self, peer: Peer, init: Init) -> None:
        await peer.weighted_mean("model", weight=1)

    async def round(self, peer: Peer) -> None:
        coins = await peer.once(lambda: torch.tensor([next(calls) % 3 for _ in peer.members]))
        assert len(coins) == len(peer.members), "drawn among other members"
        peer.state["noise"] = await peer.once(lambda: draw(len(peer.model)))
        free = await peer.resources()
        told = await peer.all_gather("noise", coin=float(coins[peer.position]), cpus=free.cpus)
        for one in told.values():
            peer.model.add_(one.vector, alpha=0.01 * one.scalars["coin"])


class Keeping(PlainSGD, Protocol):
    """What each peer tells all others in round 2 is kept by them, unchanged, and used in every round."""

    name: Literal["callers:Keeping"] = "callers:Keeping"
    paper: ClassVar[str] = "none: for tests of what never changes"
    unchanging: ClassVar[tuple[str, ...]] = ("own", "others/")
    graph: ClassVar[Graph] = "complete"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"), Share("own", size=200, bytes=True))

    async def round(self, peer: Peer) -> None:
        if peer.round == 2:
            peer.state["own"] = await peer.once(lambda: torch.arange(150, dtype=torch.uint8) + peer.position)
            for k, one in (await peer.exchange("own")).items():
                peer.state[f"others/{k}"] = one.vector
        await peer.train(*self.local())
        kept = [tensor for name, tensor in peer.state.items() if self.state_contract.is_unchanging(name)]
        for tensor in kept:
            peer.model.add_(tensor.float().mean(), alpha=1e-4)
        received = await peer.exchange("model")
        weight = 1 / len(peer.members)
        blend(peer.model, weight, [(weight, received[j].vector) for j in peer.members if j in received])


def draw(size: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(Random(next(calls)).getrandbits(32)).standard_normal(size)).float()


def noisy(step: TrainingStep, batch: Batch) -> Tensor:
    """A training step that draws, and goes by what it kept."""
    kept = step.state.setdefault("mean", torch.zeros(()))
    loss = step.loss(step(batch.inputs + 0.1 * torch.randn_like(batch.inputs)), batch)
    kept.mul_(0.9).add_(loss.detach(), alpha=0.1)
    return loss * (1 + kept)
