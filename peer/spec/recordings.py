"""What a run leaves behind as far as another goes by it: run.json, its views, and what its machines could give.

run.json says whose directory it is, and of which run, with the whole spec, so that it tells so far from home, too.
views.json has the views that were decided, each with its proof: for `views: replay`, and for reports. The notes of the
rounds have the resources, for protocols with `resources: replay`; pinned ones come from the settings.
"""

import json
import os
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from errno import EINVAL
from math import isfinite
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel
from pydantic_core import from_json

from peer.errors import InputError
from peer.files import MAX_RECORDS_BYTES, lines, open_plain, read_plain, write_atomically
from peer.protocols.base import Resources
from peer.records import Named
from peer.spec.agreement import ANEW, Agreement, differing, lasting_digest
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
from peer.telemetry.events import Note, RoundDone, read_events
from peer.telemetry.results import EVENTS
from peer.text import one_line
from peer.versions import DIRECTORY, release
from peer.versions import VIEWS as VIEWS_FORMAT
from peer.views.decision import Memory, Rules, Verifier
from peer.views.signing import CertifiedKeyring, Keyring
from peer.views.statements import Decision, InvalidError
from peer.views.statements import read as parse
from peer.views.view import View, played

RUN = "run.json"
MAX_RUN_BYTES = 8 << 20
"""Bytes of the file; a ring of 10,000 peers with the longest names and addresses takes 4 MB."""


class RunFormat(BaseModel):
    """What every release finds in run.json, whatever else another one may have written there."""

    version: int
    """The number of the directory's format."""
    release: str = ""
    """The release that has written it last; empty in files of earlier versions."""

    @classmethod
    def check(cls, directory: Path) -> None:
        """Raise InputError for a run in a format that this release does not read; otherwise as `RunIdentity.read`."""
        found = cls.model_validate(from_json(read_plain(directory / RUN, MAX_RUN_BYTES)))
        if not DIRECTORY.understands(found.version):
            writer = f"dfl {one_line(found.release)}" if found.release else "an earlier release of dfl"
            raise InputError(
                f"{directory}: holds a run in directory format {found.version}, written by {writer}, and dfl "
                f"{release()} reads format {DIRECTORY.span}; continue it with the release that wrote it "
                "(docs/upgrading.md)"
            )


