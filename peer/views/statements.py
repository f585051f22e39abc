"""The messages about views: the statements that members sign, and the requests and replies that carry these.

Each has one text: canonical JSON is what is signed, sent and kept in views.json, and the names of these classes and
fields are part of it. All outside input goes through `read`, which accepts no value that an honest member could not
have sent: numbers have bounds, ids and texts have their characters; `Limits.views` bounds the length.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, get_args

from pydantic import Field, TypeAdapter, ValidationError

from peer.views.view import Id, Number, Round, View

HIGHEST = 1 << 62
"""The highest counter of a ballot."""
JUMP = 1 << 20
"""How far a ballot may be above the highest one known: HIGHEST is so many steps away that no member gets there."""
Counter = Annotated[int, Field(ge=1, le=HIGHEST)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=]*$", max_length=8192)]
Words = Annotated[str, Field(max_length=300, pattern=r"^[ -~]*$")]


class InvalidError(Exception):
    """A message that no honest member sends; its text says why."""


@dataclass(frozen=True, order=True)
class Ballot:
    """One attempt; of two, the greater one counts. A proposer uses no counter twice for one number."""

    counter: Counter
    proposer: Id


# Statements, which are signed.


@dataclass(frozen=True)
class Prepare:
    """Asks members to start no round until this number is decided, and to accept no lower ballot."""

    number: Number
    ballot: Ballot


@dataclass(frozen=True)
class Promise:
    """A promise as asked, with the progress of this member."""

    number: Number
    ballot: Ballot
    durable: Round
    """The last round to whose end it can go back, -1 for the beginning; of an admitted member, at least the round
    before its view's first one. It announces no later one until the decision."""
    started: Round
    """The last round that it has begun."""
    locked: Ballot | None = None
    """The ballot of the lock it holds."""


@dataclass(frozen=True)
class Vote:
    """A vote for the view of that number; a member votes once in a ballot and phase."""

    phase: Literal["accept", "commit"]
    number: Number
    ballot: Ballot
    digest: Digest
    """Of the view, or of no change, with the view before."""


@dataclass(frozen=True)
class Announcement:
    """Rounds up to this one are on the signer's disk, as a member of that view."""

    view: Number
    round: Round


@dataclass(frozen=True)
class Consent:
    """Consent that this member is expelled."""

    id: Id


@dataclass(frozen=True)
class Entry:
    """Asks to be admitted to the view after that one, the last that the signer knows."""

    number: Number
    private: Round
    """The round of the private state that it brings, or -1."""


Statement = TypeVar("Statement", Prepare, Promise, Vote, Announcement, Consent, Entry)


@dataclass(frozen=True)
class Signed(Generic[Statement]):
    """A statement by one member. Without certificates both texts are empty."""

    signer: Id
    statement: Statement
    signature: Base64 = ""
    certificate: Base64 = ""
    """The signer's, in DER."""


# What statements prove.


@dataclass(frozen=True)
class Guilt:
    """Two votes by one member in one ballot and phase for different views: proof that it lies (rule V5)."""

    one: Signed[Vote]
    other: Signed[Vote]

    @property
    def id(self) -> str:
        return self.one.signer


@dataclass(frozen=True)
class Evidence:
    """Why members are expelled."""

    consents: tuple[Signed[Consent], ...] = ()
    guilt: tuple[Guilt, ...] = ()


@dataclass(frozen=True)
class Lock:
    """A quorum has voted to accept a view in this ballot, or that nothing changes (None): no other value can be decided
    in this ballot, and any later one carries this on unless it has a higher lock."""

    number: Number
    ballot: Ballot
    view: View | None
    votes: tuple[Signed[Vote], ...]
    evidence: Evidence = Evidence()


@dataclass(frozen=True)
class Decision:
    """A view with the votes of a quorum of the view before it: proof that it was decided."""

    view: View
    ballot: Ballot
    votes: tuple[Signed[Vote], ...]
    evidence: Evidence = Evidence()


@dataclass(frozen=True)
class Grounds:
    """All that a proposed view follows from: each member computes it for itself (`decision.next_view`)."""

    promises: tuple[Signed[Promise], ...]
    lock: Lock | None = None
    """The highest that the promises name."""
    announced: tuple[Signed[Announcement], ...] = ()
    """By members that have promised less than that."""
    entries: tuple[Signed[Entry], ...] = ()
    evidence: Evidence = Evidence()
    leaves: bool = False
    """Whether the proposer leaves."""
    missing: tuple[Id, ...] = ()
    """Members that have left, were to play the last rounds before the present view, and are lost: all go back."""


