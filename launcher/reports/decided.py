"""The views that the peers of a run tell of in their events."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from launcher.views import Views, in_order, told
from peer.errors import FailedError
from peer.reading import lines, open_plain
from peer.spec.federation import Spec
from peer.spec.recorded_views import VIEWS, OldError, kept, proved
from peer.telemetry.events import ViewDecided, read_event
from peer.telemetry.results import EVENTS, objects
from peer.views.statements import InvalidError
from peer.views.view import View


def decided(spec: Spec, places: Mapping[str, Path], rounds: int) -> Views:
    """What all peers' events say together; FailedError where two of them tell different views of one number, or a
    peer's views.json does not prove the views in it.

    A line that is spoilt in one peer's events stands in another's.
    """
    found: dict[int, tuple[str, View]] = {}
    places = places if spec.on_loss == "bypass" else {}
    trusted = _trusted(spec, places.values())
    for id, place in places.items():
        for view in (*_proved(place, spec, trusted), *_views(place)):
            other, known = found.setdefault(view.number, (id, view))
            if known != view:
                raise FailedError(
                    f"{other} and {id} tell of different views of number {view.number}: they are of two runs, or the "
                    "events of one of them are spoilt; leave one of them out"
                )
    return Views(spec.ids, rounds, in_order(view for _, view in found.values()))


def _trusted(spec: Spec, places: Collection[Path]) -> list[str]:
    """The CAs by which views are proved: those that more peers name than may lie, or all, where no more are there."""
    named = list[tuple[str, ...]]()
    for place in places:
        with suppress(OSError, InvalidError):
            named.append(kept(place).authorities)
    count = Counter(pem for authorities in named for pem in {*authorities})
    liars = min(spec.tolerated(certificates=True), len(named) - 1)
    return [pem for pem in count if count[pem] > liars]


def _proved(place: Path, spec: Spec, trusted: Collection[str]) -> Iterator[View]:
    """What the peer's views.json proves. One of an earlier version proves nothing, and is passed over."""
    try:
        yield from (one.view for one in proved(place, spec, trusted).decisions)
    except FileNotFoundError:
        return
    except OSError as error:
        raise FailedError(f"{place / VIEWS}: cannot be read ({error.strerror})") from None
    except OldError:
        return
    except InvalidError as error:
        raise FailedError(
            f"{place / VIEWS}: is damaged, or holds a view without proof that it was decided ({error}); leave it out"
        ) from None


def _views(place: Path) -> Iterator[View]:
    with suppress(OSError), open_plain(place / EVENTS) as file:
        for line in lines(file):
            for one in objects([line]) if b'"view"' in line else ():
                if isinstance(event := read_event(one), ViewDecided) and event.number > 0 <= event.first:
                    yield told(event)
