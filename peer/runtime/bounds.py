"""What bounds a peer's waits and stores, and when it speaks of a wait; one object, passed in."""

from dataclasses import dataclass, field

from peer.network.limits import Limits, Timeouts


@dataclass(frozen=True)
class Reminders:
    """Seconds until a peer that waits says so. None of them ends a wait."""

    behind: float = 2.0
    """At the staleness bound; and at least from one word about it to the next."""
    stalled: float = 30.0
    """For a message that does not grow, of a neighbour that lives."""
    stalled_again: float = 600.0
    """From one word about the same wait to the next."""
    lost_again: float = 60.0
    """From one word about a lost neighbour to the next."""


@dataclass(frozen=True)
class Bounds:
    """Of the network, and of the runtime above it."""

    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    reminders: Reminders = field(default_factory=Reminders)
