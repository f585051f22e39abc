"""The list of what others can make grow."""

from peer.documented import field_words
from peer.network.limits import Limits, Strangers
from written.words import escaped


def limits() -> str:
    """What others can make grow: a line per limit, with the words below it in the source."""
    lines = [
        f"- `{kind.__name__}.{name}` = {limit(getattr(kind(), name))}: {' '.join(escaped(text).split())}"
        for kind in (Strangers, Limits)
        for name, text in field_words(kind).items()
    ]
    return "".join(f"{line}\n" for line in lines)


def limit(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:,}".removesuffix(".0")
