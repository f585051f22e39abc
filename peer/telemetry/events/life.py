"""A peer's own life: its start, its states, for whom it waits, and its end."""

import logging
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat

from peer.telemetry.events.base import Count, Event, Number, Worded


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A peer's process begins its life: the first event of each in the file. A tracker may be told of others before."""

    name = "started"
    level = logging.DEBUG
    schema: int
    """The version of the events that follow."""
    version: str
    """That of dfl."""
    id: str
    """The peer's."""
    federation: str
    """Its name."""
    protocol: str
    """Its name."""
    rounds: int
    """How many the run has, if it does not end early."""
    restarts: int = 0
    """How often this peer has been started before, in the same directory."""
    seconds: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """For how long its earlier processes have lived in all."""
    view: int = 0
    """The number of the view in which it begins."""
    members: tuple[str, ...] = ()
    """Who belongs to the federation in that view."""

    def __str__(self) -> str:
        return f"{self.id} of {self.federation} starts ({self.protocol}, {self.rounds} rounds)"


@dataclass(frozen=True, kw_only=True)
class StateChanged(Event):
    """For programs only: a state changes several times a round."""

    name = "state"
    level = logging.DEBUG
    state: str
    """One of those in [architecture.md](architecture.md#a-peers-life)."""
    round: Number
    """The round it is in; 0 before the first, -1 before the set-up."""

    def __str__(self) -> str:
        return f"{self.state} (round {self.round})"


Cause = Literal["join", "staleness", "stalled", "quorum"]
"""Why a peer waits: for neighbours at the start; for one too many rounds behind; for one that lives and is silent; for
enough members to decide on the next view."""
MAX_NAMED = 8
"""In a sentence, of a wait for many."""
LONG = 10.0
"""Seconds from which on it is said how long a wait for a quorum has lasted."""


@dataclass(frozen=True)
class Awaited:
    """Somebody who is waited for, and what is known of why."""

    id: str
    address: str | None
    """host:port; null for one that dials out."""
    reason: str
    """Why it is not there, as far as is known."""

    def __str__(self) -> str:
        return f"{self.id} at {self.address} ({self.reason})" if self.address else f"{self.id} ({self.reason})"


@dataclass(frozen=True)
class Shortage:
    """Too few members are here to decide on the next view."""

    here: Count
    """How many are, the peer itself included."""
    members: Count
    """How many there are in the present view."""
    needed: Count
    """How many must be here."""
    tie_breaker: str = ""
    """The member with which half is enough; empty where it is not, or that member is here."""
    seconds: FiniteFloat = 0.0
    """For how long it has been so."""

    def __str__(self) -> str:
        half = f" ({self.members // 2} with {self.tie_breaker})" if self.tie_breaker else ""
        return f"too few members for a decision: {self.here} of {self.members} are here, {self.needed} are needed{half}"


@dataclass(frozen=True, kw_only=True)
class Waiting(Worded):
    """The peer waits for others for this cause, or the wait is over."""

    name = "waiting"
    cause: Cause
    """`join`: for neighbours at the start; `staleness`: for one too many rounds behind; `stalled`: for one that lives
    and is silent; `quorum`: for members, of whom too few are here to decide on the next view."""
    awaited: Annotated[tuple[Awaited, ...], Field(alias="for")]
    """Everybody who is waited for now: nobody, when the wait is over. `{id, address, reason}` each."""
    others: int = 0
    """How many there are besides, where only some are named."""
    shortage: Shortage | None = None
    """With `quorum`: `{here, members, needed, tie_breaker, seconds}`, how many members are here and how many must be,
    and for how long the peer has waited; null when that wait is over."""

    @classmethod
    def for_quorum(cls, shortage: Shortage, awaited: tuple[Awaited, ...]) -> Self:
        """awaited: everybody whose return would help."""
        more = len(awaited) - MAX_NAMED
        named = ", ".join(map(str, awaited[:MAX_NAMED])) + (f" and {more} more" if more > 0 else "")
        so_far = f" after {shortage.seconds:.0f} s still" if shortage.seconds >= LONG else ""
        sentence = f"{shortage};{so_far} waiting for {named}"
        return cls(cause="quorum", awaited=awaited, sentence=sentence, shortage=shortage)


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """The peer goes on from a checkpoint."""

    name = "resumed"
    round: Number
    """The last round in it."""

    def __str__(self) -> str:
        return f"resumed after round {self.round}"


@dataclass(frozen=True, kw_only=True)
class CertificatesChanged(Worded):
    """New certificates were found: they are used, or it says why not."""

    name = "certificates"


@dataclass(frozen=True, kw_only=True)
class Untold(Worded):
    """Metrics, TensorBoard or a tracker could not take in an event, or not in time, and is told nothing more."""

    name = "untold"
    level = logging.ERROR


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """A signal ended the peer in good order."""

    name = "stopped"
    signal: str
    """Its name, such as SIGTERM."""

    def __str__(self) -> str:
        return f"stopped by {self.signal}"


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The peer cannot go on."""

    name = "failed"
    level = logging.ERROR
    message: str
    """What is wrong, and the way out."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class Done(Event):
    """The peer has finished."""

    name = "done"

    def __str__(self) -> str:
        return "done"
