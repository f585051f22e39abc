"""What members have answered about views, and whether it is still on their disks when they die."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from peer.runtime.membership.membership import Membership
from peer.spec.recordings import VIEWS, read_views
from peer.views.statements import Ballot, Promised, Reply, Request, Vote, Voted

Hear = Callable[[Membership, Request], Awaitable[Reply]]


class Promises:
    """The promises of all members of a federation, whose directories are in one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.given: dict[str, list[tuple[int, Ballot, Vote | None]]] = {}
        """What each has answered: to which number, in which ballot, and its vote if it was one."""

    def heeded(self, hear: Hear) -> Hear:
        """Wrap a handler so that its answers are remembered here."""

        async def hear_and_remember(membership: Membership, request: Request) -> Reply:
            reply = await hear(membership, request)
            if isinstance(reply, Promised):
                promise = reply.promise.statement
                self.given.setdefault(membership.id, []).append((promise.number, promise.ballot, None))
            elif isinstance(reply, Voted):
                vote = reply.vote.statement
                self.given.setdefault(membership.id, []).append((vote.number, vote.ballot, vote))
            return reply

        return hear_and_remember

    def forgotten(self, id: str) -> str | None:
        """What that member has answered and does not know any more."""
        given = self.given.get(id, [])
        if not given:
            return None
        if not (self._directory / id / VIEWS).exists():
            return str(given)
        memory = read_views(self._directory / id)
        number = max(number for number, _, _ in given)
        if len(memory.decisions) >= number:
            return None
        slot = memory.slot
        promised = max(ballot for of, ballot, _ in given if of == number)
        if slot.number != number or slot.promised is None or slot.promised < promised:
            return f"its promise {promised} for view {number}"
        votes = [vote for of, ballot, vote in given if of == number and ballot == promised and vote]
        if any(vote.phase == "accept" for vote in votes) and (not slot.vote or slot.vote.statement.ballot != promised):
            return f"that it has voted for {votes}"
        committed = slot.released == promised or (slot.lock is not None and slot.lock.ballot == promised)
        if any(vote.phase == "commit" for vote in votes) and not committed:
            return f"that it has committed to {votes}"
        return None
