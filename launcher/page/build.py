"""Builds the document of one run, from its spec and its peers' directories; of an unfinished run, as far as it came.

First what a person reads: the cards with the main numbers, and the proof of privacy in plain words. Then all tables,
and the run's state and notes. What peers have told may be anything: what cannot be shown is a FailedError, numbers that
are none become None, and of very many events the more important ones are kept.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from math import isfinite
from typing import Any

from launcher.page.document import Card, Definition, PrivacyWords, ReportDocument, Row, RunPart, State, Verdict, titled
from launcher.page.final_evaluation import confusion_rows, final_rows, judged_classes
from launcher.page.learning_curves import peer_round_rows, round_rows
from launcher.page.ring import edge_rows, line_rows, mixes, sector_rows
from launcher.page.run_data import RunData
from launcher.page.timeline import activity_rows, event_rows, peer_rows, seconds_of_rounds
from launcher.reports.privacy import HOLDS, violation_line
from launcher.reports.summary_json import Privacy
from launcher.reports.summary_text import adversary_lines, caveats, view_changes
from launcher.reports.worth import worth_lines
from launcher.table import quantity
from peer.errors import FailedError
from peer.plugins import describe_error
from peer.spec.document import dump_yaml
from peer.text import duration, number, one_line, plural

MAX_VIOLATIONS, MAX_VALUE = 50, 40
DEFINITION_NAMES = {
    "3.1": "No head leaves its peer",
    "3.2": "No peer is a server",
    "3.3": "Neighbours on the ring only",
}


def cards(data: RunData, tables: Mapping[str, list[Row]]) -> Iterator[Card]:
    """The numbers that are looked for first: of a finished run those of its summary, else those of its last round."""
    summary, headline, better = data.summary, data.headline, data.headline.figure.better
    last: Mapping[str, Any] = tables["rounds"][-1] if tables["rounds"] else {}
    note = after = f"after round {last.get('round', '–')}"
    if summary:
        last = next(({**one} for one in summary.figures.values()), {})
        note, after = "less is better" if better == "down" else "", headline.words
        if headline.test:
            mean = headline.of_means(summary.mean_accuracy)
            last = {"mean": mean, "worst": summary.worst_accuracy, "gini": summary.gini}
            note = "" if summary.r50 is None else f"mean first above 0.5 in round {summary.r50}"
    if last or not summary:
        yield Card("mean", f"Mean {headline.words}", last.get("mean"), number(last.get("mean")), note, better)
        worst = last.get("worst")
        rows = (
            tables["peers"] if summary else [one for one in tables["peer_rounds"] if one["round"] == last.get("round")]
        )
        who = next((f"{one['peer']}, " for one in rows if worst is not None and one.get("value") == worst), "")
        yield Card("worst", "Worst peer", worst, number(worst), f"{who}{after}", better)
    if headline.test:
        yield Card("gini", "Gini", last.get("gini"), number(last.get("gini")), "0: all peers alike", "down")
    if not summary:
        sent = sum(row["bytes_sent"] for row in tables["peers"])
        yield Card("bytes_sent", "Sent", sent, quantity(sent), "so far", "down")
        return
    for name, other in summary.figures.items():
        if name != headline.figure.name:
            key, note = f"figure {name}", f"worst {number(other['worst'])}"
            yield Card(key, f"Mean {name}", other["mean"], number(other["mean"]), note, other["better"])
    wall = summary.wall_seconds
    outside = f"{max(0.0, wall - seconds_of_rounds(data.histories)):.1f} s of it start-up and end"
    again = f", {plural(summary.restarts, 'restart')}" if summary.restarts else ""
    yield Card("wall_seconds", "Time", wall, duration(wall), f"{outside}{again}", "down")
    sent = sum(peer.bytes_sent for peer in summary.per_peer)
    each = f"{quantity(sent / len(summary.per_peer) / max(summary.rounds, 1))} a peer and round"
    yield Card("bytes_sent", "Sent", sent, quantity(sent), each, "down")
    head = summary.privacy["head_bytes_sent"]
    broken = plural(len(summary.privacy["violations"]), "violation")
    yield Card("head_bytes_sent", "Heads sent", head, quantity(head), broken, "down")


PRIVACY_OPEN = PrivacyWords(
    "open", "Privacy is checked at the end of the run, by comparing what each peer logged as sent and received."
)


def in_plain_words(proof: Privacy, edges: Iterable[Row]) -> PrivacyWords:
    """What the proof says, and what it does not."""
    violations, met = proof["violations"], proof["definitions"]
    verdict: Verdict = "broken" if violations else "kept" if all(met.values()) else "open"
    titles = {
        "kept": "No head left its peer, no peer acted as a server, and peers exchanged with ring neighbours only.",
        "open": "No violation found; some audit logs are missing."
        if proof.get("unknown")
        else f"Nothing left against the protocol's declaration. {_lacking(met)}.",
        "broken": "Violation: undeclared data left a peer, or the audit logs contradict each other.",
    }
    more = [f"and {len(violations) - MAX_VIOLATIONS} more"] if len(violations) > MAX_VIOLATIONS else []
    return PrivacyWords(
        verdict,
        titles[verdict],
        [*_sentences(proof, list(edges))],
        [*_definitions(proof)],
        [one_line(violation_line(one)) for one in violations[:MAX_VIOLATIONS]] + more,
    )


def _lacking(definitions: Mapping[str, bool | None]) -> str:
    """The definitions that are not met."""
    found = [(HOLDS[holds], [name for name, held in definitions.items() if held is holds]) for holds in (False, None)]
    return titled("; ".join(f"{words}: {', '.join(names)}" for words, names in found if names))


def _definitions(proof: Privacy) -> Iterator[Definition]:
    """The sentences that stand in the summary, too."""
    for name, holds in proof["definitions"].items():
        counted = proof.get("counted", {}).get(name, "an earlier version did not say what it had counted")
        yield Definition(name, f"{DEFINITION_NAMES.get(name, name)}: {HOLDS[holds]}", one_line(counted), holds)


def _sentences(proof: Privacy, edges: list[Row]) -> Iterator[str]:
    used = len(proof["edges_used"])
    yield (
        f"Each peer logged what it sent and received; the logs were compared. {plural(used, 'directed edge')} "
        f"{'was' if used == 1 else 'were'} used."
    )
    travelled: dict[str, int] = {}
    for edge in edges:
        travelled[edge["vector"]] = travelled.get(edge["vector"], 0) + edge["bytes"] + edge["number_bytes"]
    if travelled:
        named = (f"{one_line(name)} ({quantity(size)})" for name, size in travelled.items())
        yield f"Sent in total: {', '.join(named)}."
        yield (
            "Receivers can read what they were sent unless the protocol encrypts it. The three definitions do not "
            "bound what can be inferred from it."
        )
    for one in proof["on_trust"]:
        yield f"Not verifiable: {one_line(one['vector'])} ({quantity(one['bytes'])}), {one['why']}."
    if unknown := proof.get("unknown"):
        yield f"Nothing is proven of {', '.join(unknown)}: their audit logs are missing or incomplete."


MAX_EVENTS = 3000
EVENTS_BY_WEIGHT = ("failure", "change of view", "recovery", "running", "not heard", "waits", "note")
"""Kinds of moments, those first that are shown rather than others if there are too many."""


def document_of(data: RunData, label: str) -> ReportDocument:
    """`label` names the run in tables and legends. FailedError where what a peer has told cannot be shown."""
    try:
        return _build(data, label)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise FailedError(f"what the peers have told cannot be shown: {one_line(describe_error(error))}") from error


def _build(data: RunData, label: str) -> ReportDocument:
    tables: dict[str, Iterable[Row]] = {
        "rounds": ({"protocol": data.spec.protocol.name, "seed": data.spec.seed, **row} for row in round_rows(data)),
        "peer_rounds": peer_round_rows(data),
        "peers": peer_rows(data),
        "final": final_rows(data),
        "confusion": confusion_rows(data),
        "seconds": activity_rows(data),
        "edges": edge_rows(data),
        "moments": event_rows(data.histories, data.views),
        "ring": sector_rows(data),
        "neighbours": line_rows(data),
    }
    made = {name: [_finite({"run": label} | row | {"run": label}) for row in rows] for name, rows in tables.items()}
    happened = made["moments"]
    made["moments"] = _foremost(happened)
    unseen = len(happened) - len(made["moments"])
    notes = [f"{unseen} events are left out of the timeline, notes and waits first"] if unseen else []
    return ReportDocument(data.spec.name, [_run_part(data, label, made, notes)], made)


def _foremost(happened: list[Row]) -> list[Row]:
    """The events that are shown, in order: if there are too many, the first ones of the weightiest kinds."""
    by_weight = sorted(range(len(happened)), key=lambda at: EVENTS_BY_WEIGHT.index(happened[at]["kind"]))
    return [happened[at] for at in sorted(by_weight[:MAX_EVENTS])]


def _finite(row: Row) -> Row:
    """A row with None for values that are not finite, as JSON has no infinity."""
    return {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in row.items()}


def _run_part(data: RunData, label: str, tables: Mapping[str, list[Row]], notes: list[str]) -> RunPart:
    spec = data.spec
    state, said = _state(data)
    return RunPart(
        label=label,
        protocol=spec.protocol.name,
        seed=spec.seed,
        peers=len(spec.ids),
        rounds=spec.rounds,
        completed=data.completed,
        state=state,
        told=said,
        figure=data.headline.words,
        better=data.headline.figure.better,
        cards=[*cards(data, tables)],
        privacy=in_plain_words(data.proof, tables["edges"]) if data.proof else PRIVACY_OPEN,
        notes=[f"From round {round} on: {words}" for round, words in data.views.changes()]
        if data.goes_on
        else [titled(one_line(note).strip()) for note in (*_notes(data), *notes)],
        ring_cost=data.ring_cost,
        made={name: one_line(words) for name, words in _made(data)},
        settings="" if data.goes_on else dump_yaml(data.whole),
        classes=[*next(iter(mixes(data).values()), {})],
        judged_classes=judged_classes(data.summary) if data.summary else (),
    )


def _made(data: RunData) -> Iterator[tuple[str, str]]:
    """What was run, with what, where and when, as far as it was written down."""
    runs = [run for one in data.histories.values() for run in one.runs if run.start > 0]
    yield "command", _command(data.launched) if data.launched else "not known: the peers were not started by a launcher"
    yield "other than the defaults", ", ".join(f"{key}={value}" for key, value in data.chosen.items())
    dfl = ", ".join(dict.fromkeys(one.version[:100] for one in data.histories.values() if one.version))
    yield "versions", f"dfl {dfl or 'not known'}; at the launcher: {data.launched.get('versions') or 'not known'}"
    yield "launched on", str(data.launched.get("host") or "not known")
    if runs:
        times = {"began": min(run.start for run in runs), "last event": max(run.end or run.start for run in runs)}
        for name, time in times.items():
            yield name, f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC, by the peers' clocks"


def _command(launched: Mapping[str, Any]) -> str:
    """What runs the federation again."""
    words = ["dfl-launch", "run", "federation.yaml"]
    words += ["--on", f"{launched.get('on')}"] if launched.get("on") != "local" else []
    words += ["--device", f"{launched.get('device')}"] if launched.get("device") != "auto" else []
    words += ["--certs", f"{launched['certs']}"] if launched.get("certs") else []
    options = {name: value for name, value in dict(launched.get("settings", {})).items() if value is not None}
    return shlex.join([*words, *(f"--option={name}={json.dumps(value)}" for name, value in options.items())])


TASK = ("data", "model", "task", "test", "seed", "rounds", "peers", "ring", "behaviour", "hold_back", "stop_early")
"""What is to be learned, by whom and for how long: only where that is alike can one run be better."""


def differences(runs: Sequence[RunData]) -> tuple[str, bool]:
    """What all runs do not have alike, in a sentence, and whether one can be called better than another."""
    content = [one.agreed for one in runs]
    found = {key: [one.get(key) for one in content] for key in dict.fromkeys(chain(*content)) if key != "name"}
    found = {key: values for key, values in found.items() if any(one != values[0] for one in values)}
    alike = not any(key.partition(".")[0] in TASK for key in found)
    if "protocol.name" in found:  # then their other settings are no difference in one thing
        found = {key: one for key, one in found.items() if key == "protocol.name" or not key.startswith("protocol.")}
    words = [f"{key} ({', '.join(one_line(f'{one}')[:MAX_VALUE] for one in values)})" for key, values in found.items()]
    end = "" if alike else " Like is not compared with like, so none is marked as the best."
    return f"These runs differ in {', '.join(words)}.{end}" if words else "", alike


def _state(data: RunData) -> tuple[State, str]:
    """What became of the run, for programs and in a sentence."""
    if data.goes_on:
        rounds = plural(data.completed, "round")
        return "unfinished", f"Running: what follows is of the {rounds} that all peers have completed."
    failed = [f"{id}: {one.failure}" for id, one in data.histories.items() if one.failure]
    if data.summary and not data.summary.missing:
        early = ", ended early as all peers agreed" if data.summary.stopped_early else ""
        return "finished", f"Finished: {plural(data.completed, 'round')}{early}."
    came = f"{data.completed} of {data.spec.rounds} rounds"
    if failed:
        return "failed", one_line(f"Failed after {came}. {'; '.join(failed[:3])}")
    return "unfinished", f"Incomplete: {came}. Figures cover completed rounds only."


def _notes(data: RunData) -> Iterator[str]:
    if summary := data.summary:
        yield from worth_lines(summary.worth) if summary.worth else []
        yield from view_changes(summary, data.spec)
        yield from adversary_lines(summary)
        yield from caveats(summary)
    if absent := [id for id in data.spec.ids if id not in data.histories]:
        yield f"no data for {', '.join(absent)}: their directories were not given"