class RunIdentity(RunFormat):
    """The run that a peer's directory belongs to. spec: resolved, as plain JSON; None in files of earlier versions."""

    id: str
    rounds: int
    digests: Named[str]
    spec: Mapping[str, Any] | None = None
    backup: bool = False
    """Whether the directory is a backup, from which a peer starts only if all go back (peer/runtime/backup.py)."""
    rewound: int | None = None
    """The round to which the peer has gone back, until that is in its events."""

    @classmethod
    def from_spec(cls, spec: Spec, id: str) -> Self:
        plain = spec.model_dump(mode="json")
        return cls(
            version=DIRECTORY.writes,
            release=release(),
            id=id,
            rounds=spec.rounds,
            digests=Agreement.from_plain(plain).digests,
            spec=plain,
        )

    @property
    def rewinds(self) -> list[Any]:
        """The entries of `rewinds` by which this peer has gone back, as plain JSON."""
        found = (self.spec or {}).get("rewinds")
        return [*found] if isinstance(found, list | tuple) else []

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Raises OSError if there is none, ValueError for one that no peer wrote."""
        return cls.model_validate(from_json(read_plain(directory / RUN, MAX_RUN_BYTES)))

    def write(self, directory: Path) -> None:
        write_atomically(directory / RUN, self.model_dump_json().encode())


VIEWS = "views.json"


class OtherFormatError(InvalidError):
    """Another release of dfl has written it; the text says what to do."""


class EarlierFormatError(OtherFormatError):
    """It is of before views had proofs."""


def read_memory(text: bytes) -> Memory:
    """The content of a views.json; InvalidError if no peer of this version writes it."""
    try:
        memory = parse(Memory, text)
    except InvalidError:
        with suppress(ValueError, RecursionError):
            content = json.loads(text)
            if isinstance(content, dict) and "acceptor" in content:
                raise EarlierFormatError(
                    "was written by an earlier version of dfl, whose views carry no proof that they were decided; "
                    "finish the run with that version, or begin anew in another directory (`--fresh`)"
                ) from None
            number = content.get("version") if isinstance(content, dict) else None
            if isinstance(number, int) and number > VIEWS_FORMAT.writes:
                raise OtherFormatError(
                    f"a later release of dfl has written it, in views format {number}, and dfl {release()} reads "
                    f"{VIEWS_FORMAT.span}; continue the run with that release (docs/upgrading.md)"
                ) from None
        raise
    if memory.entered > len(memory.decisions):
        raise InvalidError(f"it has lived in view {memory.entered}, and knows of {len(memory.decisions)}")
    return memory


def read_views(directory: Path) -> Memory:
    """What a peer has kept of views in its directory, whether or not it is proved; OSError, InvalidError."""
    _refuse_link(directory / VIEWS)
    return read_memory(read_plain(directory / VIEWS, MAX_RECORDS_BYTES))


def known_views(directory: Path) -> Memory:
    """What a peer knows of views, proved or not; InputError if it is not readable."""
    try:
        return read_views(directory)
    except FileNotFoundError:
        return Memory("")
    except (OSError, InvalidError) as error:
        raise InputError(f"{directory / VIEWS}: cannot be read ({error}); put a copy of it in its place") from None


def read_proved_views(directory: Path, spec: Spec, trusted: Collection[str] | None = None) -> Memory:
    """What a peer has kept of views in its directory; InvalidError if one has no proof that it was decided. `trusted`:
    the CAs (PEM) that count; not given: those that the peer itself has trusted."""
    memory = read_views(directory)
    authorities = memory.authorities if trusted is None else trusted
    secured = bool(authorities)
    if spec.faulty_members and memory.decisions and not secured:
        raise InvalidError("nothing in it is signed, and `faulty_members` takes certificates")
    rules = Rules(spec.ids, spec.rounds, spec.tolerated(secured), rewinds=spec.rewind_views)
    try:
        _refuse_link(directory / RUN)
        federation = lasting_digest(
            RunIdentity.read(directory).digests
        )  # a spec that is only looked at may lack settings
    except (OSError, ValueError):
        raise InvalidError(f"its {RUN} is not readable") from None
    signed = CertifiedKeyring("", federation, None, authorities, rules.rewinds)
    court = Verifier(rules, signed if secured else Keyring(memory.id, federation))
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
    known = {id: _views_of(id, spec.recording / id, spec) for id in spec.ids if (spec.recording / id / RUN).exists()}
    if not known:
        raise InputError(
            f"{spec.recording}: no peer of this federation has left a {RUN} there; `recording` is the directory of the "
            "run whose views are to be replayed"
        )
    longest = _longest(known, spec.recording)
    run = recorded_run(spec)
    if longest.authorities and longest.decisions and run != spec.run:
        raise InputError(
            f"{spec.recording}: its views are signed for another `run`, so that no summary would believe them here; "
            + (f"write `run: {run}`, as there" if run else "leave `run` out, as there")
        )
    if config.tls and longest.decisions:
        own = {path.read_text() for path in (config.tls.ca, *config.tls.earlier)}
        if not longest.authorities or {*longest.authorities} - own:
            raise InputError(
                f"{spec.recording}: no CA that this peer knows has issued the certificates by which its views were "
                "decided; name theirs under `tls: {earlier: [...]}`, or another recording"
            )
    return (*longest.decisions,)


def recorded_run(spec: Spec) -> str | None:
    """The `run` of the run in `recording`; None if it has none, or cannot be read, which its reader will tell."""
    if spec.recording is None:
        return None
    for id in spec.ids:
        with suppress(OSError, ValueError):
            run = (RunIdentity.read(spec.recording / id).spec or {}).get("run")
            return run if isinstance(run, str) else None
    return None


def _longest(known: Mapping[str, Memory], recording: Path) -> Memory:
    most = max(known, key=lambda id: len(known[id].decisions))
    views = [one.view for one in known[most].decisions]
    for id, memory in known.items():
        # The CA with which the run began tells the federation: another CA is another federation's.
        other = memory.decisions and memory.authorities[:1] != known[most].authorities[:1]
        if other or [one.view for one in memory.decisions] != views[: len(memory.decisions)]:
            raise InputError(
                f"{recording}: {most} and {id} know different views, so they are of two runs; name a recording of one"
            )
    return known[most]


def _views_of(id: str, directory: Path, spec: Spec) -> Memory:
    """What the peer with that directory knew; where it has written nothing down, all were members all the time."""
    try:
        _refuse_link(directory / RUN)
        theirs = RunIdentity.read(directory)
    except (OSError, ValueError):
        raise InputError(f"{directory / RUN}: is not readable; name another recording") from None
    if keys := [
        key for key in differing(spec.agreement.digests, theirs.digests) if key not in ("views", "run", "rewinds", ANEW)
    ]:
        named = ", ".join(f"`{key}`" for key in keys)
        raise InputError(f"{directory}: is of another federation, which differs in {named}; name another recording")
    path = directory / VIEWS
    try:
        memory = read_proved_views(directory, spec)
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
    """Return a sentence if a member brings the state of a round in which it took no part."""
    for span, before in played(views, rounds):
        entrants = dict(span.view.entrants)
        for id in span.view.members:
            brought = entrants.get(id, span.first - 1)
            if brought >= 0 and not any(brought in rounds for rounds in before.get(id, ())):
                return f"{id} brings a state of round {brought} to view {span.view.number} and has none"
    return None


RESOURCES_NOTE = "resources"
"""The note of each round in which they were asked for: cores, GiB, then the rate to each member."""


def fixed_resources(config: PeerConfig, spec: Spec) -> Callable[[int], Resources] | None:
    """A peer's resources by round, or None if they are to be measured; InputError where they are not there."""
    if config.machine and spec.protocol.resources_from != "pinned":
        raise InputError(
            f"`{spec.protocol.name}` does not go by the `machine` of `{config.id}` as it is set; leave it out"
        )
    match spec.protocol.resources_from:
        case "measured":
            return None
        case "pinned":
            pinned = _pinned(config, spec)
            return lambda round: pinned
        case "replay":
            recorded = _recorded(config, spec)
            return lambda round: _of_round(recorded, round, config.id)


