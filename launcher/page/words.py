"""A run's figures and its proof of privacy for a person."""

from collections.abc import Iterable, Iterator, Mapping

from launcher.formatting import quantity
from launcher.headline import Headline
from launcher.page.document import Card, Definition, PrivacyWords, Row, Verdict
from launcher.reports.definitions import HOLDS
from launcher.reports.summary_json import Privacy, Summary
from peer.text import duration, number, one_line, plural

MOST_VIOLATIONS = 50
DEFINED = {"3.1": "No head leaves its peer", "3.2": "Nobody is a server", "3.3": "Neighbours on the ring only"}


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
    yield from _others(summary, headline)
    again = plural(summary.restarts, "restart") if summary.restarts else ""
    yield Card("wall_seconds", "Time", summary.wall_seconds, duration(summary.wall_seconds), again, "down")
    sent = sum(peer.bytes_sent for peer in summary.per_peer)
    each = f"{quantity(sent / len(summary.per_peer) / max(summary.rounds, 1))} a peer and round"
    yield Card("bytes_sent", "Sent", sent, quantity(sent), each, "down")
    head = summary.privacy["head_bytes_sent"]
    broken = plural(len(summary.privacy["violations"]), "violation")
    yield Card("head_bytes_sent", "Heads sent", head, quantity(head), broken, "down")


def _others(summary: Summary, headline: Headline) -> Iterator[Card]:
    """The task's figures besides the headline."""
    for name, judged in summary.figures.items():
        if name != headline.figure.name:
            note = f"worst {number(judged['worst'])}"
            yield Card(f"figure {name}", f"Mean {name}", judged["mean"], number(judged["mean"]), note, judged["better"])


def cards_so_far(rounds: list[Row], sent: int, headline: Headline) -> Iterator[Card]:
    """The same of a run that is not over, as far as its peers have told."""
    last = rounds[-1] if rounds else {}
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
        "kept": "Heads stayed with their peers, nobody was a server, and each peer exchanged with neighbours on the "
        "ring only.",
        "open": "As far as is known nothing left against the protocol's declaration; not all records are here."
        if proof.get("unknown")
        else f"Nothing left against the protocol's declaration. {_lacking(met)}.",
        "broken": "Something left against the protocol's declaration, or the records contradict each other.",
    }
    lines = [
        f"round {one['round']}, {one['from']} to {one['to']}: {one['reason']}"
        if one["round"] is not None
        else one["reason"]
        for one in violations
    ]
    more = [f"and {len(lines) - MOST_VIOLATIONS} more"] if len(lines) > MOST_VIOLATIONS else []
    return PrivacyWords(
        verdict,
        titles[verdict],
        [*_sentences(proof, list(edges))],
        [_definition(name, proof) for name in met],
        [one_line(line) for line in lines[:MOST_VIOLATIONS]] + more,
    )


def _lacking(definitions: Mapping[str, bool | None]) -> str:
    """The definitions that are not met."""
    found = [(HOLDS[holds], [name for name, held in definitions.items() if held is holds]) for holds in (False, None)]
    said = "; ".join(f"{words}: {', '.join(names)}" for words, names in found if names)
    return f"{said[:1].upper()}{said[1:]}"


def _definition(name: str, proof: Privacy) -> Definition:
    """The sentence that stands in the summary, too."""
    holds = proof["definitions"][name]
    counted = proof.get("counted", {}).get(name, "an earlier version did not say what it had counted")
    return Definition(name, f"{DEFINED.get(name, name)}: {HOLDS[holds]}", one_line(counted), holds)


def _sentences(proof: Privacy, edges: list[Row]) -> Iterator[str]:
    used = len(proof["edges_used"])
    yield (
        f"Each peer wrote down what it sent and received; these records were compared. {plural(used, 'directed edge')} "
        f"{'was' if used == 1 else 'were'} used."
    )
    travelled: dict[str, int] = {}
    for edge in edges:
        travelled[edge["vector"]] = travelled.get(edge["vector"], 0) + edge["bytes"] + edge["number_bytes"]
    if travelled:
        named = (f"{one_line(name)} ({quantity(size)})" for name, size in travelled.items())
        yield f"What travelled: {', '.join(named)}."
        yield (
            "Whoever was sent something could read it, unless the protocol encrypts it. What can be inferred from it "
            "is not bounded by the three definitions."
        )
    for one in proof["on_trust"]:
        yield f"On trust: {one_line(one['vector'])} ({quantity(one['bytes'])}), {one['why']}."
    if unknown := proof.get("unknown"):
        yield f"Without the whole records of {', '.join(unknown)}, nothing is proven of them."
