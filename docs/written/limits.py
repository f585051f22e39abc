"""The table of what others can make grow."""

from peer.network.limits import Limits, UnknownCallerLimits
from peer.settings import field_docs
from written.words import cell, escaped


def limits() -> str:
    """What others can make grow: one row a limit, with the words below it in the source."""
    rows = ["| limit | value | |", "|---|---|---|"]
    for kind in (UnknownCallerLimits, Limits):
        for name, text in field_docs(kind).items():
            rows.append(f"| `{kind.__name__}.{name}` | {limit(getattr(kind(), name))} | {cell(escaped(text))} |")
    return "".join(f"{row}\n" for row in rows)


def limit(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:,}".removesuffix(".0")
