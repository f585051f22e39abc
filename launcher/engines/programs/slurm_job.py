"""The batch script of a Slurm job: finds addresses, starts a task for every peer, decides what comes after them.

    python -P slurm_job.py DIR PORT RESTARTS REQUEUES ID...

A peer that crashes is restarted by its task. One that keeps crashing ends the step (`srun --kill-on-bad-exit`), and
the job is requeued; all resume from their checkpoints. With `on_loss: bypass` the others go on without it, and the
task says nothing of it to srun. The launcher shows what the job prints.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.run_files import RunFiles
from peer.files import write_atomically
from peer.process import DONE, FAILED, REFUSED, STOPPED, WRONG_INPUT, exit_words
from peer.spec.document import Document, dump_yaml
from peer.telemetry.results import gave_up, history


class PeerRestarts:
    """The restarts of one peer by its tasks, counted in DIR/.job/restarts/ID over all starts of the job."""

    def __init__(self, files: RunFiles, id: str) -> None:
        self._out, self._federation = files.out(id), files.federation
        self._count = files.job / "restarts" / id
        self._requeued = (files.job / "row.json").exists()

    @property
    def total(self) -> int:
        return int(self._count.read_text()) if self._count.exists() else 0

    @property
    def completed(self) -> int:
        """The last round that the peer has completed."""
        done = history(self._out)
        return done[-1].round if done else 0

    def may_help(self, code: int) -> bool:
        """Return whether the exit code is that of a crash: of no success, no stop, and no decision of the peer's own.

        A refusal is such a decision at the first start only: later its cause may be an address taken for a moment.
        """
        if code in (DONE, *STOPPED) or self._refused(code):
            return False
        return not (code == FAILED and gave_up(self._out))

    def ends_others(self, code: int) -> bool:
        """Whether a peer that ends for good ends the step: not where the others can go on without it. Wrong input at
        the first start is no loss that they bear: a person is to correct it."""
        return self._refused(code) or Document.read(self._federation).content.get("on_loss") != "bypass"

    def _refused(self, code: int) -> bool:
        return code in REFUSED and not self._requeued and not self.total

    def add(self) -> None:
        write_atomically(self._count, str(self.total + 1).encode())


TASK = Path(__file__).with_name("slurm_task.py")
Exits = Mapping[str, int | None]
"""Exit codes by peer; None: it was ended with the step, its code unseen."""


@dataclass(frozen=True)
class JobRunner:
    """One start of the job. restarts, requeues: how often at most in a row, without a completed round."""

    files: RunFiles
    ids: Sequence[str]
    port: int
    restarts: int
    requeues: int

    def run(self) -> int:
        begun = self.write_addresses()
        exits = self.peers() if begun else dict.fromkeys(self.ids, STOPPED[0] if self.stopping else WRONG_INPUT)
        why = self.restart_reason(exits)
        if why is None:
            return self.finish(exits)
        if (row := self.requeues_in_row()) > self.requeues:
            print(f"{why}; not queued again: {self.requeues} times in a row are enough", flush=True)
            return self.finish(exits)
        print(f"{why}; queued again ({row} of {self.requeues} in a row)", flush=True)
        if subprocess.call(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]):
            return self.finish(exits)
        return 0

    @property
    def stopping(self) -> bool:
        """Whether the launcher has asked to stop."""
        return (self.files.job / "stop").exists()

    def write_addresses(self) -> bool:
        """Write the addresses into federation.yaml, and where each peer listens into its config.

        Return False if not all tasks have found one; they have printed why.
        """
        found = self.addresses()
        if found is None or self.stopping:
            return False
        spec = Document.read(self.files.federation).content
        for id, member, task in zip(self.ids, spec["ring"], found, strict=True):
            member["address"] = task["address"]
            member.pop("dials_out", None)  # every node of a cluster can be dialled
            config = Document.read(self.files.config(id)).content | {"listen": task["listen"]}
            write_atomically(self.files.config(id), dump_yaml(config).encode())
        write_atomically(self.files.federation, dump_yaml(spec).encode())
        nodes = len({task["node"] for task in found})
        print(f"peers on nodes: {len(found)} on {nodes}; their addresses are in {self.files.federation}", flush=True)
        return True

    def addresses(self) -> list[dict[str, Any]] | None:
        """Return the address of every task, by rank. All hold their ports until the last has one."""
        nodes = node_addresses(os.environ["SLURM_JOB_NODELIST"])
        command = [*step(len(self.ids)), sys.executable, "-P", str(TASK), "address"]
        command += [str(self.files.path), str(self.port)]
        environment = os.environ | {"DFL_NODES": json.dumps(nodes)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, text=True, **pipes) as srun:  # type: ignore[call-overload]
            found = [json.loads(srun.stdout.readline() or "null") for _ in self.ids]
            srun.stdin.close()
        return None if srun.returncode or None in found else sorted(found, key=lambda one: int(one["rank"]))

    def peers(self) -> Exits:
        """Run them to their end."""
        exits = self.files.job / "exit"
        shutil.rmtree(exits, ignore_errors=True)
        exits.mkdir()
        (self.files.job / "restarts").mkdir(exist_ok=True)
        command = [*step(len(self.ids)), "--wait=0", sys.executable, "-P", str(TASK), "peer"]
        subprocess.call([*command, str(self.files.path), str(self.restarts), *self.ids], stdin=subprocess.DEVNULL)
        return {id: int((exits / id).read_text()) if (exits / id).exists() else None for id in self.ids}

    def restart_reason(self, exits: Exits) -> str | None:
        """Return why the peers are to be restarted; None if they have decided themselves how they end."""
        failed = {id: code for id, code in exits.items() if code is not None and code not in (0, *STOPPED)}
        restarts = {id: PeerRestarts(self.files, id) for id in failed}
        lost = [
            id for id, code in failed.items() if not restarts[id].ends_others(code) and failed.keys() < exits.keys()
        ]
        decided = [id for id, code in failed.items() if not restarts[id].may_help(code)]
        if self.stopping or {*decided} - {*lost}:
            return None
        if crashed := [id for id in failed if id not in lost]:
            return ", ".join(f"{id} {exit_words(failed[id])}" for id in crashed)
        if any(code is None for code in exits.values()):
            return "Slurm has ended the peers"
        if any(code in STOPPED for code in exits.values()):
            return "Slurm has told the peers to end"
        return None

    def requeues_in_row(self) -> int:
        """Return which requeue this would be, of those since the last completed round."""
        path = self.files.job / "row.json"
        before = json.loads(path.read_text()) if path.exists() else {"row": 0, "round": -1}
        round = max(PeerRestarts(self.files, id).completed for id in self.ids)
        row = before["row"] + 1 if round == before["round"] else 1
        write_atomically(path, json.dumps({"row": row, "round": round}).encode())
        return int(row)

    def finish(self, exits: Exits) -> int:
        """Report to the launcher. Return the job's own exit code."""
        spec = Document.read(self.files.federation).content
        requeues = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        restarts = {id: requeues + PeerRestarts(self.files, id).total for id in self.ids}
        content = {"rounds": spec.get("rounds", 10), "rewinds": spec.get("rewinds"), "restarts": restarts}
        content["codes"] = dict(exits)
        write_atomically(self.files.job / "codes.json", json.dumps(content).encode())
        return int(any(code != 0 for code in exits.values()))


def step(tasks: int) -> list[str]:
    """Return a command that runs a task for each peer; a task that fails ends the others."""
    # srun does not take the CPUs from the job by itself since Slurm 22.05.
    cpus = os.environ.get("SLURM_CPUS_PER_TASK", "1")
    return ["srun", f"--ntasks={tasks}", f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1"]


def node_addresses(nodes: str) -> dict[str, str]:
    """Return the address by which Slurm itself reaches each node."""
    shown = subprocess.run(["scontrol", "show", "node", "-o", nodes], capture_output=True, text=True, check=True).stdout
    lines = [dict(field.partition("=")[::2] for field in line.split()) for line in shown.splitlines()]
    return {line["NodeName"]: line.get("NodeAddr", line["NodeName"]) for line in lines if "NodeName" in line}


def main() -> int:
    directory, port, restarts, requeues, *ids = sys.argv[1:]
    return JobRunner(RunFiles(Path(directory)), ids, int(port), int(restarts), int(requeues)).run()


if __name__ == "__main__":
    sys.exit(main())
