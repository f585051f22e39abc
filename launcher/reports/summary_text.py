"""The end of a run in words: how good, how fair, how private, what was lost, and where the models are."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from time import time
from typing import Any

from rich.console import Console
from rich.table import Table

from launcher.headline import Headline, mean
from launcher.history import ACTIVITIES, expiry_words
from launcher.reports.privacy import HOLDS, violation_line
from launcher.reports.summary_json import PeerSummary, Privacy, Summary
from launcher.reports.worth import worth_lines
from launcher.table import fitting, quantity
from launcher.views import Views
from peer.errors import InputError
from peer.learning.export import read_header
from peer.spec.federation import Spec
from peer.telemetry.results import MODEL
from peer.text import cut, duration, number, one_line, plural


def view_changes(summary: Summary, spec: Spec) -> list[str]:
    """A line each; none of a run whose members stayed the same."""
    if not summary.views:
        return []
    views = Views(spec.ids, summary.rounds, summary.views)
    told = [*whose_data(summary), *means_by_view(summary, Headline.from_spec(spec), views)]
    return [exactness(views), *(f"  {line}" for line in told)]


def exactness(views: Views) -> str:
    """Whether the result is that of a run in which no peer was lost."""
    if views.exact:
        return "exact: all peers replayed the rounds that a view change had rolled back"
    changed = views.changes()
    rounds = [str(round) for round, _ in changed]
    listed = f"rounds {', '.join(rounds[:-1])} and {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[0]}"
    return f"with changes of view at {listed}: {'; '.join(words for _, words in changed)}"


def whose_data(summary: Summary) -> list[str]:
    """The peers, and the rounds, whose data took no part."""
    told = []
    for id, absent in summary.absences.items():
        rounds = ", ".join(f"{first} to {last}" if first < last else str(first) for first, last in absent)
        outside = "; it was not taken in again, and is in no figure" if id in summary.outside else ""
        told.append(f"without the data of {id}: rounds {rounds}{outside}")
    return told


def means_by_view(summary: Summary, headline: Headline, views: Views) -> list[str]:
    """The mean figure of the peers that finished, at the end of each view that changed the members."""
    known = {int(one["round"] or 0): headline.of_means(one) for one in summary.history}
    told = []
    for span in views.spans:
        if within := [round for round in known if round in span.rounds]:
            last = max(within)
            told.append(f"{number(known[last])} after round {last} with {plural(len(span.view.members), 'peer')}")
    return [f"mean {headline.words} of those who finished: {', '.join(told)}"] if len(told) > 1 else []


def show(summary: Summary, spec: Spec, directory: Path, console: Console) -> None:
    """Print the summary of a finished run."""
    report(summary, spec, console)
    say(where_models_are(summary, spec, directory), console)


def report(summary: Summary, spec: Spec, console: Console) -> None:
    """Print what it says, and not where anything lies."""
    headline = Headline.from_spec(spec)
    shown, others = worst_of_many(summary.per_peer, headline)
    console.print(per_peer([{**vars(one), "figure": headline.value(one)} for one in shown], headline, console))
    if others:
        values = [value for peer in others if (value := headline.value(peer)) is not None]
        span = f"{number(min(values))} to {number(max(values))}" if values else "–"
        rest = f"the other {len(others)} have {headline.words} {span}"
        say([f"listed: the {len(shown)} worst peers; {rest}; summary.json has all"], console)
    say(summary_lines(summary, spec), console)


def say(said: list[str], console: Console) -> None:
    for line in said:
        console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)


def show_so_far(told: Mapping[str, Any], headline: Headline, proof: Privacy | None, console: Console) -> None:
    """Print what a run has come to of which no peer has finished. told: the same for programs."""
    console.print(per_peer(told["per_peer"], headline, console))
    known = [one["figure"] for one in told["per_peer"] if one["figure"] is not None]
    worst = headline.figure.worst(known) if known else None
    lines = [
        "{name}: {protocol}, {peers} peers, {completed} of {rounds} rounds completed".format(**told),
        f"{headline.words} so far: mean {number(mean(known))}, worst {number(worst)}",
        *(privacy_lines(proof) if proof else []),
    ]
    say(lines, console)


MANY, FEW = 20, 10
"""More peers than `MANY` are not all listed at a run's end: the `FEW` worst are."""


def worst_of_many(
    peers: Sequence[PeerSummary], headline: Headline
) -> tuple[Sequence[PeerSummary], Sequence[PeerSummary]]:
    """The peers to list, in the ring's order or, of many, the worst first; and the others."""
    if len(peers) <= MANY:
        return peers, ()
    sign = -1 if headline.figure.better == "down" else 1
    known = {peer.id: headline.value(peer) for peer in peers}
    ordered = sorted(peers, key=lambda peer: -inf if (value := known[peer.id]) is None else sign * value)
    return ordered[:FEW], ordered[FEW:]


