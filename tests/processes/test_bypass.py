"""`on_loss: bypass` with real processes: members that die for good, come back, sleep for too long, or never came."""

import asyncio
import json
import shutil
import signal
import time
from collections.abc import Sequence

import pytest
from certified import secured
from healing import ABSENCE, SPEC, await_view, begin, end, healing, hurry, judge, kill
from real_peers import Build, digests, until

from launcher.certificates import make_certificates
from launcher.commands.watch import ask
from launcher.reports.summary import TimeSpent, summarise
from launcher.run_files import certificate_files
from peer.network.operator_client import PeerStatus
from peer.views.view import View

pytestmark = pytest.mark.long


def members(views: Sequence[View]) -> list[tuple[str, ...]]:
    return [view.members for view in views]


def test_nobody_is_lost(federation: Build) -> None:
    """Then it is the run that it would have been, to the bit."""
    one, other = healing(federation, 3, rounds=5), healing(federation, 3, rounds=5, on_loss="wait")
    for made in (one, other):
        hurry(made)
    assert digests(one.run()) == digests(other.run())
    assert members(judge(one, one.ids)) == [one.ids]


def test_one_dies_for_good(federation: Build) -> None:
    one = healing(federation)
    begin(one)
    kill(one, "peer2")
    await_view(one, "peer0", ("peer0", "peer1", "peer3"))
    views = end(one, "peer0", "peer1", "peer3")
    assert members(views) == [one.ids, ("peer0", "peer1", "peer3")]
    assert views[1].reason == f"peer2 silent for {ABSENCE} s"
    assert views[1].first > 0


def test_two_of_five_die_at_once(federation: Build) -> None:
    one = healing(federation, 5)
    begin(one)
    kill(one, "peer1", "peer2")
    await_view(one, "peer0", ("peer0", "peer3", "peer4"))
    assert members(end(one, "peer0", "peer3", "peer4"))[-1] == ("peer0", "peer3", "peer4")


def test_one_comes_back_with_its_directory_and_another_without(federation: Build) -> None:
    """With certificates."""
    one = healing(federation)
    secured(one)
    begin(one)
    kill(one, "peer1")
    await_view(one, "peer0", ("peer0", "peer2", "peer3"))
    one.start("peer1")
    back = await_view(one, "peer0", one.ids)
    [[who, private]] = back["entrants"]
    assert who == "peer1"
    assert private >= 0
    one.await_event("peer1", "round", round=back["first"])
    kill(one, "peer3")
    shutil.rmtree(one.directory / "peer3")
    await_view(one, "peer0", ("peer0", "peer1", "peer2"))
    one.start("peer3")
    one.await_event("peer0", "view", number=4)
    views = end(one, wiped=["peer3"])
    assert views[-1].members == one.ids
    assert ("peer3", -1) in views[-1].entrants
    proof = summarise(one.spec, one.directory, TimeSpent(1.0, 0)).privacy
    assert (proof["violations"], proof["unknown"]) == ([], ["peer3"]), "its audit was lost with its directory"


def test_one_sleeps_for_longer_than_absence(federation: Build) -> None:
    """It wakes up as a member of a view that is over, and comes back by itself."""
    one = healing(federation)
    begin(one)
    one.peers["peer2"].signal(signal.SIGSTOP)
    await_view(one, "peer0", ("peer0", "peer1", "peer3"))
    one.await_event("peer0", "round", round=8)
    one.peers["peer2"].signal(signal.SIGCONT)
    back = await_view(one, "peer0", one.ids)
    assert "peer2" in dict(back["entrants"])
    views = end(one)
    assert members(views)[:2] == [one.ids, ("peer0", "peer1", "peer3")]
    assert members(views)[-1] == one.ids


def test_half_of_four_goes_on_if_it_has_the_first(federation: Build) -> None:
    one = healing(federation)
    begin(one)
    kill(one, "peer1", "peer3")
    await_view(one, "peer0", ("peer0", "peer2"))
    assert members(end(one, "peer0", "peer2"))[-1] == ("peer0", "peer2")


def test_the_other_half_waits(federation: Build) -> None:
    one = healing(federation)
    begin(one)
    kill(one, "peer0", "peer2")
    time.sleep(2 * ABSENCE)  # how long nothing may be decided, not for how long something is awaited
    assert not one.events("peer1", "view")
    assert not one.events("peer3", "view")
    one.start("peer0", "peer2")
    end(one)


