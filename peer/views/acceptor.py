"""One member's part in deciding on the next view: what it promises and accepts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from peer.views.messages import (
    Accept,
    Accepted,
    Ask,
    Ballot,
    Behind,
    Consents,
    Decided,
    Denied,
    Enter,
    Expel,
    Heard,
    Leave,
    Poll,
    Prepare,
    Promise,
    Refused,
    Release,
    Reply,
    Request,
    Vote,
)
from peer.views.slot import Slot
from peer.views.states import ANSWERS, STEPS, AcceptorState
from peer.views.view import Chain, View


@dataclass(frozen=True)
class Standing:
    """How a member stands in the training, as `Promise` says it."""

    durable: int
    oldest: int
    started: int
    private: int


NOWHERE = Standing(durable=-1, oldest=0, started=-1, private=-1)
"""Of whoever is asked for no promise."""


class Acceptor:
    """Hears requests and answers them. `state_dict` must be on disk before an answer leaves.

    A driver whose own peer has lost its disk must not let it answer Prepare or Accept until a view has taken it in:
    it has forgotten what it had promised.
    """

    def __init__(self, id: str, chain: Chain) -> None:
        """`chain` is shared: what is heard to be decided extends it."""
        self.id, self.chain = id, chain
        self.consents: frozenset[str] = frozenset()
        """To whose voting out this member consents."""
        self.unheard: frozenset[str] = frozenset()
        """Whose attempts it passes over: enough consent that they are voted out. Known by asking, so not kept."""
        self._kept = Slot(chain.current.number + 1)

    @property
    def slot(self) -> Slot:
        """For the view after the current one; what was promised for an earlier one is over."""
        number = self.chain.current.number + 1
        return self._kept if self._kept.number == number else Slot(number)

    @property
    def state(self) -> AcceptorState:
        if self.slot.accepted:
            return "bound"
        return "held" if self.slot.held else "free"

    @property
    def held(self) -> bool:
        """Whether this peer may start no round."""
        return self.state != "free"

    def next_ballot(self, above: Ballot | None = None) -> Ballot:
        """One that this peer has never used, higher than any it has promised and than `above`."""
        known = [ballot.counter for ballot in (self.slot.promised, above) if ballot]
        return Ballot(max(known, default=0) + 1, self.id)

    def hear(self, request: Request, standing: Standing = NOWHERE) -> Reply:
        """The answer to one request. ConflictError if it tells of another view of a number that was decided."""
        before = self.state
        reply = self._answer(request, standing)
        if type(reply) not in ANSWERS[type(request)]:
            raise RuntimeError(f"{reply} is no answer to {request}")
        if self.state not in (before, *STEPS[before].get(type(request), ())):
            raise RuntimeError(f"a member that is {before} cannot become {self.state} by {request}")
        return reply

    def _answer(self, request: Request, standing: Standing) -> Reply:
        match request:
            case Prepare():
                return self._elsewhere(request) or self._promise(request.ballot, standing)
            case Accept():
                return self._elsewhere(request) or self._accept(request.ballot, request.view)
            case Release():
                self._release(request)
            case Decided():
                return self._learn(request.views)
            case Ask():
                current = self.chain.current.number
                return Behind(current) if request.number > current else Decided(self.chain.since(request.number))
            case Enter() | Poll() if request.number < self.chain.current.number:
                return Decided(self.chain.since(request.number))
            case Poll():
                return Consents(tuple(sorted(self.consents)))
            case Leave() if not self._has_say():
                return Decided(self.chain.since(request.number))
            case Expel():
                return self._consent(request)
        return Heard()

    def _consent(self, request: Expel) -> Reply:
        if request.id == self.id:
            return Denied(f"{self.id} cannot consent that it is voted out itself: tell it to leave")
        if request.id in self.chain.current.expelled:
            return Decided(self.chain.since(request.number))
        self.consents |= {request.id}
        return Heard()

    def _elsewhere(self, request: Prepare | Accept) -> Reply | None:
        """The answer if the request is not about the next view, or this peer has no say in it."""
        if request.number < self.slot.number:
            return Decided(self.chain.since(request.number - 1))
        if request.number > self.slot.number:
            return Behind(self.chain.current.number)
        heard = self._has_say() and request.ballot.proposer not in self.unheard.union(self.chain.current.expelled)
        return None if heard else Refused(request.number, request.ballot)

    def _has_say(self) -> bool:
        return self.id in self.chain.current.members

    def _promise(self, ballot: Ballot, standing: Standing) -> Reply:
        slot = self.slot
        if slot.promised and not slot.admits(ballot):
            return Refused(slot.number, slot.promised)
        self._kept = slot.promise(ballot)
        return Promise(
            slot.number,
            ballot,
            standing.durable,
            standing.oldest,
            standing.started,
            standing.private,
            slot.accepted,
        )

    def _accept(self, ballot: Ballot, view: View) -> Reply:
        slot = self.slot
        if slot.promised and not slot.admits(ballot):
            return Refused(slot.number, slot.promised)
        self._kept = slot.accept(Vote(ballot, view))
        return Accepted(slot.number, ballot)

    def _release(self, request: Release) -> None:
        if request.number == self.slot.number and request.ballot.proposer not in self.unheard:
            self._kept = self.slot.release(request.ballot)

    def _learn(self, views: tuple[View, ...]) -> Reply:
        if views and views[0].number > self.slot.number:
            return Behind(self.chain.current.number)
        for view in views:
            self.chain.extend(view)
        self.consents -= {*self.chain.current.expelled}
        return Heard()

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON, for `load`; the chain is in it, for the two must not be on disk from different moments."""
        kept = {"id": self.id, "chain": self.chain.state_dict(), "slot": self.slot.as_json()}
        return {**kept, "consents": sorted(self.consents)}

    @classmethod
    def load(cls, kept: Mapping[str, Any]) -> Self:
        acceptor = cls(kept["id"], Chain.load(kept["chain"]))
        acceptor.consents = frozenset(kept.get("consents", ()))
        acceptor._kept = Slot.from_json(kept["slot"])
        return acceptor
