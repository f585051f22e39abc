"""What the launcher does of a job when Slurm's programs fail; they are shell scripts here."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from errno import ESTALE
from pathlib import Path

import pytest

from launcher.engines import slurm as deployment
from launcher.engines.base import FollowedProcess, Run
from launcher.engines.slurm import JobDirectory, SlurmDeployment, SlurmEngine, SlurmSettings
from launcher.run_files import RunFiles
from peer.errors import FailedError, InputError
from peer.files import make_private, write_atomically
from peer.spec.loading import load_spec
from peer.tasks import background

DEMO = Path(__file__).parents[3] / "examples" / "demo.yaml"


class Slurm:
    """Programs of that name; `down` names those that fail. scancel ends the only job, 12."""

    def __init__(self, directory: Path):
        self.directory, self.said = directory, list[str]()
        self.changed = asyncio.Event()
        self.run = Run(load_spec(DEMO, overrides=["plaintext=true"]), RunFiles(directory / "run"), say=self.say)
        self.run.files.job.mkdir(parents=True)
        self.program("squeue", f"[ -e {directory}/ended ] || echo '12|RUNNING|None|dfl-demo|{self.run.files.path}'")
        self.program("scancel", f"touch {directory}/ended")

    def program(self, name: str, does: str) -> None:
        fails = f"[ -e {self.directory}/down-{name} ] && echo no controller >&2 && exit 1"
        path = self.directory / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{fails}\n{does}\nexit 0\n")
        path.chmod(0o755)

    def say(self, line: str) -> None:
        self.said.append(line)
        self.changed.set()

    def down(self, name: str) -> None:
        (self.directory / f"down-{name}").touch()

    def up(self, name: str) -> None:
        (self.directory / f"down-{name}").unlink()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


@pytest.fixture
async def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", str(tmp_path))
    return Slurm(tmp_path)


@asynccontextmanager
async def deployed(slurm: Slurm) -> AsyncIterator[tuple[SlurmDeployment, FollowedProcess]]:
    """Job 12, and its first peer."""
    async with background() as tasks:
        made = SlurmDeployment(slurm.run, "12", 0.01)
        tasks.create_task(made.watch())
        yield made, await made.start("peer0")


async def test_a_job_is_cancelled_again_until_slurm_has_heard_it(slurm: Slurm) -> None:
    slurm.down("scancel")
    async with deployed(slurm) as (made, peer):
        peer.signal(signal.SIGTERM)
        await slurm.until(lambda: "scancel failed: no controller" in slurm.said)
        assert not peer.ended
        slurm.up("scancel")
        assert await peer.wait() == -signal.SIGTERM
        await made.stop_all()
    assert (slurm.directory / "ended").exists()
    assert slurm.said.count("scancel failed: no controller") == 1


async def test_a_job_that_cannot_be_told_to_stop_is_cancelled_whole(slurm: Slurm) -> None:
    """Else it would start again whom it sees ended. What could not be written, and why, is said."""
    slurm.program("scancel", f'echo "$*" >> {slurm.directory}/asked; touch {slurm.directory}/ended')
    slurm.run.files.job.rmdir()
    async with deployed(slurm) as (_, peer):
        peer.signal(signal.SIGTERM)
        assert await peer.wait() == -signal.SIGTERM
    told = f"cannot write {slurm.run.files.job}/stop: No such file or directory; mend that and start again"
    assert f"{told}; so the job is cancelled without notice" in slurm.said
    assert "--signal" not in (slurm.directory / "asked").read_text()


async def test_peers_of_a_job_are_told_to_stop_and_not_to_leave(slurm: Slurm) -> None:
    """With `on_stop: leave`, after SIGTERM one would leave the others for good, and then the next."""
    slurm.program("scancel", f'echo "$*" >> {slurm.directory}/asked; touch {slurm.directory}/ended')
    async with deployed(slurm) as (_, peer):
        peer.signal(signal.SIGTERM)
        await peer.wait()
    assert "--quiet --signal=INT 12\n" in (slurm.directory / "asked").read_text()


async def test_a_job_that_cannot_be_cancelled_is_named(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "CANCEL_TIMEOUT_S", 0.05)
    slurm.down("scancel")
    async with deployed(slurm) as (made, peer):
        peer.signal(signal.SIGKILL)
        with pytest.raises(FailedError, match="has not ended job 12 yet"):
            await peer.wait()
        await made.stop_all()
    assert any("`scancel 12` ends it" in line for line in slurm.said)


async def test_the_exit_codes_are_read_while_squeue_fails(slurm: Slurm) -> None:
    slurm.down("squeue")
    async with deployed(slurm) as (_, peer):
        await slurm.until(lambda: "squeue failed: no controller" in slurm.said)
        codes = {"rounds": 10, "restarts": {"peer0": 0}, "codes": {"peer0": 7}}
        write_atomically(slurm.run.files.job / "codes.json", json.dumps(codes).encode())
        assert await peer.wait() == 7


@pytest.mark.parametrize("what", ["new_lines", "read"])
async def test_a_file_that_cannot_be_read_for_a_moment_ends_nothing(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As on a network file system whose server restarts."""
    read, fails = getattr(JobDirectory, what), [True]

    def stale(directory: JobDirectory) -> object:
        if fails and fails.pop():
            raise OSError(ESTALE, "Stale file handle", str(directory.log))
        return read(directory)

    monkeypatch.setattr(JobDirectory, what, stale)
    told = f"{slurm.run.files.job}/log.txt cannot be read (Stale file handle); looking again"
    async with deployed(slurm) as (_, peer):
        await slurm.until(lambda: told in slurm.said)
        peer.signal(signal.SIGTERM)
        assert await peer.wait() == -signal.SIGTERM


