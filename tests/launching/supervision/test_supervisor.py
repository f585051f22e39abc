"""The end of a run whose place cannot be reached any more."""

import asyncio
import os
import signal
from pathlib import Path

from unheard import Unheard

from launcher.engines.base import Deployment, FollowedProcess, Process, Run
from launcher.engines.local import LocalDeployment
from launcher.headline import Headline
from launcher.monitor.federation import Federation
from launcher.run_files import RunFiles
from launcher.supervision.supervisor import RestartPolicy, Stop, Supervisor
from peer.spec.loading import load_spec

MATCHED = Headline(test="matched")


class OutOfReach(Deployment):
    def __init__(self) -> None:
        self.peer, self.ended = Unheard(), False
        self.started = asyncio.Event()

    async def start(self, id: str) -> Process:
        self.started.set()
        return self.peer

    async def stop_all(self) -> None:
        self.ended = True


async def test_a_stop_does_not_wait_for_ever_for_peers_that_cannot_be_reached(tmp_path: Path) -> None:
    place, stop = OutOfReach(), Stop()
    federation = Federation(tmp_path, ["peer0"], 3, MATCHED)
    (tmp_path / "small.yaml").write_text("protocol: {name: fibfl}\n")
    run = Run(load_spec(tmp_path / "small.yaml", peers=3), RunFiles(tmp_path))
    supervisor = Supervisor(run, federation, RestartPolicy(grace=0.05))
    running = asyncio.create_task(supervisor.until_end(place, ["peer0"], stop))
    await place.started.wait()
    await asyncio.sleep(0)
    stop.asked.set()
    await asyncio.wait_for(running, 10)
    assert place.ended
    assert place.peer.signals == [15, 9]


class Stopped(OutOfReach):
    """Its peer has been told to stop, by somebody else."""

    async def start(self, id: str) -> Process:
        ended = FollowedProcess(self.peer.signal)
        ended.end(143)
        return ended


class StoppedHere(Stopped, LocalDeployment):
    def __init__(self, run: Run) -> None:
        Stopped.__init__(self)
        self._files = run.files


async def test_who_can_resume_a_stopped_peer_is_told_how(tmp_path: Path) -> None:
    """Its own command starts it only where the launcher has started it as a process of this machine."""
    (tmp_path / "small.yaml").write_text("protocol: {name: fibfl}\n")
    said = list[str]()
    run = Run(load_spec(tmp_path / "small.yaml", peers=3), RunFiles(tmp_path), say=said.append)
    for place in (Stopped(), StoppedHere(run)):
        supervisor = Supervisor(run, Federation(tmp_path, ["peer0"], 3, MATCHED))
        await supervisor.until_end(place, ["peer0"], Stop())
    assert said == [
        "peer0 stopped; to resume it, give this command again once it has ended (Ctrl-C ends it)",
        f"peer0 stopped; resume with: dfl-peer --config {tmp_path}/peer0.yaml",
    ]


async def test_a_closed_terminal_does_not_end_what_nohup_has_started() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop().listening() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            await stop.asked.wait()
        assert stop.code == 143
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)
