"""What peers say of themselves as the events that they would have written: the live view knows no difference."""

from collections.abc import Sequence
from dataclasses import replace

from launcher.headline import Headline
from launcher.monitor.peer_view import PeerView
from peer.network.transport.asking import Link, PeerStatus
from peer.telemetry.events import Awaited, Cause, Event, LinkChanged, RoundDone, StateChanged, Waiting

WHOLE = ("ready", "serving", "done")
"""States in which the round that a peer names is over."""


def in_trouble(status: PeerStatus) -> list[Link]:
    """The neighbours that a peer does not hear, although it should."""
    return [link for link in status.neighbours if link.state not in ("up", "left")]


def completed(status: PeerStatus) -> int:
    """How many rounds it has behind it."""
    return status.round if status.state in WHOLE else max(0, status.round - 1)


def events(status: PeerStatus, before: PeerView, headline: Headline, now: float) -> list[Event]:
    """What has happened to a peer since it was `before`, as far as its status tells it. `now` in unix seconds."""
    return [
        *_state(status, before, now),
        *_links(status, before, now),
        *_waits(status, before, now),
        *_rounds(status, before, headline, now),
    ]


def _state(status: PeerStatus, before: PeerView, now: float) -> Sequence[Event]:
    """Said again, it would be another start of a peer that joins."""
    known = (before.state, before.round) == (status.state, status.round)
    return [] if known else [StateChanged(state=status.state, round=status.round, time=now)]


def _links(status: PeerStatus, before: PeerView, now: float) -> Sequence[Event]:
    """A link that has never been up is no news; one that is not told of any more is over."""
    told = [one for one in status.neighbours if one.state != "joining" or one.id in before.links]
    over = before.links.keys() - {one.id for one in status.neighbours}
    return [
        *(LinkChanged(neighbour=one.id, state=one.state, reason=one.reason, time=now) for one in told),
        *(LinkChanged(neighbour=id, state="left", time=now) for id in sorted(over)),
    ]


def _waits(status: PeerStatus, before: PeerView, now: float) -> Sequence[Event]:
    """A peer that joins waits for its neighbours, and later on for those that it has lost; and for members, where too
    few are here to decide."""
    awaited = tuple(Awaited(one.id, one.address, one.reason) for one in in_trouble(status))
    cause: Cause = "join" if status.state == "joining" else "stalled"
    waits = [Waiting(cause=cause, awaited=awaited, sentence="")]
    waits += [Waiting.for_quorum(status.shortage, status.awaited)] if status.shortage else []
    over = before.waits.keys() - {one.cause for one in waits}
    waits += [Waiting(cause=other, awaited=(), sentence="") for other in sorted(over)]
    return [replace(one, time=now) for one in waits]


def _rounds(status: PeerStatus, before: PeerView, headline: Headline, now: float) -> Sequence[Event]:
    """Only the last round: of those in between nobody was asked."""
    if not (done := completed(status)):
        return []
    told = RoundDone(round=done, **headline.fields(status.figure), bytes_sent=status.bytes_sent, time=now)
    known = before.history.get(done)
    return [] if known and replace(known, time=now) == told else [told]
