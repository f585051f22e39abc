"""The peers of a run in a Slurm job, as seen from the login node."""

import asyncio
import math
import signal
from contextlib import suppress

from launcher.engines.base import Deployment, Process, Run
from launcher.engines.slurm import queue
from launcher.engines.slurm.outcome import Codes, Outcome
from peer.errors import FailedError

PATIENCE = 60.0
"""Seconds that Slurm has to end the job when it was told to; it waits itself for half of that (KillWait)."""
ENDING_POLL = 0.5
"""Seconds between two questions to Slurm when somebody waits for the end."""
LOOKS_AFTER_END = 3
"""So often the file of the exit codes is looked for after the job's end: a network's file system may show it late."""


class SlurmProcess(Process):
    """One task of the job. What is done to it is done to all: a run's peers are ended together."""

    def __init__(self, id: str, deployment: "SlurmDeployment"):
        self._id, self._deployment = id, deployment
        self._restarts = 0

    @property
    def restarts(self) -> int:
        return self._restarts

    async def wait(self) -> int:
        codes = await asyncio.shield(self._deployment.ended)
        self._restarts = codes.restarts
        code = codes.codes[self._id]
        return -signal.SIGKILL if code is None else code

    def signal(self, number: int) -> None:
        self._deployment.ask(number)


class SlurmDeployment(Deployment):
    """Follows the job; says what Slurm says of it and what it prints itself.

    job: its id; None if there is none any more and every peer is done.
    """

    def __init__(self, run: Run, job: str | None, poll: float):
        self._run, self._job, self._poll = run, job, poll
        self._outcome = Outcome(run.files)
        self._asked = 0
        self._wake = asyncio.Event()
        self._deadline = math.inf
        self._told: dict[str, str] = {}
        self._gone = asyncio.Event()
        self.ended: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()

    async def start(self, id: str) -> SlurmProcess:
        return SlurmProcess(id, self)

    def ask(self, number: int) -> None:
        """SIGTERM to all peers; SIGKILL cancels the job."""
        if not self.ended.done() and self._asked < (level := 2 if number == signal.SIGKILL else 1):
            self._asked = level
            if level == 2:
                self._deadline = asyncio.get_running_loop().time() + PATIENCE
            self._wake.set()

    async def watch(self) -> None:
        """Until Slurm has ended the job."""
        done = 0
        try:
            while self._job and not self._gone.is_set():
                self._listen()
                done = await self._obey(done)
                await self._look()
                self._give_up()
                await self._pause()
            self._listen()
            if not self.ended.done():
                self.ended.set_result(await self._last())
        except FailedError as error:
            if self.ended.done():
                raise
            self.ended.set_exception(error)
            self.ended.exception()  # whoever waits raises it
        finally:
            self._gone.set()

    async def end(self) -> None:
        """Until Slurm has put the job away: before, nothing new can begin in the directory."""
        self._wake.set()
        try:
            await asyncio.wait_for(self._gone.wait(), PATIENCE)
        except TimeoutError:
            self._run.say(self._alive())

    async def _pause(self) -> None:
        """Slurm tells nobody of changes, and neither do file systems of networks."""
        with suppress(TimeoutError):
            ending = self.ended.done() or self._asked
            await asyncio.wait_for(self._wake.wait(), min(self._poll, ENDING_POLL) if ending else self._poll)
        self._wake.clear()

    def _listen(self) -> None:
        for line in self._outcome.news():
            self._run.say(line)

    async def _obey(self, done: int) -> int:
        """Does what was asked since the last time; what has been done by now."""
        if self._asked > done:
            asked = self._asked
            try:
                if unknown := await asyncio.to_thread(self._cancel, asked):
                    self._tell("stop", f"{unknown}; the job is cancelled without a word to it")
            except FailedError as error:
                self._tell("scancel", str(error))  # the next time it may answer
            else:
                return asked
        return done

    def _cancel(self, level: int) -> str:
        """Why the job cannot be told of it, and is only cancelled: it would start again whom it sees ended."""
        assert self._job
        unknown = ""
        try:
            self._outcome.ask_to_stop()
        except FailedError as error:
            unknown = str(error)
        queue.cancel("--state=PENDING", self._job)
        queue.cancel(*(["--signal=TERM"] if level == 1 and not unknown else []), self._job)
        return unknown

    async def _look(self) -> None:
        """Whether the job has decided, and what Slurm says of it."""
        assert self._job
        if not self.ended.done() and (codes := self._outcome.read()):
            self.ended.set_result(codes)
        try:
            job = await asyncio.to_thread(queue.find, self._run.files.path, self._job)
        except FailedError as error:
            return self._tell("squeue", str(error))  # the controller may restart
        if job is None:
            self._gone.set()
        elif job.state != "COMPLETING":
            self._tell("squeue", str(job))
        return None

    def _give_up(self) -> None:
        """FailedError if the job was to be ended long ago; that is said, as nobody may wait for it any more."""
        if not self._gone.is_set() and not self.ended.done() and asyncio.get_running_loop().time() > self._deadline:
            self._run.say(self._alive())
            raise FailedError(self._alive())

    def _alive(self) -> str:
        job = self._job
        return f"Slurm has not ended job {job} yet; `squeue --job={job}` shows it, `scancel {job}` ends it"

    def _why_over(self) -> str:
        over = f"Slurm has ended job {self._job} ({queue.end_of(self._job or '')}) and its peers with it"
        if not self._outcome.log.exists():
            return f"{over}, and it wrote nothing here: choose a directory that all nodes share, with --out"
        return f"{over}; see {self._outcome.log}; the same command resumes the run"

    def _tell(self, program: str, news: str) -> None:
        """Once, until the program says something else."""
        if news != self._told.get(program):
            self._told[program] = news
            self._run.say(news)

    async def _last(self) -> Codes:
        """The exit codes after the job's end. FailedError if it was not the peers' and not ours."""
        for _ in range(LOOKS_AFTER_END):
            if codes := self._outcome.read():
                return codes
            await asyncio.sleep(self._poll)
        if not self._asked:
            raise FailedError(await asyncio.to_thread(self._why_over))
        ended = {id: self._outcome.last_seen(id, -signal.SIGTERM) for id in self._run.spec.ids}
        return Codes(rounds=self._run.spec.rounds, restarts=0, codes=ended)
