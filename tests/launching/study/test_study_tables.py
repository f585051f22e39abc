"""Which entries of a study's tables are marked, and how they are written."""

import sys
from pathlib import Path

import numpy as np
import pytest

from launcher.study.command import check_data
from launcher.study.grid import axis_value, cells, label, read_study
from launcher.study.tables import BEST, NOT_WORSE, TableEntry, latex, latex_text, mark, markdown, ranking, tables
from peer.errors import InputError

OWN = """
from typing import Literal
from peer.protocols.rdfl import RDFL

class Own(RDFL):
    name: Literal["packed:Own"] = "packed:Own"
"""
STUDIES = sorted((Path(__file__).parents[3] / "examples" / "studies").glob("*.yaml"))


def rows(**values: list[float | None]) -> list[dict[str, object]]:
    return [
        {"protocol": name, "seed": seed, "figure": "matched accuracy", "better": "up", "mean": value}
        for name, ones in values.items()
        for seed, value in enumerate(ones)
    ]


def test_what_won_is_the_method_with_the_best_places_by_the_mean() -> None:
    split = {"a": {"good": 0.9, "other": 0.8, "poor": 0.1}, "b": {"good": 0.5, "other": 0.6, "poor": None}}
    given = [
        {"split": place, "seconds": 2.0, "tensor_bytes_sent": 1500, **row}
        for place, means in split.items()
        for row in rows(**{name: [mean] for name, mean in means.items()})
    ]
    head, *lines = ranking(tables(given, ["protocol", "split", "seed"]))
    assert head == ["protocol", "Rank", "Mean, matched accuracy", "Bytes of tensors sent by all peers", "Seconds"]
    assert lines == [
        ["good", "1.5", "0.7000", "1.5 kB", "2.0 s"],
        ["other", "1.5", "0.7000", "1.5 kB", "2.0 s"],
        ["poor", "3.0", "0.1000 (1 missing)", "1.5 kB", "2.0 s"],
    ]
    text = markdown(tables([{**row, "mcg": 0.1, "cgs": 0.2} for row in given], ["protocol", "split", "seed"]), "t")
    assert "(MCG): a peer's figure less that when alone" in text
    assert "(CGS): its deviation over the peers" in text
    assert ranking(tables(rows(one=[None]), ["protocol", "seed"])) == []


def test_the_best_is_bold_and_what_is_not_worse_is_marked() -> None:
    (table,) = tables(rows(best=[0.9, 0.8, 0.7], near=[0.8, 0.85, 0.65], far=[0.1, 0.0, -0.11]), ["protocol", "seed"])
    assert [entry.mark for (entry,) in table.lines.values()] == [BEST, NOT_WORSE, ""]
    text = markdown([table], "t")
    assert "| best | **0.8000** ± 0.1000 |" in text
    assert "| near | 0.7667 ± 0.1041† |" in text
    assert r"best & \textbf{0.8000} $\pm$ 0.1000 \\" in latex([table], "t")


def test_an_entry_with_a_seed_missing_is_told_and_not_marked() -> None:
    (table,) = tables(rows(whole=[0.5, 0.6], part=[0.9, None], other=[0.4, 0.5]), ["protocol", "seed"])
    text = markdown([table], "t")
    assert "| part | 0.9000 (1 missing) |" in text
    assert "| whole | **0.5500**" in text


def test_less_is_better_of_an_error_and_each_figure_has_a_table_of_its_own() -> None:
    of_numbers = {"figure": "rmse", "better": "down", "task": "regression"}
    errors = [{**row, **of_numbers} for row in rows(good=[0.5], bad=[1e9])]
    scores = [{**row, "task": "classification"} for row in rows(good=[0.5], bad=[0.1])]
    accuracy, error = tables([*scores, *errors], ["protocol", "task", "seed"])
    assert (accuracy.measure.name, error.measure.name) == ("Mean, matched accuracy", "Mean, rmse")
    for table in (accuracy, error):
        assert len(table.columns) == 1
        assert [one.mark for (one,) in table.lines.values()] == [BEST, ""]


def test_a_method_without_all_seeds_is_told_and_not_marked() -> None:
    (table,) = tables([*rows(a=[0.9]), *rows(b=[0.95, 0.5, 0.5])], ["protocol", "seed"])
    assert "| a | 0.9000 (2 missing) |" in markdown([table], "t")
    assert [one.mark for (one,) in table.lines.values()] == ["", ""]


def test_two_rows_of_one_seed_in_one_place_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows of one method, place and seed"):
        tables([*rows(a=[0.9]), *rows(a=[0.8])], ["protocol", "seed"])


@pytest.mark.parametrize(("ones", "expected"), [([0.5], ""), ([0.4, 0.5], ""), ([0.61, 0.5], NOT_WORSE)])
def test_one_seed_or_a_constant_difference_gives_no_test(ones: list[float], expected: str) -> None:
    assert mark(TableEntry(dict(enumerate(ones))), TableEntry({0: 0.5, 1: 0.6})) == ("" if len(ones) == 1 else expected)


def test_a_difference_that_is_constant_but_for_rounding_gives_no_test() -> None:
    assert mark(TableEntry({0: 0.3, 1: 0.1 + 0.2}), TableEntry({0: 0.4, 1: 0.4})) == ""


