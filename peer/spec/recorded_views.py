"""The views of an earlier run, for `views: replay`."""

import os
import stat
from collections.abc import Mapping
from errno import EINVAL
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel, ValidationError

from peer.errors import InputError
from peer.reading import RECORDS, read_plain
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
from peer.spec.run import RUN, Run
from peer.views.spans import spans
from peer.views.view import View

VIEWS = "views.json"


class _Acceptor(BaseModel):
    chain: tuple[View, ...]


class _Kept(BaseModel):
    """Of views.json what is of use here."""

    acceptor: _Acceptor


def recorded_views(config: PeerConfig, spec: Spec) -> tuple[View, ...] | None:
    """All of the run in `recording`, by their numbers; None where views are decided. InputError where they are not
    there, are damaged, or are those of another federation.

    A peer that was lost knows fewer than the others: the most that one of them knows count, if the rest know the
    beginning of the same.
    """
    if spec.views != "replay" or spec.recording is None:
        return None
    if config.out and (spec.recording / config.id).resolve() == config.out.resolve():
        raise InputError(f"{spec.recording}: is where this run itself writes; choose another --out (`out`)")
    known = {id: _known(spec.recording / id, spec) for id in spec.ids if (spec.recording / id / RUN).exists()}
    if not known:
        raise InputError(
            f"{spec.recording}: no peer of this federation has left a {RUN} there; `recording` is the directory of the "
            "run whose views are to be replayed"
        )
    return _longest(known, spec.recording)


def _longest(known: Mapping[str, tuple[View, ...]], recording: Path) -> tuple[View, ...]:
    most = max(known, key=lambda id: len(known[id]))
    for id, views in known.items():
        if views != known[most][: len(views)]:
            raise InputError(
                f"{recording}: {most} and {id} know different views, so they are of two runs; name a recording of one"
            )
    return known[most]


def _known(directory: Path, spec: Spec) -> tuple[View, ...]:
    """What the peer with that directory knew; where it has written nothing down, all were members all the time."""
    try:
        _refuse_link(directory / RUN)
        theirs = Run.read(directory)
    except (OSError, ValueError):
        raise InputError(f"{directory / RUN}: is not readable; name another recording") from None
    ours = spec.digests()
    differing = [key for key in theirs.digests.keys() | ours.keys() if theirs.digests.get(key) != ours.get(key)]
    if differing := sorted({*differing} - {"views"}):
        keys = ", ".join(f"`{key}`" for key in differing)
        raise InputError(f"{directory}: is of another federation, which differs in {keys}; name another recording")
    first, path = View(0, spec.ids, first=0), directory / VIEWS
    try:
        _refuse_link(path)
        views = _Kept.model_validate_json(read_plain(path, RECORDS)).acceptor.chain
    except FileNotFoundError:
        return (first,)
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "no peer wrote it like that"
        raise InputError(f"{path}: cannot be read ({why}); name another recording") from None
    if why := _wrong(views, first, spec):
        raise InputError(f"{path}: is damaged ({why}); name another recording")
    return views


def _refuse_link(path: Path) -> None:
    if stat.S_ISLNK(os.lstat(path).st_mode):
        raise OSError(EINVAL, "it is a link", str(path))


def _wrong(views: tuple[View, ...], first: View, spec: Spec) -> str | None:
    """What no members would have decided."""
    if views[:1] != (first,):
        return "it does not begin with everybody"
    for before, view in pairwise(views):
        entrants = dict(view.entrants)
        if view.number != before.number + 1:
            return f"view {view.number} follows view {before.number}"
        if not view.members or view.members != tuple(id for id in spec.ids if id in view.members):
            return f"view {view.number} has other members than the ring"
        if not 0 <= view.first <= spec.rounds + 1:
            return f"view {view.number} begins at round {view.first}"
        if len(entrants) != len(view.entrants) or not entrants.keys() <= set(view.members):
            return f"view {view.number} takes in who is no member"
        if any(not -1 <= private < max(view.first, 0) for private in entrants.values()):
            return f"view {view.number} takes in somebody with a round that it had not played"
    return _never_played(views, spec.rounds)


def _never_played(views: tuple[View, ...], rounds: int) -> str | None:
    """Whether somebody brings the state of a round in which it took no part."""
    played: dict[str, set[int]] = {}
    for span in spans(views, rounds):
        entrants = dict(span.view.entrants)
        for id in span.view.members:
            brought = entrants.get(id, span.first - 1)
            if brought >= 0 and brought not in played.get(id, ()):
                return f"{id} brings a state of round {brought} to view {span.view.number} and has none"
            played[id] = {at for at in played.get(id, ()) if at <= brought} | {*span.rounds}
    return None
