"""The handshake on every stream: which peer speaks to which, about which federation; and what becomes of refusals.

A refused caller is told why, and in what the two differ, if it may know about this federation at all. This peer's
refusals are counted by cause, and each cause is reported once, however often it comes back (`Refusals`). Changes of the
reason why a neighbour and this peer disagree are reported at once a few times, and then seldom (`ThrottledReason`). An
unforeseen error in serving a stream ends that stream, and nothing else (`Surprises`).
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from secrets import randbits
from traceback import extract_tb, format_list
from typing import Any

from peer.errors import FailedError, InputError
from peer.network.limits import Limits, RateLimiter, Timeouts
from peer.network.transport import BreachError, DisconnectedError, Pipe
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Hello, Position, Question, Refusal, UntrustedDecoder, Welcome, sanitise
from peer.telemetry.events import MAKE_ALIKE_HINT, CallerRefused, Conflict, Report
from peer.versions import WIRE, release, span
from peer.views.signing import UNSIGNED, Keyring

MAX_DIFFERENCES = 4
"""How many differences a sentence names."""
MAX_DIFFERENCE_CHARACTERS = 300
"""How many characters they have together."""
MAX_SETTINGS, MAX_FACTS, MAX_FACTS_BYTES = 5000, Limits.facts - 1, 900_000
"""How many values of settings, or facts of data, a refusal contains, and their bytes of UTF-8: it must fit into one
message, however many columns a table has."""
MORE = "…"
"""Stands for those that are left out."""
REASON_WITHHELD = Refusal(
    reason=Refusal.STRANGER,
    detail="it tells why only to callers with a certificate or at an address of the ring; its own log has the reason",
)
"""The answer to an unidentified caller, as each reason would reveal something about the federation."""


class RefusedError(Exception):
    """Raised when the other end answered with a refusal; `reason` is one of Refusal's, the text says why."""

    def __init__(self, refusal: Refusal, us: "Identity | None" = None) -> None:
        super().__init__(describe_refusal(refusal, us))
        self.refusal, self.reason = refusal, refusal.reason


