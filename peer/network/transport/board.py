"""What the peers of one process have on disk, where all of them can read it.

Word of mouth round a ring of N peers is N² messages a round: of each peer's news, one at each other peer.
"""

import asyncio


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
