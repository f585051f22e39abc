"""What a host says to the launcher: a JSON object a line."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

speaking = threading.Lock()


def say(**notice: Any) -> None:
    with speaking:
        sys.stdout.write(json.dumps(notice) + "\n")
        sys.stdout.flush()


class Refused(Exception):
    """The order cannot be obeyed; the message says why."""
