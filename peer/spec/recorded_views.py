"""The views of an earlier run, for `views: replay`."""

import json
import os
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from errno import EINVAL
from pathlib import Path

from peer.errors import InputError
from peer.reading import RECORDS, read_plain
from peer.spec.federation import Spec, lasting_digest
from peer.spec.peer import PeerConfig
from peer.spec.run import RUN, Run
from peer.views.decision import Court, Memory, Rules
from peer.views.signing import Authorities, Keyring
from peer.views.statements import Decision, InvalidError
from peer.views.statements import read as parse
from peer.views.view import View, played

VIEWS = "views.json"


class OldError(InvalidError):
    """An earlier version of dfl has written it."""


def read_memory(text: bytes) -> Memory:
    """The content of a views.json; InvalidError if no peer of this version writes it."""
    try:
        memory = parse(Memory, text)
    except InvalidError:
        with suppress(ValueError, RecursionError):
            content = json.loads(text)
            if isinstance(content, dict) and "acceptor" in content:
                raise OldError("an earlier version of dfl has written it, whose views carry no proof") from None
        raise
    if memory.entered > len(memory.decisions):
        raise InvalidError(f"it has lived in view {memory.entered}, and knows of {len(memory.decisions)}")
    return memory


def kept(directory: Path) -> Memory:
    """What a peer has kept of views in its directory, whether or not it is proved; OSError, InvalidError."""
    _refuse_link(directory / VIEWS)
    return read_memory(read_plain(directory / VIEWS, RECORDS))


def proved(directory: Path, spec: Spec, trusted: Collection[str] | None = None) -> Memory:
    """What a peer has kept of views in its directory; InvalidError if one has no proof that it was decided. `trusted`:
    the CAs (PEM) that count; not given: those that the peer itself has trusted."""
    memory = kept(directory)
    authorities = memory.authorities if trusted is None else trusted
    secured = bool(authorities)
    if spec.faulty_members and memory.decisions and not secured:
        raise InvalidError("nothing in it is signed, and `faulty_members` takes certificates")
    rules = Rules(spec.ids, spec.rounds, spec.tolerated(secured))
    try:
        _refuse_link(directory / RUN)
        federation = lasting_digest(Run.read(directory).digests)  # a spec that is only looked at may lack settings
    except (OSError, ValueError):
        raise InvalidError(f"its {RUN} is not readable") from None
    court = Court(rules, Authorities(federation, authorities) if secured else Keyring(memory.id, federation))
    present = View(0, spec.ids, first=0)
    for decision in memory.decisions:
        court.check_decision(present, decision)
        present = decision.view
    return memory


def recorded_views(config: PeerConfig, spec: Spec) -> tuple[Decision, ...] | None:
    """All of the run in `recording`, by their numbers; None where views are decided. InputError where they are not
    there, are damaged or not proved, or are those of another federation.

    A peer that was lost knows fewer than the others: the most that one of them knows count, if the rest know the
    beginning of the same.
    """
    if spec.views != "replay" or spec.recording is None:
        return None
    if config.out and (spec.recording / config.id).resolve() == config.out.resolve():
        raise InputError(f"{spec.recording}: is where this run itself writes; choose another --out (`out`)")
    known = {id: _known(id, spec.recording / id, spec) for id in spec.ids if (spec.recording / id / RUN).exists()}
    if not known:
        raise InputError(
            f"{spec.recording}: no peer of this federation has left a {RUN} there; `recording` is the directory of the "
            "run whose views are to be replayed"
        )
    longest = _longest(known, spec.recording)
    if config.tls and longest.decisions:
        own = {path.read_text() for path in (config.tls.ca, *config.tls.earlier)}
        if not longest.authorities or {*longest.authorities} - own:
            raise InputError(
                f"{spec.recording}: no CA that this peer knows has issued the certificates by which its views were "
                "decided; name theirs under `tls: {earlier: [...]}`, or another recording"
            )
    return (*longest.decisions,)


def _longest(known: Mapping[str, Memory], recording: Path) -> Memory:
    most = max(known, key=lambda id: len(known[id].decisions))
    views = [one.view for one in known[most].decisions]
    for id, memory in known.items():
        # Who decided is known by the CA with which the run began: others would be another federation's.
        other = memory.decisions and memory.authorities[:1] != known[most].authorities[:1]
        if other or [one.view for one in memory.decisions] != views[: len(memory.decisions)]:
            raise InputError(
                f"{recording}: {most} and {id} know different views, so they are of two runs; name a recording of one"
            )
    return known[most]


def _known(id: str, directory: Path, spec: Spec) -> Memory:
    """What the peer with that directory knew; where it has written nothing down, all were members all the time."""
    try:
        _refuse_link(directory / RUN)
        theirs = Run.read(directory)
    except (OSError, ValueError):
        raise InputError(f"{directory / RUN}: is not readable; name another recording") from None
    ours = spec.digests()
    differing = [key for key in theirs.digests.keys() | ours.keys() if theirs.digests.get(key) != ours.get(key)]
    if differing := sorted({*differing} - {"views", "run"}):
        keys = ", ".join(f"`{key}`" for key in differing)
        raise InputError(f"{directory}: is of another federation, which differs in {keys}; name another recording")
    path = directory / VIEWS
    try:
        memory = proved(directory, spec)
    except FileNotFoundError:
        return Memory(id)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name another recording") from None
    except InvalidError as error:
        raise InputError(f"{path}: is damaged, or not proved ({error}); name another recording") from None
    if why := _never_played((View(0, spec.ids, first=0), *(one.view for one in memory.decisions)), spec.rounds):
        raise InputError(f"{path}: is damaged ({why}); name another recording")
    return memory


def _refuse_link(path: Path) -> None:
    if stat.S_ISLNK(os.lstat(path).st_mode):
        raise OSError(EINVAL, "it is a link", str(path))


def _never_played(views: tuple[View, ...], rounds: int) -> str | None:
    """Whether somebody brings the state of a round in which it took no part."""
    for span, before in played(views, rounds):
        entrants = dict(span.view.entrants)
        for id in span.view.members:
            brought = entrants.get(id, span.first - 1)
            if brought >= 0 and not any(brought in rounds for rounds in before.get(id, ())):
                return f"{id} brings a state of round {brought} to view {span.view.number} and has none"
    return None
