"""One thing that happened, for the time line."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["running", "waits", "not heard", "failure", "recovery", "change of view", "note"]


@dataclass
class Moment:
    """What happened at `start`, in unix seconds, or lasted until `end`."""

    kind: Kind
    start: float
    text: str
    end: float | None = None
    about: str = ""
    """Of which neighbour it tells, if of one."""
    over: bool = False
    """Whether what lasted has come to its end, and not only its teller."""
