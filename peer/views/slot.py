"""What an acceptor has promised and accepted for the view of one number."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from peer.views.messages import Ballot, Vote
from peer.views.view import View


@dataclass(frozen=True)
class Slot:
    """Single-decree Paxos at one acceptor; every change is a new slot."""

    number: int
    promised: Ballot | None = None
    """The highest ballot heard of. It stays when it was given back, for what it has outdone stays outdone."""
    released: bool = False
    """Whether that promise was given back."""
    accepted: Vote | None = None

    @property
    def held(self) -> bool:
        return self.promised is not None and not self.released

    def admits(self, ballot: Ballot) -> bool:
        """Whether a ballot still counts: none is higher, and this one was not given back."""
        if self.promised is None:
            return True
        return ballot > self.promised or (ballot == self.promised and not self.released)

    def promise(self, ballot: Ballot) -> Self:
        return replace(self, promised=ballot, released=False)

    def accept(self, vote: Vote) -> Self:
        return replace(self, promised=vote.ballot, released=False, accepted=vote)

    def release(self, ballot: Ballot) -> Self:
        """Gives that very promise back, if nothing was accepted."""
        if ballot != self.promised or self.accepted:
            return self
        return replace(self, released=True)

    def as_json(self) -> dict[str, Any]:
        promised, accepted = self.promised, self.accepted
        return {
            "number": self.number,
            "promised": {**vars(promised)} if promised else None,
            "released": self.released,
            "accepted": {"ballot": {**vars(accepted.ballot)}, "view": accepted.view.as_json()} if accepted else None,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        promised, accepted = kept["promised"], kept["accepted"]
        return cls(
            kept["number"],
            Ballot(**promised) if promised else None,
            kept["released"],
            Vote(Ballot(**accepted["ballot"]), View.from_json(accepted["view"])) if accepted else None,
        )
