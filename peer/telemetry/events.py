"""One stream of events: a line for programs in events.jsonl and, where a person cares, one in the log."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("dfl")

WORDS = {
    "state": "{state} (round {round})",
    "waiting": "{sentence}",
    "link": "link to {neighbour}: {state} {reason}",
    "ring": "ring order {order}, cost {cost_before} before and {cost_after} after",
    "round": "round {round} done: accuracy {accuracies}, loss {loss_words}",
    "resumed": "resumed after round {round}",
    "refused": "refused {caller} from {origin}: {reason}",
    "conflict": "{sender} sent other content under a used key (round {round}, step {step}); the first counts",
    "damaged": "checkpoint of round {round} is damaged and was passed over: {reason}",
    "left": "{sentence}",
    "lost": "{sentence}",
    "certificates": "{sentence}",
    "stopped": "stopped by {signal}",
    "failed": "{message}",
    "done": "done",
}
QUIET = {"state"}
"""For programs only: a state changes several times a round."""


class Telemetry:
    """Writes events; before a directory is given they are only logged."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def write_to(self, path: Path) -> None:
        """Append to this file from now on."""
        self._path = path

    def emit(self, event: str, **fields: Any) -> None:
        """Never raises: what cannot be written, on a full disk say, is only logged."""
        if self._path:
            line = json.dumps({"time": round(time.time(), 3), "event": event, **fields})
            try:
                with self._path.open("a") as file:
                    file.write(line + "\n")
            except OSError as error:
                log.error("cannot write %s: %s", self._path, error.strerror)
        if event not in QUIET:
            level = logging.ERROR if event == "failed" else logging.INFO
            log.log(level, "%s", printable(WORDS[event].format(**fields, **_words(fields))))


def printable(text: str) -> str:
    """Without control characters: what strangers send must not forge lines or move the cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _words(fields: Mapping[str, Any]) -> dict[str, str]:
    loss = fields.get("loss")
    return {
        "accuracies": _accuracies(fields.get("accuracy") or {}),
        "loss_words": "not measured" if loss is None else f"{loss:.4f}",
    }


def _accuracies(accuracy: Mapping[str, float | None]) -> str:
    return ", ".join(f"{kind} {value:.4f}" for kind, value in accuracy.items() if value is not None)
