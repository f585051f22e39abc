"""The list of what callers may use before they are known."""

from peer.network.limits import UnknownCallerLimits
from peer.settings import field_docs
from written.words import escaped

INTERNAL = ("look", "look_around", "resolve")
"""Times that nobody is held to."""


def limits() -> str:
    """A line per limit of unknown callers, with the words below it in the source."""
    lines = [
        f"- `{name}` ({limit(getattr(UnknownCallerLimits(), name))}): {' '.join(escaped(text).split())}"
        for name, text in field_docs(UnknownCallerLimits).items()
        if name not in INTERNAL
    ]
    return "".join(f"{line}\n" for line in lines)


def limit(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:,}".removesuffix(".0")
