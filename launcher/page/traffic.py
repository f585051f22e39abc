"""What each peer sent to whom, by the peers' audits."""

from collections.abc import Iterator

from launcher.formatting import quantity
from launcher.page.document import Row
from launcher.page.told import Told


def edges(told: Told) -> Iterator[Row]:
    """A row for every vector along every edge, as its sender wrote down, or its receiver where that was lost before.

    bytes: of the vector; number_bytes: of the numbers beside it, or in a record; ring: "last", or "earlier" of an edge
    that was used in earlier orders of the ring only.
    """
    sizes: dict[tuple[str, str, str], tuple[int, int]] = {}
    for one in told.sent:
        size, beside = sizes.get(known := (*one.edge, one.vector), (0, 0))
        sizes[known] = size + one.bytes, beside + one.number_bytes
    place = {id: at for at, id in enumerate(told.views.ids)}
    for source, target, vector in sorted(
        sizes, key=lambda edge: (place.get(edge[0], -1), place.get(edge[1], -1), edge[2])
    ):
        size, beside = sizes[source, target, vector]
        ring, shown = "earlier" if (source, target) in told.earlier_edges else "last", quantity(size + beside)
        yield {
            "from": source, "to": target, "vector": vector, "bytes": size, "number_bytes": beside, "ring": ring,
            "shown": shown,
        }  # fmt: skip
