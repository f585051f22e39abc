"""The deadlines of the network and how much other parties can make it keep; one object each, passed in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Seconds. None of them changes what a run computes."""

    hello: float = 10.0
    """How long a caller may take to say who it is."""
    newcomer: float = 2.0
    """How long a member that is no neighbour may wait to become one."""
    answer: float = 20.0
    """How long a handshake may take on a connection that stands."""
    retry: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    """Before the next attempts to connect; the last one is repeated."""
    beat: float = 0.5
    """Between two signs of life without news."""
    poll: float = 0.1
    """Between two looks at who is silent."""
    suspect: float = 1.8
    """Silence after which a neighbour is suspected; with two looks' time to spare, so that it is shown within 2 s."""
    deliver: float = 15.0
    """Without a frame that arrives, while some are on their way; a full one takes 8.4 s at 1 Mbit/s."""
    renew: float = 10.0
    """Silence after which connections are made anew."""
    resources: float = 5.0
    """Between two reports of resources."""
    leave: float = 5.0
    """How long a finished peer tries to tell a neighbour so: it may be paused, or gone for good."""

    def pause(self, attempt: int) -> float:
        """Before the attempt of that number to connect again, counted from 0."""
        return self.retry[min(attempt, len(self.retry) - 1)]


@dataclass(frozen=True)
class Limits:
    """What bounds memory, log and frames."""

    frame: int = 1 << 20
    """Bytes of a vector in one frame: larger ones delay others, smaller ones cost more CPU a byte."""
    messages: int = 65_536
    """Messages of one sender in the rounds under way."""
    causes: int = 1000
    """Refusals that are told apart: a caller makes up names and reasons faster than anyone can read them."""
    characters: int = 300
    """Of a caller's words, kept."""
