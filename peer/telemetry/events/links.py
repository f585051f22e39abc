"""What a peer knows of its neighbours: whether they live, and what they say that cannot be."""

import logging
from dataclasses import dataclass

from peer.telemetry.events.base import Event, Number, Worded


@dataclass(frozen=True, kw_only=True)
class LinkChanged(Event):
    """What is known of a neighbour's life has changed."""

    name = "link"
    neighbour: str
    """Its id."""
    state: str
    """`joining`, `up`, `suspected`, `down` or `left`."""
    reason: str = ""
    """Why, as far as is known."""

    def __str__(self) -> str:
        return f"link to {self.neighbour}: {self.state}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, kw_only=True)
class Left(Worded):
    """The peer ends without having heard that its neighbours have all they need."""

    name = "left"


@dataclass(frozen=True, kw_only=True)
class Lost(Worded):
    """A neighbour has been silent for longer than `patience`."""

    name = "lost"
    neighbour: str
    """Its id."""


@dataclass(frozen=True, kw_only=True)
class Refused(Event):
    """A caller was turned away, or one of its messages. Each cause is told once, however often it comes back, and what
    strangers do again and again once more each time that it has come ten times as often."""

    name = "refused"
    caller: str
    """A neighbour's id, a name that the caller gave itself, or `a stranger`."""
    origin: str = ""
    """Its address."""
    kind: str = "unknown"
    """Why, in a word of the [contract](wire.md): `version`, `identity`, `stranger`, `federation`, `manifest`,
    `damaged`, `undeclared`, `lost`, `stream`, `connections`; or `unknown`, or `many others`."""
    reason: str
    """Why, in words; some of them may be the caller's."""

    def __str__(self) -> str:
        return f"refused {self.caller}" + (f" from {self.origin}" if self.origin else "") + f": {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Conflict(Event):
    """A neighbour sent two contents under one key (rule R5)."""

    name = "conflict"
    sender: str
    """Its id."""
    round: Number
    """The message's."""
    step: int
    """The message's place in its round."""

    def __str__(self) -> str:
        where = f"(round {self.round}, step {self.step})"
        return f"{self.sender} sent two different contents for the same step {where}; the first counts"


@dataclass(frozen=True, kw_only=True)
class Regressed(Worded):
    """A neighbour has lost rounds that it had on disk, by its own words."""

    name = "regressed"
    level = logging.ERROR
    neighbour: str
    """Its id."""


@dataclass(frozen=True, kw_only=True)
class Damaged(Event):
    """A checkpoint cannot be read, and is not needed."""

    name = "damaged"
    round: Number
    """The round in it."""
    reason: str
    """What is wrong with it."""

    def __str__(self) -> str:
        return f"the checkpoint of round {self.round} is damaged, and this peer does without it ({self.reason})"
