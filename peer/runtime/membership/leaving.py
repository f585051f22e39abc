"""A member that was told to leave: since when, and what becomes of it if it cannot."""

import asyncio
from collections.abc import Callable

from peer.telemetry.events import Leaving, Report

FRESH = 3.0
"""Seconds for which a refusal is still the answer to whoever asks again and again."""


class Order:
    """Of one member, by its operator. It is forgotten when the process ends."""

    def __init__(self, report: Report) -> None:
        self._report, self._clock = report, asyncio.get_running_loop().time
        self._since: float | None = None
        self._otherwise: Callable[[], None] | None = None
        self._refusal, self._refused_at = "", 0.0

    @property
    def stands(self) -> bool:
        return self._since is not None

    @property
    def age(self) -> float:
        """Seconds since it was given."""
        return 0.0 if self._since is None else self._clock() - self._since

    @property
    def refusal(self) -> str:
        """Why the last one came to nothing, for a while."""
        return self._refusal if self._clock() - self._refused_at < FRESH else ""

    def give(self, otherwise: Callable[[], None] | None = None) -> None:
        """Leave; `otherwise` is called if that cannot be."""
        self._otherwise = otherwise or self._otherwise
        if self._since is None:
            self._since = self._clock()
            self._report(Leaving(sentence="told to leave: the others are asked to go on without this peer"))

    def refuse(self, why: str) -> None:
        """It cannot leave: the order stands no more."""
        self._refusal, self._refused_at, self._since = why, self._clock(), None
        self._report(Leaving(sentence=f"this peer cannot leave: {why}"))
        if otherwise := self._otherwise:
            self._otherwise = None
            otherwise()
