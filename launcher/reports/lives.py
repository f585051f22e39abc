"""What a peer's events tell of its lives: how far it came, how often it was started, for how long it was at it."""

import math
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from peer.reading import lines, open_plain
from peer.telemetry.events import Event, RoundDone, StateChanged, ViewDecided, read_event
from peer.telemetry.results import EVENTS, objects

LONGEST = 1e12
"""Seconds that can be believed."""


class Lives(NamedTuple):
    """rounds: the last that was completed. again: starts after the first. seconds: from its first event to its last."""

    rounds: int
    again: int
    seconds: float


def lives(directory: Path) -> Lives:
    """Of one peer, from its directory; nothing of one whose events cannot be read."""
    rounds, starts, first, last = 0, 0, math.nan, math.nan
    moved = False
    with suppress(OSError), open_plain(directory / EVENTS) as file:
        for line in lines(file):
            event = _event(line)
            if event is None:
                continue
            first, last = event.time if math.isnan(first) else first, event.time
            if isinstance(event, StateChanged) and event.state == "joining":
                starts += not moved
                moved = False
            moved = moved or isinstance(event, ViewDecided)  # then it joins once more, and is not started again
            rounds = max(rounds, event.round) if isinstance(event, RoundDone) else rounds
    spent = last - first
    return Lives(rounds, max(0, starts - 1), spent if 0 <= spent <= LONGEST else 0.0)


def _event(line: bytes) -> Event | None:
    return next((event for one in objects([line]) if (event := read_event(one))), None)
