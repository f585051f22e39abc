"""Peers of this release beside those of the next: a copy of this one with other numbers, in processes of its own."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from real_peers import Build, SmallFederation, digests, until

import peer
from peer.versions import DIRECTORY, WIRE, release

pytestmark = pytest.mark.long
SOURCE = Path(peer.__file__).parent
RUN_PEER = "import sys; from peer.cli import main; sys.exit(main(sys.argv[1:]))"


class OtherRelease:
    """Another release of dfl in a directory, from which its processes start: Python looks there first."""

    def __init__(self, root: Path, **formats: tuple[int, int]) -> None:
        """formats: (newest, oldest number that it reads) by name."""
        self._root, self._running = root, list[subprocess.Popen[bytes]]()
        shutil.copytree(SOURCE, root / "peer", ignore=shutil.ignore_patterns("__pycache__"))
        path = root / "peer" / "versions.py"
        text = path.read_text()
        for name, (writes, reads) in formats.items():
            text, changed = re.subn(
                rf'(Format\("{name}".*)writes=\d+, reads=\d+', rf"\1writes={writes}, reads={reads}", text
            )
            assert changed == 1, name
        path.write_text(text)
        asked = [sys.executable, "-c", "from peer.versions import release; print(release())"]
        self.name = subprocess.run(
            asked, env=self._env, cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()

    @property
    def _env(self) -> dict[str, str]:
        return os.environ | {"OMP_NUM_THREADS": "1"}

    def start(self, made: SmallFederation, id: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", RUN_PEER, "--config", str(made.directory / f"{id}.yaml")]
        with (made.directory / f"{id}.log").open("ab") as log:
            self._running.append(subprocess.Popen(argv, env=self._env, cwd=self._root, stdout=log, stderr=log))
        return self._running[-1]

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


Install = Callable[..., OtherRelease]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    made: list[OtherRelease] = []

    def installed(**formats: tuple[int, int]) -> OtherRelease:
        made.append(OtherRelease(tmp_path / f"release{len(made)}", **formats))
        return made[-1]

    yield installed
    for one in made:
        one.end()


def test_peers_are_upgraded_one_after_the_other(federation: Build, install: Install) -> None:
    """In the middle of a run, by a release with another wire and another directory, and with the same bits."""
    later = install(wire=(WIRE.writes + 1, WIRE.writes), directory=(DIRECTORY.writes + 1, DIRECTORY.writes))
    made = federation({"name": "rdfl", "epochs": 1}, rounds=60)
    undisturbed = made.undisturbed()
    made.start()
    upgraded = []
    for id in made.ids:
        at = until(lambda id=id: made.events(id, "round"), 30, f"{id} trains")[-1]["round"]
        made.await_event(id, "round", round=at + 2)
        made.peers[id].signal(15)
        made.peers.pop(id).wait()
        upgraded.append(later.start(made, id))
    assert [process.wait(90) for process in upgraded] == [0, 0, 0], [made.log(id) for id in made.ids]
    assert digests(made.results()) == undisturbed
    for id in made.ids:
        seen = [(event["neighbour"], event["release"]) for event in made.events(id, "release")]
        assert {name for _, name in seen} <= {later.name, release()}
    assert (made.ids[0], later.name) in [(e["neighbour"], e["release"]) for e in made.events("peer1", "release")]


def test_a_release_that_reads_neither_is_refused_and_changes_nothing(federation: Build, install: Install) -> None:
    later = install(wire=(WIRE.writes + 2, WIRE.writes + 1), directory=(DIRECTORY.writes + 2, DIRECTORY.writes + 1))
    made = federation({"name": "rdfl", "epochs": 1}, rounds=5000)
    made.start()
    made.await_event("peer0", "round", round=3)
    made.peers["peer0"].signal(15)
    made.peers.pop("peer0").wait()
    kept = {path: path.read_bytes() for path in (made.directory / "peer0").rglob("*") if path.is_file()}
    assert later.start(made, "peer0").wait(60) == 2
    complaint = made.log("peer0").splitlines()[-1]
    for said in (f"directory format {DIRECTORY.writes}, written by dfl {release()}", f"dfl {later.name} reads format"):
        assert said in complaint
    assert {path: path.read_bytes() for path in kept} == kept
    shutil.rmtree(made.directory / "peer0")
    process = later.start(made, "peer0")
    numbers = f"speaks wire version {WIRE.writes}, and `peer0` with dfl {later.name} speaks {WIRE.writes + 1} to"
    refused = until(lambda: made.events("peer1", "refused"), 60, "peer1 refuses peer0")
    assert any(event["kind"] == "version" and numbers in event["reason"] for event in refused)
    assert any("upgrade `peer1`" in event["reason"] for event in refused)
    until(lambda: "upgrade `peer" in made.log("peer0") or None, 30, "peer0 hears why")
    assert psutil.Process(process.pid).is_running()
