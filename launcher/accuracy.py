"""Which accuracy counts, and means of what is known."""

from collections.abc import Iterable, Mapping
from statistics import fmean


def headline(accuracy: Mapping[str, float | None], test: str) -> float | None:
    """The accuracy that counts: by the spec's test; a peer with its own data has only `local`."""
    chosen = accuracy.get(test)
    return accuracy.get("local") if chosen is None else chosen


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
