"""Nightly backups of all peers, taken while they run and at different times, from which all go back together."""

import json
import shutil
import signal
import tarfile
from pathlib import Path

import pytest
from real_peers import Build, SmallFederation, digests

from peer.cli import main
from peer.runtime.backup import backup, sealed_rounds
from peer.spec.loading import load_spec

ROUNDS = 24
KEEP = {"every": 4, "last": 3}


def begun(federation: Build, **keys: object) -> SmallFederation:
    """A federation whose peers were killed in the middle, in rounds of their own, each backed up some rounds before."""
    made = federation("rdfl", rounds=ROUNDS, keep=KEEP, **keys)
    made.start()
    for round, id in ((9, "peer0"), (11, "peer1"), (14, "peer2")):
        made.await_event(id, "round", round=round)
        backup(made.directory / id, made.directory / "nightly" / id)
    for id in made.ids:
        made.peers[id].signal(signal.SIGKILL)
        made.peers[id].wait()
    return made


def go_back(federation: SmallFederation, *rounds: int) -> None:
    """The operators agree, and send each other the new file."""
    path = federation.directory / "federation.yaml"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rewinds": rounds}))
    federation.spec = load_spec(path)


def test_all_continue_from_backups_of_different_rounds_with_the_same_bits(federation: Build) -> None:
    made = begun(federation)
    undisturbed = made.undisturbed()
    for id in made.ids:
        shutil.rmtree(made.directory / id)
        shutil.copytree(made.directory / "nightly" / id, made.directory / id)
    common = set.intersection(*({*sealed_rounds(made.directory / id)} for id in made.ids))
    assert common
    go_back(made, max(common))
    assert digests(made.run()) == undisturbed
    for id in made.ids:
        assert [event["round"] for event in made.events(id, "rewound")] == [max(common)]


def test_one_disk_is_lost_and_the_others_go_back_from_what_they_have(federation: Build) -> None:
    made = begun(federation)
    undisturbed = made.undisturbed()
    shutil.rmtree(made.directory / "peer1")
    shutil.copytree(made.directory / "nightly" / "peer1", made.directory / "peer1")
    common = set.intersection(*({*sealed_rounds(made.directory / id)} for id in made.ids))
    go_back(made, max(common))
    assert digests(made.run()) == undisturbed
