"""How a study's figures go with an axis of numbers."""

from typing import Any

import pytest

from launcher.page.charts import look, picture
from launcher.study.figures import axis_figures

TELLING = {**look("light"), "mark": {"aria": True}}
"""Every mark says in the picture what it is."""


def row(method: str, peers: int, seed: int = 1, **more: Any) -> dict[str, Any]:
    means = {"mean": 1 / peers, "weight_divergence": 0.1 * peers, "tensor_bytes_sent": 1000 * peers}
    return {"protocol": method, "peers": peers, "seed": seed, "figure": "accuracy", "better": "up", **means, **more}


ROWS = [row("fibfl", peers, seed) for peers in (5, 50, 500) for seed in (1, 2)]


def test_what_goes_with_a_number_is_drawn_over_it() -> None:
    made = axis_figures(ROWS, ["protocol", "peers", "seed"])
    assert list(made) == [f"axis-peers-{one}" for one in ("mean", "weight_divergence", "tensor_bytes_sent")]
    title, chart = made["axis-peers-mean"]
    assert title == "Mean accuracy against peers"
    assert [(one["x"], one["y"]) for one in chart["data"]["values"]] == [(one["peers"], one["mean"]) for one in ROWS]


@pytest.mark.parametrize(
    ("axis", "values", "drawn"),
    [
        ("data.limit", [1, 2, 4], True),
        ("data.limit", [1, 2, "null"], False),
        ("data.limit", [1, 2, 2], False),
        ("data.seed", [1, 2, 3], False),
    ],
)
def test_an_axis_of_words_seeds_or_two_values_is_none(axis: str, values: list[Any], drawn: bool) -> None:
    rows = [{**row("solo", 5, seed), axis: value} for seed, value in enumerate(values)]
    found = axis_figures(rows, ["protocol", axis, "seed"])
    assert list(found)[:1] == ([f"axis-{axis}-mean"] if drawn else [])


def test_what_is_nothing_is_left_out_where_the_scale_is_logarithmic() -> None:
    silent = [row("solo", peers, tensor_bytes_sent=0, weight_divergence=None) for peers in (5, 50, 500)]
    for name, (_, chart) in axis_figures([*ROWS, *silent], ["protocol", "peers", "seed"]).items():
        x = chart["spec"]["encoding"]["x"]
        assert x["scale"]["type"] == "log"
        assert x["axis"]["values"] == [5, 50, 500]
        drawn = picture(chart, TELLING, "svg").decode()
        assert drawn.count('aria-roledescription="point"') == (9 if name.endswith("mean") else 6)
        assert "NaN" not in drawn
        assert "Infinity" not in drawn


def test_zero_is_drawn_where_it_is_a_value() -> None:
    """On both axes: that of the varied setting, and that of the models' figure."""
    rows = [{**row("fibfl", 5, mean=mean), "protocol.tau": tau} for tau, mean in ((0, 0.0), (0.01, 0.9), (1, 0.04))]
    _, chart = axis_figures(rows, ["protocol.tau", "protocol"])["axis-protocol.tau-mean"]
    assert picture(chart, TELLING, "svg").decode().count('aria-roledescription="point"') == 3


def test_other_places_in_the_grid_have_charts_of_their_own() -> None:
    rows = [{**one, "data.partition": split} for one in ROWS for split in ("iid", "label-skew k=1")]
    _, chart = axis_figures(rows, ["protocol", "data.partition", "peers", "seed"])["axis-peers-mean"]
    assert chart["facet"]["sort"] == ["iid", "label-skew k=1"]
