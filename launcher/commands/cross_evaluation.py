"""`dfl-launch cross-evaluation`: how good each peer's model of a finished run is on each peer's test samples.

A table on the screen, and all figures as `cross-evaluation.csv` in the run's directory: a line for each figure of each
model at each peer.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from extras.cross_evaluation import CrossEvaluation
from launcher.headline import Headline, mean
from launcher.output import Output
from launcher.page.document import csv_text
from launcher.recorded_spec import RecordedSpec
from launcher.run_files import RunFiles
from launcher.table import fitting
from peer.errors import InputError
from peer.files import write_atomically
from peer.learning.tasks import Figure
from peer.plugins import reference
from peer.telemetry.events import RoundDone
from peer.telemetry.results import MODEL, read_result
from peer.text import number

PROTOCOL = reference(CrossEvaluation)
COLUMNS = ("judged at", "model of", "figure", "value")
NOT_NEEDED = ("stop_early", "finetune", "final_evaluation", "evaluate_every", "rewinds", "views", "recording")
"""Keys of the run that would judge something else, or once more."""
ALL_STAY = ("on_loss=wait", "on_stop=stop", *(f"{key}=null" for key in ("start_with", "faulty_members", "run")))


def run_line(arguments: argparse.Namespace) -> tuple[Path, list[str]]:
    """Where the models of a run are judged, and what follows `run` for that; none for what is such a run itself.

    InputError if a peer has left no model.
    """
    run, federation = arguments.run, RunFiles(arguments.run).federation
    if not federation.is_file():
        return run, []
    recorded = RecordedSpec.read(federation)
    if recorded.keys.protocol.name == PROTOCOL:
        return run, []
    if missing := [id for id in recorded.ids if not (run / id / MODEL).is_file()]:
        raise InputError(f"{run}: {', '.join(missing)} left no {MODEL}; let the run finish first")
    out = arguments.out or run.with_name(f"{run.name}-cross-evaluation")
    weights = json.dumps(str(run.resolve() / "{id}" / MODEL))
    sets = [f"protocol={PROTOCOL}", f"rounds={len(recorded.ids)}", "init=independent", "wire=float32", "behaviour={}"]
    sets += [f"model.weights={weights}", "model.partial=false", *ALL_STAY, *(f"{key}=null" for key in NOT_NEEDED)]
    return out, [str(federation), *(f"--set={one}" for one in sets)]


@dataclass(frozen=True)
class Judgement:
    """One model on one peer's test samples, and the digest that the peer noted of it."""

    at: str
    model_of: str
    told: RoundDone
    sha256: tuple[float | None, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each figure."""
        figures: dict[str, float | None] = {f"{test} accuracy": one for test, one in self.told.accuracy.items()}
        figures |= {name: one for name, one in self.told.figures.items() if name != "accuracy" or not figures}
        for name, value in (figures | {"test loss": self.told.test_loss}).items():
            yield dict(zip(COLUMNS, (self.at, self.model_of, name, value), strict=True))


def show(run: Path, output: Output) -> int:
    """Print how the models in a run's directory were judged; InputError where they were not. 1 if a peer's result is
    missing, or notes tell of different models."""
    found, missing = judgements(run)
    told: dict[str, set[Any]] = {}
    for one in found:
        told.setdefault(one.model_of, set()).add(one.sha256)
    intact = [one for one in found if len(told[one.model_of]) == 1 or one.at == one.model_of]
    rows = [row for one in intact for row in one.rows()]
    if output.as_json:
        output.document(rows)
    else:
        headline = headline_of(run, found)
        output.say(f"{headline.words}: in each row a peer's test samples, in each column a peer's model")
        output.console.print(table(intact, headline, output))
        write_atomically(run / "cross-evaluation.csv", csv_text(COLUMNS, rows).encode())
        output.say(f"{run / 'cross-evaluation.csv'}: all figures")
    problems = [f"{run}: there is no result of {', '.join(missing)}"] if missing else []
    problems += [
        f"the peers' notes of {id}'s model differ: it was changed on its way, or one of them lies; it is only shown at "
        f"{id}"
        for id, digests in told.items()
        if len(digests) > 1
    ]
    return output.failure(1, *problems) if problems else 0


def table(found: Sequence[Judgement], headline: Headline, output: Output) -> Table:
    """A row for each peer's samples, and one for each model's mean at all peers but its own."""
    sites, models = ([*dict.fromkeys(sorted(one))] for one in zip(*((a.at, a.model_of) for a in found), strict=True))
    values = {(one.at, one.model_of): headline.value(one.told) for one in found}
    rows = [{"peer": site} | {model: number(values.get((site, model))) for model in models} for site in sites]
    elsewhere = {model: mean(values.get((site, model)) for site in sites if site != model) for model in models}
    rows.append({"peer": "elsewhere"} | {model: number(value) for model, value in elsewhere.items()})
    return fitting(rows, models[:0:-1], output.console)


def headline_of(run: Path, found: Sequence[Judgement]) -> Headline:
    """What the run's summaries go by; of results without their federation's file, the first that is there."""
    there = RunFiles(run).federation
    test = RecordedSpec.read(there).keys.test if there.is_file() else next(iter(found[0].told.accuracy), None)
    return Headline(test=test) if test else Headline(Figure(next(iter(found[0].told.figures), "accuracy")))


def judgements(run: Path) -> tuple[list[Judgement], list[str]]:
    """What the peers whose directories are in `run` have judged, and the peers that have left no result there;
    InputError where that is nothing."""
    if not run.is_dir():
        raise InputError(f"there is no directory {run}; give that of a finished run")
    places = sorted(place for place in run.iterdir() if place.is_dir())
    results = {result.id: result for place in places if (result := read_result(place))}
    found = []
    for result in results.values():
        for one in result.history:
            judged, sha256 = one.notes.get("judged"), one.notes.get("sha256")
            if one.evaluated and isinstance(judged, int | float) and isinstance(sha256, list):
                sites = (site for place, site in enumerate(result.ring) if place == judged)
                found += [Judgement(result.id, site, one, (*sha256,)) for site in sites]
    if not found:
        raise InputError(f"{run}: holds no cross-evaluation; give the directory of a finished run, or of such a run")
    if len({result.ring for result in results.values()}) > 1:
        raise InputError(f"{run}: holds peers of several runs; give the directory of one")
    return found, [id for id in next(iter(results.values())).ring if id not in results]
