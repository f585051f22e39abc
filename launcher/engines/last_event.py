"""What a peer said last."""

import os
from pathlib import Path

from peer.reading import open_plain
from peer.telemetry.events import Event, read_event
from peer.telemetry.results import objects

REACH = 16384
"""Bytes at the end of the events that hold the last one."""


def last_event(path: Path) -> Event | None:
    """The last of a peer's events; None where it cannot be read."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - REACH))
            lines = file.read(REACH).splitlines()
    except OSError:
        return None
    return next((read_event(one) for one in objects(lines[-1:])), None)
