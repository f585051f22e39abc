"""What the peers of one process have on disk, where all of them can read it.

Word of mouth round a ring of N peers is N² messages a round: of each peer's news, one at each other peer.
"""

import asyncio
from collections.abc import Collection

from peer.network.membership.durability import Durability
from peer.network.membership.edges import Edges


class Board:
    """Everybody's durable round, in its own word."""

    def __init__(self) -> None:
        self.rounds: dict[str, int] = {}
        self._news: dict[str, asyncio.Event] = {}
        """Of those who are waited for, the next."""

    def post(self, peer: str, round: int) -> None:
        self.rounds[peer] = round
        if news := self._news.pop(peer, None):
            news.set()

    async def news(self, peer: str) -> None:
        """Wait until that peer posts something."""
        await self._news.setdefault(peer, asyncio.Event()).wait()


class PostedDurability(Durability):
    """Reads of others on a board what it would hear of them by the grapevine, and tells nobody of a third.

    What rests on first-hand words still rests on what a neighbour has said over its own stream.
    """

    def __init__(self, id: str, edges: Edges, rounds: int, board: Board) -> None:
        super().__init__(id, edges, rounds)
        self._board = board
        board.post(id, self.own)

    def announce(self, round: int) -> None:
        super().announce(round)
        self._board.post(self._id, self.own)

    def known(self, listener: str) -> dict[str, int]:
        return {}

    def _word(self, peer: str, neighbours: Collection[str]) -> int | None:
        return self._board.rounds.get(peer)

    async def allows(self, round: int) -> None:
        while behind := self.behind(round):
            await self._board.news(next(iter(behind)))
