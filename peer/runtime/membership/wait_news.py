"""What is told of a wait for members: that it begins, for whom else, that it lasts, and that it is over."""

import asyncio

from peer.network.pace import Pace
from peer.runtime.bounds import Reminders
from peer.telemetry.events import Report, Waiting

CHANGES, CHANGE_AGAIN = 8, 600.0
"""So many changes of who is waited for are told at once, and one more each time that so many seconds have passed:
members that come and go, whether or not they mean to, make nobody talk without end."""


class WaitNews:
    """Of one kind of wait. Reminders come at ever longer intervals; they also tell of changes that came too quickly."""

    def __init__(self, report: Report, reminders: Reminders) -> None:
        self._report, self._reminders = report, reminders
        self._clock = asyncio.get_running_loop().time
        self._pace = Pace(CHANGES, CHANGE_AGAIN)
        self._told: list[str] | None = None
        """Who is waited for, as was told last; None while nothing has been told of a wait."""
        self._interval, self._due = 0.0, 0.0

    def look(self, waiting: Waiting) -> None:
        """Takes the wait as it is now; it is over when nobody is awaited."""
        ids = [one.id for one in waiting.awaited]
        if not ids:
            if self._told is not None:
                self._told = None
                self._report(waiting)
            return
        begins, reminds = self._told is None, self._told is not None and self._clock() >= self._due
        if not reminds and (ids == self._told or not self._pace.take()):
            return
        if begins or reminds:
            longer = min(2 * self._interval, self._reminders.members_longest)
            self._interval = self._reminders.members_again if begins else longer
            self._due = self._clock() + self._interval
        self._told = ids
        self._report(waiting)
