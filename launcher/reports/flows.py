"""What the audits of a run say: every line of them, and along which edges something went."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.views import Views

Audit = Mapping[str, Any]
Edge = tuple[str, str]
"""Sender and receiver."""
Flow = tuple[int, int, str, str, str]
"""Number of the view, round, sender, receiver, name of the vector."""
Record = tuple[str, int, int]
"""Whose audit, number of the view, round."""


class Carried(NamedTuple):
    """One vector or record that went along an edge in a round."""

    view: int
    order: int
    """How often the ring had been put in another order in that view."""
    round: int
    source: str
    target: str
    vector: str
    bytes: int
    number_bytes: int
    """Of the numbers beside the vector, or in the record."""
    unwritten: bool = False
    """Whether its receiver alone has written it down, as the sender was lost before it could."""

    @property
    def edge(self) -> Edge:
        return self.source, self.target


def carried(views: Views, audits: Mapping[str, Audit]) -> list[Carried]:
    """All that was sent but the empty messages: one says that nothing is sent, and uses no edge.

    By the senders' audits, and by the receivers' where a sender was lost before it could write its round down.
    """
    orders = Orders(audits)
    found = []
    for source, record, entry in entries(audits, "sent"):
        view, round = at = record.get("view", 0), record["round"]
        order = orders.before(*at) + entry.get("order", 0)
        sizes = entry["bytes"], entry.get("scalar_bytes", 0)
        found.append(Carried(view, order, round, source, entry["to"], entry["vector"], *sizes))
    whole = records(audits, whole=True)
    for target, record, entry in entries(audits, "received") if views.later else ():
        source, at = entry["from"], (record.get("view", 0), record["round"])
        if source in audits and (source, *at) not in whole:
            order = orders.of(views.members_of(at[0]), *at, (source, target))
            sizes = entry["bytes"], entry.get("scalar_bytes", 0)
            found.append(Carried(at[0], order, at[1], source, target, entry["vector"], *sizes, unwritten=True))
    return [one for one in found if one.bytes or one.number_bytes]


class Orders:
    """Into which orders the ring was put, by all peers' audits."""

    def __init__(self, audits: Mapping[str, Audit]) -> None:
        longest: dict[tuple[int, int], Sequence[Sequence[str]]] = {}
        for audit in audits.values():
            for record in audit["rounds"]:
                at, orders = (record.get("view", 0), record["round"]), record.get("orders", ())
                if len(orders) > len(longest.get(at, ())):
                    longest[at] = orders
        self._announced: dict[int, list[tuple[int, Sequence[str]]]] = {}
        """By view, each with its round."""
        for (view, round), orders in sorted(longest.items()):
            self._announced.setdefault(view, []).extend((round, ring) for ring in orders)

    def before(self, view: int, round: int) -> int:
        """How many were announced in that view before that round."""
        return bisect_left(self._announced.get(view, ()), round, key=lambda one: one[0])

    def of(self, members: Sequence[str], view: int, round: int, edge: Edge) -> int:
        """The first order that held in that round and in which the two are neighbours; the last if there is none."""
        rings = [members, *(ring for at, ring in self._announced.get(view, ()) if at <= round)]
        held = range(self.before(view, round), len(rings))
        return next((order for order in held if _are_neighbours(rings[order], edge)), len(rings) - 1)


def _are_neighbours(ring: Sequence[str], edge: Edge) -> bool:
    return {*edge} <= {*ring} and (ring.index(edge[0]) - ring.index(edge[1])) % len(ring) in (1, len(ring) - 1)


def entries(audits: Mapping[str, Audit], direction: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(whose audit, the round's record, one line of it) for every line of "sent" or "received"."""
    for id, audit in audits.items():
        for record in audit["rounds"]:
            for entry in record[direction]:
                yield id, record, entry


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
