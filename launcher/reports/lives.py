"""What a peer's events tell of its lives: how far it came, how often it was started, for how long it lived in all."""

import math
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from peer.reading import lines, open_plain
from peer.telemetry.events import Event, RoundDone, Started, StateChanged, ViewDecided, read_event
from peer.telemetry.results import EVENTS, objects

LONGEST = 1e12
"""Seconds that can be believed."""


class Lives(NamedTuple):
    """rounds: the last that was completed. again: starts after the first. seconds: of all lives, pauses left out."""

    rounds: int
    again: int
    seconds: float


def lives(directory: Path) -> Lives:
    """Of one peer, from its directory; nothing of one whose events cannot be read."""
    rounds, starts, first, last, spent = 0, 0, math.nan, math.nan, 0.0
    moved = False
    with suppress(OSError), open_plain(directory / EVENTS) as file:
        for line in lines(file):
            event = _event(line)
            if event is None:
                continue
            if math.isnan(first):
                first = event.time
            elif isinstance(event, Started):
                spent, first = spent + last - first, event.time
            last = event.time
            if isinstance(event, StateChanged) and event.state == "joining":
                starts += not moved
                moved = False
            moved = moved or isinstance(event, ViewDecided)  # then it joins once more, and is not started again
            rounds = max(rounds, event.round) if isinstance(event, RoundDone) else rounds
    spent += last - first
    return Lives(rounds, max(0, starts - 1), spent if 0 <= spent <= LONGEST else 0.0)


def _event(line: bytes) -> Event | None:
    return next((event for one in objects([line]) if (event := read_event(one))), None)
