"""Members that leave or are voted out, with real processes: `on_stop: leave`, `dfl-launch leave` and `expel`."""

import shutil
import signal
from pathlib import Path

import pytest
from healing import ABSENCE, await_view, begin, chain, end, healing, kill
from real_peers import Build, SmallFederation, until

from launcher.certificates import make_certificates
from launcher.cli import main
from launcher.run_files import certificate_files
from peer.views.view import View

pytestmark = pytest.mark.long

LEFT = ("peer0", "peer1", "peer3")
"""The rest of four peers when peer2 has left."""


def launch(federation: SmallFederation, *arguments: str, certs: Path | None = None) -> int:
    """The exit code of `dfl-launch COMMAND federation.yaml ...`."""
    command, *rest = arguments
    more = ["--certs", str(certs)] if certs else []
    return main([command, str(federation.directory / "federation.yaml"), *rest, *more])


def secure(federation: SmallFederation) -> Path:
    """Certificates for all, in the directory that comes back."""
    place = federation.directory / "certs"
    make_certificates(federation.spec, place, days=2)
    for id in federation.ids:
        files = certificate_files(place, id)
        federation.configure(id, tls={name: str(path) for name, path in files.items()})
    return place


def members(views: tuple[View, ...]) -> list[tuple[str, ...]]:
    return [view.members for view in views]


def test_one_leaves_by_sigterm(federation: Build) -> None:
    one = healing(federation, on_stop="leave")
    begin(one)
    leaver = one.peers.pop("peer2")
    leaver.signal(signal.SIGTERM)
    view = await_view(one, "peer0", LEFT)
    assert (view["planned"], view["reason"]) == (True, "peer2 leaves")
    assert leaver.wait(20) == 0
    [departed] = one.events("peer2", "departed")
    assert departed["sentence"].startswith("left: view 1 goes on without this peer")
    assert members(end(one, *LEFT)) == [one.ids, LEFT]


def test_one_that_loads_for_longer_than_absence_before_the_next_view_is_waited_for(federation: Build) -> None:
    one = healing(federation, on_stop="leave")
    one.env["peer1"]["LOADS"] = str(2.5 * ABSENCE)
    begin(one)
    one.peers.pop("peer2").signal(signal.SIGTERM)
    await_view(one, "peer0", LEFT)
    assert members(end(one, *LEFT)) == [one.ids, LEFT]
    assert any("peer1" in event["sentence"] for event in one.events("peer0", "waiting"))


def test_one_leaves_by_command_and_comes_back(federation: Build, capsys: pytest.CaptureFixture[str]) -> None:
    """With certificates; the one of another is not enough."""
    one = healing(federation)
    certs = secure(one)
    begin(one)
    # Not the peers' own, which they read again: peer2 would begin anew with its connections in the middle of this.
    without = Path(shutil.copytree(certs, one.directory / "without"))
    (without / "peer2.key").unlink()
    assert launch(one, "leave", "peer2", certs=without) == 2
    given = [str(certificate_files(certs, "peer1")[name]) for name in ("ca", "cert", "key")]
    assert launch(one, "leave", "peer2", "--tls", *given) == 2
    assert "is made out to peer1" in capsys.readouterr().err
    assert launch(one, "leave", "peer2", certs=certs) == 0
    told = capsys.readouterr().out
    assert "peer0, peer1, peer3 (peer2 leaves)" in told
    assert one.peers.pop("peer2").wait(20) == 0
    one.await_event("peer0", "round", round=chain(one, "peer0")[1].first)
    one.start("peer2")
    back = await_view(one, "peer0", one.ids)
    assert back["entrants"] == [["peer2", chain(one, "peer0")[1].first - 1]], "with the state with which it has left"
    assert members(end(one)) == [one.ids, LEFT, one.ids]


def test_one_leaves_while_another_is_killed(federation: Build) -> None:
    one = healing(federation, 5, on_stop="leave")
    begin(one)
    leaver = one.peers.pop("peer2")
    kill(one, "peer4")
    leaver.signal(signal.SIGTERM)
    await_view(one, "peer0", LEFT)
    assert leaver.wait(20) == 0
    assert members(end(one, *LEFT))[-1] == LEFT


