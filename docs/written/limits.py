"""The list of what others can make grow."""

from peer.network.limits import Limits, UnknownCallerLimits
from peer.settings import field_docs
from written.words import escaped


def limits() -> str:
    """What others can make grow: a line per limit, with the words below it in the source."""
    lines = [
        f"- `{kind.__name__}.{name}` ({limit(getattr(kind(), name))}): {' '.join(escaped(text).split())}"
        for kind in (UnknownCallerLimits, Limits)
        for name, text in field_docs(kind).items()
    ]
    return "".join(f"{line}\n" for line in lines)


def limit(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:,}".removesuffix(".0")
