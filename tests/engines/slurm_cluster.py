"""A Slurm cluster on this machine: a controller and three nodes of two CPUs, which differ by their ports alone."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from real_peers import until

ROOT = Path(__file__).parents[2]
NODES = ("n1", "n2", "n3")
CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that is queued again waits until the credentials of its last start are void: 2 minutes if not said.
AuthInfo=socket={base}/munge/socket,cred_expire=5
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,bf_interval=1,sched_interval=1
ReturnToService=2
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
PartitionName=brief Nodes={names} DefaultTime=1 MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no cluster here; empty when there can."""
    if os.geteuid() != 0:
        return "a Slurm cluster for tests needs root"
    lacking = [tool for tool in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(tool)]
    return f"{', '.join(lacking)} is not installed (Debian: slurm-wlm munge)" if lacking else ""


class Cluster:
    """Its daemons are children of this process, their files in `base`, whose path must be short for a socket's name."""

    def __init__(self, base: Path, ports: Callable[[int], list[int]]):
        self.base, self.ports = base, ports
        self.conf = base / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "faults")])
        return os.environ | {"SLURM_CONF": str(self.conf), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def start(self) -> None:
        for name in ("munge", "state", *NODES):
            (self.base / name).mkdir(mode=0o700)
        controller, *ports = self.ports(1 + len(NODES))
        line = "NodeName={} NodeHostname=localhost NodeAddr=127.0.0.1 Port={} CPUs=2 RealMemory=4000"
        nodes = "\n".join(line.format(name, port) for name, port in zip(NODES, ports, strict=True))
        self.conf.write_text(CONF.format(base=self.base, controller=controller, nodes=nodes, names=",".join(NODES)))
        munge = self.base / "munge"
        (munge / "key").write_bytes(secrets.token_bytes(1024))
        (munge / "key").chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        named = [f"--{option}={munge / name}" for option, name in files.items()]
        self._daemon("munged", "--force", "--foreground", *named)
        until(lambda: (munge / "socket").exists(), 10, "munged listens")
        self._daemon("slurmctld", "-D")
        for name in NODES:
            self._daemon("slurmd", "-D", "-N", name)
        until(
            lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(len(NODES)), 30, "three idle nodes"
        )

    def _daemon(self, *command: str) -> None:
        with (self.base / f"{len(self._daemons)}-{command[0]}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )

    def stop(self) -> None:
        self.ask("scancel", "--quiet", "--user=root")
        until(lambda: not self.jobs(), 40, "no job is left")
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            daemon.wait(30)

    def ask(self, *command: str) -> str:
        """What one of Slurm's programs prints."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True).stdout

    def jobs(self) -> list[str]:
        return self.ask("squeue", "--noheader", "--format=%i").split()

    def launch(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        """dfl-launch on the login node."""
        command = [sys.executable, "-P", "-m", "launcher.cli", *map(str, arguments)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=self.environment, text=True, **pipes)  # type: ignore[call-overload]
