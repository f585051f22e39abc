"""What members say about views: the statements that they sign, and the requests and replies that carry these.

One text of each: canonical JSON is what is signed, sent and kept in views.json. Whatever comes from outside is read by
`read`, which takes no value that an honest member could not have said: numbers have bounds, ids and texts have their
characters, and how long the whole may be is for the reader of bytes to say (`Limits.views`).
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, get_args

from pydantic import Field, TypeAdapter, ValidationError

from peer.views.view import Id, Number, Round, View

HIGHEST = 1 << 62
"""No counter of a ballot is higher."""
JUMP = 1 << 20
"""How far a ballot may be above the highest one known: reaching HIGHEST takes so many steps that nobody gets there."""
Counter = Annotated[int, Field(ge=1, le=HIGHEST)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=]*$", max_length=8192)]
Words = Annotated[str, Field(max_length=300, pattern=r"^[ -~]*$")]


class InvalidError(Exception):
    """What no honest member says; tells what it was."""


@dataclass(frozen=True, order=True)
class Ballot:
    """One attempt; of two, the greater one counts. A proposer never uses a counter twice for one number."""

    counter: Counter
    proposer: Id


# What is signed.


@dataclass(frozen=True)
class Prepare:
    """start no round until this number is decided, and listen to no lower ballot"""

    number: Number
    ballot: Ballot


@dataclass(frozen=True)
class Promise:
    """as asked; and how this member stands"""

    number: Number
    ballot: Ballot
    durable: Round
    """The last round to whose end it can go back, -1 for the beginning; of one that was taken in, at least the round
    before its view's first one. It announces no later one until the decision."""
    oldest: Round
    """It can be in no round before this one: that in which it was taken in, else 0."""
    started: Round
    """The last round that it has begun."""
    private: Round
    """After which round the private state stands with which it was taken in, and would be again; -1: it has none."""
    locked: Ballot | None = None
    """That of the lock it holds."""


@dataclass(frozen=True)
class Vote:
    """this is the view of that number; a member votes once in a ballot and phase"""

    phase: Literal["accept", "commit"]
    number: Number
    ballot: Ballot
    digest: Digest
    """Of the view, and of the one before; or of there being no change."""


@dataclass(frozen=True)
class Announcement:
    """rounds up to this one are on my disk, as a member of that view"""

    view: Number
    round: Round


@dataclass(frozen=True)
class Consent:
    """this member is to be voted out"""

    id: Id


@dataclass(frozen=True)
class Entry:
    """take me into the view after that one, the last I know"""

    number: Number
    private: Round
    """After which round the private state stands that it brings, or -1."""


Statement = TypeVar("Statement", Prepare, Promise, Vote, Announcement, Consent, Entry)


@dataclass(frozen=True)
class Signed(Generic[Statement]):
    """A statement by one member. Both texts are empty where there are no certificates."""

    signer: Id
    statement: Statement
    signature: Base64 = ""
    certificate: Base64 = ""
    """The signer's, in DER."""


# What is made of it.


@dataclass(frozen=True)
class Guilt:
    """Two votes by one member in one ballot and phase for different views: anyone can see that it has lied."""

    one: Signed[Vote]
    other: Signed[Vote]

    @property
    def id(self) -> str:
        return self.one.signer


@dataclass(frozen=True)
class Evidence:
    """Why somebody is expelled."""

    consents: tuple[Signed[Consent], ...] = ()
    guilt: tuple[Guilt, ...] = ()


@dataclass(frozen=True)
class Lock:
    """A quorum has voted to accept a view in this ballot, or that nothing changes (None): nothing else can be decided
    in this ballot, and any later one carries this on unless it has a higher lock."""

    number: Number
    ballot: Ballot
    view: View | None
    votes: tuple[Signed[Vote], ...]
    evidence: Evidence = Evidence()


@dataclass(frozen=True)
class Decision:
    """A view with the votes of a quorum of the view before it: that it was decided, provable to anybody."""

    view: View
    ballot: Ballot
    votes: tuple[Signed[Vote], ...]
    evidence: Evidence = Evidence()


@dataclass(frozen=True)
class Grounds:
    """All that a proposed view follows from: each member works it out for itself (`decision.next_view`)."""

    promises: tuple[Signed[Promise], ...]
    lock: Lock | None = None
    """The highest that any of the promises names."""
    announced: tuple[Signed[Announcement], ...] = ()
    """By members that have promised less than they had announced."""
    entries: tuple[Signed[Entry], ...] = ()
    evidence: Evidence = Evidence()
    leaves: bool = False
    """Whether the proposer leaves."""
    missing: tuple[Id, ...] = ()
    """Who has left, was to play the last rounds before the present view, and is lost: all go back."""


