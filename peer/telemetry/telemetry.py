"""Where a peer's events go: a line for programs in events.jsonl, one in the log, and to whoever wants to be told."""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from threading import Lock

from peer.telemetry.events import Event, Report
from peer.telemetry.line_file import LineFile
from peer.text import printable

log = logging.getLogger("dfl")


def write_log(event: Event) -> None:
    """The event's own sentence."""
    log.log(event.level, "%s", printable(str(event)))


class Telemetry:
    """Tells of events, from any thread; before a file is given they are not written.

    write_log: writes what the log has of an event, and never raises.
    """

    def __init__(self, write_log: Report = write_log) -> None:
        self._write_log = write_log
        self._file: LineFile | None = None
        self._lock = Lock()
        self._told: list[Report] = []

    @property
    def writes(self) -> bool:
        """Whether a file was given."""
        return self._file is not None

    def write_to(self, path: Path) -> None:
        """Append to this file from now on."""
        self._file = LineFile(path)

    def tell(self, who: Report) -> None:
        """Call `who` with each event from now on. It may neither raise nor take its time: see Listener."""
        self._told.append(who)

    def emit(self, event: Event) -> None:
        """Never raises: what cannot be written, on a full disk say, is only logged."""
        event = replace(event, time=round(time.time(), 3))
        if self._file:
            self._write(self._file, json.dumps({"time": event.time, **event.as_json()}))
        self._write_log(event)
        for tell in self._told:
            tell(event)

    def _write(self, file: LineFile, line: str) -> None:
        try:
            with self._lock:
                file.append(line)
        except OSError as error:
            log.error("cannot write %s: %s", file.path, error.strerror)

    def close(self) -> None:
        """Give the file back; an event that comes later opens it again."""
        if self._file:
            with self._lock:
                self._file.close()
