"""`dfl-launch summary` of peers' directories that were brought together by any means, whole, torn and hostile."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from launcher.reports import summary_json
from launcher.reports.summary import TimeSpent, summarise
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

EXAMPLE = Path(__file__).parents[3] / "examples" / "my_protocol.py"


def federate(directory: Path, protocol: str = "fibfl", **spec: Any) -> Path:
    """A run of three peers; its directory, as `dfl-launch run` would leave it but for what is its own."""
    directory.mkdir()
    content = {"name": "three", "rounds": 2, "protocol": protocol, "data": {"name": "digits", "limit": 300}, **spec}
    (directory / "federation.yaml").write_text(json.dumps(content))
    asyncio.run(run_in_process(load_spec(directory / "federation.yaml", peers=3), directory))
    return directory


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federate(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def sites(finished: Path, tmp_path: Path) -> Path:
    """The finished peers' directories as three sites sent them."""
    for id, name in (("peer0", "north"), ("peer1", "east"), ("peer2", "south")):
        shutil.copytree(finished / id, tmp_path / "sites" / name)
    return tmp_path / "sites"


def said(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(capfd.readouterr().out)
    return content


def refused(capfd: pytest.CaptureFixture[str], *argv: Path | str) -> str:
    """The one sentence, with exit status 2."""
    assert main(["summary", *map(str, argv)]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err[:-1].isprintable()
    return printed.err


def expected(finished: Path) -> dict[str, Any]:
    """What the launcher itself would have written, but for what only it counts."""
    spec = load_spec(finished / "federation.yaml", peers=3)
    content: dict[str, Any] = json.loads(summary_json.dump(summarise(spec, finished, TimeSpent(0, 0))))
    return {**content, "wall_seconds": None}


def test_peers_from_anywhere_come_to_what_the_run_came_to(
    sites: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one_by_one = [str(sites / name) for name in ("south", "north", "east")]
    for given in (one_by_one, [str(sites)], [str(finished)]):
        assert main(["summary", *given, "--json"]) == 0
        made = said(capfd)
        assert 0 < made["wall_seconds"] < 600
        assert {**made, "wall_seconds": None} == expected(finished)
    assert made["privacy"]["definitions"] == {"3.1": True, "3.2": True, "3.3": True}


def test_what_taking_part_was_worth_is_said_as_the_run_said_it(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    gain = {"mcg": 0.1, "cgs": 1.0, "pearson": None, "gain": {"peer0": 0.1}, "alone": {"peer0": 0.5}}
    worth = {**gain, "verdict": "taking part was worth it for 1 of 1 peers"}
    (tmp_path / "run" / "summary.json").write_text(
        json.dumps({**expected(finished), "wall_seconds": 1, "worth": worth})
    )
    assert main(["summary", str(tmp_path / "run")]) == 0
    assert f"{worth['verdict']}\n  worth it: peer0 +0.1000 (0.5000 alone)\n" in capfd.readouterr().out
    assert main(["summary", str(tmp_path / "run"), "--json"]) == 0
    assert said(capfd)["worth"] == worth


def test_of_a_launchers_directory_its_own_count_is_taken(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    TimeSpent(75.0, 2).write(run / ".launcher.json")
    assert main(["summary", str(run), "--out", str(tmp_path / "sum.json")]) == 0
    assert capfd.readouterr() == ("", "")
    written = summary_json.read(tmp_path / "sum.json")
    assert written
    assert (written.wall_seconds, written.restarts) == (75.0, 2)
    assert main(["summary", str(run)]) == 0
    assert "three: fibfl, 3 peers, 2 rounds in 1 min 15 s, 2 restarts" in capfd.readouterr().out


def test_who_is_missing_is_named_and_what_cannot_be_said_is_not(
    sites: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "sum.json"
    assert main(["summary", str(sites / "north"), str(sites / "south"), "--json", "--out", str(out)]) == 1
    printed = capfd.readouterr()
    made = json.loads(printed.out)
    assert [one["id"] for one in made["per_peer"]] == ["peer0", "peer2"]
    assert made["peers"] == 3
    assert made["missing"] == {"peer1": "its directory is not among those given"}
    assert made["privacy"]["definitions"] == {"3.1": None, "3.2": None, "3.3": None}
    assert made["privacy"]["violations"] == []
    assert "missing: peer1 (its directory is not among those given)" in printed.err
    assert json.loads(out.read_text()) == made
    assert summary_json.read(out) is None  # no launcher shall take it for that of a finished run
    assert main(["summary", str(sites / "north"), str(sites / "south")]) == 1
    text = " ".join(capfd.readouterr().out.split())
    assert "Definitions met: none yet; not known without the whole audits of peer1: 3.1, 3.2, 3.3" in text
    assert "not included in any figure: peer1 (its directory is not among those given)" in text


def test_what_the_others_show_is_denied_without_the_missing(sites: Path, capfd: pytest.CaptureFixture[str]) -> None:
    audit = sites / "north" / "audit.jsonl"
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    lines[1]["sent"][0]["head_bytes"] = 8
    audit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(sites / "east")
    assert main(["summary", str(sites), "--json"]) == 1
    proof = said(capfd)["privacy"]
    assert proof["definitions"] == {"3.1": False, "3.2": None, "3.3": None}
    assert [one["reason"] for one in proof["violations"]] == ["8 bytes of a private head"]


def test_who_has_not_finished_is_named_with_its_rounds(sites: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (sites / "east" / "result.json").unlink()
    events = sites / "east" / "events.jsonl"
    kept = [line for line in events.read_text().splitlines() if '"round": 2' not in line]
    events.write_text("\n".join([*kept, '{"event": "round", "rou']))
    assert main(["summary", str(sites), "--json"]) == 1
    assert said(capfd)["missing"] == {"peer1": "it has not finished: 1 of 2 rounds"}
    for name in ("north", "south"):
        (sites / name / "result.json").unlink()
    assert main(["summary", str(sites)]) == 1
    told = capfd.readouterr()
    assert "no peer has finished: peer0 (" in told.err
    assert "1 of 2 rounds completed" in told.out, "the figures so far"
    assert main(["summary", str(sites), "--json"]) == 1
    so_far = said(capfd)
    assert (so_far["finished"], so_far["completed"], len(so_far["per_peer"])) == (False, 1, 3)
    first = json.loads(
        next(line for line in events.read_text().splitlines() if '"round": 1' in line and "loss" in line)
    )
    assert {one["id"]: one["figure"] for one in so_far["per_peer"]}["peer1"] == first["accuracy"]["matched"]


def test_who_went_back_has_the_rounds_that_still_count(sites: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (sites / "east" / "result.json").unlink()
    with (sites / "east" / "events.jsonl").open("a") as events:
        events.write('{"time": 2e9, "event": "rewound", "round": 1}\n')
    assert main(["summary", str(sites), "--json"]) == 1
    assert said(capfd)["missing"] == {"peer1": "it has not finished: 1 of 2 rounds"}


def test_peers_of_different_runs_are_refused(sites: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = federate(tmp_path / "other", seed=7, rounds=1)
    told = refused(capfd, sites / "north", sites / "east", other / "peer2")
    assert "peer2 are of different runs: they differ in `rounds`, `seed`" in told


def test_one_peer_twice_is_refused(sites: Path, finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "`peer0` is there twice, in" in refused(capfd, sites, finished / "peer0")
    assert "`peer1` is there twice, in" in refused(
        capfd, sites / "east", sites / "north", shutil.copytree(sites / "east", sites.parent / "again")
    )


@pytest.mark.parametrize("given", [["peer0", "peer0"], [".", "peer0"], ["peer0", "link"]])
def test_one_directory_twice_is_refused(
    given: list[str], finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A directory with the run that contains it is refused, too: it is unclear whose counts to take."""
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "link").symlink_to(run / "peer0")
    if "link" not in given:
        (run / "link").unlink()
    told = refused(capfd, *(run / name for name in given))
    assert "is given twice, by itself or with the directory that holds it; give it once" in told


def test_a_lost_audit_proves_nothing_either_way(sites: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (sites / "east" / "audit.jsonl").unlink()
    assert main(["summary", str(sites)]) == 1
    printed = capfd.readouterr()
    text = " ".join(printed.out.split())
    assert "no violation; Definitions met: none yet; not known without the whole audits of peer1: 3.1, 3.2, 3.3" in text
    assert "the privacy verdict is incomplete, as audit.jsonl of peer1 is missing or begins late" in printed.err
    assert main(["summary", str(sites), "--json"]) == 1
    made = said(capfd)
    assert [one["id"] for one in made["per_peer"]] == ["peer0", "peer1", "peer2"]
    assert made["privacy"]["unknown"] == ["peer1"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--out", "nowhere/sum.json"], "nowhere; make it, or give another place"),
        (["--code", "nowhere"], "there is no such directory; give that in which the modules of your own lie"),
    ],
)
def test_what_is_not_there_is_neither_made_nor_ignored(
    given: list[str], sentence: str, sites: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    option, name = given
    assert sentence in refused(capfd, sites, option, tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


def test_what_is_no_peers_directory_is_refused(
    tmp_path: Path, sites: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "nowhere: cannot be read (No such file or directory)" in refused(capfd, sites, tmp_path / "nowhere")
    assert "cannot be read (Not a directory)" in refused(capfd, finished / "federation.yaml")
    (tmp_path / "empty").mkdir()
    assert "there is no run.json in it or one below" in refused(capfd, tmp_path / "empty")
    assert "is a directory; give the name of a file" in refused(capfd, sites, "--out", tmp_path)
    assert "is a file, so nothing can be written below it" in refused(
        capfd, sites, "--out", finished / "federation.yaml" / "sum.json"
    )


DEEP = "[" * 100_000


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", DEEP, '{"id": 3}', "\x1b[2J", '{"spec": ' + DEEP])
def test_a_damaged_run_json_is_one_sentence(sites: Path, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    (sites / "east" / "run.json").write_text(text)
    assert "east/run.json: is damaged or no peer's" in refused(capfd, sites)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": 10**12}, "its spec is not as a peer writes it"),
        ({"seed": 7}, "its spec is not the one that the run's peers agreed on"),
        ({"ring": []}, "its spec is not as a peer writes it"),
        ({"ring": [{"id": "\x1b[2J", "address": "a:1"}]}, "its spec is not as a peer writes it"),
        ({"data": 3}, "its spec is not as a peer writes it"),
        ({"data": {"name": "os:system"}}, ""),
        ({"protocol": {"name": "tomorrows"}}, "this version has no protocol or task `tomorrows`"),
        ({"protocol": {"name": "fibfl", "gamma": "much"}}, "its spec is not as a peer writes it"),
        ({"protocol": {"name": "antigravity:Mine"}}, "the run uses code from outside dfl, `antigravity:Mine`"),
        ({"task": {"name": "antigravity:Mine"}}, "the run uses code from outside dfl, `antigravity:Mine`"),
        ({"training": {"step": {"name": "antigravity:mine"}}}, ""),
        ({"task": {"name": "tomorrows"}}, "this version has no protocol or task `tomorrows`"),
    ],
)
def test_a_spec_that_no_peer_wrote_is_refused_and_nothing_that_it_names_is_imported(
    changes: dict[str, Any], sentence: str, sites: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its digests may be forged to fit, for it is they who are compared."""
    from peer.spec.agreement import Agreement

    for place in sites.iterdir():
        run = json.loads((place / "run.json").read_text())
        run["spec"] |= changes
        if "agreed" not in sentence and isinstance(run["spec"]["data"], dict):
            run["digests"] = Agreement.from_plain(run["spec"]).digests
        (place / "run.json").write_text(json.dumps(run))
    if sentence:
        assert sentence in refused(capfd, sites)
    else:
        assert main(["summary", str(sites)]) == 0
    assert "antigravity" not in sys.modules


def test_a_directory_of_an_earlier_version_says_the_way_out(sites: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for place in sorted(sites.iterdir()):
        run = json.loads((place / "run.json").read_text())
        del run["spec"]
        (place / "run.json").write_text(json.dumps(run))
        if place.name == "east":
            assert main(["summary", str(sites)]) == 0  # another peer tells
            capfd.readouterr()
    assert "was written by an earlier version" in refused(capfd, sites)


def test_code_of_ones_own_is_imported_only_from_where_the_user_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    shutil.copyfile(EXAMPLE, tmp_path / "code" / "summarised.py")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "code")
        run = federate(tmp_path / "run", "summarised:RingMedian", code=str(tmp_path / "code"))
    assert "imported only from where you say: give its directory with --code" in refused(capfd, run)
    assert "there is no such directory" in refused(capfd, run, "--code", tmp_path / "nowhere")
    assert main(["summary", str(run), "--json", "--code", str(tmp_path / "code")]) == 0
    made = said(capfd)
    assert {**made, "wall_seconds": None} == expected(run)


def test_a_glob_of_a_runs_peers_may_name_their_configs(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "peer0.yaml").write_text("id: peer0\n")
    assert main(["summary", *map(str, run.glob("peer*"))]) == 0
    assert "three: fibfl, 3 peers, 2 rounds" in capfd.readouterr().out


def spoil(place: Path, name: str, **changes: Any) -> None:
    content = json.loads((place / name).read_text())
    (place / name).write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "peer0"},
        {"accuracy": {"matched": float("nan")}},
        {"accuracy": {"matched": 1e308}},
        {"bytes_sent": 10**400},
        {"samples": -1},
        {"seconds": {"train": float("inf")}},
        {"ring": ["peer0", "peer0", "\x1b[2J"]},
        {"history": [{"round": 1, "accuracy": {"matched": 1e308}}]},
        {"rounds": 7},
    ],
)
def test_a_result_that_no_peer_wrote_is_none(
    changes: dict[str, Any], sites: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil(sites / "east", "result.json", **changes)
    assert main(["summary", str(sites), "--json"]) == 1
    made = said(capfd)
    assert made["missing"] == {"peer1": "its result.json is damaged"}
    assert [one["id"] for one in made["per_peer"]] == ["peer0", "peer2"]


def test_hostile_audits_and_events_are_no_traceback(sites: Path, capfd: pytest.CaptureFixture[str]) -> None:
    escape = "\x1b[2J\n" * 100
    edges = {"edges": {escape: ["send"]}, "received": [], "told": {}}
    sent = [{"to": escape, "vector": escape, "bytes": 2**62}, {"to": "peer0", "vector": "x", "bytes": 10**400}]
    lines = [json.dumps({"round": round, "sent": [one], **edges}) for round in (1, 10**400) for one in sent]
    (sites / "east" / "audit.jsonl").write_text("\n".join([*lines, DEEP, "\x00", ""]))
    times = [{"time": time, "event": "done"} for time in (float("-inf"), float("nan"), 1e308)]
    (sites / "east" / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in times) + DEEP + "\n")
    assert main(["summary", str(sites)]) == 0
    out = capfd.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert "peer1's audit lacks rounds, so nothing is proven: 0, 2" in out
    assert "the receiver is not a member of the federation" in out
    assert "Definitions met: none" in out


def test_pipes_and_devices_keep_nobody_waiting(sites: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("result.json", "audit.jsonl", "events.jsonl"):
        (sites / "east" / name).unlink()
        os.mkfifo(sites / "east" / name)
    assert main(["summary", str(sites)]) == 1
    assert "peer1 (it has not finished: 0 of 2 rounds)" in capfd.readouterr().err
    (sites / "east" / "run.json").unlink()
    os.mkfifo(sites / "east" / "run.json")
    assert "run.json: cannot be read (it is not a plain file)" in refused(capfd, sites)
