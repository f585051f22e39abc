"""Peers as the tasks of one Slurm job."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from launcher.engines.base import Deployment, Engine, Run
from launcher.engines.local.preflight import check_certificates, check_room
from launcher.engines.slurm import queue
from launcher.engines.slurm.deployment import SlurmDeployment
from launcher.engines.slurm.outcome import Outcome
from launcher.engines.slurm.settings import SlurmSettings, job_name, script
from launcher.plan import plan
from peer.errors import InputError
from peer.ownership import make_private
from peer.tasks import background
from peer.text import plural


class SlurmEngine(Engine[SlurmSettings]):
    """`--on slurm`: Slurm places the peers, queues the job again after a crash, and keeps it without the launcher."""

    name = "slurm"
    Settings = SlurmSettings
    restarts_peers = True
    outlives_launcher = True

    def check(self, run: Run) -> None:
        queue.check_programs()
        if not run.certs and not run.spec.allows_plaintext:
            raise InputError(
                "--on slurm: peers on several nodes speak over the network; make certificates with `dfl-launch certs` "
                f"and give --certs, or write {run.spec.to_allow_plaintext}"
            )
        check_certificates(run.spec, run.certs)
        if job := queue.check_answers(run.files.path, self._known(run)):
            raise InputError(
                f"{job}, and it runs this federation: `dfl-launch attach {run.files.path}` takes it up, "
                f"`scancel {job.id}` ends it"
            )
        queue.check_job(*self._job(run))
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
        outcome = Outcome(run.files)
        if job := self._find(run):
            return job.id, str(job)
        if outcome.finished(run.spec.rounds):
            return None, "All peers are done."
        outcome.forget()
        make_private(run.files.job)
        id = queue.submit(*self._job(run))
        outcome.submitted(id)
        return id, f"Slurm job {id}, {plural(len(run.spec.ids), 'task')}; its output: {outcome.log}"

    def _find(self, run: Run) -> queue.Job | None:
        return queue.find(run.files.path, self._known(run))

    def _known(self, run: Run) -> str:
        """The job's id, or its name: a launcher may end between submitting the job and writing the id."""
        return Outcome(run.files).job or job_name(run.spec)

    def _job(self, run: Run) -> tuple[list[str], str]:
        """The arguments of `sbatch`, and the batch script."""
        inside = [str(run.files.path), f"--port={self.settings.port}", f"--requeues={self.settings.requeues}"]
        return self.settings.arguments(run.spec, run.files), script(sys.executable, [*inside, *run.spec.ids])
