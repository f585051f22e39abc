"""How a study's figures go with an axis of numbers."""

from typing import Any

import pytest

from launcher.page.figures.palette import look
from launcher.page.library import picture
from launcher.study.axis_figures import axis_figures


def row(method: str, peers: int, seed: int = 1, **more: Any) -> dict[str, Any]:
    means = {"mean": 1 / peers, "weight_divergence": 0.1 * peers, "tensor_bytes_sent": 1000 * peers}
    return {"protocol": method, "peers": peers, "seed": seed, "figure": "accuracy", **means, **more}


ROWS = [row("fibfl", peers, seed) for peers in (5, 50, 500) for seed in (1, 2)]


def test_what_goes_with_a_number_is_drawn_over_it() -> None:
    made = axis_figures(ROWS, ["protocol", "peers", "seed"])
    assert list(made) == [f"axis-peers-{one}" for one in ("mean", "weight_divergence", "tensor_bytes_sent")]
    title, chart = made["axis-peers-mean"]
    assert title == "Mean accuracy against peers"
    assert [(one["x"], one["y"]) for one in chart["data"]["values"]] == [(one["peers"], one["mean"]) for one in ROWS]


@pytest.mark.parametrize(("fourth", "axes"), [(None, ["peers"]), ("all", ["peers"]), (4, ["peers", "data.limit"])])
def test_an_axis_with_words_or_two_values_is_none(fourth: int | str | None, axes: list[str]) -> None:
    limits = [1, 2, fourth]
    rows = [{**row("solo", 5), "data.limit": limit} for limit in limits] + [{**row("solo", 10), "data.limit": 1}]
    found = axis_figures(rows, ["protocol", *axes])
    assert {name.split("-")[1] for name in found} == ({"data.limit"} if fourth == 4 else set())


def test_what_is_nothing_is_left_out_where_the_scale_is_logarithmic() -> None:
    silent = [row("solo", peers, tensor_bytes_sent=0, weight_divergence=None) for peers in (5, 50, 500)]
    for name, (_, chart) in axis_figures([*ROWS, *silent], ["protocol", "peers", "seed"]).items():
        x = chart["spec"]["encoding"]["x"]
        assert x["scale"]["type"] == "log"
        assert x["axis"]["values"] == [5, 50, 500]
        drawn = picture(chart, look("light"), "svg").decode()
        assert drawn.count('aria-roledescription="point"') == (12 - 3 if name.endswith("mean") else 6)
        assert "NaN" not in drawn
        assert "Infinity" not in drawn


def test_other_places_in_the_grid_have_charts_of_their_own() -> None:
    rows = [{**one, "data.partition": split} for one in ROWS for split in ("iid", "label-skew k=1")]
    _, chart = axis_figures(rows, ["protocol", "data.partition", "peers", "seed"])["axis-peers-mean"]
    assert chart["facet"]["sort"] == ["iid", "label-skew k=1"]
