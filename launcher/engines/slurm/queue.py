"""What Slurm's programs are asked, and what they answer."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.errors import FailedError, InputError
from peer.text import one_line

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
FORMAT = "%i|%T|%r|%j|%Z"
"""Of `squeue`: id, state, reason, name, working directory."""


@dataclass(frozen=True)
class Job:
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


def check_answers(directory: Path, known: str) -> Job | None:
    """As `find`; InputError where Slurm does not answer."""
    try:
        return find(directory, known)
    except FailedError as error:
        raise InputError(
            f"--on slurm: Slurm does not answer ({error}); see what `scontrol ping` says, or start peers in another "
            "way (--on)"
        ) from None


def find(directory: Path, known: str) -> Job | None:
    """The user's job of this id or name whose working directory this is. FailedError if Slurm does not answer."""
    answer = _answer(["squeue", "--me", "--noheader", f"--format={FORMAT}"])
    for line in answer.splitlines():
        id, state, reason, name_and_place = line.split("|", 3)
        if name_and_place.endswith(f"|{directory}") and known in (id, name_and_place.removesuffix(f"|{directory}")):
            return Job(id, state, reason)
    return None


def check_job(arguments: Sequence[str], script: str) -> None:
    """InputError with Slurm's reason if it would not take the job."""
    try:
        _answer(["sbatch", "--test-only", *arguments], script)
    except FailedError as error:
        raise InputError(f"Slurm would not take the job: {error}; its settings are given by --option") from None


def submit(arguments: Sequence[str], script: str) -> str:
    """The new job's id. FailedError with Slurm's reason if it does not take it."""
    return _answer(["sbatch", "--parsable", *arguments], script).strip().partition(";")[0]


def cancel(*arguments: str) -> None:
    """FailedError if Slurm does not answer; that the job has ended already is none."""
    _answer(["scancel", "--quiet", *arguments])


def end_of(id: str) -> str:
    """How the job ended, such as TIMEOUT, as long as Slurm remembers it."""
    try:
        fields = dict(field.partition("=")[::2] for field in _answer(["scontrol", "show", "job", "-o", id]).split())
    except FailedError:
        return "forgotten by Slurm"
    return fields.get("JobState", "of unknown state")


def _answer(command: Sequence[str], given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        raise FailedError(f"{command[0]} failed: {_reason(done.stderr) or f'exit code {done.returncode}'}")
    return done.stdout


def _reason(said: str) -> str:
    """In Slurm's words, without who says them and what its own functions say to each other."""
    lines = [re.sub(r"^\w+: (error|fatal): ", "", line.strip()) for line in said.splitlines() if line.strip()]
    told = [line for line in lines if not re.match(r"\w+_\w+: ", line)]
    return one_line("; ".join(dict.fromkeys(told or lines)))
