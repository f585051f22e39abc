"""What the audits of a run say: every line of them, and along which edges something went."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from launcher.reports.definitions import Edge
from launcher.views import Views

Audit = Mapping[str, Any]
Flow = tuple[int, int, str, str, str]
"""Number of the view, round, sender, receiver, name of the vector."""
Record = tuple[str, int, int]
"""Whose audit, number of the view, round."""


def entries(audits: Mapping[str, Audit], direction: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(whose audit, the round's record, one line of it) for every line of "sent" or "received"."""
    for id, audit in audits.items():
        for record in audit["rounds"]:
            for entry in record[direction]:
                yield id, record, entry


def flows_that_carry(audits: Mapping[str, Audit]) -> Iterator[Flow]:
    """Every sender's flows but the empty ones: an empty message says that nothing is sent, and uses no edge."""
    for source, record, entry in entries(audits, "sent"):
        if entry["bytes"] or entry.get("scalar_bytes", 0):
            yield record.get("view", 0), record["round"], source, entry["to"], entry["vector"]


def flows_unwritten(views: Views, audits: Mapping[str, Audit]) -> Iterator[Flow]:
    """What arrived of rounds that the sender had no time to write down before it was lost."""
    whole = records(audits, whole=True)
    for target, record, entry in entries(audits, "received") if views.later else ():
        source, at = entry["from"], (record.get("view", 0), record["round"])
        if source in audits and (source, *at) not in whole and (entry["bytes"] or entry.get("scalar_bytes", 0)):
            yield *at, source, target, entry["vector"]


def records(audits: Mapping[str, Audit], *, whole: bool) -> set[Record]:
    """The rounds that are written down; whole: without those that were cut off."""
    return {
        (id, record.get("view", 0), record["round"])
        for id, audit in audits.items()
        for record in audit["rounds"]
        if not (whole and record.get("interrupted"))
    }


def sum_flows(audits: Mapping[str, Audit], direction: str, kind: str = "bytes") -> Counter[Flow]:
    """Bytes by round, sender, receiver and vector, as the senders or as the receivers counted them.

    kind: "bytes" of tensors, or "scalar_bytes", those of the numbers beside a tensor or in a record.
    """
    flows: Counter[Flow] = Counter()
    for id, record, entry in entries(audits, direction):
        source, target = (id, entry["to"]) if direction == "sent" else (entry["from"], id)
        flows[record.get("view", 0), record["round"], source, target, entry["vector"]] += entry.get(kind, 0)
    return flows


def edges_by(
    flows: Iterable[Flow], key: Callable[[int, int, str], tuple[Any, ...]]
) -> Mapping[tuple[Any, ...], set[Edge]]:
    """The edges used, by `key(view, round, vector)`."""
    groups: dict[tuple[Any, ...], set[Edge]] = {}
    for view, round, source, target, vector in flows:
        groups.setdefault(key(view, round, vector), set()).add((source, target))
    return groups
