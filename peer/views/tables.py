"""The tables of states that acceptor and proposal go by, in Markdown."""

import inspect
from collections.abc import Iterable

from peer.views.states import ACCEPTOR, ANSWERS, PROPOSAL, STEPS, TRANSITIONS


def tables() -> str:
    """All of them, one after the other."""
    return "\n".join([acceptor_table(), answer_table(), proposal_table()])


def answer_table() -> str:
    """What each request says, and what may be answered."""
    rows = [
        (request.__name__, inspect.getdoc(request) or "", ", ".join(reply.__name__ for reply in replies))
        for request, replies in ANSWERS.items()
    ]
    return _table(("request", "it says", "answered with"), rows)


def acceptor_table() -> str:
    """An acceptor's states, and which request leads to which."""
    rows = [
        (
            state,
            meaning,
            ", ".join(f"{after} by {request.__name__}" for request, afters in STEPS[state].items() for after in afters),
        )
        for state, meaning in ACCEPTOR.items()
    ]
    return _table(("acceptor", "it is", "then"), rows)


def proposal_table() -> str:
    """A proposal's states."""
    rows = [(state, PROPOSAL[state], ", ".join(after) or "–") for state, after in TRANSITIONS.items()]
    return _table(("proposal", "it is", "then"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return "".join(f"{line}\n" for line in lines)