@pytest.mark.parametrize(("code", "finished"), [(0, True), (None, False), (1, False)])
async def test_peers_whose_end_nobody_saw_have_not_finished(slurm: Slurm, code: int | None, finished: bool) -> None:
    """As after the last requeue: the same command resumes them."""
    make_private(slurm.run.files.job)
    codes = {"rounds": 10, "restarts": {}, "codes": {"peer0": 0, "peer1": code}}
    write_atomically(slurm.run.files.job / "codes.json", json.dumps(codes).encode())
    assert JobDirectory(slurm.run.files).finished(slurm.run.spec) is finished


@pytest.mark.parametrize(
    ("submitted", "name", "found"),
    [
        (None, "bash", False),
        (None, "dfl-demo", True),  # the launcher was killed before it could write the id
        ("11", "dfl-demo", False),
        ("12", "chosen by the user", True),
    ],
)
async def test_another_job_in_the_directory_is_not_the_runs(
    slurm: Slurm, submitted: str | None, name: str, found: bool
) -> None:
    slurm.program("squeue", f"echo '12|RUNNING|None|{name}|{slurm.run.files.path}'")
    slurm.program("scontrol", "")
    slurm.program("sbatch", "exit 1")
    if submitted:
        JobDirectory(slurm.run.files).submitted(submitted)
    with pytest.raises(InputError, match="Slurm job 12 is running" if found else "Slurm would not take the job"):
        SlurmEngine(SlurmSettings()).check(slurm.run)


@pytest.mark.parametrize("stopped", [False, True])
async def test_slurm_may_take_its_time_to_accept_a_job(slurm: Slurm, stopped: bool) -> None:
    """Meanwhile the launcher hears Ctrl-C; a job that is accepted after that is not left in the queue."""
    began, goes_on = slurm.directory / "began", slurm.directory / "goes on"
    os.mkfifo(began)
    os.mkfifo(goes_on)
    slurm.program("squeue", "")
    slurm.program("sbatch", f"echo > '{began}'; read line < '{goes_on}'; echo 13")
    slurm.program("scancel", f"echo $* > {slurm.directory}/cancelled")
    cancelled = slurm.directory / "cancelled"

    async def deploy() -> None:
        async with SlurmEngine(SlurmSettings(poll=0.01)).deploy(slurm.run):
            pass

    loop, meanwhile, heard = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    in_time = list[bool]()

    def accept() -> None:
        began.read_text()
        loop.call_soon_threadsafe(meanwhile.set)
        in_time.append(heard.wait(10))
        goes_on.write_text("\n")

    threading.Thread(target=accept).start()
    deploying = asyncio.create_task(deploy())
    await meanwhile.wait()
    if stopped:
        deploying.cancel()
        await asyncio.sleep(0)
    heard.set()
    await asyncio.wait((deploying,))
    assert in_time == [True], "the launcher hears nothing meanwhile"
    assert deploying.cancelled() is stopped
    assert JobDirectory(slurm.run.files).job == "13"
    assert cancelled.exists() is stopped
    assert not stopped or cancelled.read_text() == "--quiet 13\n"
