"""Peers' directories that were brought together by any means: of which one run they are, and what they come to.

They come from elsewhere. Nothing that they name is imported, unless it lies where the user says.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.history import PeerHistory
from launcher.recorded_spec import Keys
from launcher.reports.summary import PeerResults, Places, TimeSpent, summary_of
from launcher.reports.summary_json import Summary
from peer.errors import FailedError, InputError
from peer.learning.tasks import TASKS
from peer.plugins import import_from
from peer.protocols.registry import PROTOCOLS
from peer.spec.agreement import ANEW, Agreement, differing, lasting_digest
from peer.spec.federation import Spec
from peer.spec.recordings import RUN, RunFormat, RunIdentity
from peer.telemetry.results import RESULT


@dataclass(frozen=True)
class Collected:
    """A run and the directories of its peers, as far as they are there, by id. settings: all that the spec was of."""

    spec: Spec
    places: Places
    settings: Mapping[str, Any]

    @classmethod
    def find(cls, directories: Sequence[Path], code: Path | None = None) -> "Collected":
        """Find peers' directories among these, or inside them; InputError if they are not of one run.

        code: where a protocol or task of the user's own is imported from.
        """
        if code and not code.is_dir():
            raise InputError(
                f"--code {code}: there is no such directory; give that in which the modules of your own lie"
            )
        runs = {place: _read(place) for place in _once(directories)}
        places = _by_id(runs)
        _refuse_mixture(runs)
        spec, settings = _spec(runs, code)
        if strangers := [id for id in places if id not in spec.ids]:
            raise InputError(f"{places[strangers[0]]}/{RUN}: `{strangers[0]}` is not in the ring of its own spec")
        return cls(spec, {id: places[id] for id in spec.ids if id in places}, settings)

    def summarise(self, spent: TimeSpent | None = None) -> Summary:
        """Summarise all finished peers; FailedError if there are none. spent: None if only events tell it."""
        found = PeerResults.find(self.spec, self.places)
        missing = {id: self._why(id) for id in found.without}
        if not found.results:
            named = ", ".join(f"{id} ({why})" for id, why in missing.items())
            raise FailedError(f"no peer has finished: {named}")
        return summary_of(self.spec, found, spent or self._spent(), missing)

    def _why(self, id: str) -> str:
        if id not in self.places:
            return "its directory is not among those given"
        rounds = self._histories[id].completed
        if os.path.lexists(self.places[id] / RESULT) and rounds >= self.spec.rounds:
            return f"its {RESULT} is damaged"
        return f"it has not finished: {rounds} of {self.spec.rounds} rounds"

    def _spent(self) -> TimeSpent:
        """The time spent, by each peer's clock, from each start to the last event before the next; and the restarts."""
        all = self._histories.values()
        return TimeSpent(max(one.alive_seconds for one in all), sum(one.restarts for one in all))

    @cached_property
    def _histories(self) -> dict[str, PeerHistory]:
        return {id: PeerHistory.read(id, place) for id, place in self.places.items()}


def _once(directories: Sequence[Path]) -> list[Path]:
    """The peers' directories; InputError where one is given twice, by itself or with that which holds it. The configs
    beside them are passed over: `RUN/peer*` names both."""
    given = [one for one in directories if one.suffix != ".yaml" or not one.is_file()] or directories
    places = [place for directory in given for place in _peers_in(directory)]
    known = set[Path]()
    for place in places:
        if place.resolve() in known:
            raise InputError(f"{place} is given twice, by itself or with the directory that holds it; give it once")
        known.add(place.resolve())
    return places


def _peers_in(directory: Path) -> Iterator[Path]:
    """The directory itself if it is a peer's, else those in it that are."""
    try:
        if os.path.lexists(directory / RUN):
            yield directory
            return
        below = sorted(place for place in directory.iterdir() if os.path.lexists(place / RUN))
    except OSError as error:
        raise InputError(f"{directory}: cannot be read ({error.strerror}); give directories of peers") from None
    if not below:
        raise InputError(f"{directory}: there is no {RUN} in it or one below, so it is neither a peer's nor a run's")
    yield from below


def _read(place: Path) -> RunIdentity:
    try:
        RunFormat.check(place)
        return RunIdentity.read(place)
    except OSError as error:
        raise InputError(f"{place}/{RUN}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{place}/{RUN}: is damaged or no peer's; bring it again, or leave this peer out") from None


def _by_id(runs: Mapping[Path, RunIdentity]) -> dict[str, Path]:
    places: dict[str, Path] = {}
    for place, run in runs.items():
        if run.id in places:
            raise InputError(f"`{run.id}` is there twice, in {places[run.id]} and in {place}; leave one of them out")
        places[run.id] = place
    return places


def _refuse_mixture(runs: Mapping[Path, RunIdentity]) -> None:
    (first, one), *others = runs.items()
    for place, other in others:
        # A peer that has not come back since all went back past a change of members has not gone back, either.
        same_views = lasting_digest(one.digests) == lasting_digest(other.digests)
        excused = ("rewinds", ANEW) if same_views else ()
        if keys := [key for key in differing(one.digests, other.digests) if key not in excused]:
            named = ", ".join(f"`{key}`" for key in keys)
            raise InputError(f"{first} and {place} are of different runs: they differ in {named}")


def _spec(runs: Mapping[Path, RunIdentity], code: Path | None) -> tuple[Spec, Mapping[str, Any]]:
    """What all of them have agreed on, as one of them has it; without data and training, and whole."""
    whole = [(place, run) for place, run in runs.items() if run.spec is not None]
    if not whole:
        raise InputError(
            f"{next(iter(runs))}/{RUN}: was written by an earlier version, which kept no spec there; start this peer "
            "once more with this version, which only ends what it has left open"
        )
    place, run = max(whole, key=lambda one: len(one[1].rewinds))
    assert run.spec is not None
    file = place / RUN
    try:
        keys = Keys.model_validate(run.spec)
        if Agreement.from_plain(run.spec).digests != run.digests:
            raise InputError(f"{file}: its spec is not the one that the run's peers agreed on; bring it again")
        _check_code([keys.protocol.name, keys.task.name], file, code)
        return Spec.model_validate_json(json.dumps(_harmless(run.spec)), strict=True), run.spec
    except (ValidationError, ValueError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{file}: its spec is not as a peer writes it; bring it again") from None


def _harmless(content: Mapping[str, Any]) -> dict[str, Any]:
    """A spec's content without data and training, which do not matter here and may name code."""
    ring = [{key: value for key, value in member.items() if key != "data"} for member in content["ring"]]
    return {**content, "data": {"name": "digits"}, "training": {}, "ring": ring}


def _check_code(names: Sequence[str], file: Path, code: Path | None) -> None:
    """InputError unless protocol and task are this package's, or the user says where their own lie."""
    known = (*PROTOCOLS, *TASKS)
    if unknown := next((name for name in names if ":" not in name and name not in known), None):
        raise InputError(f"{file}: this version has no protocol or task `{unknown}`")
    own = [name for name in names if ":" in name and not name.startswith("extras.")]  # which come with dfl
    if own and code is None:
        raise InputError(
            f"{file}: the run uses code from outside dfl, `{'`, `'.join(own)}`, which is imported only "
            "from where you say: give its directory with --code"
        )
    if code and own:
        import_from(code)
