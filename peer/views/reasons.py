"""Why a view has other members than the one before, in words: composed from the news and from the last view's reason.

Members sign the text with the view, so each must compute the same.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from peer.views.view import MAX_REASON_LENGTH

LEAVES, HAS_LEFT = "leaves", "left"
TAKEN_IN = "taken in"
FORGETFUL = "without the rounds it had announced"
LIAR = "expelled: it has signed two votes that contradict each other"
ReasonNews = tuple[Collection[str], str]
"""Members and what happened to them."""


def silent_reason(seconds: float) -> str:
    return f"silent for {seconds:g} s"


def rewound_reason(round: int) -> str:
    return f"went back to round {round}"


def voted_out_reason(by: Iterable[str]) -> str:
    return f"voted out by {', '.join(by)}"


_ID_PATTERN = "[a-z0-9-]+"
_STAYS_OUT = re.compile(
    rf"({_ID_PATTERN}(?:, {_ID_PATTERN})*)(?: and \d+ more)? "
    rf"(silent for \S+ s|{FORGETFUL}|{LEAVES}|{HAS_LEFT}|voted out by .+|{LIAR})"
)
"""A clause of a reason that stays valid for as long as the members that it names are out. `_still_out` reads the reason
of the last view back to compute the next one's, so to reword these texts is to change what members agree on."""


def compose_reason(news: Iterable[ReasonNews], before: str, out: Collection[str], order: Sequence[str]) -> str:
    """Return the reason of the next view, from the news and from `before`, the reason of the present one.

    If it would be too long, each list in it names fewer members and counts the rest.

    out: members in neither view. order: all members, in the order of the spec.
    """
    said: dict[str, set[str]] = {}
    for ids, what in (*news, *_still_out(before, out)):
        if ids:
            said.setdefault(what, set()).update(ids)
    unsaid = len({*out}.difference(*said.values()))
    clauses = [([id for id in order if id in ids], what) for what, ids in said.items()]
    for most in range(MAX_REASON_LENGTH // len("a, "), 0, -1):
        words = [_clause(ids, what, most) for ids, what in clauses]
        text = "; ".join([*words, f"{unsaid} more out before"] if unsaid else words)
        if len(text) <= MAX_REASON_LENGTH:
            break
    return text[:MAX_REASON_LENGTH]


def _clause(ids: Sequence[str], what: str, most: int) -> str:
    """Return a clause that names at most `most` members, and as many voters."""
    return f"{_shortened(ids, most, f'{len(ids) - most} more')} {_shortened(what.split(', '), most, 'others')}"


def _shortened(words: Sequence[str], most: int, rest: str) -> str:
    return ", ".join(words[:most]) + (f" and {rest}" if len(words) > most else "")


def _still_out(before: str, out: Collection[str]) -> Iterator[ReasonNews]:
    """Yield what the previous reason says of the members that are still out."""
    for clause in before.split("; "):
        if found := _STAYS_OUT.fullmatch(clause):
            ids, what = found.groups()
            yield [id for id in ids.split(", ") if id in out], HAS_LEFT if what == LEAVES else what
