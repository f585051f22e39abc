"""What a user chooses of a Slurm job, and the arguments of `sbatch` that it stands for."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from launcher.run_files import RunFiles
from peer.settings import Settings, Wanted
from peer.spec.federation import Spec

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


def script(python: str, arguments: Sequence[str]) -> str:
    """The batch script; the rest is Python."""
    inside = Path(__file__).with_name("job.py")
    return f"#!/bin/sh\nexec {shlex.join([python, '-P', str(inside), *arguments])}\n"
