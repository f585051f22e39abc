"""Which view one member would have next: without who is lost, leaves or is voted out, with who asks to enter."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from peer.runtime.membership.inquiry import Inquiry
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.moving_seat import MovingSeat
from peer.runtime.membership.votes import Votes
from peer.views.wish import Wish


@dataclass(frozen=True)
class Loss:
    """When a member counts as lost, and how many may not be."""

    absence: float
    """Seconds of silence."""
    at_least: int
    """Members of every view."""
    patience: float
    """Seconds after which a peer ends whose neighbours have done so without it."""
    start_with: int | None
    """Members with which the run may begin; None: all."""
    rounds: int
    """Of the run: who comes back after the last one has begun is not taken in."""
    order: tuple[str, ...]
    """Everybody's id, as in the spec."""


class Needs:
    """Of one member, by what it knows now."""

    def __init__(self, membership: Membership, inquiry: Inquiry, loss: Loss, votes: Votes, decide: float) -> None:
        """decide: seconds that another member may take for a decision."""
        self._membership, self._inquiry, self._loss, self._votes = membership, inquiry, loss, votes
        self._decide, self._clock = decide, asyncio.get_running_loop().time
        self._held_since: float | None = None
        self.unmet = False
        """Whether the last attempt was this peer's, and came to nothing."""

    def lost(self, seat: MovingSeat) -> list[str]:
        """Who counts as lost: before the run has begun nobody, unless it may begin without some."""
        if not (seat.has_begun or self._loss.start_with):
            return []
        return seat.silent(self._loss.absence, self._inquiry.answered)

    def wish(self, seat: MovingSeat) -> Wish | None:
        """What this peer would have decided now, if anything."""
        now = self._clock()
        self._held_since = (self._held_since or now) if self._membership.held else None
        held, out = 0.0 if self._held_since is None else now - self._held_since, self._votes.out
        if held and not self.unmet and held < self._decide and not self._is_held_by(out):
            return None  # somebody else is at it
        if (lost := self.lost(seat)) or held > self._loss.absence or out:
            return self._without(lost, out, seat, patient=held <= self._loss.absence)
        if self._membership.order.stands and not seat.missing:
            own = self._membership.id
            return Wish(frozenset({own}), at_least=self._loss.at_least, unanimous=True, reason=f"{own} leaves")
        if held:
            return Wish(unanimous=True)
        if (entering := self._membership.asks_to_enter) and seat.started < self._loss.rounds:
            return Wish(enter=dict(entering), unanimous=True, reason=f"{', '.join(entering)} taken in")
        return None

    def _is_held_by(self, out: Collection[str]) -> bool:
        """Whether the last promise was given to one of these."""
        promised = self._membership.register.acceptor.slot.promised
        return promised is not None and promised.proposer in out

    def _without(
        self, lost: Collection[str], out: Mapping[str, Collection[str]], seat: MovingSeat, patient: bool
    ) -> Wish:
        """Those who are lost and those who are voted out; patient: whether all others must promise if none is lost."""
        others = [id for id in lost if id not in out]
        # Who is no member any more, and was to play the last rounds before a view that is decided.
        stuck = any(id not in self._membership.chain.current.members for id in lost)
        at_least = self._loss.at_least if seat.has_begun or out else self._loss.start_with or 0
        reasons = [f"{id} voted out by {', '.join(by)}" for id, by in out.items()]
        reasons += [f"{', '.join(others)} silent for {self._loss.absence:g} s"] if others else []
        return Wish(
            expel=frozenset(out),
            at_least=at_least,
            unanimous=bool(out) and patient and not others,
            rollback=stuck,
            reason="; ".join(reasons) or "who was deciding is silent",
        )

    def why_stay(self, seat: MovingSeat | None) -> str | None:
        """Why this peer cannot leave, in a sentence."""
        order, loss, members = self._membership.order, self._loss, self._membership.chain.current.members
        if len(members) <= loss.at_least:
            return f"there are {len(members)} members, and the protocol needs {loss.at_least}"
        if order.age > loss.patience:
            return f"the others have not agreed within {loss.patience:g} s"
        if seat and seat.network and not seat.has_begun:
            return "the run has not begun, so there is nothing to leave; stop it"
        if seat and seat.started >= loss.rounds:
            return "it is in its last round, and ends by itself"
        return None
