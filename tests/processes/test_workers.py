"""Peers whose data are read by workers: killed, stopped and started again, they end with the same bits, and no worker
outlives its peer."""

import signal
from pathlib import Path

import psutil
import pytest
from real_peers import Build, RunningPeer, SmallFederation, all_gone, digests, until

from peer.runtime.in_process import run_in_process

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"
WATCHED = 10.0
"""Seconds."""


def shapes(federation: Build, workers: int) -> SmallFederation:
    data = {
        "name": "streamed:figures",
        "options": {"samples": 80},
        "transforms": ["RandomHorizontalFlip", {"RandomCrop": {"size": 16, "padding": 2}}],
        "workers": workers,
    }
    protocol = {"name": "fedavg", "lr": 0.05, "epochs": 1, "batch_size": 8}
    return federation(protocol, 2, data=data, rounds=3, code=str(EXAMPLES))


def workers_of(peer: RunningPeer) -> list[int]:
    """Every process that belongs to the peer, as soon as there are the fork server, its tracker and a worker."""

    def look() -> list[int]:
        found = [child.pid for child in psutil.Process(peer.pid).children(recursive=True)]
        return found if len(found) > 2 else []

    return until(look, 30, "a worker reads")


async def test_killed_and_stopped_while_workers_read(federation: Build, tmp_path: Path) -> None:
    made = shapes(federation, workers=1)
    made.start()
    for id, number in (("peer0", signal.SIGKILL), ("peer1", signal.SIGTERM)):
        made.await_event(id, "round", round=1)
        peer = made.peers[id]
        workers = workers_of(peer)
        peer.signal(number)
        assert peer.wait(10) in (-signal.SIGKILL, 128 + signal.SIGTERM)
        all_gone(workers, WATCHED)
    results = made.run()
    assert made.events("peer0", "resumed")
    runtimes = await run_in_process(shapes(federation, workers=0).spec, tmp_path / "memory")
    assert digests(results) == {id: one.setup.model.sha256() for id, one in runtimes.items()}
