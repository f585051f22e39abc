"""Peers as the tasks of one Slurm job.

In reading order: what can be chosen, and the arguments of `sbatch` that it stands for; what Slurm's programs are asked
and what they answer; the engine; the files that the job leaves in DIR/.job, written on a node and read here; and the
deployment, which follows the job from the login node.

The job itself (`programs/slurm_job.py`) finds addresses, starts a task for every peer and decides whether all are
started again. Slurm tells nobody of changes, and neither do file systems of networks: so both are asked every few
seconds.
"""

import asyncio
import json
import math
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, field_validator

from launcher.engines.base import Deployment, Engine, Process, Run
from launcher.engines.preflight import check_certificates, check_room
from launcher.plan import plan
from launcher.run_files import RunFiles
from peer.errors import FailedError, InputError
from peer.files import make_private, write_atomically, write_failure
from peer.settings import Settings, Wanted
from peer.spec.federation import Spec
from peer.spec.peer import refuse_plaintext
from peer.tasks import background
from peer.text import one_line, plural, printable

CHECKPOINT_SECONDS = 60
"""So long before the time limit Slurm sends SIGTERM to the peers."""
UNITS = {"": 1, "M": 1, "G": 1024, "T": 1024**2}


def _size(given: Any) -> Any:
    """As Slurm writes it; a number is MiB."""
    number = isinstance(given, int) and not isinstance(given, bool)
    return str(given).upper() if number or isinstance(given, str) else given


Memory = Annotated[str, Field(pattern=r"^\d+[MGT]?$"), BeforeValidator(_size)]