def test_labels_say_what_was_written() -> None:
    assert label({"name": "fibfl++", "tau": 0.3}) == "fibfl++ tau=0.3"
    assert label({"kind": "iid"}) == "iid"
    assert label({"name": "solo", "settings": {"epochs": 1}}) == "solo settings=(epochs=1)"
    assert label(True) == "true"
    assert label({}) == "none"
    assert axis_value("peers", 5) == "peers 5"
    assert axis_value("plaintext", label(True)) == "plaintext true"
    assert axis_value("model.hidden", label([64])) == "model.hidden [64]"
    assert axis_value("data.partition", "iid") == "iid"


def test_latex_takes_no_text_for_a_command() -> None:
    assert latex_text(r"a_b & \c") == r"a\_b \& \textbackslash{}c"
    assert latex_text("[64]") == "{[}64]"


def test_machines_are_for_those_who_go_by_them(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    machines = "machines: {peer0: {cores: 2, memory: 4}, peer1: {cores: 1, memory: 1}}"
    grid = "grid: {protocol: [fedavg, {name: flexifed, resources: pinned}], peers: [2]}"
    file.write_text(f"name: t\nbase: {{{machines}}}\n{grid}\n")
    assert [cell.spec.machines is None for cell in cells(*read_study(file), tmp_path)] == [True, False]


GRID = "name: t\ngrid: {protocol: [solo, {name: rdfl, gamma: 1}], peers: [3, 4]}\n"


@pytest.mark.parametrize(
    ("excluded", "left"),
    [
        ("[{protocol: solo, peers: 4}]", [("solo", 3), ("rdfl", 3), ("rdfl", 4)]),
        ("[{protocol: {name: rdfl, gamma: 1}}, {peers: 3}]", [("solo", 4)]),
    ],
)
def test_what_is_excluded_is_no_cell(excluded: str, left: list[tuple[str, int]], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(f"{GRID}exclude: {excluded}\n")
    found = cells(*read_study(tmp_path / "study.yaml"), tmp_path)
    assert [(cell.spec.protocol.name, len(cell.spec.ids)) for cell in found] == left


@pytest.mark.parametrize(
    ("excluded", "said"),
    [
        ("[{peers: 5}]", "study.yaml:3: `exclude` wants values of `grid`, and peers 5 is none of them"),
        ("[{protocol: rdfl}]", "study.yaml:3: `exclude` wants values of `grid`, and protocol rdfl is none of them"),
        ("[{peers: true}]", "study.yaml:3: `exclude` wants values of `grid`, and peers true is none of them"),
        ("[{seed: 1}]", "study.yaml:3: `exclude` wants values of `grid`, and seed 1 is none of them"),
        ("[{peers: 3}, {peers: 4}]", "study.yaml:3: `exclude` leaves no cell; leave some of it out"),
    ],
)
def test_an_exclusion_that_cannot_be_meant_is_refused(excluded: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(f"{GRID}exclude: {excluded}\n")
    with pytest.raises(InputError) as error:
        cells(*read_study(tmp_path / "study.yaml"), tmp_path)
    assert str(error.value).endswith(said)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["grid: {protocol: [rdfl], peers: [3]}", "base: {data: {name: digits, limt: 3}}"], "3: unknown key `limt`"),
        (["grid:", "  protocol:", "  - rdfl", "  - {name: rdfl, gama: 3}", "  peers: [3]"], "5: unknown key `gama`"),
        (["grid:", "  peers: [3]", "  protocol: [rdfl]", "  protocol.gama: [1]"], "5: unknown key `gama`"),
        (["grid:", "  peers: [3]", "  protocl: [rdfl]"], "4: unknown key `protocl`; did you mean `protocol`?"),
        (
            ["base: {peers: 3, data.name: digits}", "grid: {protocol: [rdfl]}"],
            "2: `base` has no dots in its keys; write",
        ),
        (["grid:", "  protocol: [rdfl]", "  peers: [3]", "  rounds:", "  - 1", "  - true"], "7: `rounds`: input"),
        (["grid: {protocol: [rdfl], peers: [3, -3]}"], "2: `peers` wants a number from 1 on, such as 5 (given: -3)"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(lines: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("\n".join(["name: t", *lines, ""]))
    with pytest.raises(InputError) as error:
        cells(*read_study(tmp_path / "study.yaml"), tmp_path)
    assert f"study.yaml:{said}" in str(error.value)


def test_the_data_of_every_cell_are_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "there.npz", x=np.zeros((40, 4), np.float32), y=np.arange(40) % 2)
    data = "[{name: npz, path: missing.npz}, {name: npz, path: there.npz}]"
    (tmp_path / "study.yaml").write_text(f"name: t\ngrid: {{protocol: [rdfl], peers: [2], data: {data}}}\n")
    with pytest.raises(InputError, match=r"missing\.npz"):
        check_data(cells(*read_study(tmp_path / "study.yaml"), tmp_path))


def test_a_package_of_ones_own_is_in_the_key(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "study.yaml").write_text("name: t\ngrid: {protocol: ['packed:Own'], peers: [3]}\n")
    keys = set()
    for comment in ("", "# changed\n"):
        (tmp_path / "packed" / "__init__.py").write_text(OWN + comment)
        sys.modules.pop("packed", None)
        (cell,) = cells(*read_study(tmp_path / "study.yaml"), tmp_path)
        keys.add(cell.key)
    assert len(keys) == 2


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_ready_made_studies_are_accepted(file: Path) -> None:
    settings, document = read_study(file)
    assert f"dfl-launch study examples/studies/{file.name}" in file.read_text()
    assert len(cells(settings, document, Path("studies"))) > 1
