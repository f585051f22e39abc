"""What is told of a task without classes: its own figures, by their names, the worst by their direction."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from launcher.headline import Headline
from launcher.monitor.federation import FederationView
from launcher.monitor.live_table import choose, federation_line, row
from launcher.reports import summary_json, summary_text
from launcher.reports.summary import TimeSpent, summarise
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.telemetry.events import RoundDone, read_event
from peer.text import number

COURSE = {"peer0": [200.0, 123.4], "peer1": [180.0, 60.0]}


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    file = tmp_path / "two.yaml"
    file.write_text("name: two\nrounds: 2\nprotocol: fedavg\ntask: regression\n")
    return load_spec(file, peers=2)


def figures(rmse: float) -> dict[str, float]:
    return {"rmse": rmse, "mae": rmse / 2, "r2": 0.5}


def write_results(directory: Path) -> None:
    for id, course in COURSE.items():
        result: dict[str, Any] = {
            "id": id,
            "samples": 10,
            "rounds": 2,
            "accuracy": dict.fromkeys(("matched", "global", "paper", "local")),
            "figures": figures(course[-1]),
            "model_sha256": "0" * 64,
            "bytes_sent": 1,
            "bytes_received": 1,
            "tensor_bytes_sent": 1,
            "sent_to": {},
            "seconds": {"train": 1.0},
            "ring": ["peer0", "peer1"],
            "ring_cost": {"before": None, "after": None},
            "history": [{"round": n, "figures": figures(one)} for n, one in enumerate(course, start=1)],
        }
        (directory / id).mkdir()
        (directory / id / "result.json").write_text(json.dumps(result))
        (directory / id / "audit.jsonl").write_text("")


def test_the_summary_has_the_tasks_figures(tmp_path: Path, spec: Spec) -> None:
    write_results(tmp_path)
    summary = summarise(spec, tmp_path, TimeSpent(1.0, 0))
    assert summary.task == "regression"
    assert [*summary.figures] == ["rmse", "mae", "r2"]
    assert summary.figures["rmse"] == {"mean": pytest.approx(91.7), "worst": 123.4, "better": "down"}
    assert summary.figures["r2"] == {"mean": 0.5, "worst": 0.5, "better": "up"}
    assert summary.mean_accuracy == {"matched": None, "global": None, "paper": None}
    assert [summary.worst_accuracy, summary.gini, summary.r50] == [None] * 3
    assert [one["rmse"] for one in summary.history] == pytest.approx([190, 91.7])
    assert summary.plateau_sigma == pytest.approx(0)
    summary_json.write(tmp_path / "summary.json", summary)
    assert summary_json.read(tmp_path / "summary.json") == summary
    console = Console(width=200, record=True)
    summary_text.show(summary, spec, tmp_path, console)
    said = console.export_text()
    assert "rmse (better down): mean 91.700, worst 123.40; mae (better down): mean 45.850" in said
    assert "accuracy" not in said
    assert "Gini" not in said


def test_a_figure_that_is_nowhere_a_number_is_named(tmp_path: Path, spec: Spec) -> None:
    write_results(tmp_path)
    for result in tmp_path.glob("*/result.json"):
        result.write_text(re.sub('"mae": [0-9.]+', '"mae": null', result.read_text()))
    summary = summarise(spec, tmp_path, TimeSpent(1.0, 0))
    said = " ".join(summary_text.summary_lines(summary, spec))
    assert "mae is NaN or infinite at every peer; see how `regression` computes it" in said
    assert said.count("NaN") == 1


def test_of_many_peers_the_worst_are_listed(tmp_path: Path, spec: Spec) -> None:
    write_results(tmp_path)
    summary = summarise(spec, tmp_path, TimeSpent(1.0, 0))
    first = summary.per_peer[0]
    many = [replace(first, id=f"p{n:02}", figures=figures(float(n)) if n else {"rmse": None}) for n in range(25)]
    console = Console(width=200, record=True)
    summary_text.report(replace(summary, per_peer=tuple(many)), spec, console)
    said = console.export_text()
    ids = [line.split()[0] for line in said.splitlines() if re.match(" p\\d", line)]
    assert ids == ["p00", *(f"p{n}" for n in range(24, 15, -1))], "no figure first, then the largest error"
    assert "listed: the 10 worst peers; the other 15 have rmse 1.0000 to 15.000; summary.json has all" in said
    console = Console(width=200, record=True)
    summary_text.report(replace(summary, per_peer=tuple(many[:20])), spec, console)
    assert [line.split()[0] for line in console.export_text().splitlines() if re.match(" p\\d", line)] == [
        peer.id for peer in many[:20]
    ]


@pytest.mark.parametrize(("shape", "told"), [("[4]", True), ("[[4], [4]]", False), ('{"a": [4], "b": [4]}', False)])
def test_how_to_load_a_model_is_told_where_it_can_be_loaded_so(
    shape: str, told: bool, tmp_path: Path, spec: Spec
) -> None:
    write_results(tmp_path)
    description = {"model": '"mlp"', "shape": shape, "classes": "1"}
    save_file({"w": torch.zeros(2)}, tmp_path / "peer0" / "model.safetensors", description)
    said = summary_text.where_models_are(summarise(spec, tmp_path, TimeSpent(1.0, 0)), spec, tmp_path)
    assert any("load_model(" in line for line in said) is told


def test_the_live_view_goes_by_the_headline(spec: Spec) -> None:
    view = FederationView(spec.ids, 3, Headline.from_spec(spec))
    view.apply([(id, RoundDone(round=1, figures=figures(course[0]))) for id, course in COURSE.items()])
    assert view.mean_figure(1) == 190
    assert "mean rmse 190.00" in federation_line(view)
    assert row(view, view.peers["peer0"])["rmse"] == "200.00"
    shown, _ = choose(view, 1)
    assert [peer.id for peer in shown] == ["peer0"], "the larger error is the worse one"
    view.apply([("peer0", RoundDone(round=n, figures=figures(error))) for n, error in ((2, 300.0), (3, 250.0))])
    assert row(view, view.peers["peer0"])["curve"] == "▁█▅"


def test_a_peers_line_names_its_figures() -> None:
    assert str(RoundDone(round=3, figures=figures(123.4), loss=0.25)) == (
        "round 3 done: rmse 123.40, mae 61.700, r2 0.5000, loss 0.2500"
    )


@pytest.mark.parametrize("wild", [float("nan"), float("inf"), 1e308, "x"])
def test_figures_that_nobody_could_add_up_are_no_event(wild: object) -> None:
    assert read_event({"event": "round", "round": 1, "figures": {"rmse": wild}}) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.96461, "0.9646"), (0, "0.0000"), (-1.5, "-1.5000"), (12.3456, "12.346"), (123.4, "123.40"),
     (98765.4, "98765"), (2.5e7, "2.5e+07"), (1.234e-5, "1.234e-05"), (1.0, "1.0000")],
)  # fmt: skip
def test_numbers_of_any_size_can_be_read(value: float | None, shown: str) -> None:
    assert number(value) == shown
