"""All bounds of the network: its timeouts, how much other parties can make it keep, and how often something may happen.

One object each, passed in. SECURITY.md has its table from here.
"""

import asyncio
from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True)
class Timeouts:
    """Seconds. Without `on_loss: bypass` none of them changes what a run computes."""

    hello: float = 10.0
    """For a caller's hello."""
    newcomer_timeout: float = 2.0
    """How long a member that is no neighbour may wait to become one."""
    answer: float = 20.0
    """How long a handshake may take on a connection that stands."""
    read: float = 10.0
    """How long the other end of a stream may take to read an answer or a sign of life; frames may take longer."""
    retry: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    """Before the next attempts to connect; the last one is repeated."""
    retry_refused: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 1.0, 2.0, 5.0)
    """Before the next attempts after refusals; the last one is repeated."""
    retry_other_view: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 1.0)
    """The same after refusals by one that lives in another view: each is a sign of life, too."""
    stable_after: float = 5.0
    """How long a stream must stand to count as one that works: until then its end is one more failed attempt."""
    takeover_interval: float = 5.0
    """Between two streams of one caller that take the place of one in use, where there have been many."""
    report_interval: float = 10.0
    """Between two reports about one neighbour's link, or why there is none, where it has changed often."""
    heartbeat_interval: float = 0.5
    """Between two heartbeats without news."""
    poll: float = 0.1
    """Between two scans for silent neighbours."""
    suspect_after: float = 1.8
    """Silence after which a neighbour is suspected; with two scans to spare, so that it is shown within 2 s."""
    delivery_timeout: float = 15.0
    """Without an arriving frame, while some are on their way; a full one takes 8.4 s at 1 Mbit/s."""
    probe: float = 1.0
    """For an attempt to connect to a silent neighbour; a lost packet of it is sent again after a second."""
    reconnect_after: float = 10.0
    """Silence of a neighbour that can be reached, after which all connections to it are made anew, each time."""
    resources: float = 5.0
    """Between two reports of resources; infinite, none is made."""
    view_rpc_timeout: float = 2.0
    """For the answer to a question about views."""
    decision_timeout: float = 4.0
    """For a decision on the next view, after which another member tries."""
    proposal_backoff: tuple[float, float] = (0.1, 0.6)
    """Between two attempts to have a view decided; drawn at random, so that two proposers do not preempt each other."""
    liveness_poll: float = 1.0
    """Between two questions whether a view was decided, while a neighbour is away."""
    farewell_timeout: float = 5.0
    """For a finished peer's farewell to a neighbour, which may be paused, or gone for good."""

    def stretched(self, factor: float) -> "Timeouts":
        """The same with so many times fewer heartbeats and scans, and with no reports of resources."""
        signs = (
            "read",
            "heartbeat_interval",
            "poll",
            "suspect_after",
            "delivery_timeout",
            "probe",
            "reconnect_after",
            "farewell_timeout",
        )
        return replace(self, resources=inf, **{name: factor * getattr(self, name) for name in signs})


@dataclass(frozen=True)
class Limits:
    """What bounds memory, log and frames."""

    frame: int = 1 << 20
    """Bytes of a vector per frame."""
    message: int = 2048
    """Bytes of a message besides its values (1,470 measured)."""
    control: int = 4096
    """Bytes of a message other than a frame, besides what it says of each member."""
    member: int = 192
    """Bytes of such a message per member; ids have up to 64 characters."""
    announcement: int = 3072
    """Further bytes of a heartbeat for each member: what it has announced, signed by RSA-4096."""
    views: int = 1 << 20
    """Bytes of a question about views or its answer; .9 kB per member with P-256 keys."""
    facts: int = 20_000
    """What a refusal lists, such as the columns of a table, kept."""
    characters: int = 300
    """Of a text from another party, kept."""
    rates: int = 16
    """Rates of a neighbour's own links, kept."""
    causes: int = 64
    """Refusals of one neighbour, and of all unknown callers together, that are reported."""
    sayings: int = 8
    """Reasons for one neighbour's refusals, one after the other, that are reported at once."""
    accidents: int = 3
    """Frames in a row that a neighbour calls damaged before that is reported."""
    belated: int = 4
    """Calls from a former neighbour that are not reported: it may not know it yet."""
    candidates: int = 4
    """Streams of one caller beside the active one."""
    successions: int = 8
    """Takeovers by streams of one caller at once."""
    news: int = 20
    """Changes of one neighbour's link that are reported at once."""


@dataclass(frozen=True)
class UnknownCallerLimits:
    """What all unidentified callers together may take: any party that can connect, until its hello is accepted.

    Of connections, calls that wait and messages there are two more for each neighbour, which may all come at once from
    one address.
    """

    connections: int = 64
    """At once, besides those of neighbours and as many of other members. One takes 12 kB, with TLS 60 kB."""
    of_one_origin: int = 32
    """Of these, per address."""
    of_one_member: int = 4
    """Per member, with certificates from its first call on, without from its accepted hello."""
    streams: int = 4
    """Per connection, at once."""
    calls: int = 50
    """Of one connection, from one scan to the next."""
    received: int = 1 << 18
    """Bytes that a connection may bring before it is identified."""
    waiting: int = 64
    """Unhandled calls per method; gRPC keeps 22 kB of each. More are partly refused, beyond twice as many all."""
    messages: int = 16
    """Being read, each up to the largest frame."""
    messages_of_one_origin: int = 8
    """Of these, from one address."""
    hello: int = 16_384
    """Bytes of a first message."""
    request: int = 4096
    """Bytes of a question about health or state."""
    headers: int = 8192
    """Bytes of a call's headers."""
    handshake: float = 10.0
    """Seconds for TLS, and until HTTP/2 has begun."""
    idle: float = 10.0
    """Seconds of a connection without a stream."""
    answer: float = 5.0
    """Seconds of a call that is not a stream between peers."""
    look: float = 0.05
    """Seconds from one scan of the connections to the next, while there is an unidentified one."""
    look_around: float = 0.25
    """The same while there is none."""
    resolve: float = 30.0
    """Seconds for which the addresses of a host name are remembered."""
    own_files: int = 128
    """Descriptors reserved for files, libraries, event loop, probes."""

    def beside(self, neighbours: int) -> "UnknownCallerLimits":
        """The same, with room for so many neighbours until they are known."""
        grown = ("connections", "of_one_origin", "waiting", "messages", "messages_of_one_origin")
        return replace(self, **{name: getattr(self, name) + 2 * neighbours for name in grown})


class RateLimiter:
    """`burst` times at once, and once more every so many seconds."""

    def __init__(self, burst: int, seconds: float) -> None:
        self._ahead, self._seconds = (burst - 1) * seconds, seconds
        self._clock = asyncio.get_running_loop().time
        self._spent_until = self._clock()
        """When all that has happened would have, if it had come evenly."""

    def try_acquire(self) -> bool:
        """Whether it may happen now; then it counts as done."""
        if self.wait > 0:
            return False
        self._spent_until = max(self._spent_until, self._clock()) + self._seconds
        return True

    @property
    def wait(self) -> float:
        """Seconds until it may happen again. After exactly that wait it may, whatever is rounded: tokens that are added
        up could stay just below 1, and the waits be too short for a clock to tell."""
        return max(0.0, self._spent_until - self._ahead - self._clock())