@dataclass(frozen=True)
class Proposal:
    """A view, or None for no change."""

    view: View | None
    vote: Signed[Vote]
    """The proposer's own: two of them in one ballot prove that it lies."""
    grounds: Grounds


# Requests.


@dataclass(frozen=True)
class AskPromise:
    prepare: Signed[Prepare]


@dataclass(frozen=True)
class Relay:
    """Asks the receiver to ask those that have not answered the sender."""

    prepare: Signed[Prepare]
    to: tuple[Id, ...]


@dataclass(frozen=True)
class Propose:
    proposal: Proposal


@dataclass(frozen=True)
class Confirm:
    lock: Lock


@dataclass(frozen=True)
class Release:
    """A quorum has committed to no change: rounds may begin again."""

    number: Number
    ballot: Ballot
    votes: tuple[Signed[Vote], ...]


@dataclass(frozen=True)
class Yield:
    """The sender's attempt in that ballot has failed: another member may try."""

    number: Number
    ballot: Ballot


@dataclass(frozen=True)
class Decided:
    """These views were decided, in this order; as a reply: the sender did not know them."""

    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Ask:
    """Asks which views were decided after that one."""

    number: Number


@dataclass(frozen=True)
class Enter:
    entry: Signed[Entry]


@dataclass(frozen=True)
class Leave:
    """An operator, who knows the views up to that number, asks this member to leave."""

    number: Number


@dataclass(frozen=True)
class Expel:
    """An operator, who knows the views up to that number, has this member consent to an expulsion."""

    number: Number
    id: Id


@dataclass(frozen=True)
class Poll:
    """Asks for the expulsions to which a member consents. The sender knows the views up to that number."""

    number: Number


# Replies.


@dataclass(frozen=True)
class Promised:
    promise: Signed[Promise]
    lock: Lock | None = None
    """The one that the promise names."""


@dataclass(frozen=True)
class Relayed:
    promises: tuple[Promised, ...]


@dataclass(frozen=True)
class Voted:
    vote: Signed[Vote]


@dataclass(frozen=True)
class Refused:
    """Another ballot came before."""

    number: Number
    promised: Ballot


@dataclass(frozen=True)
class Objection:
    """The proposal is not true, as far as this member knows."""

    why: Words
    announced: tuple[Signed[Announcement], ...] = ()
    """By members that have promised less."""


@dataclass(frozen=True)
class Behind:
    """The sender knows the views up to that number only."""

    number: Number


@dataclass(frozen=True)
class Consents:
    """The expulsions to which the sender consents."""

    evidence: Evidence


@dataclass(frozen=True)
class Denied:
    """It cannot be done, and why."""

    why: Words


@dataclass(frozen=True)
class Heard:
    """Received."""


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
"""The replies of an honest member to each request."""
_KINDS = {one.__name__.encode(): one for one in (*get_args(Request), *get_args(Reply))}


def canonical(value: Any) -> bytes:
    """Return the one text of plain values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def written(message: Request | Reply) -> bytes:
    """Return its text: its name, and its content."""
    return type(message).__name__.encode() + b" " + canonical(asdict(message))


def read_request(text: bytes) -> Request:
    """Raises InvalidError for anything else."""
    return _read_message(Request, text)  # type: ignore[no-any-return]


def read_reply(text: bytes) -> Reply:
    """Raises InvalidError for anything else."""
    return _read_message(Reply, text)  # type: ignore[no-any-return]


def check_reply(request: Request, reply: Reply) -> None:
    """Raises InvalidError for a reply that no honest member gives to that request."""
    fits = isinstance(reply, _REPLIES.get(type(request), Reply))
    if not fits or (isinstance(request, Ask) and isinstance(reply, Behind) and reply.number >= request.number):
        raise InvalidError(f"it answered {type(request).__name__} with {type(reply).__name__}")


def read(kind: type[Kept], text: bytes) -> Kept:
    """Return the value in a JSON text, of a type made of those here; raises InvalidError for anything else."""
    adapter: TypeAdapter[Kept] = _adapter(kind)  # type: ignore[arg-type]
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidError(f"{place or kind.__name__}: {first['msg']}"[:200]) from None


def _read_message(kinds: Any, text: bytes) -> Any:
    name, _, content = text.partition(b" ")
    kind = _KINDS.get(name)
    if kind is None or kind not in get_args(kinds):
        raise InvalidError("not a message about views")
    return read(kind, content)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
