"""Nightly backups of all peers, taken while they run and at different times, from which all go back together.

In one process all of them go back in tests/runtime/test_backup.py.
"""

import json
import shutil
import signal

import pytest
from real_peers import Build, SmallFederation, digests, until

from launcher.cli import main
from launcher.reports.peer_files import decided_views
from peer.runtime.backup import backup, sealed_rounds
from peer.spec.document import dump_yaml
from peer.spec.loading import load_spec

ROUNDS = 24
KEEP = {"every": 4, "last": 3}


def begun(federation: Build, **keys: object) -> SmallFederation:
    """A federation whose peers were killed in the middle, in rounds of their own, each backed up some rounds before."""
    made = federation("rdfl", rounds=ROUNDS, keep=KEEP, **keys)
    (made.directory / "nightly").mkdir()
    made.start()
    for round, id in ((8, "peer0"), (10, "peer1"), (13, "peer2")):
        made.await_event(id, "durable", round=round)
        backup(made.directory / id, made.directory / "nightly" / id)
    for id in made.ids:
        made.peers[id].signal(signal.SIGKILL)
        made.peers[id].wait()
    return made


def set_keys(federation: SmallFederation, **keys: object) -> None:
    """The operators agree, and send each other the new file."""
    path = federation.directory / "federation.yaml"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    federation.spec = load_spec(path)


@pytest.mark.long
def test_all_continue_from_backups_of_different_rounds_with_the_same_bits(federation: Build) -> None:
    made = begun(federation)
    undisturbed = made.undisturbed()
    for id in made.ids:
        shutil.rmtree(made.directory / id)
        shutil.copytree(made.directory / "nightly" / id, made.directory / id)
    common = set.intersection(*({*sealed_rounds(made.directory / id)} for id in made.ids))
    assert 8 in common, "the newest that all of them kept, as long as none is two such rounds ahead"
    set_keys(made, rewinds=[max(common)])
    assert digests(made.run()) == undisturbed
    for id in made.ids:
        assert [event["round"] for event in made.events(id, "rewound")] == [max(common)]


@pytest.mark.long
def test_one_disk_is_lost_and_who_does_not_go_back_with_the_others_is_told(federation: Build) -> None:
    made = begun(federation)
    undisturbed = made.undisturbed()
    shutil.rmtree(made.directory / "peer1")
    shutil.copytree(made.directory / "nightly" / "peer1", made.directory / "peer1")
    common = set.intersection(*({*sealed_rounds(made.directory / id)} for id in made.ids))
    made.start("peer0")
    made.await_event("peer0", "resumed")
    set_keys(made, rewinds=[max(common)])
    made.start("peer2")
    until(lambda: "`rewinds` [" in made.log("peer0") or None, 20, "peer0 hears in what it differs")
    made.peers["peer0"].signal(signal.SIGTERM)
    made.peers["peer0"].wait()
    made.start("peer0", "peer1")
    assert made.wait() == dict.fromkeys(made.ids, 0), made.account()
    assert digests(made.results()) == undisturbed


@pytest.mark.long
def test_members_that_may_change_go_back_too_and_vote_anew(federation: Build) -> None:
    made = begun(federation, on_loss="bypass", absence=8)
    undisturbed = made.undisturbed()
    common = set.intersection(*({*sealed_rounds(made.directory / id)} for id in made.ids))
    set_keys(made, rewinds=[min(common)])
    assert digests(made.run()) == undisturbed
    for id in made.ids:
        audit = [json.loads(line) for line in (made.directory / id / "audit.jsonl").read_text().splitlines()]
        assert [(one["round"], one["rewinds"]) for one in audit if "rewinds" in one] == [
            (min(common) + 1, [min(common)])
        ]


def test_a_federation_that_waits_for_one_that_is_lost_for_good_goes_on_without_it(federation: Build) -> None:
    made = federation({"name": "fedavg", "epochs": 1}, peers=4, rounds=12)
    made.start()
    made.await_event("peer0", "round", round=4)
    for id in made.ids:
        made.peers[id].signal(signal.SIGKILL)
        made.peers[id].wait()
    set_keys(made, on_loss="bypass", absence=3, patience=20)
    made.peers.clear()
    made.start("peer0", "peer1", "peer3")
    assert {*made.wait().values()} == {0}, made.account()
    [view] = made.events("peer0", "view")
    assert view["members"] == ["peer0", "peer1", "peer3"]
    set_keys(made, on_loss="wait", rounds=13)
    made.start("peer0")
    assert made.peers["peer0"].wait() == 2
    assert "the members of this run have changed" in made.log("peer0")


