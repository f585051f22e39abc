"""What the peers of one cell thought of one another, as a heat map."""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.page.figures.base import NAMES, nominal, tip

Chart = dict[str, Any]
NOTES = ("reputation", "opinions")
"""Names of notes with a number for each member, in the order of the spec."""
STEPS = 24
"""Of more peers or rounds no number is written into the squares."""


Notes = Sequence[Mapping[str, Any]]


def reputations_of(told: Mapping[str, Notes]) -> tuple[str, Chart] | None:
    """What it shows, and the chart; None of a protocol without reputations. told: by id, in the order of the spec.

    Where all peers have come to the same reputations, they are shown over the rounds; otherwise each one's opinion of
    each other, after the last round.
    """
    ids = [*told]
    noted = next((name for name in NOTES if all(_of(one, name, ids) for one in told.values())), None)
    if noted is None:
        return None
    by_peer = {id: _of(one, noted, ids) for id, one in told.items()}
    rounds = by_peer[ids[0]]
    if all(one == rounds for one in by_peer.values()):
        rows = [_row(round, of, value) for round, values in rounds.items() for of, value in values.items()]
        return "over the rounds, alike at all peers", _heat(rows, [*rounds], ids, ("round", "peer"))
    last = max(rounds)
    # What a peer thinks of itself is no opinion.
    rows = [_row(of, by, one[max(one)][of]) for by, one in by_peer.items() for of in ids if of != by]
    return f"of each other, after round {last}", _heat(rows, ids, ids, ("of", "in the eyes of"))


def _of(notes: Notes, name: str, ids: Sequence[str]) -> dict[int, dict[str, float]]:
    """By round and member."""
    found = {note["round"]: note.get(name) for note in notes}
    whole = {round: values for round, values in found.items() if isinstance(values, list) and len(values) == len(ids)}
    return {round: dict(zip(ids, values, strict=True)) for round, values in whole.items()}


def _row(x: Any, y: str, value: float) -> dict[str, Any]:
    return {"x": str(x), "y": y, "reputation": value}


def _heat(rows: list[dict[str, Any]], along: Sequence[Any], up: Sequence[str], words: tuple[str, str]) -> Chart:
    across = [*map(str, along)]
    axis = NAMES | {"domain": False, "labelSeparation": 1}
    few = len(across) <= STEPS and len(up) <= STEPS
    widest = 6 + 7 * max(map(len, across))
    colour = {
        "field": "reputation",
        "type": "quantitative",
        "scale": {"zero": True} if few else {"zero": True, "scheme": "viridis"},
        "legend": {"title": "reputation", "orient": "top", "gradientThickness": 8},
    }
    known = [tip("x", words[0]), tip("y", words[1]), tip("reputation", "reputation", ".4f")]
    square: Chart = {"mark": {"type": "rect"}, "encoding": {"color": colour, "tooltip": known}}
    number = {"field": "reputation", "type": "quantitative", "format": ".2f"}
    text: Chart = {"mark": {"type": "text", "style": "cell", "fontSize": 10}, "encoding": {"text": number}}
    return {
        "data": {"values": rows},
        "width": max(240, min(720, max(34, min(60, widest)) * len(across))),
        "height": max(120, min(560, 26 * len(up))),
        "encoding": {
            "x": nominal("x", words[0], scale={"domain": across, "paddingInner": 0.04}, axis=axis),
            "y": nominal("y", words[1], scale={"domain": [*up], "paddingInner": 0.04}, axis=axis),
        },
        "layer": [square, text] if few else [square],
    }