def test_three_of_five_die_and_the_rest_says_for_whom_it_waits(federation: Build) -> None:
    """In the log, as an event, and to whoever asks for its status; and when they are back."""
    one = healing(federation, 5)
    begin(one)
    kill(one, "peer1", "peer2", "peer3")
    for id in ("peer0", "peer4"):
        said = one.await_event(id, "waiting", 30, cause="quorum")
        assert [waited["id"] for waited in said["for"]] == ["peer1", "peer2", "peer3"]
        assert (said["shortage"]["here"], said["shortage"]["members"], said["shortage"]["needed"]) == (2, 5, 3)
        until(lambda id=id: "2 of 5 are here, 3 are needed; waiting for peer1" in one.log(id), 10, "the log has it")
    answers = asyncio.run(ask(one.spec, None))
    for id in ("peer0", "peer4"):
        answer = answers[id]
        assert isinstance(answer, PeerStatus)
        assert answer.shortage
        assert (answer.shortage.here, answer.shortage.needed) == (2, 3)
        assert [waited.id for waited in answer.awaited] == ["peer1", "peer2", "peer3"]
    assert [len(one.events(id, "view")) for id in ("peer0", "peer4")] == [0, 0]
    played = {id: len(one.events(id, "round")) for id in ("peer1", "peer2", "peer3")}
    one.start(*played)
    for id, before in played.items():  # the first to return may be enough to leave out the others, which take a moment
        until(lambda id=id, before=before: len(one.events(id, "round")) > before, 30, f"{id} plays again")
    end(one)
    assert one.events("peer0", "waiting")[-1]["for"] == []


def test_a_second_one_dies_while_the_first_is_being_left_out(federation: Build) -> None:
    one = healing(federation, 5)
    begin(one)
    kill(one, "peer2")
    time.sleep(ABSENCE)  # when the others begin to decide
    kill(one, "peer4")
    await_view(one, "peer0", ("peer0", "peer1", "peer3"))
    views = end(one, "peer0", "peer1", "peer3")
    assert views[-1].members == ("peer0", "peer1", "peer3")


def test_one_never_came(federation: Build) -> None:
    one = healing(federation, start_with=3)
    one.start("peer0", "peer1", "peer3")
    await_view(one, "peer0", ("peer0", "peer1", "peer3"))
    views = end(one, "peer0", "peer1", "peer3")
    assert members(views) == [one.ids, ("peer0", "peer1", "peer3")]
    assert views[1].first == 0


def test_one_is_back_at_once_without_its_directory(federation: Build) -> None:
    """Nobody has what it would ask for, so the others go on without it and take it in anew."""
    one = healing(federation)
    begin(one)
    kill(one, "peer2")
    shutil.rmtree(one.directory / "peer2")
    one.start("peer2")
    await_view(one, "peer0", ("peer0", "peer1", "peer3"))
    await_view(one, "peer0", one.ids)
    views = end(one, wiped=["peer2"])
    assert ("peer2", -1) in views[-1].entrants


def test_a_lost_directory_after_the_certificates_were_renewed(federation: Build) -> None:
    """What was decided before can be checked by the earlier CA, which is named for that alone."""
    one = healing(federation)
    certs = secured(one)
    begin(one)
    kill(one, "peer1")
    await_view(one, "peer0", ("peer0", "peer2", "peer3"))
    earlier = one.directory / "earlier.pem"
    shutil.copy(certs / "ca.pem", earlier)
    make_certificates(one.spec, certs, days=2)
    for id in ("peer0", "peer2", "peer3"):
        one.await_event(id, "certificates")
    shutil.rmtree(one.directory / "peer1")
    files = {name: str(path) for name, path in certificate_files(certs, "peer1").items()}
    one.configure("peer1", tls=files | {"earlier": [str(earlier)]})
    one.start("peer1")
    await_view(one, "peer0", one.ids)
    views = end(one, wiped=["peer1"])
    assert ("peer1", -1) in views[-1].entrants


@pytest.mark.parametrize("values", ["1", "5"])
def test_what_a_neighbour_hands_an_entrant_in_another_length_is_that_neighbours_fault(
    values: str, federation: Build
) -> None:
    """The entrant's own protocol failed on it, or took one value for all."""
    one = federation({"name": "tiny:Stingy", "epochs": 1}, 4, rounds=400, **SPEC | {"trace": False})
    one.env = {"peer0": {"STINGY": values}}
    begin(one)
    kill(one, "peer1")
    await_view(one, "peer0", ("peer0", "peer2", "peer3"))
    shutil.rmtree(one.directory / "peer1")
    one.start("peer1")
    assert one.peers["peer1"].wait(60) == 1
    assert "peer0 sent" in one.log("peer1")
    assert "failed:" not in one.log("peer1")


def test_a_model_that_was_fine_tuned_after_a_round_that_became_void_is_made_anew(federation: Build) -> None:
    """Those far away from a peer that is lost in the last round have finished before they hear of it."""
    protocol = {"name": "tiny:Halting", "head_epochs": 1, "extractor_epochs": 1, "gamma": 0.5}
    one = federation(protocol, 6, rounds=4, **SPEC | {"trace": False, "finetune": {"epochs": 1}})
    one.env = {"peer0": {"HALT": "4"}}
    one.start()
    one.await_event("peer3", "finetuned", 60)
    kill(one, "peer0")
    rest = one.ids[1:]
    assert one.wait(120) == dict.fromkeys(rest, 0), one.account()
    for id in rest:
        lines = [json.loads(line) for line in (one.directory / id / "events.jsonl").read_text().splitlines()]
        names = [event["event"] for event in lines if event["event"] in ("view", "finetuned")]
        assert names[-2:] == ["view", "finetuned"], id
