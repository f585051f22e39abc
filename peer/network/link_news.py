"""What is told of the neighbours' lives: every change, or what they are by now where they change too often."""

import asyncio
from dataclasses import dataclass

from peer.network.limits import Limits, Timeouts
from peer.network.membership.edges import LinkState, Neighbour
from peer.network.pace import Pace
from peer.telemetry.events import LinkChanged, Report


@dataclass
class Told:
    """Of one neighbour."""

    pace: Pace
    changes: int = 0
    """Of its state, that have not been told."""
    reason: str = ""
    """The last one told."""
    other: str = ""
    """The reason now, where that is another one."""
    since: float = 0.0
    """When that came up, by the loop's clock."""


class LinkNews:
    """Reports changes of state; those of one neighbour that come too quickly are counted.

    Another reason for the same state is told when it has lasted: of several in a row only the last is of use.
    """

    def __init__(self, limits: Limits, timeouts: Timeouts, report: Report) -> None:
        self._limits, self._timeouts, self._report = limits, timeouts, report
        self._clock = asyncio.get_running_loop().time
        self._told: dict[str, Told] = {}

    def change(self, neighbour: Neighbour, state: LinkState, reason: str) -> None:
        told = self._of(neighbour)
        told.changes += state != neighbour.state
        neighbour.state, neighbour.reason = state, reason
        self.catch_up(neighbour)

    def catch_up(self, neighbour: Neighbour) -> None:
        """Tell what has not been told, unless it is too soon."""
        told = self._of(neighbour)
        if (told.changes or self._replaced(neighbour, told)) and told.pace.take():
            times = f"the link has changed {told.changes} times since this was last told"
            reason = "; ".join(filter(None, [neighbour.reason, *([times] if told.changes > 1 else [])]))
            told.changes, told.reason = 0, neighbour.reason
            self._report(LinkChanged(neighbour=neighbour.id, state=neighbour.state, reason=reason))

    def _replaced(self, neighbour: Neighbour, told: Told) -> bool:
        """Whether the reason that was told has been stale for a while."""
        if neighbour.state not in ("suspected", "down") or neighbour.reason == told.reason:
            told.other = ""
            return False
        if told.other != neighbour.reason:
            told.other, told.since = neighbour.reason, self._clock()
        return self._clock() - told.since > self._timeouts.suspect

    def _of(self, neighbour: Neighbour) -> Told:
        if neighbour.id not in self._told:
            self._told[neighbour.id] = Told(Pace(self._limits.news, self._timeouts.news))
        return self._told[neighbour.id]
