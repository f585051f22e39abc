"""`dfl-launch run` over the real fork server, with peers that only write their files."""

import asyncio
import json
import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from fake_runs import HERE, Run, starts, summary
from interpreter import Command, Commands

from launcher import cli
from launcher.commands import run as run_command
from launcher.engines import local
from launcher.monitor.federation import Federation
from launcher.monitor.live_table import Display
from launcher.output import Output
from launcher.reports.summary import TimeSpent
from launcher.supervision import run_directory, supervisor
from launcher.supervision.run_directory import RunDirectory
from peer import files
from peer.errors import FailedError, InputError
from peer.process import signal_name
from peer.spec.loading import load_spec


def test_run_to_the_end_and_again(run: Run, tmp_path: Path) -> None:
    code, text = run()
    assert code == 0
    assert "round 3/3, mean matched accuracy 0.3000" in text
    assert summary(tmp_path)["restarts"] == 0
    assert (tmp_path / "out" / "peer2" / "log.txt").read_text() == "peer2 begins after round 0\n"
    code, text = run()
    assert (code, starts(tmp_path, "peer0")) == (0, 1)
    assert "complete" in text
    with pytest.raises(InputError, match="`seed`"):
        run(seed=7)
    assert run(fresh=True, seed=7)[0] == 0
    assert summary(tmp_path)["seed"] == 7


def test_a_finished_run_is_told_to_who_attaches_or_asks(
    run: Run, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run()
    out = tmp_path / "out"
    assert cli.main(["attach", str(out)]) == 0
    assert f"This run has finished; `dfl-launch report {out}`" in capsys.readouterr().out
    assert starts(tmp_path, "peer0") == 1
    finished = f"This run has finished: `dfl-launch summary {out}` and `dfl-launch report {out}`"
    assert cli.main(["status", str(out)]) == 1
    assert finished in capsys.readouterr().out
    small.rename(out / "federation.yaml")
    (out / "summary.json").unlink()
    assert cli.main(["status", str(out), "--peers", "3"]) == 1
    assert finished not in capsys.readouterr().out


@pytest.mark.parametrize("settings", ["rounds: 5", "rounds: 3\nrewinds: [2]"])
def test_a_finished_run_that_goes_on_is_unfinished_until_its_new_end(
    run: Run, small: Path, tmp_path: Path, settings: str
) -> None:
    run()
    small.write_text(small.read_text().replace("rounds: 3", settings))
    assert run(peer0="wrong", peer1="wrong", peer2="wrong")[0] == 2
    assert not (tmp_path / "out" / "summary.json").exists()
    assert not (tmp_path / "out" / "report.html").exists()
    assert RunDirectory(tmp_path / "out").finished(load_spec(small, peers=3)) is None
    assert run()[0] == 0
    assert summary(tmp_path)["rounds"] == load_spec(small, peers=3).rounds
    assert starts(tmp_path, "peer0") == 3


def test_every_peer_can_be_started_by_hand(run: Run, tmp_path: Path) -> None:
    run()
    assert (tmp_path / "out" / "peer1.yaml").read_text() == textwrap.dedent(
        """\
        federation: federation.yaml
        id: peer1
        device: auto
        out: peer1
        """
    )
    again = load_spec(tmp_path / "out" / "federation.yaml")
    assert again.agreement.digest == load_spec(tmp_path / "small.yaml", peers=3).agreement.digest


def test_crashed_peer_is_started_again(run: Run, tmp_path: Path) -> None:
    code, text = run(peer1="crashes once")
    assert code == 0
    assert "peer1 was killed by SIGKILL" in text
    assert "about to crash" in text
    assert f"{tmp_path}/out/peer1/log.txt" in text
    assert "peer1 resumed after round 1" in text
    assert summary(tmp_path)["restarts"] == 1


def test_signals_have_names_or_numbers() -> None:
    assert (signal_name(signal.SIGKILL), signal_name(35)) == ("SIGKILL", "signal 35")


def test_peer_that_crashes_again_and_again_ends_the_run(run: Run, tmp_path: Path) -> None:
    code, text = run(peer1="crashes", peer2="hangs")
    assert code == 1
    *_, why, where = text.splitlines()
    assert why.endswith("peer1 will not be restarted; stopping the run")
    assert where == f"report: {tmp_path}/out/report.html"
    assert starts(tmp_path, "peer1") == 3
    assert not (tmp_path / "out" / "summary.json").exists()
    # What is left is a run to resume.
    assert run()[0] == 0


@pytest.mark.parametrize(("behaviour", "expected"), [("wrong", 2), ("expired", 75), ("gives up", 1)])
def test_peer_that_decides_to_end_is_not_started_again(run: Run, tmp_path: Path, behaviour: str, expected: int) -> None:
    code, text = run(peer1=behaviour, peer2="hangs")
    assert code == expected
    assert text.count("peer1 ended with exit code") == 1
    words = {"wrong": "file is truncated", "expired": "peer1.pem: expired on", "gives up": "peer1 failed: peer0 never"}
    assert words[behaviour] in text


def test_all_that_find_wrong_input_are_named(run: Run, tmp_path: Path) -> None:
    code, text = run(peer1="wrong", peer2="wrong later")
    assert code == 2
    assert [f"peer{n} ended with exit code 2" in text for n in range(3)] == [False, True, True]
    assert not (tmp_path / "out").exists()


def test_wrong_input_does_not_wait_for_peers_that_never_look(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.01)
    code, text = run(peer1="wrong", peer2="wrong later")
    assert (code, "peer1 ended" in text, "peer2 ended" in text) == (2, True, False)


@pytest.mark.parametrize("there", ["nothing", "a directory", "notes"])
def test_wrong_input_that_only_a_peer_finds_creates_nothing(run: Run, tmp_path: Path, there: str) -> None:
    """Such as a port that somebody takes between the launcher's look at it and the peer's start."""
    out = tmp_path / "out"
    if there != "nothing":
        out.mkdir()
    if there == "notes":  # beside an earlier run, which was discarded for this one
        run()
        (out / "notes.txt").touch()
    code, text = run(fresh=there == "notes", peer1="wrong", peer2="hangs")
    assert code == 2
    assert "peer1 ended with exit code 2; last log lines:\n" in text
    assert "log.txt" not in text
    left = {path.name for path in out.iterdir()} if out.exists() else None
    assert left == {"nothing": None, "a directory": set(), "notes": {".lock", ".peers", "notes.txt"}}[there]
    assert run(seed=7)[0] == 0, "another run can be made there"


def test_ctrl_c_while_files_are_collected_stops_no_run_that_was_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(_: local.LocalDeployment) -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0)  # the loop hears of signals between two steps
        await asyncio.sleep(0)

    monkeypatch.setattr(local.LocalDeployment, "collect", interrupted)
    code, text = run(peer1="wrong", peer2="hangs")
    assert code == 2
    assert "resumes" not in text
    assert not (tmp_path / "out").exists()


