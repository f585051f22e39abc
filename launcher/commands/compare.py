"""`dfl-launch compare`: what a run gained over the same peers training alone (MCG and CGS: CYCle's)."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.headline import ACCURACY, Headline
from launcher.output import Output
from launcher.recorded_spec import RecordedSpec
from launcher.reports import summary_json
from launcher.reports.summary import weight_divergence
from launcher.reports.summary_json import Summary
from launcher.reports.worth import collaboration_gains, signed, standardised_alone
from peer.errors import InputError
from peer.learning.tasks import Figure
from peer.protocols.base import Protocol
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.spec.agreement import with_block
from peer.text import number, printable

COMPARED = ("data", "hold_back", "model", "task", "training", "seed", "init", "ring", "rounds")
"""Keys in which the two runs must be alike."""


def compare_command(arguments: argparse.Namespace, output: Output) -> int:
    """Print what one run gained over the other; InputError if they do not go together."""
    run, alone = arguments.run, arguments.alone
    ours, theirs = _spec(run), _spec(alone)
    if theirs.keys.protocol.name != "solo":
        raise InputError(f"{alone} is a run of `{theirs.keys.protocol.name}`; give one of `solo` in second place")
    protocol, protocol_alone = _protocol(run, ours), _protocol(alone, theirs)
    alone_spec = replace(ours, content=with_block(ours.content, ("data",), standardised_alone))
    differing = [key for key in COMPARED if key in alone_spec.differing(theirs)]
    write = ""
    if protocol and (protocol_alone is None or protocol.local() != protocol_alone.local()):
        differing.append("local training")
        block = {"name": protocol.name} | protocol.model_dump(mode="json", exclude_defaults=True)
        wanted = block if protocol.name == "solo" else {"name": "solo", "like": block}
        write = f": write `protocol: {json.dumps(wanted)}`"
    if differing:
        raise InputError(f"{run} and {alone} differ in {', '.join(differing)}; run `solo` with those of {run}{write}")
    summary = _summary(run, ours)
    headline = _headline(summary, ours.keys.test)
    together, solo = _figures(run, summary, headline), _figures(alone, _summary(alone, theirs), headline)
    together = {id: value for id, value in together.items() if id in solo}
    gains = collaboration_gains(together, solo, headline) | {"weight_divergence": weight_divergence(run, [*together])}
    if summary.outside:
        gains["lost"] = summary.outside
    if protocol is None:
        gains["not_compared"] = f"local training (`like`): {ours.keys.protocol.name} is code of your own"
    if output.as_json:
        output.document({"test": headline.test, "figure": headline.figure.name} | gains)
    else:
        output.say(*map(printable, comparison_lines(gains, headline)))
    return 0


def comparison_lines(gains: Mapping[str, Any], headline: Headline) -> list[str]:
    """The comparison for people, line by line."""
    said = [f"{id}: {signed(gain)}" for id, gain in gains["gain"].items()]
    pearson, divergence = (
        "undefined" if gains[name] is None else f"{gains[name]:{form}}"
        for name, form in (("pearson", "+.4f"), ("weight_divergence", ".3g"))
    )
    unknown = [f"not compared, {gains['not_compared']}, which is not imported here"] if "not_compared" in gains else []
    unknown += [f"not compared, as the others went on without: {', '.join(gains['lost'])}"] if "lost" in gains else []
    better = "" if headline.figure.better == "up" else ", positive is better"
    return [
        *unknown,
        f"gain over training alone ({headline.column}{better}), by peer: {', '.join(said)}",
        f"mean collaboration gain (MCG): {signed(gains['mcg'])}",
        f"its spread (CGS): {number(gains['cgs'])}",
        f"Pearson's correlation of the two {'accuracies' if headline.test else headline.figure.name}: {pearson}",
        f"weight divergence between the peers' models, mean over the weights: {divergence}",
    ]


def _spec(directory: Path) -> RecordedSpec:
    file = directory / "federation.yaml"
    if not file.is_file():
        raise InputError(f"{directory} holds no run: there is no federation.yaml in it")
    return RecordedSpec.read(file)


def _protocol(directory: Path, spec: RecordedSpec) -> Protocol | None:
    """The protocol; None where it is custom code: that is not imported for a look at a run."""
    written = spec.keys.protocol
    like = (written.model_extra or {}).get("like", "")
    if written.name not in PROTOCOLS or (isinstance(like, str) and ":" in like):
        return None
    try:
        return protocol_class(written.name).model_validate_json(written.model_dump_json(), strict=True)
    except ValidationError:
        raise InputError(f"{directory}/federation.yaml: `protocol` is not as dfl-launch writes it") from None


def _headline(summary: Summary, test: str | None) -> Headline:
    """The headline figure by the summary alone, as the task may be user code."""
    name, judged = next(iter(summary.figures.items()), (ACCURACY.name, None))
    told = any(value is not None for value in summary.mean_accuracy.values())
    if test or judged is None or (told and name == ACCURACY.name):
        return Headline(test=test or "matched")
    return Headline(Figure(name, judged["better"]))


def _summary(directory: Path, spec: RecordedSpec) -> Summary:
    summary = summary_json.read(directory / "summary.json")
    whole = summary and (summary.rounds == spec.keys.rounds or summary.stopped_early)
    known = {one.id for one in summary.per_peer} | {*summary.outside} if summary else set()
    if summary is None or not whole or known != {*spec.ids}:
        raise InputError(f"{directory} holds no finished run: there is no whole summary.json in it")
    return summary


def _figures(directory: Path, summary: Summary, headline: Headline) -> dict[str, float]:
    found = {peer.id: headline.value(peer) for peer in summary.per_peer}
    if missing := [id for id, value in found.items() if value is None]:
        lacking = f"accuracy on the `{headline.test}` test" if headline.test else headline.figure.name
        raise InputError(f"{directory}: {', '.join(missing)} have no {lacking}")
    return {id: value for id, value in found.items() if value is not None}
