"""What the peers of a run left in their directories, read again: audits and decided views.

The files come from other machines and may be damaged or forged. A spoilt line is left out: what it told of is then
missing, or stands in another peer's file. A view counts only once: two peers that tell of different views of one number
are of two runs, and a views.json must prove the views in it by certificates of CAs that more peers name than may lie.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, StrictInt, TypeAdapter, ValidationError

from launcher.history import recorded_events
from launcher.views import Views, view_of_event
from peer.errors import FailedError
from peer.files import lines, open_plain
from peer.records import ManyKept, Named
from peer.spec.federation import Spec
from peer.spec.recordings import VIEWS, EarlierFormatError, read_proved_views, read_views
from peer.telemetry.events import ViewDecided, objects
from peer.telemetry.results import AUDIT
from peer.views.statements import InvalidError
from peer.views.view import View

VIEW = TypeAdapter(View)
Count = Annotated[StrictInt, Field(ge=0, lt=2**63)]


class AuditEntry(BaseModel):
    """Bytes of one vector or record along one edge."""

    vector: str
    bytes: Count
    head_bytes: Count = 0
    scalar_bytes: Count = 0

    @property
    def sizes(self) -> tuple[int, int]:
        return self.bytes, self.scalar_bytes


class SentEntry(AuditEntry):
    to: str
    order: Count = 0
    """How many orders of the ring had been announced in the round."""


class ReceivedEntry(AuditEntry):
    sender: str = Field(alias="from")


class AuditedRound(BaseModel):
    """One round of one peer, in one view."""

    round: Count
    view: Count = 0
    interrupted: bool = False
    edges: Named[ManyKept[str]]
    sent: ManyKept[SentEntry]
    received: ManyKept[ReceivedEntry]
    orders: ManyKept[ManyKept[str]] = Field(default_factory=list)  # a plain default is copied deeply, line by line
    told: Named[Count] = Field(default_factory=dict)
    noted: Named[Count] = Field(default_factory=dict)
    own_code: ManyKept[str] = Field(default_factory=list)

    @property
    def at(self) -> tuple[int, int]:
        """The view and the round."""
        return self.view, self.round


def audits(places: Mapping[str, Path]) -> dict[str, list[AuditedRound]]:
    """Every peer's audit from its directory, by id: each round of a view once, as last written.

    A line that is spoilt is left out; the round that it told of is then missing.
    """
    found = {}
    for id, place in places.items():
        with suppress(OSError), open_plain(place / AUDIT) as file:
            rounds: dict[tuple[int, int], AuditedRound] = {}
            for one in objects(lines(file)):
                with suppress(ValidationError):
                    record = AuditedRound.model_validate(one)
                    rounds[record.at] = record
            found[id] = [*rounds.values()]
    return found


def decided_views(spec: Spec, places: Mapping[str, Path], rounds: int) -> Views:
    """What all peers' files say together; FailedError where two of them tell different views of one number, or a
    peer's views.json does not prove the views in it.

    Views in events count where none is proved and more peers tell the same than may lie. A line that is spoilt in one
    peer's events stands in another's.
    """
    found: dict[int, tuple[str, View]] = {}
    places = places if spec.on_loss == "bypass" else {}
    trusted = _trusted_authorities(spec, places.values())
    proofs = [(id, view) for id, place in places.items() for view in _proved_views(place, spec, trusted)]
    proved = {view.number for _, view in proofs} if trusted else set()
    told = {id: dict.fromkeys(_views_in_events(place)) for id, place in places.items()}
    count = Counter(view for views in told.values() for view in views if view.number not in proved)
    believed = [(id, view) for id in told for view in told[id] if count[view] > _liars(spec, len(told))]
    for id, view in (*proofs, *believed):
        other, known = found.setdefault(view.number, (id, view))
        if known != view:
            raise FailedError(
                f"{other} and {id} tell of different views of number {view.number}: they are of two runs, or the "
                "events of one of them are spoilt; leave one of them out"
            )
    return Views(spec.ids, rounds, tuple(view for _, (_, view) in sorted(found.items())))


def _liars(spec: Spec, peers: int) -> int:
    """How many of so many peers may lie in their files."""
    return min(spec.tolerated(certificates=True), peers - 1)


def _trusted_authorities(spec: Spec, places: Collection[Path]) -> list[str]:
    """The CAs by which views are proved: those that more peers name than may lie, or all, where no more are there."""
    named = list[tuple[str, ...]]()
    for place in places:
        with suppress(OSError, InvalidError):
            named.append(read_views(place).authorities)
    count = Counter(pem for authorities in named for pem in {*authorities})
    return [pem for pem in count if count[pem] > _liars(spec, len(named))]


def _proved_views(place: Path, spec: Spec, trusted: Collection[str]) -> Iterator[View]:
    """What the peer's views.json proves. One of an earlier version proves nothing, and is passed over."""
    try:
        yield from (one.view for one in read_proved_views(place, spec, trusted).decisions)
    except (FileNotFoundError, EarlierFormatError):
        return
    except OSError as error:
        raise FailedError(f"{place / VIEWS}: cannot be read ({error.strerror})") from None
    except InvalidError as error:
        raise FailedError(
            f"{place / VIEWS}: is damaged, or holds a view without proof that it was decided ({error}); leave it out"
        ) from None


def _views_in_events(place: Path) -> Iterator[View]:
    for event in recorded_events(place, holding=b'"view"'):
        if isinstance(event, ViewDecided) and event.number > 0 <= event.first:
            with suppress(ValidationError):  # else a liar's would make the summary one that nobody can read
                yield VIEW.validate_python(view_of_event(event).as_json())
