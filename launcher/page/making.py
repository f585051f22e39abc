"""The document of one run, from its spec and its peers' directories; of a run that was stopped, as far as it came."""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

from launcher.page.course import peer_rounds, rounds
from launcher.page.document import Card, Document, PrivacyWords, Row, RunPart, State
from launcher.page.moment import Kind
from launcher.page.per_peer import peers, seconds
from launcher.page.ring import joined, mixes, seats
from launcher.page.timeline import moments
from launcher.page.told import Told
from launcher.page.traffic import edges
from launcher.page.words import cards, cards_so_far, in_plain_words
from launcher.reports.changes import changes
from launcher.reports.worth import worth
from peer.errors import FailedError
from peer.plugins import in_words
from peer.text import number, one_line, plural

MOST_MOMENTS = 3000
FOREMOST: tuple[Kind, ...] = ("failure", "change of view", "recovery", "running", "not heard", "waits", "note")
"""Which of very many moments are shown rather than others."""


def document_of(told: Told, label: str) -> Document:
    """`label` names the run in tables and legends. FailedError where what a peer has told cannot be shown."""
    try:
        return _made(told, label)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise FailedError(f"what the peers have told cannot be shown: {one_line(in_words(error))}") from error


def _made(told: Told, label: str) -> Document:
    tables: dict[str, Iterable[Row]] = {
        "rounds": (
            {"protocol": told.spec.protocol.name, "seed": told.spec.seed, **row}
            for row in rounds(told.chronicles, told.views, told.judged, told.headline)
        ),
        "peer_rounds": peer_rounds(told.chronicles, told.headline),
        "peers": peers(told),
        "seconds": seconds(told),
        "edges": edges(told),
        "moments": moments(told.chronicles, told.views),
        "ring": seats(told),
        "neighbours": joined(told),
    }
    made = {name: [_finite({"run": label} | row | {"run": label}) for row in rows] for name, rows in tables.items()}
    happened = made["moments"]
    made["moments"] = _foremost(happened)
    return Document(told.spec.name, [_part(told, label, made, len(happened) - len(made["moments"]))], made)


def _foremost(happened: list[Row]) -> list[Row]:
    """As many as are shown, in their order: of very many those that come first in `FOREMOST`, and of each the first."""
    by_weight = sorted(range(len(happened)), key=lambda at: FOREMOST.index(happened[at]["kind"]))
    return [happened[at] for at in sorted(by_weight[:MOST_MOMENTS])]


def _finite(row: Row) -> Row:
    """With None for what is no number: JSON knows no infinity."""
    return {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in row.items()}


def _part(told: Told, label: str, tables: Mapping[str, list[Row]], left_out: int) -> RunPart:
    spec = told.spec
    state, said = _state(told)
    return RunPart(
        label=label,
        name=spec.name,
        protocol=spec.protocol.name,
        seed=spec.seed,
        peers=len(spec.ids),
        rounds=spec.rounds,
        completed=told.completed,
        state=state,
        told=said,
        figure=told.headline.words,
        better=told.headline.figure.better,
        cards=[*_cards(told, tables)],
        privacy=_privacy(told, tables["edges"]),
        notes=[_as_sentence(note) for note in _notes(told)],
        ring_cost=told.ring_cost,
        moments_left_out=left_out,
        classes=[*next(iter(mixes(told).values()), {})],
    )


def _cards(told: Told, tables: Mapping[str, list[Row]]) -> Iterator[Card]:
    if told.summary:
        return cards(told.summary, told.headline)
    return cards_so_far(tables["rounds"], sum(row["bytes_sent"] for row in tables["peers"]), told.headline)


def _privacy(told: Told, found: list[Row]) -> PrivacyWords | None:
    return in_plain_words(told.proof, found) if told.proof else None


def _state(told: Told) -> tuple[State, str]:
    """What became of the run, for programs and in a sentence."""
    failed = [f"{id}: {one.failure}" for id, one in told.chronicles.items() if one.failure]
    if told.whole:
        early = ", ended early as all peers agreed" if told.summary and told.summary.stopped_early else ""
        return "finished", f"Finished: {plural(told.completed, 'round')}{early}."
    came = f"{told.completed} of {told.spec.rounds} rounds"
    if failed:
        return "failed", one_line(f"Failed after {came}. {'; '.join(failed[:3])}")
    return "unfinished", f"Not finished: {came}. The figures are those of the rounds so far."


def _notes(told: Told) -> Iterator[str]:
    if summary := told.summary:
        yield from worth(summary.worth) if summary.worth else []
        yield from changes(summary, told.spec)
        if summary.behaviour:
            who = "; ".join(f"{id} ({how})" for id, how in summary.behaviour.items())
            yield f"misbehaving by the settings: {who}; the others: mean {number(summary.honest_accuracy)}"
        yield from (f"missing, and in no figure: {id} ({why})" for id, why in summary.missing.items())
        if differing := [name for name, same in summary.replicated.items() if not same]:
            yield f"the peers' {', '.join(differing)} differ at the end, and the protocol says that they are equal"
    if absent := [id for id in told.spec.ids if id not in told.places]:
        yield f"nothing is known of {', '.join(absent)}: no directory of theirs was given"


def _as_sentence(note: str) -> str:
    said = one_line(note).strip()
    return f"{said[:1].upper()}{said[1:]}"