def per_peer(told: Iterable[Mapping[str, Any]], headline: Headline, console: Console) -> Table:
    """A line a peer. told: of each its id, samples or rounds, figure, bytes_sent, and seconds by activity."""
    rows = [
        {
            "peer": one["id"],
            **{name: str(one[name]) for name in ("samples", "round") if name in one},
            headline.column: number(one["figure"]),
            "sent": quantity(one["bytes_sent"]),
            **{name: f"{one['seconds'].get(name, 0.0):.1f} s" for name in ACTIVITIES},
        }
        for one in told
    ]
    return fitting(rows, [*reversed(ACTIVITIES), "samples"], console)


def summary_lines(summary: Summary, spec: Spec) -> list[str]:
    """Everything but the table, a line each."""
    restarts = f", {plural(summary.restarts, 'restart')}" if summary.restarts else ""
    early = f" of {spec.rounds}, ended early," if summary.stopped_early else ""
    said = [
        f"{summary.name}: {summary.protocol}, {summary.peers} peers, {summary.rounds} rounds{early} "
        f"in {duration(summary.wall_seconds)}{restarts}",
        *quality(summary, Headline.from_spec(spec)),
        *interval_lines(summary),
        *view_changes(summary, spec),
    ]
    said += adversary_lines(summary)
    if bests := [f"{peer.id} {peer.best.round} ({number(peer.best.figure)})" for peer in summary.per_peer if peer.best]:
        said.append(f"best rounds on the samples held back: {', '.join(bests)}; see model.best.safetensors")
    said += worth_lines(summary.worth) if summary.worth else []
    before, after = (summary.ring_cost.get(when) for when in ("before", "after"))
    if before is not None:
        said.append(f"ring cost: {number(before)} before, {number(after)} after ordering")
    said += privacy_lines(summary.privacy)
    return said + caveats(summary)


def direction(summary: Summary, figure: str) -> int:
    """1 where more is better of a figure, also of a class; else −1."""
    return -1 if figure in summary.figures and summary.figures[figure]["better"] == "down" else 1


MAX_INTERVALS = 8
"""Lines, and figures of each, that are told."""


def interval_lines(summary: Summary) -> list[str]:
    """The peers' first figures with their 95 % intervals, and the first one of classes, where they have intervals."""
    told = []
    for peer in summary.per_peer:
        if peer.final is None:
            continue
        told += _spans(peer.id, peer.figures, peer.final.intervals)
        for name in [*next(iter(peer.final.class_intervals.values()), ())][:1]:
            values = {one: figures.get(name) for one, figures in peer.final.classes.items()}
            spans = {one: intervals.get(name) for one, intervals in peer.final.class_intervals.items()}
            which, sign = "each class", direction(summary, name)
            if len(spans) > MAX_INTERVALS:
                which = "the worst classes"
                spans = dict(sorted(spans.items(), key=lambda one: sign * (values.get(one[0]) or 0)))
            told += _spans(f"{peer.id}, {name} of {which}", values, spans)
    more = [f"  and {len(told) - MAX_INTERVALS} more in summary.json"] if len(told) > MAX_INTERVALS else []
    return ["95 % intervals on the test samples:", *told[:MAX_INTERVALS], *more] if told else []


def _spans(
    whose: str, values: Mapping[str, float | None], intervals: Mapping[str, tuple[float, float] | None]
) -> list[str]:
    known = [(name, *interval) for name, interval in intervals.items() if interval]
    spans = [f"{name} {number(values.get(name))} ({number(a)} to {number(b)})" for name, a, b in known[:MAX_INTERVALS]]
    spans += [f"and {len(known) - MAX_INTERVALS} more"] if len(known) > MAX_INTERVALS else []
    return [f"  {whose}: {', '.join(spans)}"] if spans else []


def adversary_lines(summary: Summary) -> list[str]:
    """Which peers misbehave because the settings say so, and how good the others are."""
    who = "; ".join(f"{id} ({how})" for id, how in summary.behaviour.items())
    mean = number(summary.honest_accuracy)
    return [f"simulated adversaries: {who}; mean of the honest peers: {mean}"] if who else []


MAX_RARE = 5