def test_no_host_has_a_run_deleted_that_is_under_way(run: Run, tmp_path: Path) -> None:
    code, text = run(peer1="lies", peer2="hangs")
    assert code == 1
    assert "peer1 ended with exit code 2" in text
    assert (tmp_path / "out" / "peer0" / "checkpoint").exists()


def test_wrong_input_of_a_resumed_peer_leaves_the_run(run: Run, tmp_path: Path) -> None:
    assert run(peer0="gives up", peer1="crashes once", peer2="hangs")[0] == 1
    before = set((tmp_path / "out").rglob("*"))
    assert run(peer1="wrong", peer2="hangs")[0] == 2
    assert before <= set((tmp_path / "out").rglob("*"))
    assert run()[0] == 0


def test_a_peer_that_ends_with_2_after_a_round_is_started_again(run: Run, tmp_path: Path) -> None:
    code, text = run(peer1="loses its port")
    assert code == 0
    assert "peer1 ended with exit code 2; last lines of" in text
    assert "peer1 resumed after round 2" in text
    assert summary(tmp_path)["restarts"] == 1


def test_a_run_goes_on_at_other_addresses(run: Run, tmp_path: Path) -> None:
    assert run(peer1="crashes", peer2="hangs")[0] == 1
    code, text = run(port=9400)
    assert code == 0, text
    spec = load_spec(tmp_path / "out" / "federation.yaml")
    assert [member.address for member in spec.ring] == [f"127.0.0.1:{9400 + n}" for n in range(3)]
    code, text = run(port=9500)
    assert (code, "This run is complete" in text) == (0, True)


def test_a_directory_that_another_launcher_took_away_is_not_claimed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    late, lock = RunDirectory(tmp_path / "out"), files.lock

    def removed_meanwhile(descriptor: int, patience: float = 0.0) -> bool:
        (tmp_path / "out" / ".lock").unlink(missing_ok=True)
        return lock(descriptor, patience)

    monkeypatch.setattr(run_directory, "lock", removed_meanwhile)
    with pytest.raises(InputError, match="another dfl-launch"):
        late.claim()
    late.close()