def _of_round(recorded: Mapping[int, Resources], round: int, id: str) -> Resources:
    if round not in recorded:
        raise InputError(f"{id} asks for its resources in round {round}, and a recording has those of rounds 1 on")
    return recorded[round]


def as_noted(resources: Resources) -> list[float]:
    """Resources as numbers, in the order in which `_resources` reads them."""
    return [resources.cpus, resources.memory, *resources.rates.values()]


def _pinned(config: PeerConfig, spec: Spec) -> Resources:
    machine = config.machine or (spec.machines or {}).get(config.id)
    if machine is None:
        raise InputError(
            f"`{spec.protocol.name}` goes by pinned resources, and `{config.id}` has none; write `machine: {{cores: 4, "
            f"memory: 8}}` into its file, or `machines: {{{config.id}: {{cores: 4, memory: 8}}}}` into the federation's"
        )
    return Resources(machine.cores, machine.memory, dict.fromkeys(spec.ids, 0.0))


def _recorded(config: PeerConfig, spec: Spec) -> dict[int, Resources]:
    if spec.recording is None:
        raise InputError(
            f"`{spec.protocol.name}` replays resources, and no run is named; write `recording: DIR`, the directory of "
            "a run whose resources were measured"
        )
    events = spec.recording / config.id / EVENTS
    if config.out and events.parent.resolve() == config.out.resolve():
        raise InputError(f"{spec.recording}: is where this run itself writes; choose another --out (`out`)")
    notes = _notes(events)
    wanted = range(1, spec.rounds + 1)
    if lacking := next((round for round in wanted if round not in notes), None):
        raise InputError(
            f"{events}: no resources of {config.id} were recorded in round {lacking}; record a run with at least "
            f"{spec.rounds} rounds of a protocol that asks for them"
        )
    return {round: _resources(notes[round], spec, events) for round in wanted}


def _notes(events: Path) -> Mapping[int, Note]:
    try:
        with open_plain(events) as file:
            rounds = [event for event in read_events(lines(file)) if isinstance(event, RoundDone)]
    except OSError as error:
        raise InputError(
            f"{events}: cannot be read ({error.strerror}); `recording` is the directory of a run of these peers"
        ) from None
    return {event.round: event.notes[RESOURCES_NOTE] for event in rounds if RESOURCES_NOTE in event.notes}


def _resources(note: Note, spec: Spec, events: Path) -> Resources:
    numbers = [one for one in note if one is not None] if isinstance(note, list) else []
    if len(numbers) != 2 + len(spec.ids):
        raise InputError(f"{events}: was not recorded by a federation of {len(spec.ids)} peers; name another recording")
    if wrong := [one for one in numbers if not (isfinite(one) and one >= 0)]:
        raise InputError(f"{events}: says that a resource was {wrong[0]:g}; name another recording")
    cores, memory, *rates = numbers
    return Resources(cores, memory, dict(zip(spec.ids, rates, strict=True)))
