"""The messages about views: the statements that members sign, and the requests and replies that carry them.

Each has exactly one text: canonical JSON is signed, sent and kept in views.json, and the names of these classes and
fields are part of it. All outside input goes through `read`, which accepts no value that an honest member could not
have sent: numbers are bounded, ids and texts limited to certain characters; `Limits.views` bounds the length.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, dataclass_transform, get_args

from pydantic import Field, StrictBool, TypeAdapter, ValidationError

from peer.records import Many, parsed
from peer.views.view import Id, Number, Round, View

HIGHEST = 1 << 62
"""The highest counter of a ballot."""
JUMP = 1 << 20
"""How far a ballot may exceed the highest known one: HIGHEST is so many such steps away that nobody gets there."""
Counter = Annotated[int, Field(ge=1, le=HIGHEST, strict=True)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=]*$", max_length=8192)]
Words = Annotated[str, Field(max_length=300, pattern=r"^[ -~]*$")]


class InvalidError(Exception):
    """A message that no honest member sends; the text says why."""


@dataclass(frozen=True, order=True)
class Ballot:
    """The number of an attempt; the higher one takes precedence. A proposer never reuses a counter for one view."""

    counter: Counter
    proposer: Id


@dataclass_transform(frozen_default=True)
class Message:
    """What members say to each other, and parts of it: each subclass is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True)(cls)


# Statements, which are signed.


class Prepare(Message):
    """Asks members to start no round until the view of this number is decided, and to accept no lower ballot."""

    number: Number
    ballot: Ballot


class Promise(Message):
    """The promise that `Prepare` asks for, with this member's progress."""

    number: Number
    ballot: Ballot
    durable: Round
    """The last round that it can go back to (the state after it), -1 for the beginning; for an admitted member, at
    least the round before the first of its view. It announces no later one until the decision."""
    started: Round
    """The last round that it has begun."""
    locked: Ballot | None = None
    """The ballot of the lock that it holds."""


class Vote(Message):
    """A vote for the view of that number; a member votes once per ballot and phase."""

    phase: Literal["accept", "commit"]
    number: Number
    ballot: Ballot
    digest: Digest
    """The digest of the present view and the one voted for, or no change (`Verifier.digest`)."""


class Announcement(Message):
    """States that the signer, as a member of that view, has all rounds up to this one on disk."""

    view: Number
    round: Round


class Consent(Message):
    """Consents to the expulsion of this member."""

    id: Id


class Entry(Message):
    """Asks to be admitted to the view after that number, the last one that the signer knows."""

    number: Number
    private: Round
    """The round of the private state that it brings; -1: none."""


Statement = TypeVar("Statement", Prepare, Promise, Vote, Announcement, Consent, Entry)


class Signed(Message, Generic[Statement]):
    """A statement by one member. Without certificates, signature and certificate are empty."""

    signer: Id
    statement: Statement
    signature: Base64 = ""
    certificate: Base64 = ""
    """The signer's certificate (DER)."""


# What statements prove.


class Guilt(Message):
    """Two votes by one member in one ballot and phase for different views: proof that it lies (rule V5)."""

    one: Signed[Vote]
    other: Signed[Vote]

    @property
    def id(self) -> str:
        return self.one.signer


class Evidence(Message):
    """The proof on which members are expelled."""

    consents: Many[Signed[Consent]] = ()
    guilt: Many[Guilt] = ()


class Lock(Message):
    """Proof that a quorum has voted in this ballot to accept a view, or no change (None): no other value can be decided
    in it, and a later ballot carries this value on unless a higher lock exists."""

    number: Number
    ballot: Ballot
    view: View | None
    votes: Many[Signed[Vote]]
    evidence: Evidence = Evidence()


class Decision(Message):
    """A view with votes by a quorum of the view before it, which prove that it was decided."""

    view: View
    ballot: Ballot
    votes: Many[Signed[Vote]]
    evidence: Evidence = Evidence()


class Grounds(Message):
    """All that a proposed view follows from, so that each member can compute it (`decision.next_view`)."""

    promises: Many[Signed[Promise]]
    lock: Lock | None = None
    """The highest lock that the promises name."""
    announced: Many[Signed[Announcement]] = ()
    """Announcements by members that have promised less than they announced."""
    entries: Many[Signed[Entry]] = ()
    evidence: Evidence = Evidence()
    leaves: StrictBool = False
    """Whether the proposer leaves."""
    missing: Many[Id] = ()
    """Former members that still had rounds before the present view to play, and are lost: all go back."""


class Proposal(Message):
    """A proposal of a view; None: no change."""

    view: View | None
    vote: Signed[Vote]
    """The proposer's own vote: two different ones in one ballot prove that it lies."""
    grounds: Grounds


# Requests.


