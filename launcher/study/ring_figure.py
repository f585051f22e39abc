"""The ring of one cell before and after it was ordered, beside each other."""

from typing import Any

from launcher.page.figures.ring import ring_chart
from launcher.page.sectors import UNKNOWN, lines, sectors
from peer.text import number

Chart = dict[str, Any]
WIDTH = 320


def ring_figure(kept: dict[str, Any]) -> Chart:
    """kept: what the cell's process has left of the ring."""
    mixes, orders = kept["mixes"], kept["orders"]
    seats = [{"when": one["when"], **row} for one in orders for row in sectors(one["order"], mixes)]
    joined = [
        {"when": one["when"], **row}
        for one in orders
        for row in lines(one["order"], [(here, there) for here, there in one["lines"]])
    ]
    used = {row["class"] for row in seats}
    names = [name for name in [*next(iter(mixes.values()), {}), UNKNOWN] if name in used]
    charts = [
        {"title": f"{one['when']}: cost {number(cost)}"} | ring_chart(one["when"], names, len(one["order"]), WIDTH)
        for one, cost in zip(orders, kept["cost"], strict=True)
    ]
    shared = {"resolve": {"scale": {"color": "shared"}}, "config": {"concat": {"spacing": 30}}}
    return {"datasets": {"ring": seats, "neighbours": joined}, "hconcat": charts, **shared}
