"""What peers say to each other to decide on the next view: single-decree Paxos for one number after another.

Source: L. Lamport, "Paxos Made Simple", 2001; Prepare, Promise and Accept are its phases 1a, 1b and 2a.
"""

from dataclasses import dataclass
from typing import TypeAlias

from peer.views.view import View


@dataclass(frozen=True, order=True)
class Ballot:
    """One attempt; of two, the greater one counts. A proposer never uses a counter twice for one number."""

    counter: int
    proposer: str


@dataclass(frozen=True)
class Vote:
    """A view that an acceptor has accepted, and in which attempt."""

    ballot: Ballot
    view: View


@dataclass(frozen=True)
class Prepare:
    """start no round until this number is decided, and listen to no lower ballot"""

    number: int
    ballot: Ballot


@dataclass(frozen=True)
class Accept:
    """let this be the view of that number"""

    number: int
    ballot: Ballot
    view: View


@dataclass(frozen=True)
class Release:
    """all have promised and nothing is to change: go on"""

    number: int
    ballot: Ballot


@dataclass(frozen=True)
class Decided:
    """these views were decided; as a reply: you are outdated"""

    views: tuple[View, ...]
    """In the order of their numbers, none left out."""


@dataclass(frozen=True)
class Ask:
    """which views were decided after that one?"""

    number: int


@dataclass(frozen=True)
class Enter:
    """a member of the spec that is not in that view, the last it knows, asks to be taken in"""

    number: int
    id: str
    private: int
    """After which round the private state stands that it brings, or -1."""


@dataclass(frozen=True)
class Leave:
    """its operator asks this member to leave, and knows the views up to that number"""

    number: int


@dataclass(frozen=True)
class Expel:
    """its operator, who knows the views up to that number, has this member consent that one is voted out"""

    number: int
    id: str


@dataclass(frozen=True)
class Poll:
    """to the voting out of whom do you consent? The asker knows the views up to that number"""

    number: int


@dataclass(frozen=True)
class Promise:
    """as asked; and how this member stands"""

    number: int
    ballot: Ballot
    durable: int
    """The last round to whose end it can go back, -1 for the beginning; of one that was taken in, at least the round
    before its view's first one. Nobody is told of a later one until the decision."""
    oldest: int
    """It can be in no round before this one: that in which it was taken in, else 0."""
    started: int
    """The last round that it has begun."""
    private: int
    """After which round the private state stands with which it was taken in, and would be again; -1: it has none."""
    accepted: Vote | None
    """What it has accepted for that number in the highest ballot."""


@dataclass(frozen=True)
class Accepted:
    """accepted, and on disk"""

    number: int
    ballot: Ballot


@dataclass(frozen=True)
class Refused:
    """another ballot came before yours"""

    number: int
    promised: Ballot


@dataclass(frozen=True)
class Behind:
    """I know the views up to that number only"""

    number: int


@dataclass(frozen=True)
class Consents:
    """to the voting out of these, which is on disk"""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Denied:
    """that cannot be, and why"""

    why: str


@dataclass(frozen=True)
class Heard:
    """received"""


Request: TypeAlias = Prepare | Accept | Release | Decided | Ask | Enter | Leave | Expel | Poll
Reply: TypeAlias = Promise | Accepted | Refused | Decided | Behind | Consents | Denied | Heard
