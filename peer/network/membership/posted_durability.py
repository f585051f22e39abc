"""What others have on disk, as they post it where all peers of one process can read it."""

from collections.abc import Collection

from peer.network.membership.durability import Durability
from peer.network.membership.edges import Edges
from peer.network.transport.board import Board


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
