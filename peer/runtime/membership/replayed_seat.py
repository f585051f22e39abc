"""A peer's place in a view of a run whose views were recorded."""

from collections.abc import Callable
from math import inf

from peer.network.membership.durability import Durability
from peer.network.network import Network
from peer.runtime.barriers import drain
from peer.runtime.membership.script import Scene
from peer.runtime.seat import Seat


class ReplayedSeat(Seat):
    """All play the view to the end of its rounds; who is in no later one leaves then."""

    def __init__(self, scene: Scene, patience: float, began: Callable[[], None]) -> None:
        """patience: seconds. began: called when the peer is about to live there."""
        super().__init__(scene.view, patience)
        self._scene, self._began = scene, began
        self.passed = dict.fromkeys(range(scene.view.number), scene.view.first - 1)

    def take(self, network: Network, done: int) -> None:
        network.end_after(self._scene.last)
        self._began()

    def least_wanted(self, durability: Durability) -> int:
        """Not later than the round to which this peer goes back when it is taken in."""
        brought = self._scene.brings_later
        return min([durability.low_watermark, *([brought] if brought >= 0 else [])])

    def patience(self, done: int) -> float:
        """In the run's first view as ever; later for ever, as others may have many rounds to play before it begins."""
        return inf if self._scene.number else self._patience

    async def may_pass_on(self, network: Network) -> None:
        """Who is in no later view may be gone without a word: it is waited for no longer than `patience`."""
        if self._scene.ends:
            await drain(network, self._patience)
            await network.leave()
            return
        while self._scene.stay & {*await drain(network, self._patience)}:
            await network.durability.beyond(network.durability.version)
        if network.edges.neighbours.keys() - self._scene.met_again:
            await network.leave()  # they would wait for this peer's last word, which no later handshake brings