def test_where_too_few_would_be_left_nobody_leaves(federation: Build, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says so and the peer goes on; SIGTERM then stops it, as ever."""
    one = healing(federation, on_stop="leave")
    begin(one)
    leavers = [one.peers.pop(id) for id in ("peer2", "peer3")]
    for leaver in leavers:
        leaver.signal(signal.SIGTERM)
    await_view(one, "peer0", ("peer0", "peer1"))
    assert [leaver.wait(20) for leaver in leavers] == [0, 0]
    assert launch(one, "leave", "peer1") == 1
    assert "peer1 cannot leave: there are 2 members, and the protocol needs 2" in capsys.readouterr().err
    one.peers["peer1"].signal(signal.SIGTERM)
    assert one.peers.pop("peer1").wait(10) == 128 + signal.SIGTERM
    one.start("peer1")
    end(one, "peer0", "peer1")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_one_that_still_waits_to_leave(second: signal.Signals, federation: Build) -> None:
    """Two of four cannot decide on it without the first."""
    one = healing(federation, on_stop="leave")
    begin(one)
    kill(one, "peer0", "peer1")
    one.peers["peer2"].signal(signal.SIGTERM)
    one.await_event("peer2", "leaving")
    one.peers["peer2"].signal(second)
    assert one.peers.pop("peer2").wait(10) == 128 + signal.SIGTERM
    one.start("peer0", "peer1", "peer2")
    assert not any(event["planned"] for event in one.events("peer3", "view"))
    end(one)


def test_a_living_peer_is_voted_out(federation: Build, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of four are too few without the first; with a third the one they name is out, and stays out."""
    one = healing(federation)
    certs = secure(one)
    begin(one)
    assert launch(one, "expel", "peer2", "--by", "peer1", "peer3", certs=certs) == 1
    assert "the consent of peer1, peer3 is noted" in capsys.readouterr().err
    assert not one.events("peer0", "view")
    kill(one, "peer3")
    one.start("peer3")
    one.await_event("peer3", "resumed")
    assert launch(one, "expel", "peer2", "--by", "peer0", certs=certs) == 0
    assert "(peer2 voted out by peer0, peer1, peer3)" in capsys.readouterr().out
    liar = one.peers.pop("peer2")
    assert liar.wait(20) == 1
    assert one.events("peer2", "failed")[-1]["message"].startswith(
        "peer2 was voted out of the federation (view 1: peer2"
    )
    one.start("peer2")
    assert one.peers.pop("peer2").wait(20) == 1
    shutil.rmtree(one.directory / "peer2")
    one.start("peer2")
    assert one.peers.pop("peer2").wait(20) == 1
    views = end(one, *LEFT)
    assert (members(views), views[-1].expelled) == ([one.ids, LEFT], ("peer2",))


def test_one_that_leaves_a_message_out_ends_nobody_and_is_voted_out(federation: Build) -> None:
    """Its receivers would have ended by it, and then its next ones: the two left could not have voted it out."""
    one = healing(federation, 5)
    certs, rest = secure(one), ("peer0", "peer1", "peer3", "peer4")
    one.env["peer2"]["SKIPS"] = "6"
    begin(one)
    for id in ("peer1", "peer3"):
        told = one.await_event(id, "waiting", 40, cause="stalled")
        assert told["for"][0]["id"] == "peer2"
        assert told["sentence"].startswith("peer2 has gone on to round 7, and this peer still calls"), told
        assert told["sentence"].endswith("vote out who lies (`dfl-launch expel`), or stop it for longer than `absence`")
    assert launch(one, "expel", "peer2", certs=certs) == 0
    assert one.peers.pop("peer2").wait(20) == 1
    views = end(one, *rest)
    assert (members(views), views[-1].expelled) == ([one.ids, rest], ("peer2",))
    assert views[-1].first <= 6


def test_one_that_is_away_is_voted_out(federation: Build) -> None:
    one = healing(federation)
    begin(one)
    kill(one, "peer2")
    await_view(one, "peer0", LEFT)
    assert launch(one, "expel", "peer2") == 0
    one.start("peer2")
    assert one.peers.pop("peer2").wait(20) == 1
    assert end(one, *LEFT)[-1].expelled == ("peer2",)


@pytest.mark.parametrize("command", ["leave", "expel"])
def test_a_file_without_the_run_of_its_peers_is_refused_with_the_way_out(
    command: str, federation: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = healing(federation, run="drawn")
    begin(one)
    mine = tmp_path / "mine.yaml"
    mine.write_text(one.spec.model_copy(update={"run": None}).dump())

    def told() -> bool:
        """Not where the connection ends before the refusal is read."""
        assert main([command, str(mine), "peer2"]) == 1
        said = capsys.readouterr().err
        assert "peer2 does not answer" in said or "peer0 does not answer" in said
        return ": name the run by its directory, as `dfl-launch run` drew `run`" in said

    until(told, 20, "the way out is told")
    assert main([command, str(one.directory), "peer2"]) == 0
    one.peers.pop("peer2").wait(20)
    end(one, *LEFT)


@pytest.mark.parametrize("command", ["leave", "expel"])
def test_where_members_stay_the_same_nobody_goes(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "federation.yaml"
    spec.write_text("{protocol: fibfl, data: digits}")
    assert main([command, str(spec), "--peers", "4", "peer1"]) == 2
    assert "that needs `on_loss: bypass`" in capsys.readouterr().err


def test_on_stop_leave_is_refused_where_nobody_can_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "federation.yaml"
    spec.write_text("{protocol: fibfl, data: digits, on_stop: leave}")
    assert main(["check", str(spec), "--peers", "4"]) == 2
    assert "`on_stop: leave` goes with `on_loss: bypass`; write that, or leave `on_stop` out" in capsys.readouterr().err
