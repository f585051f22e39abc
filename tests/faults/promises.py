"""What members have answered about views, and whether it is still on their disks when they die."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from peer.runtime.membership.membership import Membership
from peer.runtime.membership.register import Register
from peer.spec.recorded_views import VIEWS
from peer.views.messages import Accepted, Promise, Reply, Request
from peer.views.view import View

Hear = Callable[[Membership, Request], Awaitable[Reply]]


class Promises:
    """Of all members of one federation, whose directories are in one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.given: dict[str, list[Promise | Accepted]] = {}
        """What each has answered, the highest ballot of a number last."""

    def heeded(self, hear: Hear) -> Hear:
        """The same, remembered here."""

        async def hear_and_remember(membership: Membership, request: Request) -> Reply:
            reply = await hear(membership, request)
            if isinstance(reply, Promise | Accepted):
                self.given.setdefault(membership.id, []).append(reply)
            return reply

        return hear_and_remember

    def forgotten(self, id: str) -> str | None:
        """What that member has answered and does not know any more."""
        given = self.given.get(id, [])
        if not given:
            return None
        if not (self._directory / id / VIEWS).exists():
            return str(given)
        acceptor = Register.open(self._directory / id, id, View(0, (id,), 0)).acceptor
        slot, number = acceptor.slot, max(one.number for one in given)
        accepted = [one.ballot for one in given if one.number == number and isinstance(one, Accepted)]
        promised = max(one.ballot for one in given if one.number == number)
        if acceptor.chain.current.number >= number:
            return None
        if slot.promised is None or slot.promised < promised:
            return f"its promise {promised} for view {number}"
        if accepted and (slot.accepted is None or slot.accepted.ballot < max(accepted)):
            return f"that it has accepted {max(accepted)} for view {number}"
        return None
