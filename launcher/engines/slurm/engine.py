"""Peers as the tasks of one Slurm job."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from launcher.engines.base import Deployment, Engine, Run
from launcher.engines.local.preflight import check_certificates, check_room
from launcher.engines.slurm import queue
from launcher.engines.slurm.deployment import SlurmDeployment
from launcher.engines.slurm.outcome import Outcome
from launcher.engines.slurm.settings import SlurmSettings, script
from launcher.plan import plan
from peer.errors import InputError
from peer.ownership import make_private
from peer.tasks import background


class SlurmEngine(Engine[SlurmSettings]):
    """`--on slurm`: Slurm places the peers, queues the job again after a crash, and keeps it without the launcher."""

    name = "slurm"
    Settings = SlurmSettings
    restarts_peers = True
    outlives_launcher = True

    def check(self, run: Run) -> None:
        queue.check_programs()
        if job := queue.find(run.files.path):
            raise InputError(
                f"{job}, and it runs this federation: `dfl-launch attach {run.files.path}` takes it up, "
                f"`scancel {job.id}` ends it"
            )
        if not run.certs and not run.spec.plaintext:
            raise InputError(
                "--on slurm: peers on several nodes speak over the network; make certificates with `dfl-launch certs` "
                "and give --certs, or write `plaintext: true` into the spec"
            )
        check_certificates(run.spec, run.certs)
        check_room(plan(run.spec), run.files.path)

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        """Without `listen`: only the job knows where."""
        return {key: value for key, value in super().config(run, id).items() if key != "listen"}

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        async with background() as tasks:
            deployment = SlurmDeployment(run, self._job(run), self.settings.poll)
            tasks.create_task(deployment.watch())
            yield deployment

    def _job(self, run: Run) -> str | None:
        """The job of this run: one that has it already, or a new one. None if all peers were done in an earlier one."""
        outcome = Outcome(run.files)
        if job := queue.find(run.files.path):
            return job.id
        if outcome.finished(run.spec.rounds):
            return None
        outcome.forget()
        make_private(run.files.job)
        inside = [f"--port={self.settings.port}", f"--requeues={self.settings.requeues}", *run.spec.ids]
        job = queue.submit(self.settings.arguments(run.spec, run.files), script(sys.executable, inside))
        run.say(f"Slurm job {job}: {len(run.spec.ids)} tasks, output in {run.files.job / 'log.txt'}")
        return job