class SlurmSettings(Settings):
    """One job with a task for every peer; what is not given is as the cluster has it."""

    partition: Annotated[str | None, Wanted("the name of a partition, as `sinfo` has it")] = None
    account: Annotated[str | None, Wanted("the name of an account of yours")] = None
    time: Annotated[str | None, Wanted("minutes or hours:minutes:seconds, such as 30 or 4:00:00")] = None
    """The job's time limit as Slurm writes it, such as 30 (minutes) or 4:00:00; what is left goes on in a new job."""
    cpus: Annotated[int, Field(ge=1), Wanted("a whole number from 1 on, such as 4")] = 1
    """CPUs of every peer."""
    memory: Annotated[Memory | None, Wanted("a number with M, G or T, such as 800M or 4G")] = None
    """Memory of every peer: 800M, 4G."""
    gpus: Annotated[int, Field(ge=0), Wanted("a whole number, such as 1")] = 0
    """GPUs of every peer."""
    port: Annotated[int, Field(ge=1, le=65_535), Wanted("a port from 1 to 65535, such as 7700")] = 7700
    """A peer listens at the first port from here on that is free on its node."""
    requeues: Annotated[int, Field(ge=0), Wanted("a whole number, such as 5")] = 5
    """How often in a row the job is queued again after a crash or its time limit, with no round completed between."""
    poll: Annotated[float, Field(gt=0), Wanted("seconds above 0, such as 5")] = 5.0
    """Seconds between two questions to Slurm."""
    sbatch: Annotated[str, Wanted("arguments of `sbatch` as a shell takes them, such as --qos=high")] = ""
    """Further arguments of `sbatch`, such as "--qos=high --constraint=ib"."""

    @field_validator("time", "account", mode="before")
    @classmethod
    def _as_text(cls, given: object) -> object:
        return str(given) if isinstance(given, int) and not isinstance(given, bool) else given

    @field_validator("sbatch")
    @classmethod
    def _can_be_split(cls, given: str) -> str:
        shlex.split(given)
        return given

    def arguments(self, spec: Spec, files: RunFiles) -> list[str]:
        """Of `sbatch`, for a job that runs this federation."""
        chosen = {"partition": self.partition, "account": self.account, "time": self.time}
        made = [f"--{key}={value}" for key, value in chosen.items() if value is not None]
        made += [f"--job-name={job_name(spec)}", f"--ntasks={len(spec.ids)}", f"--cpus-per-task={self.cpus}"]
        made += [f"--mem-per-cpu={self._memory_per_cpu()}M"] if self.memory else []
        made += [f"--gpus-per-task={self.gpus}"] if self.gpus else []
        made += [f"--chdir={files.path}", f"--output={_literally(files.job / 'log.txt')}", "--open-mode=append"]
        return [*made, "--requeue", f"--signal=TERM@{CHECKPOINT_SECONDS}", *shlex.split(self.sbatch)]

    def _memory_per_cpu(self) -> int:
        """MiB, rounded up: Slurm counts memory by CPU or by node."""
        number, unit = re.fullmatch(r"(\d+)([MGT]?)", self.memory or "0").groups()  # type: ignore[union-attr]
        return -(-int(number) * UNITS[unit] // self.cpus)


def job_name(spec: Spec) -> str:
    return f"dfl-{spec.name}"


def _literally(path: Path) -> str:
    """`sbatch --output` replaces what follows a %."""
    return str(path).replace("%", "%%")


def batch_script(python: str, arguments: Sequence[str]) -> str:
    """The batch script; the rest is Python."""
    inside = Path(__file__).parent / "programs" / "slurm_job.py"
    return f"#!/bin/sh\nexec {shlex.join([python, '-P', str(inside), *arguments])}\n"


PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
FORMAT = "%i|%T|%r|%j|%Z"
"""Of `squeue`: id, state, reason, name, working directory."""


@dataclass(frozen=True)
class QueuedJob:
    """A job that Slurm has not ended yet."""

    id: str
    state: str
    """PENDING, RUNNING, COMPLETING, ..."""
    reason: str
    """Why it does not run, in Slurm's word."""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"Slurm job {self.id} is {self.state.lower()}{why}"


def check_programs() -> None:
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        raise InputError(
            f"--on slurm: there is no {missing[0]} on this machine; run dfl-launch on a login node of the cluster, or "
            "start the peers in another way (--on)"
        )


def check_answers(directory: Path, known: str) -> QueuedJob | None:
    """As `find`; InputError where Slurm does not answer."""
    try:
        return find_job(directory, known)
    except FailedError as error:
        raise InputError(
            f"--on slurm: Slurm does not answer ({error}); see what `scontrol ping` says, or start peers in another "
            "way (--on)"
        ) from None


def find_job(directory: Path, known: str) -> QueuedJob | None:
    """The user's job of this id or name whose working directory this is. FailedError if Slurm does not answer."""
    answer = _answer(["squeue", "--me", "--noheader", f"--format={FORMAT}"])
    for line in answer.splitlines():
        id, state, reason, name_and_place = line.split("|", 3)
        if name_and_place.endswith(f"|{directory}") and known in (id, name_and_place.removesuffix(f"|{directory}")):
            return QueuedJob(id, state, reason)
    return None


def check_job(arguments: Sequence[str], script: str) -> None:
    """InputError with Slurm's reason if it would not take the job."""
    try:
        _answer(["sbatch", "--test-only", *arguments], script)
    except FailedError as error:
        raise InputError(f"Slurm would not take the job: {error}; its settings are given by --option") from None


def submit_job(arguments: Sequence[str], script: str) -> str:
    """The new job's id. FailedError with Slurm's reason if it does not take it."""
    return _answer(["sbatch", "--parsable", *arguments], script).strip().partition(";")[0]


def cancel_job(*arguments: str) -> None:
    """FailedError if Slurm does not answer; that the job has ended already is none."""
    _answer(["scancel", "--quiet", *arguments])


def final_state(id: str) -> str:
    """How the job ended, such as TIMEOUT, as long as Slurm remembers it."""
    try:
        fields = dict(field.partition("=")[::2] for field in _answer(["scontrol", "show", "job", "-o", id]).split())
    except FailedError:
        return "forgotten by Slurm"
    return fields.get("JobState", "of unknown state")


def _answer(command: Sequence[str], given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        raise FailedError(f"{command[0]} failed: {_slurm_reason(done.stderr) or f'exit code {done.returncode}'}")
    return done.stdout


def _slurm_reason(said: str) -> str:
    """In Slurm's words, without who says them and what its own functions say to each other."""
    lines = [re.sub(r"^\w+: (error|fatal): ", "", line.strip()) for line in said.splitlines() if line.strip()]
    told = [line for line in lines if not re.match(r"\w+_\w+: ", line)]
    return one_line("; ".join(dict.fromkeys(told or lines)))


class SlurmEngine(Engine[SlurmSettings]):
    """`--on slurm`: Slurm places the peers, queues the job again after a crash, and keeps it without the launcher."""

    name = "slurm"
    Settings = SlurmSettings
    restarts_peers = True
    outlives_launcher = True

    def check(self, run: Run) -> None:
        check_programs()
        if not run.certs:
            refuse_plaintext(run.spec, "--on slurm: peers on several nodes speak over the network", "--certs")
        check_certificates(run.spec, run.certs)
        if job := check_answers(run.files.path, self._known(run)):
            raise InputError(
                f"{job}, and it runs this federation: `dfl-launch attach {run.files.path}` takes it up, "
                f"`scancel {job.id}` ends it"
            )
        check_job(*self._job(run))
        check_room(plan(run.spec), run.files.path)

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        job, news = await asyncio.to_thread(self._take_up, run)
        run.say(news)
        async with background() as tasks:
            deployment = SlurmDeployment(run, job, self.settings.poll)
            tasks.create_task(deployment.watch())
            yield deployment

    def _take_up(self, run: Run) -> tuple[str | None, str]:
        """The job that runs this, or a new one, and what to say of it. None: all peers were done in an earlier one."""
        outcome = JobDirectory(run.files)
        if job := self._find(run):
            return job.id, str(job)
        if outcome.finished(run.spec.rounds):
            return None, "All peers are done."
        outcome.forget()
        make_private(run.files.job)
        id = submit_job(*self._job(run))
        outcome.submitted(id)
        return id, f"Slurm job {id}, {plural(len(run.spec.ids), 'task')}; its output: {outcome.log}"

    def _find(self, run: Run) -> QueuedJob | None:
        return find_job(run.files.path, self._known(run))

    def _known(self, run: Run) -> str:
        """The job's id, or its name: a launcher may end between submitting the job and writing the id."""
        return JobDirectory(run.files).job or job_name(run.spec)

    def _job(self, run: Run) -> tuple[list[str], str]:
        """The arguments of `sbatch`, and the batch script."""
        inside = [str(run.files.path), f"--port={self.settings.port}", f"--requeues={self.settings.requeues}"]
        return self.settings.arguments(run.spec, run.files), batch_script(sys.executable, [*inside, *run.spec.ids])


class ExitCodes(BaseModel):
    """DIR/.job/codes.json. restarts: how often Slurm has queued the job again; None: nobody saw the peer's end."""

    rounds: int
    restarts: int
    codes: dict[str, int | None]


class JobDirectory:
    """The files of the directory `.job`; the job writes them on a node, the launcher reads them here."""

    def __init__(self, files: RunFiles):
        self._path = files.job
        self._heard = 0

    @property
    def log(self) -> Path:
        return self._path / "log.txt"

    @property
    def job(self) -> str | None:
        """The id of the job that was submitted; None if it is not known."""
        try:
            return (self._path / "id").read_text()
        except FileNotFoundError:
            return None

    def submitted(self, id: str) -> None:
        write_atomically(self._path / "id", id.encode())

    def news(self) -> list[str]:
        """The whole lines that the job has printed since the last time."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._heard)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._heard += len(whole)
        return [printable(line) for line in whole.decode(errors="replace").splitlines()]

    def read(self) -> ExitCodes | None:
        """None until the job has decided."""
        try:
            return ExitCodes.model_validate(json.loads((self._path / "codes.json").read_bytes()))
        except FileNotFoundError:
            return None

    def finished(self, rounds: int) -> bool:
        """Whether every peer has completed so many rounds."""
        codes = self.read()
        return codes is not None and codes.rounds >= rounds and not any(codes.codes.values())

    def last_seen(self, id: str, unseen: int) -> int:
        """The exit code of a peer in a job that could not decide any more; `unseen` if nobody saw the peer's end."""
        try:
            return int((self._path / "exit" / id).read_text())
        except FileNotFoundError:
            return unseen

    def ask_to_stop(self) -> None:
        """So that the job knows that peers which end now are not to be started again. FailedError if it cannot."""
        stop = self._path / "stop"
        try:
            stop.touch()
        except OSError as error:
            raise FailedError(write_failure(stop, error)) from None

    def forget(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


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
        self._outcome = JobDirectory(run.files)
        self._asked = 0
        self._wake = asyncio.Event()
        self._deadline = math.inf
        self._told: dict[str, str] = {}
        self._gone = asyncio.Event()
        self.ended: asyncio.Future[ExitCodes] = asyncio.get_running_loop().create_future()

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
        cancel_job("--state=PENDING", self._job)
        cancel_job(*(["--signal=TERM"] if level == 1 and not unknown else []), self._job)
        return unknown

    async def _look(self) -> None:
        """Whether the job has decided, and what Slurm says of it."""
        assert self._job
        if not self.ended.done() and (codes := self._outcome.read()):
            self.ended.set_result(codes)
        try:
            job = await asyncio.to_thread(find_job, self._run.files.path, self._job)
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
        over = f"Slurm has ended job {self._job} ({final_state(self._job or '')}) and its peers with it"
        if not self._outcome.log.exists():
            return f"{over}, and it wrote nothing here: choose a directory that all nodes share, with --out"
        return f"{over}; see {self._outcome.log}; the same command resumes the run"

    def _tell(self, program: str, news: str) -> None:
        """Once, until the program says something else."""
        if news != self._told.get(program):
            self._told[program] = news
            self._run.say(news)

    async def _last(self) -> ExitCodes:
        """The exit codes after the job's end. FailedError if it was not the peers' and not ours."""
        for _ in range(LOOKS_AFTER_END):
            if codes := self._outcome.read():
                return codes
            await asyncio.sleep(self._poll)
        if not self._asked:
            raise FailedError(await asyncio.to_thread(self._why_over))
        ended = {id: self._outcome.last_seen(id, -signal.SIGTERM) for id in self._run.spec.ids}
        return ExitCodes(rounds=self._run.spec.rounds, restarts=0, codes=ended)
