"""Peers that nobody can dial: one connection carries both directions, and nothing else is different."""

import json
import re
import signal
from pathlib import Path

import pytest
from proxies import edges
from real_peers import Build, BuildWatched, SmallFederation, digests

from launcher import cli as launcher
from launcher.certificates import make_certificates
from launcher.run_files import certificate_files
from peer import cli as peer
from peer.runtime.in_process import run_in_process
from peer.spec.blocks import Member
from peer.spec.document import dump_yaml

pytestmark = pytest.mark.long

PROTOCOL = {"name": "fibfl+", "head_epochs": 1, "extractor_epochs": 1, "tau": 0.05}
OUTWARD = "peer1", "peer3"


async def undisturbed(federation: SmallFederation, place: Path) -> dict[str, str]:
    """In one process, where everybody has an address."""
    members = tuple(Member(id=id, address=f"127.0.0.1:{7000 + i}") for i, id in enumerate(federation.ids))
    runtimes = await run_in_process(federation.spec.model_copy(update={"ring": members}), place)
    return {id: one.setup.model.sha256() for id, one in runtimes.items()}


def give_certificates(made: SmallFederation) -> None:
    certs = made.directory / "certs"
    make_certificates(made.spec, certs, days=1)
    for id in made.ids:
        with (made.directory / f"{id}.yaml").open("a") as file:
            file.write(dump_yaml({"tls": {name: str(path) for name, path in certificate_files(certs, id).items()}}))


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_same_bits_through_kills_and_cuts(secure: bool, watched: BuildWatched, tmp_path: Path) -> None:
    made, proxies = watched(PROTOCOL, peers=4, dial_out=(1, 3), rounds=24)
    if secure:
        give_certificates(made)
    made.start()
    made.await_event("peer1", "round", round=3)
    assert proxies.cut() > 4
    made.await_event("peer2", "round", round=8)
    for victim in ("peer1", "peer2"):
        made.peers[victim].signal(signal.SIGKILL)
        made.peers[victim].wait(10)
    made.start("peer1", "peer2")
    made.await_event("peer0", "round", round=14)
    assert proxies.cut() > 4
    assert made.wait() == dict.fromkeys(made.ids, 0), made.account()
    assert digests(made.results()) == await undisturbed(made, tmp_path / "memory")
    if not secure:
        dialled = {edge for edge in edges(proxies.connections) if edge}
        assert {who for who, _ in dialled} >= {*OUTWARD}
        assert not {whom for _, whom in dialled} & {*OUTWARD}


async def test_in_one_process(federation: Build, tmp_path: Path) -> None:
    made = federation(PROTOCOL, addresses=["127.0.0.1:7000", None, "127.0.0.1:7001"], rounds=3)
    runtimes = await run_in_process(made.spec, tmp_path / "out")
    assert {id: one.setup.model.sha256() for id, one in runtimes.items()} == await undisturbed(made, tmp_path / "in")


def test_who_has_not_called_is_waited_for_by_name(federation: Build) -> None:
    made = federation(PROTOCOL, addresses=[*addresses(federation, 1), None, "127.0.0.1:1"], patience=2)
    made.start("peer0")
    made.wait()
    assert "peer1: nobody can dial it, and it has not called yet" in made.log("peer0").splitlines()[-1]


def addresses(federation: Build, count: int) -> list[str]:
    made = federation(PROTOCOL)
    return [made.address(id) for id in made.ids][:count]


def test_two_neighbours_of_which_neither_can_be_dialled(
    federation: Build, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`check`, `run` and the peer itself refuse them in one sentence; in a ring that is put in order, any two."""
    made = federation(PROTOCOL, peers=4, addresses=[None, "127.0.0.1:7001", None, "127.0.0.1:7003"])
    path, config = made.directory / "federation.yaml", made.directory / "peer0.yaml"
    for ring, protocol in (((0, 2, 1, 3), PROTOCOL), ((0, 1, 2, 3), {"name": "fibfl++"})):
        content = json.loads(path.read_text())
        members = {member["id"]: member for member in content["ring"]}
        ring_now = [members[f"peer{number}"] for number in ring]
        path.write_text(json.dumps(content | {"ring": ring_now, "protocol": protocol}))
        for main, arguments in (
            (launcher.main, ["check", str(path)]),
            (launcher.main, ["run", str(path), "--out", str(tmp_path / "out")]),
            (peer.main, ["--config", str(config)]),
        ):
            assert main(arguments) == 2
            said = capsys.readouterr().err
            assert re.search("`peer[02]` and `peer[02]` are neighbours and both only dial out", said)
            assert "give one of them an `address`" in said
            assert said.count("\n") == 1
