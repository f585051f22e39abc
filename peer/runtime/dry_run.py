"""What a protocol would send, counted by letting it run on nothing.

The protocol's own rounds run against a `Peer` with the true model that trains nothing, hears its own vectors from
every neighbour and counts the bytes of what it would send: no protocol has to say its traffic twice, and a wrong call
shows itself before anything is started.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from peer.errors import InputError
from peer.network.collectives.pending import Pending
from peer.protocols.base import Init, Protocol, Received
from peer.protocols.declarations import Share
from peer.runtime.member_rows import first_rows
from peer.runtime.rehearsal import Rehearsal, Rehearsing, recorded, was_awaited
from peer.runtime.sendable import Of, To

FLOAT64 = 8
KNOWN = ("proportions", "order")
"""Records of which a dry run knows what the others tell; in all others it sees its own numbers from everybody."""


class DryRun(Rehearsing):
    """One peer that only counts.

    `sent` is what it has sent so far, in bytes of tensors and numbers; `calls` are the (round, collective, vector or
    record, names of numbers) in which all peers take part, so everybody's are the same.
    """

    def __init__(self, id: str, protocol: Protocol, rehearsal: Rehearsal) -> None:
        super().__init__(id, protocol, rehearsal)
        self.sent = 0
        self.calls: list[tuple[int | str, ...]] = []

    async def set_up(self, init: Init) -> int:
        """Bytes sent before round 1."""
        first_rows(self._protocol, self.state, len(self.members))
        await self._protocol.start(self, init)
        return self.sent

    async def count(self, round: int) -> int:
        """Bytes sent in a round; rounds are counted in ascending order, some may be left out."""
        before, self.round, own = self.sent, round, {*vars(self)}
        await self._protocol.round(self)
        for name in {*vars(self)} - own:
            raise InputError(
                f"`{self._protocol.name}` sets `peer.{name}`, which a crash would lose; write peer.state[{name!r}] "
                "= ..., or a variable of the round's own"
            )
        self.made = [one for one in self.made if not was_awaited(one[1])]  # the others hold what they brought
        self._protocol.check_state(self)
        return self.sent - before

    def never_awaited(self) -> list[str]:
        """The methods that were called without `await`."""
        forgotten = [(name, work) for name, work in self.made if not was_awaited(work)]
        for _, work in forgotten:
            work.close()
        return [name for name, _ in forgotten]

    @recorded
    def exchange(self, share: str, /, to: To = None, of: Of = None, **scalars: float) -> Pending[dict[str, Received]]:
        pending = [work for _, work in self.made if isinstance(work, Pending) and not work.awaited]
        asked = self._calls.exchange(self, share, to, of, scalars, pending=len(pending))
        self._called("exchange", share, scalars)
        beside = FLOAT64 * len(scalars)
        self.sent += sum(self._bytes(asked.share, vector) + beside for vector in asked.vectors.values())
        heard = next(iter(asked.vectors.values()), None)
        own = self._stand_in(asked.share) if heard is None else heard.clone()
        heard_of = dict.fromkeys(asked.around.senders if of is None else of, own)
        return Pending(lambda: self._hear(heard_of, scalars))

    async def _hear(self, vectors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> dict[str, Received]:
        return {id: Received(vector.clone(), scalars) for id, vector in vectors.items()}

    @recorded
    async def weighted_mean(self, share: str, weight: float) -> None:
        declared, vector = self._calls.weighted_mean(self, share, weight)
        self._called("weighted_mean", share, {})
        peers = len(self.members)
        self.sent += 2 * (peers - 1) * self._bytes(declared, vector) // peers

    @recorded
    async def all_gather(self, share: str, /, **scalars: float) -> dict[str, Received]:
        declared, vector, _ = self._calls.all_gather(self, share, scalars)
        self._called("all_gather", share, scalars)
        self.sent += (len(self.members) - 1) * (self._bytes(declared, vector) + FLOAT64 * len(scalars))
        return {id: Received(vector.clone(), scalars) for id in self.members}

    @recorded
    async def gather(self, record: str, values: Tensor) -> dict[str, Tensor]:
        numbers = self._calls.gather(self, record, values)
        self._called("gather", record, {})
        self.sent += FLOAT64 * len(numbers) * (len(self.members) - 1)
        known = self._rehearsal.proportions if record == "proportions" else {}
        told = torch.tensor(numbers, dtype=torch.float64)
        return {id: known.get(id, told) for id in self.members}

    @recorded
    async def agree(self, record: str, decision: Tensor | None) -> None:
        await self.gather(record, torch.zeros(1))

    @recorded
    async def pass_token(self, share: str) -> None:
        declared, vector = self._calls.pass_token(self, share)
        self.sent += self._bytes(declared, vector)

    @recorded
    async def receive_token(self, share: str) -> Tensor:
        return self._stand_in(self._calls.receive_token(self, share))

    @recorded
    async def reorder(self, order: Sequence[str], cost_before: float, cost_after: float) -> None:
        await self.agree("order", None)
        self.ring = tuple(order)

    def _bytes(self, share: Share, vector: Tensor) -> int:
        """Of a vector as it travels."""
        return self._encoding.length(share, vector.numel())

    def _stand_in(self, share: Share) -> Tensor:
        """What somebody else may send of a vector: one's own, or zeros where this peer has none."""
        if share.own and share.vector not in self.state:
            length = self._calls.sendable.length(share) or share.size or self._vector.numel()
            return torch.zeros(length, dtype=torch.uint8 if share.bytes else torch.float32)
        return self._calls.sendable.vector(share, self).clone()

    def _called(self, collective: str, name: str, scalars: Mapping[str, float]) -> None:
        self.calls.append((self.round, collective, name, *sorted(scalars)))
