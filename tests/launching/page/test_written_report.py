"""`dfl-launch report` of whole, stopped, foreign, hostile and several runs."""

import csv
import json
import platform
import re
import shlex
import shutil
import stat
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import pytest
from report_pages import cards, document, federate, say

from launcher.cli import main
from launcher.engines.base import Run, engine, parsed_options
from launcher.history import PeerHistory
from launcher.page import build, charts
from launcher.page.charts import look
from launcher.page.document import MAX_POINTS, MAX_ROUNDS, TABLES, ReportDocument, RunPart, as_csv, as_text
from launcher.page.learning_curves import accuracy_figure
from launcher.page.timeline import start_up_seconds
from launcher.run_files import RunFiles
from launcher.supervision.run_directory import LaunchRecord
from peer.errors import FailedError
from peer.files import write_atomically
from peer.spec.loading import load_spec
from peer.telemetry.events import read_event
from peer.versions import release

HOSTILE = "</script><script>alert(1)</script><!-- & ' \u2028"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federate(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def reported(*arguments: Path | str) -> dict[str, Any]:
    """The document of the page that the command writes, and names first."""
    assert main(["report", *map(str, arguments)]) == 0
    given = [str(argument) for argument in arguments]
    out = Path(given[given.index("--out") + 1]) if "--out" in given else Path(given[0]) / "report.html"
    return document(out)


def test_it_says_what_was_run_so_that_it_can_be_run_again(run: Path) -> None:
    launched = {"on": "slurm", "settings": {"partition": "gpu one", "account": None}, "device": "cuda", "certs": None}
    (run / ".engine.json").write_text(json.dumps(launched | {"host": "here", "versions": "torch 9"}))
    (one,) = reported(run)["runs"]
    again = load_spec(write(run / "again.yaml", one["settings"]))
    assert again.agreement == load_spec(run / "federation.yaml", peers=4).agreement
    made = one["made"]
    command = shlex.split(made["command"])
    assert command == ["dfl-launch", "run", "federation.yaml", "--on", "slurm", "--device", "cuda", command[-1]]
    assert parsed_options([command[-1].removeprefix("--option=")]) == {"partition": "gpu one"}
    assert {"rounds=3", "data.limit=300", "protocol.name=fibfl++", "protocol.extractor_epochs=1"} <= {
        *made["other than the defaults"].split(", ")
    }
    assert "seed" not in made["other than the defaults"].replace("data.seed", "")
    assert (made["launched on"], made["versions"]) == ("here", f"dfl {release()}; at the launcher: torch 9")
    assert made["began"] <= made["last event"]
    (run / ".engine.json").write_text("[]")
    (one,) = reported(run)["runs"]
    assert one["made"]["launched on"] == "not known"


def test_a_launcher_writes_down_where_and_with_what_it_was_started(finished: Path, tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    LaunchRecord.write(engine("local", {}), Run(load_spec(finished / "federation.yaml", peers=4), files))
    assert LaunchRecord.read(files).host.startswith(platform.node())
    assert f"torch {version('torch')}" in LaunchRecord.read(files).versions


def test_it_says_how_long_the_start_took(run: Path) -> None:
    made = reported(run)
    time = next(card for card in made["runs"][0]["cards"] if card["key"] == "wall_seconds")
    rounds = [row for row in made["tables"]["seconds"] if row["activity"] not in ("start", "other")]
    outside = float(re.match(r"([\d.]+) s of it start-up and end, 1 restart", time["note"])[1])
    spent = {peer: sum(row["seconds"] for row in rounds if row["peer"] == peer) for peer in ("peer0", "peer1")}
    assert max(spent.values()) <= 7.25 - outside + 0.1, "what is not start-up has the rounds in it"
    history = PeerHistory("a")
    told = {"accuracy": {}, "loss": 1.0}
    for line in (
        {"time": 10, "event": "state", "state": "joining", "round": 0},
        {"time": 18, "event": "round", "round": 1, "seconds": {"train": 2.0, "evaluate": 1.0}, **told},
        {"time": 31, "event": "round", "round": 2, "seconds": {"train": 2.0}, **told},
    ):
        event = read_event(line)
        assert event
        history.apply(event)
    assert start_up_seconds(history) == 5.0


def test_it_says_why_a_loss_may_rise_beside_a_high_accuracy(run: Path) -> None:
    captions = {one["name"]: one["caption"] for one in drawn(run)}
    assert "all test samples" in captions["loss"]
    assert "weighs each class as its own data do" in captions["loss"]


def drawn(run: Path) -> list[dict[str, Any]]:
    """The figures of the run's page."""
    reported(run)
    (text,) = re.findall(r'id="figures">(.*?)</script>', (run / "report.html").read_text(), re.DOTALL)
    figures: list[dict[str, Any]] = json.loads(text)["figures"]
    return figures


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def refused(capfd: pytest.CaptureFixture[str], *arguments: Path | str) -> str:
    assert main(["report", *map(str, arguments)]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_its_numbers_are_those_of_the_summary(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    made = reported(run)
    (one,) = made["runs"]
    assert stat.S_IMODE((run / "report.html").stat().st_mode) == 0o600
    assert cards(one) == {
        "mean": summary["mean_accuracy"]["matched"],
        "worst": summary["worst_accuracy"],
        "gini": summary["gini"],
        "wall_seconds": summary["wall_seconds"],
        "bytes_sent": sum(peer["bytes_sent"] for peer in summary["per_peer"]),
        "head_bytes_sent": summary["privacy"]["head_bytes_sent"],
    }
    worst = min(summary["per_peer"], key=lambda peer: peer["accuracy"]["matched"])["id"]
    assert [card["note"] for card in one["cards"] if card["key"] == "worst"] == [f"{worst}, matched accuracy"]
    assert one["state"] == "finished"
    assert one["ring_cost"] == [summary["ring_cost"]["before"], summary["ring_cost"]["after"]]
    tables = made["tables"]
    assert [(row["round"], row["mean"]) for row in tables["rounds"]] == [
        (row["round"], row["matched"]) for row in summary["history"]
    ]
    for row, peer in zip(tables["peers"], summary["per_peer"], strict=True):
        assert (row["peer"], row["samples"], row["value"]) == (peer["id"], peer["samples"], peer["accuracy"]["matched"])
        assert (row["bytes_sent"], row["model_sha256"]) == (peer["bytes_sent"], peer["model_sha256"])
        assert row["train_seconds"] == pytest.approx(peer["seconds"]["train"], abs=1e-3)
    assert {(row["from"], row["to"]) for row in tables["edges"]} == {*map(tuple, summary["privacy"]["edges_used"])}
    told = {row["name"]: (row["holds"], row["counted"]) for row in one["privacy"]["definitions"]}
    proof = summary["privacy"]
    assert told == {name: (holds, proof["counted"][name]) for name, holds in proof["definitions"].items()}
    assert {row["ring"] for row in tables["edges"]} == {"last"}


def test_an_edge_of_the_ring_before_it_was_ordered_is_told_apart(run: Path) -> None:
    for id, way, other in (("peer0", "to", "peer2"), ("peer2", "from", "peer0")):
        file = run / id / "audit.jsonl"
        first, *lines = file.read_text().splitlines()
        start = json.loads(first)
        entry = {way: other, "vector": "order", "bytes": 0, "scalar_bytes": 8}
        start["sent" if way == "to" else "received"].append(entry)
        file.write_text("\n".join([json.dumps(start), *lines]) + "\n")
    made = reported(run)
    earlier = [row for row in made["tables"]["edges"] if row["ring"] == "earlier"]
    assert [(row["from"], row["to"], row["number_bytes"]) for row in earlier] == [("peer0", "peer2", 8)]


def test_the_ring_shows_the_classes_before_and_after_it_was_ordered(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    rows = reported(run)["tables"]["ring"]
    for when, order in (("before", [f"peer{n}" for n in range(4)]), ("after", summary["ring"])):
        seated = [row for row in rows if row["when"] == when]
        assert list(dict.fromkeys(row["peer"] for row in seated)) == order
        for id in order:
            assert sum(row["share"] for row in seated if row["peer"] == id) == pytest.approx(1)
            assert len([row for row in seated if row["peer"] == id and row["label"]]) == 1


def test_a_run_that_was_stopped_is_shown_as_far_as_it_came(run: Path) -> None:
    """There is no summary, and no result."""
    whole = reported(run)
    (run / "summary.json").unlink()
    for place in run.glob("peer*/"):
        (place / "result.json").unlink()
    events = (run / "peer1" / "events.jsonl").read_text().splitlines()
    end = next(at for at, line in enumerate(events) if '"round", "round": 3' in line)
    (run / "peer1" / "events.jsonl").write_text("\n".join(events[:end]) + '\n{"time": 17\n')
    made = reported(run)
    (one,) = made["runs"]
    assert (one["state"], one["completed"], one["rounds"]) == ("unfinished", 2, 3)
    assert [row["round"] for row in made["tables"]["rounds"]] == [1, 2]
    assert cards(one)["mean"] == made["tables"]["rounds"][-1]["mean"]
    assert one["privacy"]["verdict"] == "open"
    assert one["ring_cost"] == whole["runs"][0]["ring_cost"]
    say(run / "peer1", {"time": 2e9, "event": "failed", "message": "peer0 never came"})
    (one,) = reported(run)["runs"]
    assert (one["state"], one["told"]) == ("failed", "Failed after 2 of 3 rounds. peer1: peer0 never came")


def test_peers_from_other_hosts_make_the_same_page(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = reported(run)
    for name, id in (("north", "peer1"), ("south", "peer0"), ("east", "peer3"), ("west", "peer2")):
        shutil.copytree(run / id, tmp_path / "sites" / name)
    made = reported(tmp_path / "sites", "--out", tmp_path / "sites.html")
    for name in ("rounds", "peer_rounds", "edges", "ring"):
        assert made["tables"][name] == [row | {"run": "sites"} for row in whole["tables"][name]]
    shutil.rmtree(tmp_path / "sites" / "east")
    assert "not shown" not in capfd.readouterr().out
    (one,) = reported(tmp_path / "sites", "--out", tmp_path / "sites.html")["runs"]
    assert "not shown: peer3 of sites, whose directories are missing" in capfd.readouterr().out
    assert one["state"] == "unfinished"
    assert "No data for peer3: their directories were not given" in one["notes"]


def test_what_peers_say_stays_text(run: Path) -> None:
    say(
        run / "peer2",
        {"time": 1e9, "event": "data", "round": 9, "samples": 3, "classes": {HOSTILE: 1.0}},
        {"time": 1e9, "event": "refused", "caller": HOSTILE, "reason": HOSTILE},
    )
    for place in run.glob("peer*/"):
        lines = (place / "events.jsonl").read_text().splitlines()
        spoilt = [line.replace('"classes": {"0"', '"classes": {' + json.dumps(HOSTILE)) for line in lines]
        (place / "events.jsonl").write_text("\n".join(spoilt) + "\n")
    made = reported(run)
    assert HOSTILE in made["runs"][0]["classes"]
    assert any("<script>alert(1)" in row["text"] for row in made["tables"]["moments"])
    page = (run / "report.html").read_text()
    assert "<script>alert" not in page
    assert page.count("</script>") == 4


def test_no_number_that_is_none_gets_into_the_page(run: Path) -> None:
    """A model may diverge, and a file may say anything."""
    odd = {"time": 1e9, "event": "round", "round": 4, "loss": float("nan"), "test_loss": float("inf")}
    say(run / "peer0", odd, {**odd, "time": float("inf")}, {"time": 1e9, "event": "waiting"})
    reported(run, "--csv")
    with (run / "report" / "peer_rounds.csv").open(newline="") as file:
        row = [*csv.DictReader(file)][3]
    assert (row["peer"], row["round"], row["train_loss"], row["test_loss"]) == ("peer0", "4", "", "")


def test_runs_are_compared(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = federate(tmp_path / "other", "fedavg", seed=7)
    made = reported(run, other, "--out", tmp_path / "both.html", "--csv")
    assert [(one["label"], one["protocol"], one["seed"]) for one in made["runs"]] == [
        ("run", "fibfl++", 42),
        ("other", "fedavg", 7),
    ]
    assert {row["run"] for row in made["tables"]["rounds"]} == {"run", "other"}
    with (tmp_path / "both" / "rounds.csv").open(newline="") as file:
        assert [(row["run"], row["protocol"], row["round"]) for row in csv.DictReader(file)] == [
            *(("run", "fibfl++", str(round)) for round in (1, 2, 3)),
            *(("other", "fedavg", str(round)) for round in (1, 2, 3)),
        ]
    capfd.readouterr()
    assert "given twice" in refused(capfd, run, run)
    whole = reported(tmp_path)
    assert [one["label"] for one in whole["runs"]] == ["other", "run"]
    capfd.readouterr()
    assert "given twice" in refused(capfd, tmp_path, run)
    for name in ("begun", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "federation.yaml").write_text("name: begun\n")
    federate(tmp_path / "zero", {"name": "fedavg"}, data={"name": "digits", "limit": 300}, test="global")
    assert [one["label"] for one in reported(tmp_path)["runs"]] == ["other", "run"]
    told = capfd.readouterr().out
    assert told.count("left out: ") == 3
    assert "is judged by global accuracy, and not by matched accuracy" in told


def test_what_each_did_when_is_a_trace(run: Path, tmp_path: Path) -> None:
    other = federate(tmp_path / "other", "fedavg")
    made = reported(run, other, "--out", tmp_path / "both.html", "--perfetto")
    events = json.loads((tmp_path / "both" / "trace.json").read_text())["traceEvents"]
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert {id for (run_, _), id in names.items() if run_ == 1} == {f"peer{number}" for number in range(4)}
    assert [one["args"]["name"] for one in events if one["name"] == "process_name"] == ["run", "other"]
    spans = [one for one in events if one["ph"] == "X"]
    rounds = [one for one in spans if one["name"].startswith("round ")]
    assert len(rounds) == 2 * 4 * 3
    assert all(one["ts"] >= 0 < one["dur"] for one in rounds)
    for one in rounds:  # viewers take a span for a part of another only if it ends no later
        inside = [
            part
            for part in spans
            if part["name"] in ("train", "communicate", "evaluate")
            and (part["pid"], part["tid"]) == (one["pid"], one["tid"])
            and one["ts"] <= part["ts"] < one["ts"] + one["dur"]
        ]
        assert sum(part["dur"] for part in inside) <= one["dur"] * (1 + 1e-9)
    began = [one for one in events if one["ph"] == "b"]
    assert len(began) == len({one["id"] for one in began}) == len(made["tables"]["moments"])
    assert {one["id"] for one in began} == {one["id"] for one in events if one["ph"] == "e"}


def test_tables_come_back_from_their_files(run: Path) -> None:
    made = reported(run, "--csv")
    for name in ("rounds", "peer_rounds", "edges"):
        shown = made["tables"][name]
        with (run / "report" / f"{name}.csv").open(newline="") as file:
            read = [*csv.DictReader(file)]
        assert {*read[0]} >= {*shown[0]}
        drawn = [{key: row[key] for key in shown[0]} for row in read]
        assert drawn == [{key: "" if value is None else str(value) for key, value in row.items()} for row in shown]
    with (run / "report" / "peers.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            shares = [float(value) for key, value in row.items() if key.startswith("class ")]
            assert sum(shares) == pytest.approx(1)


def test_figures_are_written_as_files(run: Path) -> None:
    reported(run, "--svg")
    names = {"accuracy", "fairness", "loss", "ring-before", "ring-after", "time", "traffic", "timeline"}
    assert {path.stem for path in (run / "report").glob("*.svg")} == names
    assert charts.picture({"mark": "point", "data": {"values": [{}]}}, look("light"), "png").startswith(b"\x89PNG")
    assert "peer3" in (run / "report" / "ring-after.svg").read_text()


def test_what_cannot_be_shown_is_refused_in_a_sentence(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    assert "neither a peer's nor a run's" in refused(capfd, tmp_path / "empty")
    assert "is a directory" in refused(capfd, run, "--out", tmp_path)
    (run / "peer0" / "run.json").write_text("{")
    assert "is damaged or no peer's" in refused(capfd, run)

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(charts, "version", missing)
    assert "dfl[report]" in refused(capfd, run)
    assert not (run / "report.html").exists()


def test_words_that_no_figure_bears_end_in_a_sentence(
    run: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflows(*_: object) -> None:
        raise OverflowError("a number out of all proportion")

    monkeypatch.setattr(build, "sector_rows", overflows)
    assert main(["report", str(run)]) == 1
    assert "cannot be shown: OverflowError: a number out of all proportion" in capfd.readouterr().err


def test_a_cost_that_is_no_number_is_in_no_page(run: Path) -> None:
    (run / "summary.json").unlink()
    result = json.loads((run / "peer0" / "result.json").read_text())
    (run / "peer0" / "result.json").write_text(json.dumps(result | {"ring_cost": {"before": float("nan")}}))
    (one,) = reported(run)["runs"]
    assert one["state"] == "unfinished"
    assert any("peer0" in note for note in one["notes"])
    with pytest.raises(FailedError, match="cannot be shown"):
        as_text({"cost": float("nan")})


def test_a_name_that_is_no_text_gets_into_tables_and_figures(run: Path) -> None:
    (run / "summary.json").unlink()
    say(run / "peer1", {"time": 9, "event": "round", "round": 2, "figures": {"\ud800": 1.0}})
    for place in run.glob("peer*/"):
        events = (place / "events.jsonl").read_text()
        (place / "events.jsonl").write_text(events.replace('"classes": {"0"', '"classes": {"\\ud800"'))
    assert main(["report", str(run), "--csv", "--svg"]) == 0
    assert "\\ud800" in (run / "report" / "peer_rounds.csv").read_text()
    assert (run / "report" / "ring-after.svg").is_file()
    with pytest.raises(FailedError, match="cannot be made a picture"):
        charts.picture({"mark": "point", "data": {"values": [{"x": float("nan")}]}}, look("light"), "svg")


def test_nothing_in_a_table_is_a_formula() -> None:
    rows = [{"run": "=1", "=HYPERLINK(1)": "\t=1", "-x": 0.5, "classes": {"@a": 1.0}}]
    made = as_csv(ReportDocument("a", [], {name: [] for name in TABLES} | {"peers": rows}))["peers"]
    assert made == "run,'=HYPERLINK(1),'-x,class @a\n'=1,'\t=1,0.5,1.0\n"


@pytest.mark.parametrize("name", ["run.html", "run/peer0.html"])
def test_tables_do_not_go_into_the_directory_of_a_run(run: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    before = sorted(run.rglob("*"))
    out = run.parent / name
    assert "holds other files; choose another" in refused(capfd, run, "--out", out, "--csv")
    assert not out.exists()
    assert sorted(run.rglob("*")) == before


def test_of_very_many_moments_failures_are_left_out_last(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(run / "peer0", *({"time": 1e9, "event": "refused", "caller": "x", "reason": "y"} for _ in range(30)))
    say(run / "peer0", {"time": 2e9, "event": "failed", "message": "at last"})
    monkeypatch.setattr(build, "MAX_EVENTS", 10)
    made = reported(run)
    moments = made["tables"]["moments"]
    assert len(moments) == 10
    (told,) = [note for note in made["runs"][0]["notes"] if "left out of the timeline" in note]
    assert int(told.split()[0]) >= 21
    assert (moments[-1]["kind"], moments[-1]["text"]) == ("failure", "at last")
    assert moments == sorted(moments, key=lambda row: row["begin"])


def test_a_script_that_is_not_whole_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vl_convert

    written: list[Path] = []

    def write(path: Path, content: bytes) -> None:
        written.append(path)
        write_atomically(path, content)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda _: "draw();\n'</script>'")
    monkeypatch.setattr(charts, "write_atomically", write)
    whole = charts.vega_script()
    assert whole == "draw();\n'<\\/script>'"
    [kept] = (tmp_path / "dfl").iterdir()
    assert charts.vega_script() == whole
    assert len(written) == 1
    kept.write_bytes(kept.read_bytes()[:-3])
    assert charts.vega_script() == whole
    assert len({*written, kept}) == 3, "nobody writes where another may"
    assert [*(tmp_path / "dfl").iterdir()] == [kept]


@pytest.mark.parametrize(("better", "named"), [("up", {"peer0", "peer2"}), ("down", {"peer1", "peer2"})])
def test_lines_have_a_name_at_their_end_where_there_is_room(better: Literal["up", "down"], named: set[str]) -> None:
    """The worst always: of two that end close to each other, that one."""
    ends = (
        {"peer0": 0.50, "peer1": 0.51, "peer2": 0.60} if better == "up" else {"peer0": 2.0, "peer1": 2.05, "peer2": 1}
    )
    rows = [
        {"peer": id, "round": round, "stretch": 0, "value": end * round}
        for id, end in ends.items()
        for round in (1, 2, 3)
    ]
    rows.append({"peer": "peer3", "round": 1, "stretch": 0, "value": 0.9})  # lost, so that no line of it ends there
    part = RunPart("a", "fibfl", 0, 3, 2, 2, "finished", "", "a figure", better, [], None)
    made = ReportDocument("a", [part], {name: [] for name in TABLES} | {"peer_rounds": rows})
    drawn = charts.picture(accuracy_figure(made).filled(made), look("light"), "svg").decode()
    assert {*re.findall(r">(peer\d)<", drawn)} == named


def test_very_many_rounds_are_drawn_thinner() -> None:
    rows = [{"run": "a", "peer": f"peer{n}", "round": round} for n in range(100) for round in range(1, 1002)]
    rounds = [{"run": "a", "round": round} for round in range(1, 20_002)]
    tables = {name: [] for name in TABLES} | {"peer_rounds": rows, "rounds": rounds}
    made = ReportDocument("a", [], tables).thinned().tables
    assert len(made["peer_rounds"]) <= MAX_POINTS + 200
    assert {row["round"] for row in made["peer_rounds"] if row["peer"] == "peer9"} >= {1, 990}
    assert len(made["rounds"]) <= MAX_ROUNDS + 2
    assert {1, 20_001} <= {row["round"] for row in made["rounds"]}
