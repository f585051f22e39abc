"""Who belongs to the federation: views, who leaves and who comes back."""

import logging
from dataclasses import dataclass

from peer.telemetry.events.base import Event, Number, Worded


@dataclass(frozen=True, kw_only=True)
class ViewDecided(Event):
    """It is decided who belongs to the federation from a round on; see [views.md](views.md)."""

    name = "view"
    number: Number
    """Of the view, from 1."""
    members: tuple[str, ...]
    """All ids."""
    first: Number
    """The first round that is played in it."""
    planned: bool
    """Whether the rounds before are played to their end; else those from `first` on are void and are played again."""
    entrants: tuple[tuple[str, int], ...]
    """Who is taken in, each with the round after which its private state stands, -1 for a new one."""
    reason: str
    """Why it was decided, in words."""
    expelled: tuple[str, ...] = ()
    """Who was voted out, now or before."""

    def __str__(self) -> str:
        return f"view {self.number} from round {self.first} on: {', '.join(self.members)} ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class ViewConflict(Worded):
    """A member has told of another view than the one that this peer knows to be decided, which must never be."""

    name = "view_conflict"
    level = logging.ERROR


@dataclass(frozen=True, kw_only=True)
class Leaving(Worded):
    """The peer was told to leave, or cannot."""

    name = "leaving"


@dataclass(frozen=True, kw_only=True)
class Departed(Worded):
    """The peer has left, as it was told to: the others go on without it, and nobody waits for it."""

    name = "departed"


@dataclass(frozen=True, kw_only=True)
class Returning(Worded):
    """The peer has nothing left from which it could go on as a member, and waits to be taken in anew."""

    name = "returning"
