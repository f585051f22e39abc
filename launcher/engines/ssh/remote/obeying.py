"""Orders of the launcher, and the answers."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any, Callable  # noqa: UP035

from launcher.engines.ssh.remote.installation import install, installed
from launcher.engines.ssh.remote.reaching import dial, listen
from launcher.engines.ssh.remote.run import device, discard, follow, forget, place, send, start, survey
from launcher.engines.ssh.remote.speech import Refused, say

SILENCE = 60
"""Seconds without an order after which this process ends: the connection is lost, and nobody has told it."""


def awake() -> None:
    """The launcher is there."""


ORDERS: dict[str, Callable[..., Any]] = {
    **{
        one.__name__: one
        for one in (
            awake,
            survey,
            installed,
            install,
            device,
            place,
            discard,
            forget,
            start,
            send,
            follow,
            listen,
            dial,
        )
    },
}


def obey(before: threading.Thread | None, number: int, do: str, given: dict[str, Any]) -> None:
    if before:
        before.join()
    try:
        say(answer=number, result=ORDERS[do](**given))
    except Refused as refusal:
        say(answer=number, refused=str(refusal))
    except OSError as error:
        say(answer=number, refused=f"{error.filename or do}: {error.strerror or error}")


def main() -> None:
    """Orders about the same peer are obeyed one after the other, all others at once."""
    latest: dict[str, threading.Thread] = {}
    signal.alarm(SILENCE)
    say(hello=[*sys.version_info[:3]])
    for line in sys.stdin:
        signal.alarm(SILENCE)
        order = json.loads(line)
        given = order["given"]
        before = latest.get(given.get("id"))
        thread = threading.Thread(target=obey, args=(before, order["order"], order["do"], given), daemon=True)
        if "id" in given:
            latest[given["id"]] = thread
        thread.start()
    os._exit(0)
