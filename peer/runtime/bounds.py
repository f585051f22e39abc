"""What bounds a peer's waits and stores, and when it speaks of a wait; one object, passed in."""

from dataclasses import dataclass, field, replace

from peer.network.limits import Limits, Timeouts


@dataclass(frozen=True)
class Reminders:
    """Seconds until a peer that waits says so. None of them ends a wait."""

    look: float = 1.0
    """Between two looks at who keeps it waiting."""
    behind: float = 2.0
    """At the staleness bound; and at least from one word about it to the next."""
    stalled: float = 30.0
    """For a message that does not grow, of a neighbour that lives."""
    stalled_again: float = 600.0
    """From one word about the same wait to the next."""
    lost_again: float = 60.0
    """From one word about a lost neighbour to the next."""
    members_again: float = 60.0
    """From the first word about a wait for members to the second; to each later one it is twice as long as before."""
    members_longest: float = 3600.0
    """The longest of these."""


@dataclass(frozen=True)
class Bounds:
    """Of the network, and of the runtime above it."""

    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    reminders: Reminders = field(default_factory=Reminders)

    def in_one_process(self, peers: int, patience: float) -> "Bounds":
        """The same for so many peers with one event loop: where one is silent, so are all, and nobody asks for status.

        Of more than 20 there are no more signs of life than of 20, but several in `patience` seconds.
        """
        least = patience / (4 * self.timeouts.beat)
        factor = max(1.0, min(peers / 20, least))
        reminders = replace(self.reminders, look=factor * self.reminders.look)
        return replace(self, timeouts=self.timeouts.stretched(factor), reminders=reminders)
