"""All bounds of the network: its timeouts, how much other parties can make it keep, and how often something may happen.

Each kind is one object, which is passed in. SECURITY.md lists those of unknown callers, generated from
here.
"""

import asyncio
from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True)
class Timeouts:
    """Timeouts and intervals in seconds. Without `on_loss: bypass` none of them changes what a run computes."""

    hello: float = 10.0
    """The time in which a caller must say hello."""
    newcomer_timeout: float = 2.0
    """The time for which a member that is not a neighbour may wait to become one."""
    answer: float = 20.0
    """The time that a handshake may take on an established connection."""
    read: float = 10.0
    """The time in which the other end of a stream must read an answer or a sign of life; frames may take longer."""
    retry: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    """The pauses before the next attempts to connect; the last one is repeated."""
    retry_refused: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 1.0, 2.0, 5.0)
    """The pauses before the next attempts after refusals; the last one is repeated."""
    retry_other_view: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 1.0)
    """The pauses after refusals by a peer in another view, which are signs of life as well."""
    stable_after: float = 5.0
    """How long a stream must last to count as working; if it ends earlier, it counts as a failed attempt."""
    takeover_interval: float = 5.0
    """The time between two streams of one caller that replace the one in use, after many replacements."""
    report_interval: float = 10.0
    """The time between two reports on one neighbour's link, or on why there is none, after many changes."""
    heartbeat_interval: float = 0.5
    """The time between two heartbeats without news."""
    poll: float = 0.1
    """The time between two scans for silent neighbours."""
    suspect_after: float = 1.8
    """The silence after which a neighbour is suspected; with two scans to spare, so that it is shown within 2 s."""
    delivery_timeout: float = 15.0
    """The longest time without an arriving frame while some are on their way; one takes up to 8.4 s at 1 Mbit/s."""
    probe: float = 1.0
    """The time for an attempt to connect to a silent neighbour; a lost packet of it is sent again after a second."""
    reconnect_after: float = 10.0
    """The silence of a reachable neighbour after which all connections to it are replaced, each time."""
    resources: float = 5.0
    """The time between two reports of resources; infinite: there are none."""
    view_rpc_timeout: float = 2.0
    """The time for the answer to a question about views."""
    decision_timeout: float = 4.0
    """The time for a decision on the next view, after which another member tries."""
    proposal_backoff: tuple[float, float] = (0.1, 0.6)
    """The time between two attempts to have a view decided; random, so that two proposers do not preempt each other."""
    liveness_poll: float = 1.0
    """The time between two questions whether a view was decided, while a neighbour is away."""
    farewell_timeout: float = 5.0
    """The time for a finished peer's farewell to a neighbour, which may be paused or gone for good."""

    def stretched(self, factor: float) -> "Timeouts":
        """Timeouts with `factor` times fewer heartbeats and scans, and without reports of resources."""
        signs = "read heartbeat_interval poll suspect_after delivery_timeout probe reconnect_after farewell_timeout"
        return replace(self, resources=inf, **{name: factor * getattr(self, name) for name in signs.split()})


@dataclass(frozen=True)
class Limits:
    """Bounds on memory, log and frames."""

    frame: int = 1 << 20
    """Bytes of a vector per frame."""
    message: int = 2048
    """Bytes of a message besides its values (1,470 measured)."""
    control: int = 4096
    """Bytes of any message but a frame, besides what it says about members."""
    member: int = 192
    """Bytes of such a message per member; ids have up to 64 characters."""
    announcement: int = 3072
    """Further bytes of a heartbeat per member, for signed announcements (RSA-4096)."""
    views: int = 1 << 20
    """Bytes of a question about views or its answer; 0.9 kB per member with P-256 keys."""
    facts: int = 20_000
    """Items kept of a refusal, such as columns."""
    characters: int = 300
    """Characters kept of a text from another party."""
    rates: int = 16
    """Rates kept of a neighbour's own links."""
    causes: int = 64
    """Different refusals of one neighbour, or of all unknown callers, reported."""
    sayings: int = 8
    """Changes of the reason for one neighbour's refusals, and losses of its rounds, reported at once."""
    accidents: int = 3
    """Frames in a row called damaged before that is reported."""
    belated: int = 4
    """Unreported calls from a former neighbour, which may not know it yet."""
    candidates: int = 4
    """Streams of one caller besides the active one."""
    successions: int = 8
    """Takeovers by streams of one caller at once."""
    news: int = 20
    """Changes of one neighbour's link reported at once."""


@dataclass(frozen=True)
class UnknownCallerLimits:
    """What all unidentified callers together may use: any party that can connect, until its hello is accepted.

    For each neighbour there are two more connections, waiting calls and messages, as all neighbours may come at once
    from one address.
    """

    connections: int = 64
    """Connections besides those of neighbours and as many of other members; each 12 kB, with TLS 60 kB."""
    of_one_origin: int = 32
    """Of these, from one address."""
    of_one_member: int = 4
    """Connections of one member, from its first call with certificates, otherwise from its accepted hello."""
    streams: int = 4
    """Streams per connection, at once."""
    calls: int = 50
    """Calls on one connection between two scans."""
    received: int = 1 << 18
    """Bytes from a connection before it is identified."""
    waiting: int = 40
    """Unhandled calls per method, 22 kB of each in gRPC. Some beyond that are refused, beyond twice as many all."""
    messages: int = 16
    """First messages read at a time, each up to the largest frame."""
    messages_of_one_origin: int = 8
    """Of these, from one address."""
    hello: int = 16_384
    """Bytes of a first message."""
    request: int = 4096
    """Bytes of a question about health or state."""
    headers: int = 8192
    """Bytes of a call's headers."""
    handshake: float = 10.0
    """Seconds for TLS, and until HTTP/2 begins."""
    idle: float = 10.0
    """Seconds of a connection without a stream."""
    answer: float = 5.0
    """Seconds for a call that is not a stream between peers."""
    look: float = 0.05
    """Seconds between scans of the connections while one is unidentified."""
    look_around: float = 0.25
    """Seconds between scans while there is none."""
    resolve: float = 30.0
    """Seconds that a host name's addresses are remembered."""
    own_files: int = 128
    """Descriptors reserved for files, libraries, event loop, probes."""

    def beside(self, neighbours: int) -> "UnknownCallerLimits":
        """Limits with room for so many neighbours until they are identified."""
        grown = ("connections", "of_one_origin", "waiting", "messages", "messages_of_one_origin")
        return replace(self, **{name: getattr(self, name) + 2 * neighbours for name in grown})


class RateLimiter:
    """Allows something `burst` times at once, and then once more every `seconds`."""

    def __init__(self, burst: int, seconds: float) -> None:
        self._ahead, self._seconds = (burst - 1) * seconds, seconds
        self._clock = asyncio.get_running_loop().time
        self._spent_until = self._clock()
        """The time at which all that has happened would be over at an even pace."""

    def try_acquire(self) -> bool:
        """Return whether it may happen now; if so, it counts as done."""
        if self.wait > 0:
            return False
        self._spent_until = max(self._spent_until, self._clock()) + self._seconds
        return True

    @property
    def wait(self) -> float:
        """Seconds until it may happen again. After exactly that wait it may, despite rounding: a sum of tokens could
        stay just below 1, with waits too short for the clock to measure."""
        return max(0.0, self._spent_until - self._ahead - self._clock())
