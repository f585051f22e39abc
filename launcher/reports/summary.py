"""What a run came to, from the files its peers left."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import safetensors
from numpy.typing import NDArray
from pydantic import FiniteFloat, TypeAdapter
from safetensors import SafetensorError

from launcher.headline import Headline, mean
from launcher.history import SOON_S, PeerHistory, recorded_events
from launcher.reports.peer_files import audits, decided_views
from launcher.reports.privacy import privacy, privacy_declaration
from launcher.reports.summary_json import AcrossPeers, PeerSummary, Summary
from launcher.views import Views
from peer.errors import FailedError, InputError
from peer.files import MAX_SETTINGS_BYTES, open_plain, read_plain, write_atomically
from peer.learning.tasks import Task
from peer.learning.training import metrics
from peer.spec.blocks import describe_behaviours
from peer.spec.federation import Spec
from peer.telemetry.events import DataSummary, RoundDone
from peer.telemetry.results import MODEL, Result, read_result

TESTS = ("matched", "global", "paper")


@dataclass(frozen=True)
class TimeSpent:
    """What a run took over all its launches; of a launch that was killed, up to when it saved this last."""

    wall_seconds: FiniteFloat = 0.0
    restarts: int = 0

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; zero if there is none that can be read."""
        try:
            return TypeAdapter(cls).validate_json(read_plain(path, MAX_SETTINGS_BYTES))
        except (OSError, ValueError):
            return cls()

    def plus(self, wall_seconds: float, restarts: int) -> "TimeSpent":
        return TimeSpent(self.wall_seconds + wall_seconds, self.restarts + restarts)

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self)).encode())


Places = Mapping[str, Path]
"""Each peer's directory, by id."""


class PeerResults(NamedTuple):
    """What is there of a run: its peers' directories, the results of those that finished, and the views."""

    places: Places
    results: Mapping[str, Result]
    views: Views

    @classmethod
    def find(cls, spec: Spec, places: Places) -> Self:
        """A result counts if it is its peer's own, of a run of this length, and of rounds that are not void."""
        read = {id: read_result(place) for id, place in places.items()}
        found = {id: one for id, one in read.items() if one and one.id == id and one.is_of(spec.rounds)}
        # Fewer rounds than the spec's, if all have agreed on that.
        views = decided_views(spec, places, max((one.rounds for one in found.values()), default=spec.rounds))
        return cls(places, {id: one for id, one in found.items() if views.counts(one.ring)}, views)

    @property
    def without(self) -> list[str]:
        """The peers that should have a result, and have none."""
        return [id for id in self.views.finishers if id not in self.results]


def summarise(spec: Spec, directory: Path, spent: TimeSpent) -> Summary:
    """The summary of a run that all peers have finished; FailedError names those without a result."""
    found = PeerResults.find(spec, {id: directory / id for id in spec.ids})
    if found.without:
        raise FailedError(f"There is no result of {', '.join(found.without)}; run again to let them finish.")
    return summary_of(spec, found, spent)


def summary_of(spec: Spec, there: PeerResults, spent: TimeSpent, missing: Mapping[str, str] = {}) -> Summary:
    """The summary of the peers that have a result, one at least; missing: why those without one have none."""
    places, found, views = there
    per_peer = [found[id] for id in spec.ids if id in found]
    headline, honest = Headline.from_spec(spec), [one for one in per_peer if one.id not in spec.behaviour]
    accuracies = [value for one in per_peer if headline.test and (value := headline.value(one)) is not None]
    known = {id: places[id] for id in spec.ids if id in places}
    audited = audits(known)
    return Summary(
        name=spec.name,
        protocol=spec.protocol.name,
        peers=len(spec.ring),
        rounds=per_peer[0].rounds,
        stopped_early=per_peer[0].stopped_early,
        seed=spec.seed,
        ring=per_peer[0].ring,
        wall_seconds=round(spent.wall_seconds, 3),
        task=spec.task.name,
        figures=figures(per_peer, spec),
        mean_accuracy=means([result.accuracy for result in per_peer]),
        worst_accuracy=metrics.worst(accuracies) if accuracies else None,
        gini=metrics.gini(accuracies) if accuracies else None,
        **course(history(per_peer, spec.task, views), headline),
        ring_cost=per_peer[0].ring_cost,
        restarts=spent.restarts,
        per_peer=tuple(map(PeerSummary.from_result, per_peer)),
        privacy=privacy(views, audited, privacy_declaration(spec, audited), missing),
        replicated={
            name: len({result.replicated.get(name) for result in per_peer}) == 1 for name in spec.protocol.replicated
        },
        behaviour=describe_behaviours(spec.behaviour),
        honest_accuracy=mean(map(headline.value, honest)) if spec.behaviour else None,
        missing=dict(missing),
        views=views.later,
        exact=views.exact,
        absences=views.absences(),
        certificates=expiring_certificates(known),
        rare=rare_classes(known) if headline.test else {},
    )


