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
from launcher.engines.ssh.remote.run import device, follow, forget, place, send, start, survey
from launcher.engines.ssh.remote.speech import Refused, say

SILENCE = 60
"""Seconds without an order after which this process ends: the connection is lost, and nobody has told it."""


def awake() -> None:
    """The launcher is there."""


ORDERS: dict[str, Callable[..., Any]] = {
    **{
        one.__name__: one
        for one in (awake, survey, installed, install, device, place, forget, start, send, follow, listen, dial)
    },
}


def obey(number: int, do: str, given: dict[str, Any]) -> None:
    try:
        say(answer=number, result=ORDERS[do](**given))
    except Refused as refusal:
        say(answer=number, refused=str(refusal))
    except OSError as error:
        say(answer=number, refused=f"{error.filename or do}: {error.strerror or error}")


def main() -> None:
    signal.alarm(SILENCE)
    say(hello=[*sys.version_info[:3]])
    for line in sys.stdin:
        signal.alarm(SILENCE)
        order = json.loads(line)
        threading.Thread(target=obey, args=(order["order"], order["do"], order["given"]), daemon=True).start()
    os._exit(0)
