"""Why members are not in a view, in words: of each of them, also of those who were out before.

What a view says of them is read again for the next one, so nothing else needs to be kept of it or agreed on.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from peer.views.view import LONGEST_REASON

LEAVES, HAS_LEFT = "leaves", "left"
TAKEN_IN = "taken in"
FORGETFUL = "without the rounds it had announced"
LIAR = "expelled: it has signed two votes that contradict each other"
News = tuple[Collection[str], str]
"""Members, and what has become of them."""


def silent(seconds: float) -> str:
    return f"silent for {seconds:g} s"


def voted_out(by: Iterable[str]) -> str:
    return f"voted out by {', '.join(by)}"


_ID = "[a-z0-9-]+"
_STAYS_OUT = re.compile(
    rf"({_ID}(?:, {_ID})*)(?: and \d+ more)? (silent for \S+ s|{FORGETFUL}|{LEAVES}|{HAS_LEFT}|voted out by .+|{LIAR})"
)
"""A clause of a reason that holds for as long as those whom it names are out."""


def reason(news: Iterable[News], before: str, out: Collection[str], order: Sequence[str]) -> str:
    """That of the next view, from the news and the reason of the present one, `before`.

    Where it would be too long, each list in it names fewer.

    out: who is in neither view. order: everybody, as the spec orders them.
    """
    said: dict[str, set[str]] = {}
    for ids, what in (*news, *_still(before, out)):
        if ids:
            said.setdefault(what, set()).update(ids)
    unsaid = len({*out}.difference(*said.values()))
    clauses = [([id for id in order if id in ids], what) for what, ids in said.items()]
    for most in range(LONGEST_REASON // len("a, "), 0, -1):
        words = [_clause(ids, what, most) for ids, what in clauses]
        text = "; ".join([*words, f"{unsaid} more out before"] if unsaid else words)
        if len(text) <= LONGEST_REASON:
            break
    return text[:LONGEST_REASON]


def _clause(ids: Sequence[str], what: str, most: int) -> str:
    """most: ids that are named, and of who has voted."""
    return f"{_some(ids, most, f'{len(ids) - most} more')} {_some(what.split(', '), most, 'others')}"


def _some(words: Sequence[str], most: int, rest: str) -> str:
    return ", ".join(words[:most]) + (f" and {rest}" if len(words) > most else "")


def _still(before: str, out: Collection[str]) -> Iterator[News]:
    """What the reason before says of these."""
    for clause in before.split("; "):
        if found := _STAYS_OUT.fullmatch(clause):
            ids, what = found.groups()
            yield [id for id in ids.split(", ") if id in out], HAS_LEFT if what == LEAVES else what