def caveats(summary: Summary) -> list[str]:
    """What is missing from the figures, and what is not as the protocol says."""
    differing = ", ".join(name for name, same in summary.replicated.items() if not same)
    said = [f"replicas differ at the end: {differing} (the protocol declares them equal)"] if differing else []
    if summary.rare:
        rare = ", ".join(f"{name} ({share:.1%})" for name, share in [*summary.rare.items()][:MAX_RARE])
        said.append(
            f"accuracies mislead, as these classes are rare: {rare}; choose another headline: "
            "`task: {name: classification, judged_by: [balanced-accuracy, auroc]}`"
        )
    said += [
        f"{name} is NaN or infinite at every peer; see how `{summary.task}` computes it, and of which samples"
        for name, one in summary.figures.items()
        if one["mean"] is None and any(name in peer.figures for peer in summary.per_peer)
    ]
    said += [f"not included in any figure: {id} ({why})" for id, why in summary.missing.items()]
    return said + [f"the certificate of {id} {expiry_words(at, time())}" for id, at in summary.certificates.items()]


def quality(summary: Summary, headline: Headline) -> list[str]:
    """How good the models are: a line of accuracies where the task has classes, and one of its other figures."""
    accuracies = (
        f"accuracy ({headline.test}): mean {number(headline.of_means(summary.mean_accuracy))}, "
        f"worst {number(summary.worst_accuracy)}, "
        f"Gini {number(summary.gini)}, mean first above 0.5 in round {summary.r50 or '–'}"
    )
    less = {"up": "", "down": " (better down)"}
    judged = [
        f"{name}{less[one['better']]}: mean {number(one['mean'])}, worst {number(one['worst'])}"
        for name, one in summary.figures.items()
        if not (headline.test and name == "accuracy")
    ]
    return [*([accuracies] if headline.test else []), *(["; ".join(judged)] if judged else [])]


def where_models_are(summary: Summary, spec: Spec, directory: Path) -> list[str]:
    """Where a run's models lie, and how one is loaded."""
    model, ids = spec.model.name, [peer.id for peer in summary.per_peer]
    here = [id for id in ids if (directory / id / MODEL).is_file()]
    named = {"user_model": model, "user_task": spec.task.name}
    own = "".join(f', {key}="{name}"' for key, name in named.items() if ":" in name)
    there = "" if here == ids else ", but for those that stay where their peers ran"
    models = f"{directory}/<id>/{MODEL}{there}" if here else "they stay where the peers ran"
    said = [f"models: {models}; everything else: {directory}/summary.json"]
    with suppress(InputError):
        if here and read_header(directory / here[0] / MODEL).one_shape is not None:
            load = f'load_model("{directory}/{here[0]}/{MODEL}"{own})'
            said.append(f"to load one: from peer import load_model; model = {load}")
    return said


MAX_TRUSTED = 50
"""Lines about what is on trust."""


def privacy_lines(privacy: Privacy) -> list[str]:
    """The privacy proof in a line, and what is on trust and each violation (ten at most) in one more."""
    violations = privacy["violations"]
    met = [name for name, holds in privacy["definitions"].items() if holds]
    head = privacy["head_bytes_sent"]
    declared = " (as declared)" if privacy["on_trust"] else ""
    said = f"privacy: {quantity(head)} of heads sent{declared}, {len(privacy['edges_used'])} directed edges used, "
    said += "no violation" if not violations else plural(len(violations), "VIOLATION").upper()
    undecided = ", ".join(name for name, holds in privacy["definitions"].items() if holds is None)
    unknown = undecided and ", ".join(privacy.get("unknown", ()))
    said += f"; Definitions met: {', '.join(met) or ('none yet' if unknown else 'none')}"
    trusted = [f"  on trust, {one['vector']} ({quantity(one['bytes'])}): {one['why']}" for one in privacy["on_trust"]]
    trusted += [
        f"  of the data, {name} ({quantity(size)}): of all peers together, before round 1"
        for name, size in privacy.get("of_data", {}).items()
    ]
    if len(trusted) > MAX_TRUSTED:  # a lying audit may name very many
        trusted[MAX_TRUSTED:] = [f"  on trust, {len(trusted) - MAX_TRUSTED} more in summary.json"]
    if unknown:
        said += f"; not known without the whole audits of {unknown}: {undecided}"
    elif undecided:
        said += f"; {undecided} can neither be proven nor denied"
    shown = [f"  {violation_line(one)}" for one in violations[:10]]
    counted = [
        f"  {name} {HOLDS[privacy['definitions'].get(name)]}: {told}"
        for name, told in privacy.get("counted", {}).items()
    ]
    more = [f"  and {len(violations) - 10} more"] if len(violations) > 10 else []
    return [*map(cut, [said, *counted, *trusted, *shown, *more])]