@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.long)])
def test_all_go_back_past_a_change_of_members(federation: Build, back: bool) -> None:
    """To a round that three of four have played, with the same bits; the fourth, lost since before, may return."""
    keys = {"on_loss": "bypass", "absence": 3, "patience": 20, "keep": KEEP}
    made = federation({"name": "fedavg", "epochs": 1}, peers=4, rounds=ROUNDS, **keys)
    three = made.ids[:3]
    made.start()
    made.await_event("peer0", "round", round=4)
    made.peers.pop("peer3").signal(signal.SIGKILL)
    assert {*made.wait().values()} == {0}, made.account()
    [view] = made.events("peer0", "view")
    before = {id: sha256(made, id) for id in three}
    path = made.directory / "federation.yaml"
    rounds = ROUNDS + 200 * back  # enough for peer3 to be there before the others finish
    path.write_text(dump_yaml(json.loads(path.read_text()) | {"rounds": rounds}))
    assert main(["rewind", str(path), "--out", str(made.directory), "--to", "16"]) == 0
    made.spec = load_spec(path)
    assert made.spec.plain_rewinds == [{"round": 16, "view": 2, "members": [*three]}]
    backup(made.directory / "peer1", made.directory / "nightly")
    shutil.rmtree(made.directory / "peer1")
    (made.directory / "nightly").replace(made.directory / "peer1")
    made.peers.clear()
    made.start(*(made.ids if back else three))
    assert {*made.wait().values()} == {0}, made.account()
    views = decided_views(made.spec, {id: made.directory / id for id in made.ids}, rounds)
    assert (views.members(4), views.members(16)) == (made.ids if view["first"] > 4 else three, three)
    assert views.by_number[2].first == 17
    assert views.by_number[2].reason.startswith("peer0, peer1, peer2 went back to round 16; peer3 silent for 3 s")
    assert [event["number"] for event in made.events("peer0", "view")][:2] == [1, 2]
    if back:
        assert views.members(rounds) == made.ids
    else:
        assert {id: sha256(made, id) for id in three} == before


@pytest.mark.long
def test_members_learn_from_one_that_is_none_of_the_view_in_which_they_go_on(federation: Build) -> None:
    """All others know fewer views: they come from backups. A view that nobody knows is named."""
    made = federation(
        {"name": "fedavg", "epochs": 1}, peers=4, rounds=300, on_loss="bypass", absence=3, patience=8, keep=KEEP
    )
    made.start()
    made.await_event("peer0", "round", round=4)
    made.peers["peer3"].signal(signal.SIGKILL)
    made.await_event("peer0", "round", round=10)
    for id in made.ids[:3]:
        backup(made.directory / id, made.directory / f"backup-{id}")
    made.start("peer3")
    made.await_event("peer3", "view", number=2)
    for id in made.ids:
        made.peers[id].signal(signal.SIGKILL)
        made.peers[id].wait()
    for id in made.ids[:3]:
        shutil.rmtree(made.directory / id)
        (made.directory / f"backup-{id}").rename(made.directory / id)
    set_keys(made, rewinds=[{"round": 8, "view": 4, "members": [*made.ids[:3]]}])
    made.peers.clear()
    made.start("peer0")
    assert made.peers["peer0"].wait() == 1
    assert "no peer that answers knows view 3, after which all go back by `rewinds`" in made.log("peer0")
    entry = {"round": 8, "view": 3, "members": [*made.ids[:3]]}
    set_keys(made, rewinds=[{"round": 8, "view": 4, "members": [*made.ids[:3]]}, entry])
    made.start()
    assert {*made.wait().values()} == {0}, made.account()
    views = decided_views(made.spec, {id: made.directory / id for id in made.ids}, 300)
    assert (views.members(8), views.by_number[3].members, views.members(300)) == (made.ids[:3], made.ids[:3], made.ids)


@pytest.mark.long
def test_one_that_was_away_when_a_view_was_decided_learns_of_it_before_it_plays(federation: Build) -> None:
    made = federation(
        {"name": "fedavg", "epochs": 1}, peers=5, rounds=40, on_loss="bypass", absence=3, patience=30, keep=KEEP
    )
    made.start()
    for round, gone in ((3, "peer4"), (11, "peer0")):
        made.await_event("peer1", "round", round=round)
        made.peers[gone].signal(signal.SIGKILL)
    made.await_event("peer1", "view", number=2)
    for id in ("peer1", "peer2", "peer3"):
        made.peers[id].signal(signal.SIGKILL)
        made.peers[id].wait()
    path = made.directory / "federation.yaml"
    path.write_text(dump_yaml(json.loads(path.read_text())))
    assert main(["rewind", str(path), "--out", str(made.directory), "--to", "8"]) == 0
    made.spec = load_spec(path)
    assert made.spec.plain_rewinds == [{"round": 8, "view": 3, "members": ["peer0", "peer1", "peer2", "peer3"]}]
    made.peers.clear()
    made.start("peer0")
    until(lambda: "to rejoin" in made.log("peer0") or None, 20, "peer0 asks the others what it has missed")
    made.start("peer1", "peer2", "peer3")
    assert {*made.wait().values()} == {0}, made.account()
    assert made.log("peer0").count("to rejoin: waiting for peer1, peer2, peer3 to answer") == 1
    assert [event["number"] for event in made.events("peer0", "view")] == [1, 3]
    after = [event["round"] for event in made.events("peer0", "round")]
    assert after[-32:] == [*range(9, 41)]


def sha256(made: SmallFederation, id: str) -> str:
    return str(json.loads((made.directory / id / "result.json").read_text())["model_sha256"])
