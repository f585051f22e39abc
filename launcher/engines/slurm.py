"""Peers as the tasks of one Slurm job.

In reading order: the settings, and the arguments of `sbatch` that they stand for; requests to Slurm's programs and
their answers; the engine; the files that the job leaves in DIR/.job, written on a node and read here; and the
deployment, which follows the job from the login node.

The job itself (`programs/slurm_job.py`) finds addresses, starts a task for every peer and decides whether it is queued
again; each task (`programs/slurm_task.py`) restarts its peer after a crash. Neither Slurm nor a network file system
reports changes, so both are polled.
"""

import asyncio
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

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, field_validator

from launcher.engines.base import Deployment, Engine, FollowedProcess, Run, as_text
from launcher.engines.preflight import as_input_error, check_room, check_secrecy
from launcher.run_files import RunFiles
from peer.errors import FailedError, InputError
from peer.files import lines, make_private, write_atomically, write_failure
from peer.settings import Settings, Wanted
from peer.spec.federation import Spec
from peer.spec.peer import check_device
from peer.tasks import background, in_thread, within
from peer.text import one_line, plural, printable

UNITS = {"": 1, "M": 1, "G": 1024, "T": 1024**2}


Text = Annotated[str, BeforeValidator(as_text)]
Memory = Annotated[str, StringConstraints(pattern=r"^\d+[MGTmgt]?$", to_upper=True), BeforeValidator(as_text)]
"""As Slurm writes it; a number is MiB."""