@dataclass(frozen=True)
class Identity:
    """What this peer says about itself in a hello, and must agree on with every peer it talks to."""

    id: str
    spec: Mapping[str, str]
    """sha256 of each key of the spec."""
    manifest: str
    """sha256 of the manifest."""
    data: tuple[str, ...] = ()
    """The facts in which the data must agree, as in the manifest; a refused peer gets them to see what differs."""
    view: int = 0
    passed: Mapping[int, int] = field(default_factory=dict)
    """For the number of an earlier view, the round that all its members that are in this view have on disk."""
    rounds: int = 1_000_000
    """The number of rounds of the run; by default the most that a run may have."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings with the digests in `spec`, as plain JSON; a refused peer gets those that differ."""
    keyring: Keyring = UNSIGNED
    """The keyring that signs announcements, if members may change."""
    life: int = field(default_factory=lambda: randbits(64))
    """The incarnation: a random number of this process."""

    def hello(self, to: str, durable: int = -1, round: int = 0) -> bytes:
        """The serialised hello for the peer `to`, with this peer's durable round and the round it is in."""
        hello = Hello(**self._introduction(to), view=self.view, manifest=self.manifest)
        hello.durable, hello.round, hello.life = durable, round, self.life
        return hello.SerializeToString()

    def question(self, to: str) -> bytes:
        """The serialised first message of a question about views to the peer `to`."""
        return Question(**self._introduction(to)).SerializeToString()

    def _introduction(self, to: str) -> dict[str, Any]:
        wire = {"version": WIRE.writes, "oldest": WIRE.reads, "release": release()}
        return {**wire, "id": self.id, "to": to, "spec": self.spec}

    def check(self, hello: Hello, certificate: str | None) -> Refusal | None:
        """Return why the sender of `hello` is refused; None if it is accepted."""
        if refusal := self.check_member(hello, certificate):
            return refusal
        if hello.view != self.view:
            refusal = Refusal(reason=Refusal.VIEW, detail=f"view {self.view} is current, not {hello.view}")
            if hello.view in self.passed:
                refusal.durable = self.passed[hello.view]
            return refusal
        if hello.manifest != self.manifest:
            detail = f"other classes, inputs or tensors than `{self.id}`'s"
            return Refusal(reason=Refusal.MANIFEST, detail=detail, keys=first_facts(self.data))
        return None

    def check_member(self, hello: Hello | Question, certificate: str | None) -> Refusal | None:
        """Return why the caller does not count as a member of this federation; None if it does."""
        if certificate is not None and certificate != hello.id:
            owner = f"`{certificate}`" if certificate else "nobody"
            detail = f"the certificate is made out to {owner}, not to `{hello.id}`"
            return Refusal(reason=Refusal.IDENTITY, detail=detail)
        if not WIRE.overlaps(hello.version, oldest := hello.oldest or hello.version):
            caller = f"`{hello.id}` with dfl {hello.release or '(unknown)'} speaks {span(hello.version, oldest)}"
            detail = f"`{self.id}` with dfl {release()} speaks wire version {WIRE.span}, and {caller}"
            behind = self.id if oldest > WIRE.writes else hello.id
            return Refusal(reason=Refusal.VERSION, detail=f"{detail}; upgrade `{behind}`")
        if hello.to != self.id:
            return Refusal(reason=Refusal.IDENTITY, detail=f"this is `{self.id}`, not `{hello.to}`")
        theirs, ours = dict(hello.spec), dict(self.spec)
        differing = sorted(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
        if differing:
            told = self.settings_of(differing)
            return Refusal(reason=Refusal.FEDERATION, detail="different federation", keys=differing, settings=told)
        return None

    def settings_of(self, keys: Collection[str]) -> list[str]:
        """The first of this peer's settings under these keys, in words, one value each."""
        found = (fact for key in keys if key in self.settings for fact in _facts(key, self.settings[key]))
        return first_facts(found, MAX_SETTINGS)


def first_facts(facts: Iterable[str], most: int = MAX_FACTS) -> list[str]:
    """Return the facts that a refusal has room for, and MORE if these are not all."""
    told, left = list[str](), MAX_FACTS_BYTES
    for fact in facts:
        left -= len(fact.encode())
        if len(told) == most or left < 0:
            return [*told, MORE]
        told.append(fact)
    return told


def _facts(name: str, value: Any) -> Iterator[str]:
    below: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list) and not all(isinstance(one, int | float) for one in value):
        below = enumerate(value)
    if not below:
        yield f"`{name}` {json.dumps(value)}"[:MAX_DIFFERENCE_CHARACTERS]
    for key, one in below:
        yield from _facts(f"{name}.{key}", one)


def describe_refusal(refusal: Refusal, us: Identity | None) -> str:
    """Describe a refusal in words. us: the refused peer."""
    said = ""
    if us and refusal.reason == Refusal.FEDERATION:
        said = _describe_both("federation", refusal.settings, us.settings_of(refusal.keys))
    elif us and refusal.reason == Refusal.MANIFEST and refusal.keys:
        said = _describe_both("data", refusal.keys, first_facts(us.data))
    if not said and refusal.reason == Refusal.FEDERATION:
        differing = ", ".join(f"`{key}`" for key in refusal.keys)
        said = f"refused: its federation differs in {differing[:MAX_DIFFERENCE_CHARACTERS]}"
    return said or f"refused: {refusal.detail}"


def _describe_both(what: str, theirs: Sequence[str], ours: Sequence[str]) -> str:
    """Say what two peers differ in; empty if that is not known."""
    # What one of them leaves out is no difference.
    most = min([len(facts) - 1 for facts in (theirs, ours) if MORE in facts[-1:]], default=None)
    theirs, ours = theirs[:most], ours[:most]
    only_theirs, only_ours = _differing(theirs, ours), _differing(ours, theirs)
    if not (only_theirs or only_ours):
        return ""
    nothing = "has nothing of the kind"
    if only_theirs:
        differ = f"its {what} has {only_theirs}, and this peer's {only_ours or nothing}"
    else:
        differ = f"this peer's {what} has {only_ours}, and the other's {nothing}"
    return f"refused: {differ}; {MAKE_ALIKE_HINT}"


def _differing(facts: Sequence[str], others: Sequence[str]) -> str:
    """The first few facts that are not among the other peer's."""
    known = set(others)
    return ", ".join([fact for fact in facts if fact not in known][:MAX_DIFFERENCES])[:MAX_DIFFERENCE_CHARACTERS]


class NoAnswerError(DisconnectedError):
    """Raised when nothing comes on a connection that seems intact: it may be dead, and must be replaced."""


