"""Builds the document of one run, from its spec and its peers' directories; of a stopped run, as far as it came.

First what a person reads: the cards with the main numbers, and the proof of privacy in plain words. Then all tables,
and the run's state and notes. What peers have told may be anything: what cannot be shown is a FailedError, numbers that
are none become None, and of very many events the more important ones are kept.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

from launcher.headline import Headline
from launcher.history import EventKind
from launcher.page.charts import titled
from launcher.page.document import Card, Definition, PrivacyWords, ReportDocument, Row, RunPart, State, Verdict
from launcher.page.final_evaluation import confusion_rows, final_rows, judged_classes
from launcher.page.learning_curves import peer_round_rows, round_rows
from launcher.page.ring import edge_rows, line_rows, mixes, sector_rows
from launcher.page.run_data import RunData
from launcher.page.timeline import activity_rows, event_rows, peer_rows
from launcher.reports.privacy import HOLDS, violation_line
from launcher.reports.summary_json import Privacy, Summary
from launcher.reports.summary_text import adversary_lines, caveats, view_changes
from launcher.reports.worth import worth_lines
from launcher.table import quantity
from peer.errors import FailedError
from peer.plugins import describe_error
from peer.text import duration, number, one_line, plural

MAX_VIOLATIONS = 50
DEFINITION_NAMES = {
    "3.1": "No head leaves its peer",
    "3.2": "No peer is a server",
    "3.3": "Neighbours on the ring only",
}


def cards(summary: Summary, headline: Headline) -> Iterator[Card]:
    """The numbers of a finished run that are looked for first."""
    first = "" if summary.r50 is None else f"mean first above 0.5 in round {summary.r50}"
    judged = next(iter(summary.figures.values()), None)
    better = headline.figure.better
    if headline.test:
        mean = headline.of_means(summary.mean_accuracy)
        yield Card("mean", f"Mean {headline.words}", mean, number(mean), first, better)
        worst = summary.worst_accuracy
        yield Card("worst", "Worst peer", worst, number(worst), f"{headline.words}", better)
        yield Card("gini", "Gini", summary.gini, number(summary.gini), "0: all peers alike", "down")
    elif judged:
        less = "less is better" if better == "down" else ""
        yield Card("mean", f"Mean {headline.words}", judged["mean"], number(judged["mean"]), less, better)
        yield Card("worst", "Worst peer", judged["worst"], number(judged["worst"]), headline.words, better)
    for name, other in summary.figures.items():
        if name != headline.figure.name:
            worst_of = f"worst {number(other['worst'])}"
            yield Card(
                f"figure {name}", f"Mean {name}", other["mean"], number(other["mean"]), worst_of, other["better"]
            )
    again = plural(summary.restarts, "restart") if summary.restarts else ""
    yield Card("wall_seconds", "Time", summary.wall_seconds, duration(summary.wall_seconds), again, "down")
    sent = sum(peer.bytes_sent for peer in summary.per_peer)
    each = f"{quantity(sent / len(summary.per_peer) / max(summary.rounds, 1))} a peer and round"
    yield Card("bytes_sent", "Sent", sent, quantity(sent), each, "down")
    head = summary.privacy["head_bytes_sent"]
    broken = plural(len(summary.privacy["violations"]), "violation")
    yield Card("head_bytes_sent", "Heads sent", head, quantity(head), broken, "down")


def cards_so_far(data: RunData, tables: Mapping[str, list[Row]]) -> Iterator[Card]:
    """The cards of a run that is not over, as far as its peers have reported."""
    headline, sent = data.headline, sum(row["bytes_sent"] for row in tables["peers"])
    last = tables["rounds"][-1] if tables["rounds"] else {}
    after, better = f"after round {last.get('round', '–')}", headline.figure.better
    yield Card("mean", f"Mean {headline.words}", last.get("mean"), number(last.get("mean")), after, better)
    yield Card("worst", "Worst peer", last.get("worst"), number(last.get("worst")), after, better)
    if headline.test:
        yield Card("gini", "Gini", last.get("gini"), number(last.get("gini")), "0: all peers alike", "down")
    yield Card("bytes_sent", "Sent", sent, quantity(sent), "so far", "down")


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
        [_definition(name, proof) for name in met],
        [one_line(violation_line(one)) for one in violations[:MAX_VIOLATIONS]] + more,
    )


def _lacking(definitions: Mapping[str, bool | None]) -> str:
    """The definitions that are not met."""
    found = [(HOLDS[holds], [name for name, held in definitions.items() if held is holds]) for holds in (False, None)]
    return titled("; ".join(f"{words}: {', '.join(names)}" for words, names in found if names))


def _definition(name: str, proof: Privacy) -> Definition:
    """The sentence that stands in the summary, too."""
    holds = proof["definitions"][name]
    counted = proof.get("counted", {}).get(name, "an earlier version did not say what it had counted")
    return Definition(name, f"{DEFINITION_NAMES.get(name, name)}: {HOLDS[holds]}", one_line(counted), holds)


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
EVENTS_BY_WEIGHT: tuple[EventKind, ...] = (
    "failure",
    "change of view",
    "recovery",
    "running",
    "not heard",
    "waits",
    "note",
)
"""Kinds of moments, those first that are shown rather than others if there are too many."""


def document_of(data: RunData, label: str) -> ReportDocument:
    """`label` names the run in tables and legends. FailedError where what a peer has told cannot be shown."""
    try:
        return _build(data, label)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
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
    return ReportDocument(data.spec.name, [_run_part(data, label, made, len(happened) - len(made["moments"]))], made)


def _foremost(happened: list[Row]) -> list[Row]:
    """The events that are shown, in order: if there are too many, the first ones of the weightiest kinds."""
    by_weight = sorted(range(len(happened)), key=lambda at: EVENTS_BY_WEIGHT.index(happened[at]["kind"]))
    return [happened[at] for at in sorted(by_weight[:MAX_EVENTS])]


def _finite(row: Row) -> Row:
    """A row with None for values that are not finite, as JSON has no infinity."""
    return {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in row.items()}


def _run_part(data: RunData, label: str, tables: Mapping[str, list[Row]], left_out: int) -> RunPart:
    spec = data.spec
    state, said = _state(data)
    return RunPart(
        label=label,
        name=spec.name,
        protocol=spec.protocol.name,
        seed=spec.seed,
        peers=len(spec.ids),
        rounds=spec.rounds,
        completed=data.completed,
        state=state,
        told=said,
        figure=data.headline.words,
        better=data.headline.figure.better,
        cards=[*(cards(data.summary, data.headline) if data.summary else cards_so_far(data, tables))],
        privacy=in_plain_words(data.proof, tables["edges"]) if data.proof else None,
        notes=[titled(one_line(note).strip()) for note in _notes(data)],
        ring_cost=data.ring_cost,
        moments_left_out=left_out,
        classes=[*next(iter(mixes(data).values()), {})],
        judged_classes=judged_classes(data.summary) if data.summary else (),
    )


def _state(data: RunData) -> tuple[State, str]:
    """What became of the run, for programs and in a sentence."""
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
