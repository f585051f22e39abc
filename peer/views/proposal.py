"""One attempt of one member to have the next view decided.

The proposer's own acceptor is asked first, and the others once it has promised: its promise is then on disk, so that
after a crash the same ballot is not used again for something else.
"""

from collections.abc import Mapping, Sequence

from peer.views.messages import (
    Accept,
    Accepted,
    Ballot,
    Behind,
    Decided,
    Heard,
    Prepare,
    Promise,
    Refused,
    Release,
    Reply,
    Request,
)
from peer.views.states import TRANSITIONS, ProposalState
from peer.views.view import Chain, View
from peer.views.wish import Wish, next_view


class Proposal:
    """Takes the members' answers, gives the requests to send. Its driver says of whom to wait no longer."""

    def __init__(self, chain: Chain, ballot: Ballot, wish: Wish, order: Sequence[str]) -> None:
        """`order`: all ids of the spec, as it orders them. ValueError if the proposer is no member of the view."""
        self.state: ProposalState = "asking"
        self.view: View | None = None
        """The one that is to be accepted, and then is decided."""
        self.outdone_by: Ballot | None = None
        self.newer: tuple[View, ...] = ()
        """When outdated: the views that were decided in the meantime."""
        self.number, self.ballot = chain.current.number + 1, ballot
        self._chain, self._present, self._wish = chain, chain.current, wish
        self._order = order
        self._asked_for = [id for id in self._present.members if id not in wish.expel]
        """Whose answers count."""
        if ballot.proposer not in self._present.members:
            raise ValueError(f"{ballot.proposer} is no member of view {self._present.number}")
        self._promises: dict[str, Promise] = {}
        self._accepted: set[str] = set()
        self._failed: set[str] = set()
        self._to_send: dict[str, Request] = {ballot.proposer: self._asked}

    @property
    def over(self) -> bool:
        return not TRANSITIONS[self.state]

    def requests(self) -> dict[str, Request]:
        """What is to be sent now, by member; each is given once. The last ones come when the attempt is over."""
        given, self._to_send = self._to_send, {}
        return given

    def answered(self, member: str, reply: Reply) -> None:
        """Takes a member's answer; one to an earlier request, or a repeated one, changes nothing."""
        if isinstance(reply, Behind):
            self._to_send[member] = Decided(self._chain.since(reply.number))
        elif not self.over and self._counts(member):
            self._judge(member, reply)

    def _judge(self, member: str, reply: Reply) -> None:
        match reply:
            case Promise(number=number, ballot=ballot) if (number, ballot) == self._mine:
                self._promised(member, reply)
            case Accepted(number=number, ballot=ballot) if (number, ballot) == self._mine:
                self._took(member)
            case Refused(number=number, promised=promised) if number == self.number and promised > self.ballot:
                self.outdone_by = promised
                if promised.proposer in self._wish.expel:
                    self.failed(member)  # or who is voted out could outdo every attempt
                else:
                    self._become("outdone")
            case Refused(promised=promised) if promised == self.ballot:
                self.failed(member)
            case Decided(views=views) if views and views[0].number == self.number:
                self.newer = views
                self._become("outdated")
            case Heard():
                self._to_send[member] = self._asked

    def failed(self, member: str) -> None:
        """The member cannot be reached, or takes too long."""
        if self.over or not self._counts(member):
            return
        self._failed.add(member)
        if self.state == "asking":
            self._count_promises()
        else:
            self._count_accepted()

    def _counts(self, member: str) -> bool:
        return member in self._asked_for

    def _all_have_promised(self) -> bool:
        return self._promises.keys() == set(self._present.members)

    @property
    def _mine(self) -> tuple[int, Ballot]:
        return self.number, self.ballot

    @property
    def _asked(self) -> Request:
        """What a member is asked in this state."""
        return Accept(*self._mine, self.view) if self.view else Prepare(*self._mine)

    def _promised(self, member: str, promise: Promise) -> None:
        if self.state != "asking" or member in self._promises:
            return
        if member == self.ballot.proposer:
            self._to_send |= {id: self._asked for id in self._asked_for if id != member}
        self._promises[member] = promise
        self._failed.discard(member)
        self._count_promises()

    def _count_promises(self) -> None:
        if self.ballot.proposer in self._failed:
            self._become("short")
        elif self._promises.keys() | self._failed >= {*self._asked_for}:
            self._choose()

    def _choose(self) -> None:
        """Which view to ask for, now that no more promises are waited for."""
        if not self._present.is_quorum(self._promises):
            self._become("short")
            return
        voted = carried(self._promises)
        view = voted or next_view(self._present, self._promises, self._wish, self._order)
        if voted or (view and len(view.members) >= self._wish.at_least):
            self.view = view
            self._failed.clear()
            self._to_send = dict.fromkeys(self._asked_for, self._asked)
            self._become("accepting")
        elif self._all_have_promised():
            self._to_send = dict.fromkeys(self._present.members, Release(*self._mine))
            self._become("released")
        else:
            self._become("short")

    def _took(self, member: str) -> None:
        if self.state == "accepting" and self.view:
            self._accepted.add(member)
            self._count_accepted()

    def _count_accepted(self) -> None:
        assert self.view
        if self._present.is_quorum(self._accepted):
            those = {*self._present.members, *self.view.members}
            self._to_send = {id: Decided((self.view,)) for id in self._order if id in those}
            self._become("decided")
        elif self._accepted | self._failed >= {*self._asked_for}:
            self._become("short")

    def _become(self, state: ProposalState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a proposal that is {self.state} cannot become {state}")
        self.state = state


def carried(promises: Mapping[str, Promise]) -> View | None:
    """The view accepted in the highest ballot, which may be decided already and so must be asked for again."""
    votes = [promise.accepted for promise in promises.values() if promise.accepted]
    return max(votes, key=lambda vote: vote.ballot).view if votes else None