RARE = 0.05
"""A class with a smaller share, and less than half of an equal one, is rare: a model that never finds it looks good."""


def rare_classes(places: Places) -> dict[str, float]:
    """The share of each rare class among the training samples of all peers, in their first round."""
    counts: dict[str, float] = {}
    for place in places.values():
        first = next((one for one in recorded_events(place, b'"data"') if isinstance(one, DataSummary)), None)
        if first is None:
            continue
        for name, share in first.classes.items():
            counts[name] = counts.get(name, 0.0) + share * first.samples
    samples = sum(counts.values())
    limit = min(RARE, 0.5 / len(counts)) * samples if counts else 0.0
    return {name: count / samples for name, count in sorted(counts.items()) if count < limit}


def expiring_certificates(places: Places) -> dict[str, float]:
    """When certificates expire by the peers' events, in Unix seconds, by id: those with less than 30 days left."""
    found = {id: PeerHistory.read(id, place, b"expires").certificate_expires for id, place in places.items()}
    return {id: at for id, at in found.items() if at and at < time.time() + SOON_S}


def figures(results: Sequence[Result], spec: Spec) -> dict[str, AcrossPeers]:
    """The task's figures, the headline first."""
    found: dict[str, AcrossPeers] = {}
    for figure in spec.task.figures:
        known = [value for result in results if (value := result.figures.get(figure.name)) is not None]
        worst = figure.worst(known) if known else None
        found[figure.name] = {"mean": mean(known), "worst": worst, "better": figure.better}
    return found


def means(accuracies: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Mean over the peers of each accuracy; `local` only where peers bring their own data."""
    tests = TESTS + (("local",) if any(one.get("local") is not None for one in accuracies) else ())
    return {test: mean(one.get(test) for one in accuracies) for test in tests}


def history(results: Sequence[Result], task: Task, views: Views) -> list[dict[str, float | None]]:
    """The means after every round that all its members have in their history, and after which they evaluated: of
    accuracies, or of the task's figures."""
    by_peer = {result.id: {event.round: event for event in result.history} for result in results}
    return [{"round": round, **_means(done, task)} for round, done in evaluated_rounds(by_peer, views)]


def evaluated_rounds(
    by_peer: Mapping[str, Mapping[int, RoundDone]], views: Views
) -> Iterator[tuple[int, list[RoundDone]]]:
    """Each round after which all its members among these peers evaluated, with what they told of it."""
    known = {id: {number: one for number, one in rounds.items() if one.evaluated} for id, rounds in by_peer.items()}
    for number in sorted(set().union(*known.values())):
        members = [known[id] for id in views.members(number) if id in known]
        if members and all(number in one for one in members):
            yield number, [one[number] for one in members]


def _means(told: Sequence[RoundDone], task: Task) -> dict[str, float | None]:
    accuracies = means([one.accuracy for one in told]) if task.has_classes else {}
    others = [figure.name for figure in task.figures if not (task.has_classes and figure.name == "accuracy")]
    return accuracies | {name: mean(one.figures.get(name) for one in told) for name in others}


def course(rounds: Sequence[dict[str, float | None]], headline: Headline) -> dict[str, Any]:
    """How the run went: when the accuracy passed one half, how calm the second half was by the headline figure."""
    values = [headline.of_means(one) for one in rounds]
    known = [value for value in values if value is not None]
    whole = len(known) == len(values) > 0
    return {
        "r50": rounds[found - 1]["round"] if whole and headline.test and (found := metrics.r50(known)) else None,
        "plateau_sigma": metrics.plateau_sigma(known) if whole else None,
        "history": tuple(rounds),
    }


def weight_divergence(run: Path, ids: Sequence[str]) -> float | None:
    """The mean over all weights of Eq. 11 of FedISP; None for one peer, or where models differ in shape or have stayed
    where their peers ran."""
    models = [run / id / MODEL for id in ids]
    if not all(map(os.path.lexists, models)):
        return None
    vectors = [*map(_weights, models)]
    if len({len(vector) for vector in vectors}) > 1 or len(vectors) < 2 or not len(vectors[0]):
        return None
    return float(metrics.weight_divergence(vectors).mean())


def _weights(path: Path) -> NDArray[np.floating[Any]]:
    """Every floating-point number of a model, parameters and buffers, in the order of their names."""
    try:
        open_plain(path).close()
        with safetensors.safe_open(path, "pt") as file:  # its header first: a file may claim any size
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(f"{path} cannot be read ({error})") from None
    floats = [tensors[name].flatten() for name in sorted(tensors) if tensors[name].is_floating_point()]
    # numpy has no types of fewer bits but float16.
    wide = [one.numpy() if one.itemsize > 2 else one.float().numpy() for one in floats]
    return np.concatenate([np.empty(0, np.float32), *wide])