def test_a_display_that_breaks_leaves_no_peer_running(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(federation: Federation, _screen: object) -> None:
        federation.look(0.0)
        if federation.round:
            raise ZeroDivisionError

    monkeypatch.setattr(supervisor, "show", broken)
    with pytest.raises(ZeroDivisionError):
        run(peer0="hangs", peer1="hangs", peer2="hangs")
    for n in range(3):
        assert '"event": "stopped"' in (tmp_path / "out" / f"peer{n}" / "events.jsonl").read_text()


def test_a_resumed_run_counts_its_earlier_launches(run: Run, tmp_path: Path) -> None:
    assert run(peer1="crashes", peer2="hangs")[0] == 1
    first = TimeSpent.read(tmp_path / "out" / ".launcher.json")
    assert (first.wall_seconds > 0, first.restarts) == (True, 2)
    assert run()[0] == 0
    assert summary(tmp_path)["restarts"] == 2
    assert summary(tmp_path)["wall_seconds"] > first.wall_seconds
    assert run(fresh=True)[0] == 0
    assert summary(tmp_path)["restarts"] == 0


def test_a_launch_that_is_killed_has_written_down_what_it_took(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """At once: nothing is cleaned up."""

    counted = tmp_path / "out" / ".launcher.json"

    def until_counted(federation: Federation, _screen: object) -> None:
        federation.look(0.0)
        if counted.exists():
            raise Killed

    monkeypatch.setattr(supervisor, "SAVE_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "show", until_counted)
    with pytest.raises(Killed):
        run(peer0="hangs", peer1="hangs", peer2="hangs")
    assert TimeSpent.read(counted).wall_seconds > 0


def test_a_full_disk_for_a_moment_ends_no_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, write, show = list[Path](), TimeSpent.write, supervisor.show

    def full_at_first(spent: TimeSpent, path: Path) -> None:
        if not failed:
            failed.append(path)
            raise FailedError(f"cannot write {path}: No space left on device; make room and start again")
        write(spent, path)

    def until_saved(federation: Federation, screen: Display) -> None:
        show(federation, screen)
        if (tmp_path / "out" / ".launcher.json").exists():
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(supervisor, "SAVE_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "show", until_saved)
    monkeypatch.setattr(TimeSpent, "write", full_at_first)
    code, _ = run(peer0="hangs", peer1="hangs", peer2="hangs")
    assert (code, failed) == (130, [tmp_path / "out" / ".launcher.json"])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"wall_seconds": null, "restarts": 1}'])
def test_unreadable_record_of_earlier_launches_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / ".launcher.json").write_text(content)
    assert TimeSpent.read(tmp_path / ".launcher.json") == TimeSpent()


@pytest.mark.parametrize("content", ["", "[]", "3", "{}", '{"rounds": 3}', '{"rounds": "many"}'])
def test_foreign_summary_is_none(tmp_path: Path, small: Path, content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    assert RunDirectory(tmp_path).finished(load_spec(small, peers=3)) is None


def test_certificates_in_a_place_that_cannot_be_written(
    tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["certs", str(small), "--peers", "3", "--out", str(tmp_path / "file" / "certs")]) == 2
    why = "is a file, so nothing can be written below it; choose another directory with --out"
    assert capsys.readouterr().err == f"dfl-launch: {tmp_path}/file {why}\n"


def test_two_launchers_in_one_directory(run: Run, tmp_path: Path) -> None:
    run()
    other = RunDirectory(tmp_path / "out")
    other.claim()
    try:
        with pytest.raises(InputError, match="another dfl-launch"):
            run()
    finally:
        other.close()


def test_peers_of_an_earlier_launch_are_awaited(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "out")
    first.claim()
    kept = os.dup(first.peers_lock)  # as a peer would that outlives its launcher
    first.close()
    second = RunDirectory(tmp_path / "out", patience=0.1)
    with pytest.raises(InputError, match="still run"):
        second.claim()
    second.close()
    os.close(kept)
    third = RunDirectory(tmp_path / "out")
    third.claim()
    third.close()


@pytest.mark.parametrize("place", ["file", "file/below", "foreign"])
def test_unusable_output_creates_nothing(tmp_path: Path, small: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="--out"):
        run_command.run(run_command.RunOptions(load_spec(small, peers=3), tmp_path / place), Output(quiet=True))
    assert sorted(tmp_path.rglob("*")) == before


def test_fresh_keeps_what_no_run_wrote(run: Run, tmp_path: Path) -> None:
    run()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert run(fresh=True)[0] == 0
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert starts(tmp_path, "peer0") == 1


def test_address_in_use(tmp_path: Path, small: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        spec = load_spec(small, peers=3)
        ring = (spec.ring[0].model_copy(update={"address": address}), *spec.ring[1:])
        with pytest.raises(InputError, match=f"peer0 cannot listen at {address}: address already in use"):
            local.check_addresses(spec.model_copy(update={"ring": ring}))


def test_metrics_that_cannot_be_served(small: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        spec = load_spec(small, peers=3).model_copy(update={"metrics": address})
        with pytest.raises(
            InputError, match=f"peer0 cannot serve metrics at {address}: address already in use; choose"
        ):
            local.check_watching(spec)


def test_a_tracker_that_is_not_there(small: Path) -> None:
    with pytest.raises(InputError, match="no module `absent`"):
        local.check_watching(load_spec(small, peers=3, overrides=["tracker=absent:track"]))


LAUNCH = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, sys.argv[3])
    from launcher import cli
    from launcher.engines import ENGINES
    ENGINES["local"] = "fake_runs:FakeEngine"
    sys.exit(cli.main(["run", sys.argv[1], "--out", sys.argv[2], "--peers", "3"]))
    """
)


@pytest.fixture
def launched(small: Path, tmp_path: Path, commands: Commands) -> Iterator[Command]:
    """A launcher in a process of its own, all its peers hanging in round 2."""
    environment = os.environ | {"FAKE_PEERS": json.dumps({f"peer{n}": "hangs" for n in range(3)})}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), environment.get("PYTHONPATH", "")])
    arguments = ["-c", LAUNCH, str(small), str(tmp_path / "out"), str(HERE)]
    with commands.command(arguments, env=environment) as process:
        assert process.stdout is not None
        while "round 1/3" not in (line := process.stdout.readline()):
            assert line, "the launcher ended before round 1"
        yield process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_launcher_stops_its_peers(tmp_path: Path, launched: Command, number: signal.Signals, code: int) -> None:
    out = tmp_path / "out"
    launched.send_signal(number)
    assert launched.wait(60) == code
    for n in range(3):
        assert '"event": "stopped"' in (out / f"peer{n}" / "events.jsonl").read_text()
    assert not list(out.rglob(".*.tmp"))


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["run", "check", "protocols", "json", "certs", "help"])
def test_output_that_nobody_reads_ends_a_run_in_a_sentence_and_other_commands_without(
    tmp_path: Path, small: Path, commands: Commands, command: str, unbuffered: str
) -> None:
    """The output is closed early, as with `| head`."""
    reads, writes = os.pipe()
    os.close(reads)
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": unbuffered}
    launcher = ["-m", "launcher.cli"]
    arguments = {
        "run": ["-c", LAUNCH, str(small), str(tmp_path / "out"), str(HERE)],
        "check": [*launcher, "check", str(small), "--peers", "3"],
        "protocols": [*launcher, "protocols"],
        "json": [*launcher, "protocols", "--json"],
        "help": [*launcher, "--help"],
        "certs": [*launcher, "certs", str(small), "--peers", "3", "--out", str(tmp_path / "certs")],
    }
    ended = commands.run(arguments[command], stdout=writes, stderr=PIPE, env=environment)
    os.close(writes)
    if command != "run":
        assert (ended.returncode, ended.stderr) == (141, "")
        return
    assert ended.returncode == 1
    assert ended.stderr.startswith("dfl-launch: stopped: output pipe closed")
    assert ended.stderr.endswith("resumes the run\n")
    assert len(ended.stderr.splitlines()) == 1


def test_killed_launcher_leaves_a_run_to_resume(tmp_path: Path, launched: Command, run: Run) -> None:
    launched.kill()
    launched.wait()
    code, text = run()  # waits until the peers of the first are gone
    assert (code, starts(tmp_path, "peer0")) == (0, 2)
    assert "peer0 resumed after round 1" in text
    for n in range(3):
        assert '"event": "stopped", "signal": "SIGINT"' in (tmp_path / "out" / f"peer{n}" / "events.jsonl").read_text()