SentMessages = Callable[[], Set[tuple[int, int]]]
"""The messages that are kept for a neighbour, by round and step."""


async def do_handshake(
    pipe: Pipe, hello: bytes, seconds: float, decoder: UntrustedDecoder, sent: SentMessages = frozenset
) -> Welcome:
    """Say hello and return the welcome; RefusedError if refused, NoAnswerError if nothing comes for `seconds`.

    Of what the neighbour says that it has, only the positions of messages sent to it are kept: it could fill the rest
    with a hundred megabytes, which would stay for as long as the stream.
    """
    try:
        async with asyncio.timeout(seconds):
            await pipe.send(hello)
            reply = decoder.answer(await pipe.receive())
    except TimeoutError:
        raise NoAnswerError(f"no answer in {seconds:.0f} s") from None
    except BadFrameError as error:
        raise BreachError(str(error)) from None
    if reply.HasField("refusal"):
        raise RefusedError(reply.refusal)
    theirs = reply.welcome
    known = sent()
    has = {(one.round, one.step): one.next for one in theirs.positions} if known else {}
    positions = [Position(round=key[0], step=key[1], next=next) for key, next in has.items() if key in known]
    # A new one: a field that is cleared would keep its memory.
    return Welcome(
        durable=theirs.durable, round=theirs.round, release=theirs.release, life=theirs.life, positions=positions
    )


STRANGERS = "strangers"
"""Stands for all callers that are not neighbours, as they can make up their names."""
UNDISTINGUISHING_FIELDS = ("origin", "kind")
"""Fields that do not distinguish causes: one changes with every connection, one follows from the reason."""


class Refusals:
    """Counts refusals by cause; `report` gets the first event of each. known: the neighbours."""

    def __init__(self, report: Report, limits: Limits = Limits(), known: Container[str] = ()) -> None:
        self._report, self._limits, self._known = report, limits, known
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._causes: Counter[str] = Counter()
        """How many causes of each party are told apart."""

    def add(self, event: CallerRefused | Conflict) -> None:
        """Count a refusal; all fields but UNDISTINGUISHING_FIELDS distinguish causes."""
        most = self._limits.characters
        fields = {name: value for name, value in asdict(event).items() if name != "time"}
        words: dict[str, Any] = {name: sanitise(text, most) for name, text in fields.items() if isinstance(text, str)}
        cause = (
            event.name,
            *(str(text) for name, text in (fields | words).items() if name not in UNDISTINGUISHING_FIELDS),
        )
        caller = event.caller if isinstance(event, CallerRefused) else event.sender
        party = caller if caller in self._known else STRANGERS
        if cause not in self.counts and self._causes[party] >= self._limits.causes:
            cause = (event.name, party, "others")
            words = {name: "many others" for name in words if party == STRANGERS or words[name] != party}
        self.counts[cause] += 1
        if self.counts[cause] == 1:
            self._causes[party] += 1
            self._report(replace(event, **words))


class Surprises:
    """Unforeseen errors in serving a stream, which end the stream, and nothing else.

    Errors of this peer's own state are not among them: those that are raised to end the peer, and errors of the disk or
    for lack of memory.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._logged: set[str] = set()
        """Kinds of errors that were logged, each with the place where it was raised."""

    def explain(self, error: Exception) -> str:
        """Log an error's traceback once, and describe it in words; raise an error of this peer's own state again."""
        disk = isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError)
        if disk or isinstance(error, FailedError | InputError | MemoryError):
            raise error
        *_, place = trace = extract_tb(error.__traceback__)
        kind = f"{type(error).__name__} at {place.filename}:{place.lineno}"
        if kind not in self._logged:
            self._logged.add(kind)
            # Without the error's own text: it may contain the other end's words, and forge lines.
            logging.getLogger("dfl").error("a stream was closed by %s\n%s", kind, "".join(format_list(trace)).rstrip())
        return f"{type(error).__name__}: {sanitise(str(error), self._limits.characters)}; report this"


class ThrottledReason:
    """The reported reason why a neighbour and this peer disagree; it may change a few times at once, then seldom."""

    def __init__(self, limits: Limits, timeouts: Timeouts) -> None:
        self._pace = RateLimiter(limits.sayings, timeouts.report_interval)
        self._last = ""

    def update(self, why: str) -> str:
        """Take the present reason; return the one to report now."""
        if why != self._last and self._pace.try_acquire():
            self._last = why
        return self._last