class AskPromise(Message):
    prepare: Signed[Prepare]


class Relay(Message):
    """Asks the receiver to ask members that have not answered the sender."""

    prepare: Signed[Prepare]
    to: Many[Id]


class Propose(Message):
    proposal: Proposal


class Confirm(Message):
    lock: Lock


class Release(Message):
    """Says that a quorum has committed to no change: rounds may begin again."""

    number: Number
    ballot: Ballot
    votes: Many[Signed[Vote]]


class Yield(Message):
    """Says that the sender's attempt in that ballot has failed: another member may try."""

    number: Number
    ballot: Ballot


class Decided(Message):
    """Decided views, in order; as a reply: views that the asker did not know."""

    decisions: Many[Decision]


class Ask(Message):
    """Asks for the views that were decided after that number."""

    number: Number


class Enter(Message):
    entry: Signed[Entry]


class Leave(Message):
    """An operator's request that this member leave; the operator knows the views up to that number."""

    number: Number


class Expel(Message):
    """An operator's request for this member's consent to an expulsion; the operator knows views up to that number."""

    number: Number
    id: Id


class Poll(Message):
    """Asks which expulsions a member consents to; the sender knows the views up to that number."""

    number: Number


# Replies.


class Promised(Message):
    promise: Signed[Promise]
    lock: Lock | None = None
    """The lock that the promise names."""


class Relayed(Message):
    promises: Many[Promised]


class Voted(Message):
    vote: Signed[Vote]


class Refused(Message):
    """Says that another ballot came first."""

    number: Number
    promised: Ballot


class Objection(Message):
    """Says that the proposal contradicts what this member knows."""

    why: Words
    announced: Many[Signed[Announcement]] = ()
    """Announcements by members that have promised less."""


class Behind(Message):
    """Says that the sender knows only the views up to that number."""

    number: Number


class Consents(Message):
    """The expulsions that the sender consents to, and what it can prove."""

    evidence: Evidence


class Denied(Message):
    """Says that the request cannot be met, and why."""

    why: Words


class Heard(Message):
    """Confirms receipt."""


Kept = TypeVar("Kept")
Request: TypeAlias = (
    AskPromise | Relay | Propose | Confirm | Release | Yield | Decided | Ask | Enter | Leave | Expel | Poll
)
Reply: TypeAlias = Promised | Relayed | Voted | Refused | Objection | Decided | Behind | Consents | Denied | Heard
_REPLIES: dict[type, tuple[type, ...]] = {
    AskPromise: (Promised, Refused, Decided, Behind),
    Relay: (Relayed, Refused),
    Propose: (Voted, Refused, Objection, Decided, Behind),
    Confirm: (Voted, Refused, Decided, Behind),
    Yield: (Heard,),
    Decided: (Heard, Behind),
    Ask: (Decided, Behind),
    Enter: (Heard, Decided),
    Poll: (Consents, Decided),
}
"""The replies that an honest member may give to each request."""
_KINDS = {one.__name__.encode(): one for one in (*get_args(Request), *get_args(Reply))}


def canonical(value: Any) -> bytes:
    """Return the only JSON text of plain values: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def written(message: Request | Reply) -> bytes:
    """Return a message's text: its class name, a space and its content."""
    return type(message).__name__.encode() + b" " + canonical(asdict(message))


def read_request(text: bytes) -> Request:
    """Return the request in a text; raises InvalidError if it holds none."""
    return _read_message(Request, text)  # type: ignore[no-any-return]


def read_reply(text: bytes) -> Reply:
    """Return the reply in a text; raises InvalidError if it holds none."""
    return _read_message(Reply, text)  # type: ignore[no-any-return]


def check_reply(request: Request, reply: Reply) -> None:
    """Raise InvalidError for a reply that no honest member gives to that request."""
    fits = isinstance(reply, _REPLIES.get(type(request), Reply))
    if not fits or (isinstance(request, Ask) and isinstance(reply, Behind) and reply.number >= request.number):
        raise InvalidError(f"it answered {type(request).__name__} with {type(reply).__name__}")


def read(kind: type[Kept], text: bytes) -> Kept:
    """Return the value of a type of this module in a JSON text; raises InvalidError if it holds none."""
    adapter: TypeAdapter[Kept] = _adapter(kind)  # type: ignore[arg-type]
    try:
        return parsed(adapter, text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidError(f"{place or kind.__name__}: {first['msg']}"[:200]) from None
    except ValueError:
        raise InvalidError(f"{kind.__name__}: not JSON") from None


def _read_message(kinds: Any, text: bytes) -> Any:
    name, _, content = text.partition(b" ")
    kind = _KINDS.get(name)
    if kind is None or kind not in get_args(kinds):
        raise InvalidError("not a message about views")
    return read(kind, content)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
