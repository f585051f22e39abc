"""What each peer sent to whom, by the peers' audits."""

from collections import Counter
from collections.abc import Iterator, Mapping

from launcher.formatting import quantity
from launcher.page.document import Row
from launcher.reports.flows import Audit, flows_unwritten, sum_flows
from launcher.views import Views

Edge = tuple[str, str, str]
"""Sender, receiver, name of the vector or record."""


def edges(audits: Mapping[str, Audit], views: Views) -> Iterator[Row]:
    """A row for every vector along every edge, as its sender wrote down, or its receiver where that was lost before.

    bytes: of the vector; number_bytes: of the numbers beside it, or in a record.
    """
    tensors, numbers = _sent(audits, views, "bytes"), _sent(audits, views, "scalar_bytes")
    place = {id: at for at, id in enumerate(views.ids)}
    for source, target, vector in sorted(
        tensors | numbers, key=lambda edge: (place.get(edge[0], -1), place.get(edge[1], -1), edge[2])
    ):
        size, beside = tensors[source, target, vector], numbers[source, target, vector]
        if size or beside:
            shown = quantity(size + beside)
            yield {
                "from": source, "to": target, "vector": vector, "bytes": size, "number_bytes": beside, "shown": shown,
            }  # fmt: skip


def talked(audits: Mapping[str, Audit], views: Views) -> set[tuple[str, str]]:
    """Who sent to whom in the rounds themselves, and not when the ring was set up."""
    flows = sum_flows(audits, "sent", "bytes") + sum_flows(audits, "sent", "scalar_bytes")
    return {(source, target) for (_, round, source, target, _), size in flows.items() if round > 0 and size}


def _sent(audits: Mapping[str, Audit], views: Views, kind: str) -> Counter[Edge]:
    found: Counter[Edge] = Counter()
    for (_, _, *edge), size in sum_flows(audits, "sent", kind).items():
        found[edge[0], edge[1], edge[2]] += size
    arrived = sum_flows(audits, "received", kind)
    for flow in {*flows_unwritten(views, audits)}:
        found[flow[2], flow[3], flow[4]] += arrived[flow]
    return found
