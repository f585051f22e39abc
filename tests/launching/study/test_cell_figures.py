"""The figures of single cells: the ring before and after ordering, and reputations."""

import json
import re
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.page.charts import look, picture
from launcher.study.figures import file_name, reputations_of, ring_figure

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STUDY = {
    "name": "small",
    "base": {"rounds": 2, "peers": 4, "data": {"name": "digits", "limit": 200}},
    "grid": {
        "protocol": ["fibfl++", "cgsv", {"name": "cycle-gossip", "every": 1}, "fibfl"],
        "data.partition": [{"kind": "dirichlet", "alpha": 0.5}],
        "seed": [2, 1],
    },
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("study")
    (place / "study.yaml").write_text(json.dumps(STUDY))
    assert main(["study", str(place / "study.yaml"), "--out", str(place / "out"), "--quiet"]) == 0
    return place / "out"


def test_each_method_has_its_own_at_the_first_seed(out: Path) -> None:
    of_cells = {"ring-fibfl++", "reputation-cgsv", "reputation-cycle-gossip-every=1"}
    names = {file.name for file in (out / "figures").iterdir()}
    assert names == {f"{one}.{kind}" for one in of_cells | {"rounds", "fairness", "bytes"} for kind in ("svg", "png")}
    page = (out / "study.html").read_text()
    assert "The ring before and after ordering: fibfl++, seed 2" in page
    assert "Reputations over the rounds, alike at all peers: cgsv, seed 2" in page
    assert "Reputations of each other, after round 2: cycle-gossip every=1, seed 2" in page


def test_the_ring_shows_both_orders_with_their_costs(out: Path) -> None:
    (kept,) = (
        found
        for file in out.glob("cells/*/rounds.json")
        if (found := json.loads(file.read_text())["ring"]) and '"seed": 2' in (file.parent / "summary.json").read_text()
    )
    summaries = [json.loads(file.read_text()) for file in out.glob("cells/*/summary.json")]
    (summary,) = (one for one in summaries if one["protocol"] == "fibfl++" and one["seed"] == 2)
    assert kept["orders"][1]["order"] == summary["ring"]
    assert kept["cost"] == [summary["ring_cost"]["before"], summary["ring_cost"]["after"]]
    text = (out / "figures" / "ring-fibfl++.svg").read_text()
    assert "before: cost" in text
    assert "after: cost" in text
    assert text.count(">peer3<") == 2
    sectors = sum(group.count("<path") for group in re.findall(r'class="mark-arc [^>]*>(.*?)</g>', text))
    assert sectors == len(ring_figure(kept)["datasets"]["ring"]) >= 2 * 4
    assert "NaN" not in text


def notes(*rounds: list[float], name: str = "reputation") -> tuple[dict[str, object], ...]:
    return tuple({"round": number, name: values} for number, values in enumerate(rounds, 1))


def test_what_is_alike_at_all_peers_is_shown_over_the_rounds() -> None:
    told = {id: notes([0.2, 0.8], [0.3, 0.7]) for id in ("a", "b")}
    words, chart = reputations_of(told) or ("", {})
    assert words == "over the rounds, alike at all peers"
    values = [tuple(row.values()) for row in chart["data"]["values"]]
    assert values == [("1", "a", 0.2), ("1", "b", 0.8), ("2", "a", 0.3), ("2", "b", 0.7)]


def test_opinions_are_shown_of_each_other_at_the_end() -> None:
    told = {"a": notes([1.0, 0.1], [1.0, 0.4], name="opinions"), "b": notes([0.5, 1.0], [0.6, 1.0], name="opinions")}
    words, chart = reputations_of(told) or ("", {})
    assert words == "of each other, after round 2"
    values = [tuple(row.values()) for row in chart["data"]["values"]]
    assert values == [("b", "a", 0.4), ("a", "b", 0.6)]
    assert picture(chart, look("light"), "png").startswith(b"\x89PNG")


def test_without_reputations_there_is_no_map() -> None:
    assert reputations_of({"a": notes([0.1, 0.2]), "b": ()}) is None
    assert reputations_of({"a": ({"round": 1, "gamma": 0.5},), "b": ({"round": 1, "gamma": 0.5},)}) is None


def test_files_have_plain_names_of_their_own() -> None:
    assert file_name("ring-fibfl++ tau=0.3, dirichlet alpha=0.5", ()) == "ring-fibfl++-tau=0.3-dirichlet-alpha=0.5"
    assert file_name("ring-a/b", {"ring-a-b"}) == "ring-a-b-2"
    assert len(file_name("x" * 500, ())) <= 120