class SlurmSettings(Settings):
    """One job with a task for every peer; what is not given is as the cluster has it."""

    partition: Annotated[str | None, Wanted("the name of a partition, as `sinfo` has it")] = None
    account: Annotated[Text | None, Wanted("the name of an account of yours")] = None
    time: Annotated[Text | None, Wanted("minutes or hours:minutes:seconds, such as 30 or 4:00:00")] = None
    """The job's time limit as Slurm writes it, such as 30 (minutes) or 4:00:00; what is left goes on in a new job."""
    cpus: Annotated[int, Field(ge=1), Wanted("a whole number from 1 on, such as 4")] = 1
    """CPUs of every peer."""
    memory: Annotated[Memory | None, Wanted("a number with M, G or T, such as 800M or 4G")] = None
    """Memory of every peer: 800M, 4G."""
    gpus: Annotated[int, Field(ge=0), Wanted("a whole number, such as 1")] = 0
    """GPUs of every peer."""
    port: Annotated[int, Field(ge=1, le=65_535), Wanted("a port from 1 to 65535, such as 7700")] = 7700
    """A peer listens at the first port from here on that is free on its node."""
    warning: Annotated[int, Field(ge=1, le=65_535), Wanted("seconds from 1 to 65535, such as 60")] = 60
    """Seconds before the time limit at which the peers are told to stop; Slurm may do so up to a minute earlier."""
    restarts: Annotated[int, Field(ge=0), Wanted("a whole number, such as 3")] = 3
    """How often in a row a crashed peer is restarted within the job, with no round of its own completed between."""
    requeues: Annotated[int, Field(ge=0), Wanted("a whole number, such as 5")] = 5
    """How often in a row the job is queued again after that or its time limit, with no round completed between."""
    poll: Annotated[float, Field(gt=0), Wanted("seconds above 0, such as 5")] = 5.0
    """Seconds between two questions to Slurm."""
    sbatch: Annotated[str, Wanted("arguments of `sbatch` as a shell takes them, such as --qos=high")] = ""
    """Further arguments of `sbatch`, such as "--qos=high --constraint=ib"."""

    @field_validator("sbatch")
    @classmethod
    def _can_be_split(cls, given: str) -> str:
        shlex.split(given)
        return given

    def check_time(self) -> None:
        """Raise InputError if the peers would be told to stop as soon as they start: by `time` or, where that and
        `sbatch` say nothing, by the partition's default. Raises FailedError if Slurm does not answer."""
        written, what = self.time or "", "`time`"
        if not self.time and not re.search(r"(^|\s)(-t|--time\b)", self.sbatch):
            written, what = default_limit(self.partition), "the partition's default time limit"
        limit = time_limit(written)
        if limit is not None and limit <= self.warning:
            raise InputError(
                f"--on slurm: {what} is {plural(limit // 60, 'minute')}, and the peers are told to stop {self.warning} "
                "seconds before its end; give a longer `time` or a shorter `warning`"
            )

    def arguments(self, spec: Spec, files: RunFiles) -> list[str]:
        """Return the arguments of `sbatch` for a job that runs this federation."""
        chosen = {"partition": self.partition, "account": self.account, "time": self.time}
        made = [f"--{key}={value}" for key, value in chosen.items() if value is not None]
        made += [f"--job-name={job_name(spec)}", f"--ntasks={len(spec.ids)}", f"--cpus-per-task={self.cpus}"]
        made += [f"--mem-per-cpu={self._memory_per_cpu()}M"] if self.memory else []
        made += [f"--gpus-per-task={self.gpus}"] if self.gpus else []
        output = str(files.job / "log.txt").replace("%", "%%")  # in it % is special
        made += [f"--chdir={files.path}", f"--output={output}", "--open-mode=append"]
        # SIGINT, as after SIGTERM a peer may leave the others for good.
        return [*made, "--requeue", f"--signal=INT@{self.warning}", *shlex.split(self.sbatch)]

    def _memory_per_cpu(self) -> int:
        """Return MiB, rounded up: Slurm counts memory by CPU or by node."""
        number, unit = re.fullmatch(r"(\d+)([MGT]?)", self.memory or "0").groups()  # type: ignore[union-attr]
        return -(-int(number) * UNITS[unit] // self.cpus)


def time_limit(written: str) -> int | None:
    """Return the seconds, in whole minutes as Slurm counts them; None without a limit or in a form unknown here."""
    days, dash, clock = written.rpartition("-")
    parts = clock.split(":")
    if len(parts) > 3 or not all(part.isdecimal() for part in (days or "0", *parts)):
        return None
    begins_with_hours = dash or len(parts) == 3
    padded = [*parts, "0", "0"] if begins_with_hours else ["0", *parts, "0"]
    hours, minutes, seconds = map(int, padded[:3])
    return 60 * (60 * (24 * int(days or "0") + hours) + minutes + -(-seconds // 60)) or None


def job_name(spec: Spec) -> str:
    return f"dfl-{spec.name}"


PROGRAM = Path(__file__).parent / "programs" / "slurm_job.py"
"""What the batch script runs."""
NO_ANSWER = (
    "--on slurm: Slurm does not answer ({}); see what `scontrol ping` says, or start peers in another way (--on)"
)
PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
SQUEUE_FORMAT = "%i|%T|%r|%j|%Z"
"""Id, state, reason, name, working directory."""


@dataclass(frozen=True)
class QueuedJob:
    """A job that has not ended yet."""

    id: str
    state: str
    """PENDING, RUNNING, COMPLETING, ..."""
    reason: str
    """Why it does not run, in Slurm's term."""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"Slurm job {self.id} is {self.state.lower()}{why}"


def check_programs() -> None:
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        raise InputError(
            f"--on slurm: there is no {missing[0]} on this machine; run dfl-launch on a login node of the cluster, or "
            "start the peers in another way (--on)"
        )


def find_job(directory: Path, known: str) -> QueuedJob | None:
    """Return the user's job of this id or name in this working directory. Raises FailedError if Slurm is silent."""
    answer = _answer(["squeue", "--me", "--noheader", f"--format={SQUEUE_FORMAT}"])
    for line in answer.splitlines():
        id, state, reason, name_and_place = line.split("|", 3)
        if name_and_place.endswith(f"|{directory}") and known in (id, name_and_place.removesuffix(f"|{directory}")):
            return QueuedJob(id, state, reason)
    return None


def default_limit(partition: str | None) -> str:
    """Return the time limit, as Slurm writes it, of a job that asks for none, in that partition or the default one."""
    for line in _answer(["scontrol", "show", "partition", "-o"]).splitlines():
        fields = dict(field.partition("=")[::2] for field in line.split())
        if fields.get("PartitionName") == partition or (partition is None and fields.get("Default") == "YES"):
            return fields.get("MaxTime", "") if fields.get("DefaultTime") == "NONE" else fields.get("DefaultTime", "")
    return ""


def final_state(id: str) -> str:
    """Return how the job ended, such as TIMEOUT, as long as Slurm remembers it."""
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
    """Return Slurm's own message, without the program's name and the internal functions before it."""
    lines = [re.sub(r"^\w+: (error|fatal): ", "", line.strip()) for line in said.splitlines() if line.strip()]
    shown = [line for line in lines if not re.match(r"\w+_\w+: ", line)]
    return one_line("; ".join(dict.fromkeys(shown or lines)))


class SlurmEngine(Engine[SlurmSettings]):
    """`--on slurm`: Slurm places the peers, requeues the job after a crash, and runs it without the launcher."""

    name = "slurm"
    Settings = SlurmSettings
    restarts_peers = True
    outlives_launcher = True

    def check(self, run: Run) -> None:
        check_programs()
        check_device(run.device)
        check_secrecy(run, "--on slurm: peers on several nodes speak over the network")
        with as_input_error(NO_ANSWER):
            job = self._find(run)
            self.settings.check_time()
        if job:
            raise InputError(
                f"{job}, and it runs this federation: `dfl-launch attach {run.files.path}` takes it up, "
                f"`scancel {job.id}` ends it"
            )
        with as_input_error("Slurm would not take the job: {}; its settings are given by --option"):
            self._submit(run, "--test-only")
        check_room(run)

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        before = JobDirectory(run.files).job
        try:
            job, message = await in_thread(self._find_or_submit, run)
        except asyncio.CancelledError:
            if (new := JobDirectory(run.files).job) and new != before:  # nobody would take it from the queue
                await in_thread(_answer, ["scancel", "--quiet", new])
            raise
        run.say(message)
        async with background() as tasks:
            deployment = SlurmDeployment(run, job, self.settings.poll)
            tasks.create_task(deployment.watch())
            yield deployment

    def _find_or_submit(self, run: Run) -> tuple[str | None, str]:
        """Return the job that runs this, or a new one, and what to say of it; None if all peers are done."""
        outcome = JobDirectory(run.files)
        if job := self._find(run):
            return job.id, str(job)
        if outcome.finished(run.spec):
            return None, "All peers are done."
        outcome.forget()
        make_private(run.files.job)
        id = self._submit(run, "--parsable").strip().partition(";")[0]
        outcome.submitted(id)
        return id, f"Slurm job {id}, {plural(len(run.spec.ids), 'task')}; its output: {outcome.log}"

    def _find(self, run: Run) -> QueuedJob | None:
        # By its id, or its name: a launcher may be killed between submitting the job and writing the id.
        return find_job(run.files.path, JobDirectory(run.files).job or job_name(run.spec))

    def _submit(self, run: Run, how: str) -> str:
        """Return what `sbatch` says of the job. Raises FailedError with Slurm's reason if it is not accepted."""
        numbers = map(str, (self.settings.port, self.settings.restarts, self.settings.requeues))
        command = [sys.executable, "-P", str(PROGRAM), str(run.files.path), *numbers, *run.spec.ids]
        script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
        return _answer(["sbatch", how, *self.settings.arguments(run.spec, run.files)], script)


class ExitCodes(BaseModel):
    """DIR/.job/codes.json. restarts: of each peer, in the job and with it. codes: None: an end that was not seen."""

    rounds: int
    rewinds: list[Any] | None = None
    restarts: dict[str, int]
    codes: dict[str, int | None]


class JobDirectory:
    """The files of the directory `.job`: written by the job on a node, read by the launcher here."""

    def __init__(self, files: RunFiles):
        self._path, self.log = files.job, files.job / "log.txt"
        self._read_bytes = 0

    @property
    def job(self) -> str | None:
        """The id of the job that was submitted; None if unknown."""
        return self._read("id")

    def submitted(self, id: str) -> None:
        write_atomically(self._path / "id", id.encode())

    def new_lines(self) -> list[str]:
        """Return the complete lines that the job has printed since the last call."""
        new: list[str] = []
        with suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(self._read_bytes)
            new += (printable(line.decode(errors="replace").rstrip()) for line in lines(file))
            self._read_bytes = file.tell()
        return new

    def read(self) -> ExitCodes | None:
        """Return None until the job has decided."""
        written = self._read("codes.json")
        return None if written is None else ExitCodes.model_validate_json(written)

    def finished(self, spec: Spec) -> bool:
        """Return whether every peer has completed all rounds, since the last rewind if there was one."""
        codes = self.read()
        if codes is None or codes.rounds < spec.rounds or codes.rewinds != spec.plain_rewinds:
            return False
        return all(code == 0 for code in codes.codes.values())

    def last_seen(self, id: str, unseen: int) -> int:
        """Return a peer's exit code where the job could no longer decide; `unseen` if there is none."""
        return int(self._read(f"exit/{id}") or unseen)

    def _read(self, name: str) -> str | None:
        """Return what is in a file; None if it is not there."""
        try:
            return (self._path / name).read_text()
        except FileNotFoundError:
            return None

    def ask_to_stop(self) -> str:
        """Let the job know that peers which end now are not to be restarted. Return why that cannot be done, or ""."""
        stop = self._path / "stop"
        try:
            stop.touch()
        except OSError as error:
            return write_failure(stop, error)
        return ""

    def forget(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


CANCEL_TIMEOUT_S = 60.0
"""Seconds for Slurm to end a cancelled job; Slurm itself waits for half of that (KillWait)."""
ENDING_POLL_S = 0.5
"""Seconds between two requests to Slurm while the end is awaited."""
READS_AFTER_END = 3
"""How often the file with the exit codes is read after the job's end; a network file system may show it late."""


class SlurmDeployment(Deployment):
    """Follows the job; reports what Slurm says of it and what it prints itself.

    job: its id; None if it has ended and every peer is done.
    """

    def __init__(self, run: Run, job: str | None, poll: float):
        self._run, self._job, self._poll = run, job, poll
        self._outcome = JobDirectory(run.files)
        self._processes = {id: FollowedProcess(self._ask) for id in run.spec.ids}
        self._asked = self._done = 0
        """1 after SIGINT, 2 after SIGKILL, which nothing undoes: what was asked for, and what Slurm was sent."""
        self._wake = asyncio.Event()
        self._deadline = math.inf
        self._reported: dict[str, str] = {}
        self._gone = asyncio.Event()

    async def start(self, id: str) -> FollowedProcess:
        return self._processes[id]

    def _ask(self, number: int) -> None:
        """Send SIGINT to all peers, or cancel the job: a run's peers end together."""
        if self._asked < (level := 2 if number == signal.SIGKILL else 1):
            self._asked = level
            if level == 2:
                self._deadline = asyncio.get_running_loop().time() + CANCEL_TIMEOUT_S
            self._wake.set()

    async def watch(self) -> None:
        """Follow the job until Slurm has ended it."""
        try:
            while self._job and not self._gone.is_set():
                self._read_files()
                await self._apply_signal()
                await self._look()
                self._give_up()
                await self._pause()
            await self._conclude()
        except FailedError as error:
            if self._ended:
                raise
            for process in self._processes.values():
                process.fail(error)
        finally:
            self._gone.set()

    @property
    def _ended(self) -> bool:
        return all(process.ended for process in self._processes.values())

    def _end(self, codes: ExitCodes) -> None:
        for id, process in self._processes.items():
            code = codes.codes.get(id)
            process.restarts = codes.restarts.get(id, 0)
            process.end(-signal.SIGKILL if code is None else code)

    async def stop_all(self) -> None:
        """Wait until Slurm has ended the job: before that, nothing new can begin in the directory."""
        self._wake.set()
        if not await within(CANCEL_TIMEOUT_S, self._gone.wait()):
            self._run.say(self._alive())

    async def _pause(self) -> None:
        """Wait for the next poll: neither Slurm nor a network file system reports changes."""
        ending = self._ended or self._asked
        await within(min(self._poll, ENDING_POLL_S) if ending else self._poll, self._wake.wait())
        self._wake.clear()

    def _read_files(self) -> None:
        """Report what the job has printed and, once it has decided, the ends of the peers."""
        try:
            if not self._ended and (codes := self._outcome.read()):
                self._end(codes)
            for line in self._outcome.new_lines():
                self._run.say(line)
        except OSError as error:  # of a network file system, which may come back
            self._report("files", f"{error.filename} cannot be read ({error.strerror}); looking again")

    async def _apply_signal(self) -> None:
        if (asked := self._asked) > self._done:
            try:
                if unknown := await asyncio.to_thread(self._cancel, asked):
                    self._report("stop", f"{unknown}; so the job is cancelled without notice")
                self._done = asked
            except FailedError as error:
                self._report("scancel", str(error))  # it may answer the next time

    def _cancel(self, level: int) -> str:
        """Return why the job cannot be notified: it is then cancelled as a whole, as it would restart ended peers."""
        assert self._job
        unknown = self._outcome.ask_to_stop()
        cancel = ["scancel", "--quiet"]  # which is no error if the job has ended already
        _answer([*cancel, "--state=PENDING", self._job])
        try:
            _answer([*cancel, *(["--signal=INT"] if level == 1 and not unknown else []), self._job])
        except FailedError:
            job = find_job(self._run.files.path, self._job)
            if job and job.state != "COMPLETING":  # Slurm sends no signal to a job that has gone
                raise
        return unknown

    async def _look(self) -> None:
        """Report what Slurm says of the job."""
        assert self._job
        try:
            job = await asyncio.to_thread(find_job, self._run.files.path, self._job)
        except FailedError as error:
            return self._report("squeue", str(error))  # the controller may restart
        if job is None:
            self._gone.set()
        elif job.state != "COMPLETING":
            self._report("squeue", str(job))
        return None

    def _give_up(self) -> None:
        """Raise FailedError if the job should have ended long ago. Says so, as the error may not be awaited."""
        if not self._gone.is_set() and not self._ended and asyncio.get_running_loop().time() > self._deadline:
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

    def _report(self, program: str, message: str) -> None:
        """Report it once, until the program says something else."""
        if message != self._reported.get(program):
            self._reported[program] = message
            self._run.say(message)

    async def _conclude(self) -> None:
        """Report the ends of the peers after the job's end. Raises FailedError if neither the peers nor we ended it."""
        for _ in range(READS_AFTER_END):
            self._read_files()
            if self._ended:
                return
            await asyncio.sleep(self._poll)
        if not self._asked:
            raise FailedError(await asyncio.to_thread(self._why_over))
        ended = {id: self._outcome.last_seen(id, -signal.SIGTERM) for id in self._run.spec.ids}
        self._end(ExitCodes(rounds=self._run.spec.rounds, restarts={}, codes=ended))