@dataclass(frozen=True)
class Proposal:
    """A view, or None for no change."""

    view: View | None
    vote: Signed[Vote]
    """The proposer's own: two of them in one ballot prove its guilt."""
    grounds: Grounds


# What is asked.


@dataclass(frozen=True)
class AskPromise:
    prepare: Signed[Prepare]


@dataclass(frozen=True)
class Relay:
    """ask those for me, from whom I have no answer"""

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
    """a quorum has committed to there being no change: go on"""

    number: Number
    ballot: Ballot
    votes: tuple[Signed[Vote], ...]


@dataclass(frozen=True)
class Yield:
    """my attempt in that ballot has come to nothing: another may try"""

    number: Number
    ballot: Ballot


@dataclass(frozen=True)
class Decided:
    """these views were decided, one after the other; as a reply: you are outdated"""

    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Ask:
    """which views were decided after that one?"""

    number: Number


@dataclass(frozen=True)
class Enter:
    entry: Signed[Entry]


@dataclass(frozen=True)
class Leave:
    """its operator asks this member to leave, and knows the views up to that number"""

    number: Number


@dataclass(frozen=True)
class Expel:
    """its operator, who knows the views up to that number, has this member consent that one is voted out"""

    number: Number
    id: Id


@dataclass(frozen=True)
class Poll:
    """to the voting out of whom do you consent? The asker knows the views up to that number"""

    number: Number


# What is answered.


@dataclass(frozen=True)
class Promised:
    promise: Signed[Promise]
    lock: Lock | None = None
    """That which the promise names."""


@dataclass(frozen=True)
class Relayed:
    promises: tuple[Promised, ...]


@dataclass(frozen=True)
class Voted:
    vote: Signed[Vote]


@dataclass(frozen=True)
class Refused:
    """another ballot came before yours"""

    number: Number
    promised: Ballot


@dataclass(frozen=True)
class Objection:
    """what is proposed is not so"""

    why: Words
    announced: tuple[Signed[Announcement], ...] = ()
    """By those who have promised less."""


@dataclass(frozen=True)
class Behind:
    """I know the views up to that number only"""

    number: Number


@dataclass(frozen=True)
class Consents:
    """to the voting out of these"""

    evidence: Evidence


@dataclass(frozen=True)
class Denied:
    """that cannot be, and why"""

    why: Words


@dataclass(frozen=True)
class Heard:
    """received"""


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
"""What an honest member answers to which request."""
_KINDS = {one.__name__.encode(): one for one in (*get_args(Request), *get_args(Reply))}


def canonical(value: Any) -> bytes:
    """The one text of plain values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def written(said: Request | Reply) -> bytes:
    """A request or a reply: its name, and what is in it."""
    return type(said).__name__.encode() + b" " + canonical(asdict(said))


def read_request(text: bytes) -> Request:
    """InvalidError for anything else."""
    return _said(Request, text)  # type: ignore[no-any-return]


def read_reply(text: bytes) -> Reply:
    """InvalidError for anything else."""
    return _said(Reply, text)  # type: ignore[no-any-return]


def check_reply(request: Request, reply: Reply) -> None:
    """InvalidError for a reply that no honest member gives to that request."""
    fits = isinstance(reply, _REPLIES.get(type(request), Reply))
    if not fits or (isinstance(request, Ask) and isinstance(reply, Behind) and reply.number >= request.number):
        raise InvalidError(f"it answered {type(request).__name__} with {type(reply).__name__}")


def read(kind: type[Kept], text: bytes) -> Kept:
    """What stands there in plain JSON, of a type made of those here; InvalidError for anything else."""
    adapter: TypeAdapter[Kept] = _adapter(kind)  # type: ignore[arg-type]
    try:
        found: Kept = adapter.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidError(f"{place or kind.__name__}: {first['msg']}"[:200]) from None
    return found


def _said(kinds: Any, text: bytes) -> Any:
    name, _, content = text.partition(b" ")
    kind = _KINDS.get(name)
    if kind is None or kind not in get_args(kinds):
        raise InvalidError("nothing that is said about views")
    return read(kind, content)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
