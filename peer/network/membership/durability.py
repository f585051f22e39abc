"""Which rounds are on whose disk, as far as is known here, and how far ahead anyone may go (rules R3 and R6)."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

STALENESS_BOUND = 4
"""W: nobody starts a round more than so many after the least durable round of all. Bounds every store."""
NOTHING = -1


class Durability:
    """The durable round of every peer; values only grow."""

    def __init__(self, members: Sequence[str]) -> None:
        self.durable = dict.fromkeys(members, NOTHING)
        self.version = 0
        """Grows with every change."""
        self._changed = asyncio.Event()

    @property
    def low_watermark(self) -> int:
        """The least durable round of all peers."""
        return min(self.durable.values())

    def learn(self, durable: Mapping[str, int]) -> None:
        """Merge what a neighbour knows."""
        news = {peer: at for peer, at in durable.items() if at > self.durable.get(peer, at)}
        self.durable |= news
        if news:
            self.version += 1
            self._changed.set()

    def since(self, told: Mapping[str, int]) -> dict[str, int]:
        """What has grown since the rounds in `told`."""
        return {peer: at for peer, at in self.durable.items() if at > told.get(peer, NOTHING)}

    async def beyond(self, version: int) -> None:
        """Wait until something has changed since `version`."""
        while self.version == version:
            self._changed.clear()
            await self._changed.wait()

    def behind(self, round: int) -> dict[str, int]:
        """Who is more than W rounds behind `round`, as far as is known here, and the round each has on disk."""
        return {peer: at for peer, at in self.durable.items() if at < round - STALENESS_BOUND}

    async def allows(self, round: int) -> None:
        """Wait until nobody is more than W rounds behind `round`."""
        while self.behind(round):
            await self.beyond(self.version)

    async def reached(self, peers: Collection[str], round: int) -> None:
        """Wait until all of `peers` have `round` on disk."""
        while any(self.durable[peer] < round for peer in peers):
            await self.beyond(self.version)
