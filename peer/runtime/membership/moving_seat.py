"""A peer's place in a view of a run whose members change."""

import asyncio
from collections.abc import Awaitable, Callable

from peer.network.membership.edges import Neighbour
from peer.network.network import Network
from peer.network.transport import Pipe, Transport
from peer.runtime.seat import Seat
from peer.views.acceptor import Standing
from peer.views.view import View


class MovingSeat(Seat):
    """Rounds begin here only while no next view is being decided on."""

    def __init__(
        self, view: View, id: str, answer: Callable[[Pipe], Awaitable[None]], taken: Callable[[], None]
    ) -> None:
        super().__init__(view)
        self._id, self._answer, self._taken = id, answer, taken
        self.network: Network | None = None
        """Since the peer has taken part in this view."""
        self.transport: Transport | None = None
        """While it does."""
        self.started = view.first - 1
        """The last round that this peer has begun."""
        self._durable = view.first - 1
        """The last round that is on disk for good."""
        self._whole = -1
        """The round of the checkpoint that was read back at the start of this life: it can go back there, too."""
        self._promised: int | None = None
        self._last: int | None = None
        self._free = asyncio.Event()

    def take(self, network: Network, done: int) -> None:
        self.network, self.transport, self.started = network, network.transport, max(self.started, done)
        self._whole = done
        if self._last is not None:
            network.end_after(self._last)
        self._taken()

    def hold(self, promised: int | None) -> None:
        """No round may begin, and nobody hears of later ones on disk than the one promised; None: both may be again.

        Whoever heard of a later one might do away with the state to which all are to go back.
        """
        self._promised = promised
        if promised is not None:
            self._free.clear()
            return
        self._free.set()
        if self.transport and self.network:
            self.network.announce(self._durable)

    def tellable(self, durable: int) -> int:
        self._durable = max(self._durable, durable)
        return durable if self._promised is None else min(durable, self._promised)

    async def may_start(self, round: int) -> None:
        await self._free.wait()
        if self._last is None or round <= self._last:
            self.started = round

    def leave(self) -> None:
        """The life in this view is over."""
        self.transport = None

    async def answer(self, pipe: Pipe) -> None:
        await self._answer(pipe)

    def end_after(self, round: int) -> None:
        """The next view is planned, and this one is over then."""
        self._last = round
        if self.network:
            self.network.end_after(round)

    def standing(self, current: View) -> Standing | None:
        """How this peer stands for a decision among the members of the current view; None before it knows."""
        taken_in = dict(current.entrants).get(self._id)
        if self.view.number < current.number and taken_in is not None:
            return Standing(current.first - 1, current.first, current.first - 1, taken_in)
        if self.network is None:
            return None
        durable = max(self.network.durability.own, self._whole)
        if self.view.number < current.number:
            durable = min(durable, current.first - 1)
        brought = dict(self.view.entrants).get(self._id)
        if brought is None:
            return Standing(durable, 0, self.started, -1)
        return Standing(durable, self.view.first, self.started, brought)

    @property
    def has_begun(self) -> bool:
        """Whether everybody has been there at some time."""
        return self.view.number > 0 or self.started >= 0

    @property
    def misses_somebody(self) -> bool:
        """Whether a neighbour is away, or has not come yet."""
        return self.network is not None and any(one.state not in ("up", "left") for one in self._around(self.network))

    def has_lost(self, member: str, durable: int) -> bool:
        """Whether a member that can go back to the end of that round only had a later one on disk."""
        return self.network is not None and durable < self.network.durability.of(member)

    def silent(self, seconds: float) -> list[str]:
        """Neighbours that have given no sign of life for so long, have not come, or have lost what they had."""
        if self.network is None:
            return []
        before, regressed = asyncio.get_running_loop().time() - seconds, self.network.regressed
        around = [one for one in self._around(self.network) if one.state != "left"]
        return [one.id for one in around if one.heard < before or one.id in regressed]

    def _around(self, network: Network) -> list[Neighbour]:
        return [network.edges.neighbours[id] for id in sorted(network.edges.current())]
