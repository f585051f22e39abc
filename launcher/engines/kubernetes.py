"""Peers in the pods of a Kubernetes cluster.

In reading order: the engine; which run the objects in a cluster belong to, and which cluster that is; what would make
a cluster refuse the run; the peers' files on the run's volume, copied here; a peer as the pods that the Job makes for
it, one after the other; the control loop, which reconciles what a run has in its cluster with what it should have, and
reports what happens to pods; and the deployment.

The objects are in `kubernetes_objects.py`, requests to a cluster in `kubernetes_cluster.py`, and what runs in the pod
that sees the volume in `programs/volume_agent.py`.
"""

import asyncio
import base64
import json
import re
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.engines.base import Deployment, Engine, FollowedProcess, Process, Run, bytes_here, write_at
from launcher.engines.kubernetes_cluster import CLAIM, Cluster, ClusterState, CutError, Kubectl, Pod, refusal
from launcher.engines.kubernetes_objects import RUNS, ClusterLayout, KubernetesSettings, RunObjects
from launcher.engines.preflight import as_input_error, check_container_device, check_resources, check_secrecy, laid_out
from peer.errors import FailedError, InputError
from peer.files import write_failure
from peer.process import WRONG_INPUT
from peer.tasks import News, background, shielded, within
from peer.telemetry.results import EVENTS, gave_up, history
from peer.text import one_line


class KubernetesEngine(Engine[KubernetesSettings]):
    """`--on kubernetes`: a Job restarts crashed peers, and peers keep running without the launcher."""

    name = "kubernetes"
    restarts_peers = True
    outlives_launcher = True
    Settings = KubernetesSettings

    def check(self, run: Run) -> None:
        check_secrecy(run, "--on kubernetes: peers in a cluster speak over its network")
        check_container_device(run.device, self.settings.gpus, "a pod", "1")
        check_resources(run.spec, run.files.path)
        laid_out(run)
        with as_input_error():
            asyncio.run(check_cluster(run, self.settings))

    def discard(self, run: Run, running: bool = False) -> str:
        if not known_identity(run):
            return ""
        sentence = "what an earlier launch has left in the cluster cannot be removed: {}"
        with as_input_error(sentence) if running else nullcontext():
            return asyncio.run(self._remove(run, running))

    async def _remove(self, run: Run, running: bool) -> str:
        _, _, cluster = await cluster_of(run, self.settings)
        if not running and ((state := await cluster.look()).running or state.job):
            raise InputError(
                "peers still run in the cluster, or what they wrote is not here yet: fetch it with `dfl-launch attach "
                f"{run.files.path}`, where Ctrl-C ends them"
            )
        return await cluster.clear(claim=True)

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        new = known_identity(run) is None
        whose, order, cluster = await cluster_of(run, self.settings)
        run.write_place(asdict(whose))
        deployment = KubernetesDeployment(run, cluster, order, new)
        await deployment.prepare()
        try:
            async with background() as tasks:
                for task in (deployment.loop.run(), deployment.loop.follow(), *map(deployment.loop.watch, WATCHED)):
                    tasks.create_task(task)
                yield deployment
        finally:
            await shielded(deployment.close)


@dataclass(frozen=True)
class ClusterIdentity:
    """context, namespace: empty where kubectl knows none, as in a pod."""

    context: str
    namespace: str
    mark: str
    """Part of the names of this run's objects, unlike those of another run."""


def known_identity(run: Run) -> ClusterIdentity | None:
    """Return None before the first launch of the run in a cluster."""
    try:
        return ClusterIdentity(**run.read_place())
    except TypeError:
        return None


async def cluster_identity(run: Run, settings: KubernetesSettings) -> ClusterIdentity:
    """Return the run's, or a new one. Raises InputError if its checkpoints are in another place than the chosen one."""
    chosen = await _chosen_namespace(settings)
    earlier = known_identity(run)
    if earlier is None:
        return ClusterIdentity(*chosen, mark=secrets.token_hex(4))
    if (earlier.context, earlier.namespace) != chosen and (settings.context or settings.namespace):
        raise InputError(
            f"the run in {run.files.path} has its checkpoints in the namespace `{earlier.namespace}` of the context "
            f"`{earlier.context}`; choose these with --option, or another directory with --out"
        )
    return earlier


async def _chosen_namespace(settings: KubernetesSettings) -> tuple[str, str]:
    """Return context and namespace."""
    kubectl = Kubectl(settings.kubectl, settings.context or "")
    try:
        view = json.loads(await kubectl.ask("config", "view", "--minify", "--output=json"))
    except FailedError:
        if settings.context:
            raise
        return "", settings.namespace or ""
    context: dict[str, Any] = next(iter(view.get("contexts") or []), {})
    namespace = context.get("context", {}).get("namespace", "default")
    return context.get("name", ""), settings.namespace or namespace


async def cluster_of(run: Run, settings: KubernetesSettings) -> tuple[ClusterIdentity, RunObjects, Cluster]:
    """Return where the run is, or is to be, and what it has there."""
    whose = await cluster_identity(run, settings)
    layout = ClusterLayout(run.spec, certificates=run.certs is not None, mark=whose.mark, device=run.device)
    kubectl = Kubectl(settings.kubectl, whose.context, whose.namespace)
    return whose, RunObjects(run, layout, settings), Cluster(kubectl, layout.name)


OLDEST_VERSION = (1, 29)
"""The first Kubernetes with all the features that are used here."""
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


async def check_cluster(run: Run, settings: KubernetesSettings) -> None:
    """Ask the cluster itself whether it would accept the objects."""
    _, order, cluster = await cluster_of(run, settings)
    await check_version(cluster.kubectl)
    await check_right(cluster.kubectl)
    job = [order.job] if known_identity(run) is None else []
    await cluster.apply([*order.beside(), order.collector(), *job], "--dry-run=server")


async def check_version(kubectl: Kubectl) -> None:
    answer = json.loads(await kubectl.ask("version", "--output=json"))
    server = answer.get("serverVersion", {})
    found = tuple(int(re.sub(r"\D.*", "", server.get(part, "")) or 0) for part in ("major", "minor"))
    if found < OLDEST_VERSION:
        raise FailedError(
            f"the cluster runs Kubernetes {'.'.join(map(str, found))}, and only 1.29 or newer can restart a peer "
            "without the others; choose another cluster with --option context=NAME"
        )


async def check_right(kubectl: Kubectl) -> None:
    """Check the right to execute in pods, which no dry run asks for."""
    right = {"namespace": kubectl.namespace, "verb": "create", "resource": "pods", "subresource": "exec"}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    asked = json.dumps(review | {"spec": {"resourceAttributes": right}})
    answer = json.loads(await kubectl.ask("create", f"--raw={REVIEWS}", "--filename=-", given=asked))
    if not answer["status"]["allowed"]:
        raise FailedError(
            "the cluster does not allow to create pods/exec, by which the results come here; ask for this right, or "
            "choose another --option namespace=NAME"
        )


VOLUME_AGENT = Path(__file__).parent / "programs" / "volume_agent.py"
SILENCE_S = 30.0
"""Seconds after which a connection that brings nothing counts as cut."""
SCANS = 2
"""How many scans of all files by the agent to await, so that one of them has begun after now."""


class VolumeFiles:
    """The peers' files on the run's volume, by the id of each peer and its directory there.

    pod: the one through which they are read.
    """

    def __init__(self, kubectl: Kubectl, pod: str, run: Run, directories: Mapping[str, str]) -> None:
        self._kubectl, self._pod, self._run, self._directories = kubectl, pod, run, directories
        self._scans = 0
        self._news = News()

    def _here(self, names: Sequence[str]) -> dict[str, Path]:
        """The local paths of files on the volume, by their names there, for every peer."""
        directories = self._directories.items()
        return {f"{there}/{name}": self._run.files.out(id) / name for id, there in directories for name in names}

    async def follow(self) -> None:
        """Copy the peers' events as they grow, until the connection is cut. CutError says why it was."""
        here = self._here([EVENTS])
        async for notice in self._notices(f"follow({ {there: bytes_here(path) for there, path in here.items()}!r})"):
            if "data" in notice and notice["file"] in here:
                _write(here[notice["file"]], notice)
            elif not notice:
                self._scans += 1
                self._news.set()

    async def caught_up(self) -> None:
        """Wait until all that the peers have written by now is here, or a while if the connection is cut."""
        enough = self._scans + SCANS
        await within(SILENCE_S, self._news.until(lambda: self._scans >= enough))

    async def fetch(self) -> None:
        """Fetch what the summary needs of every peer, each file whole or not at all. Raises CutError if it cannot."""
        here, complete = self._here(self._run.wanted), False
        async for notice in self._notices(f"fetch({[*here]!r})"):
            complete = complete or "over" in notice
            if path := here.get(str(notice.get("file", ""))):
                path.parent.mkdir(exist_ok=True)  # of traces
                part = path.with_name(f".{path.name}.part")
                if "data" in notice:
                    _write(part, notice)
                elif notice["size"] == 0:
                    _write(path, {"at": 0, "data": ""})
                elif not part.exists():
                    raise CutError(f"the cluster told of {path.name} and did not send it; run the command again")
                elif part.stat().st_size == notice["size"]:
                    part.replace(path)
        if not complete:
            raise CutError("the connection to the cluster was cut while results were brought; run the command again")

    async def _notices(self, call: str) -> AsyncIterator[dict[str, Any]]:
        program = f"{VOLUME_AGENT.read_text()}\n{call}\n"
        # By its length, as not every way into a pod reports the end of an input.
        begin = f"import sys; exec(sys.stdin.read({len(program)}))"
        command = ("exec", "--stdin", "--container=peer", self._pod, "--", "python", "-P", "-c", begin)
        last = ""
        async with self._kubectl.listen(*command, given=program) as lines:
            while True:
                try:
                    line = await asyncio.wait_for(lines.readline(), SILENCE_S)
                except TimeoutError:
                    raise CutError(f"no data from the cluster for {SILENCE_S:g} s") from None
                if not line:
                    break
                try:
                    yield json.loads(line)
                except ValueError:
                    if not line.startswith(b"command terminated"):
                        last = one_line(line.decode(errors="replace").strip()) or last
        if last:
            refused = refusal("exec", last)
            raise refused if "(Forbidden)" in last else CutError(str(refused))


def _write(path: Path, notice: Mapping[str, Any]) -> None:
    """Raises CutError where something is missing before it, and FailedError if it cannot be written here."""
    try:
        write_at(path, notice["at"], base64.b64decode(notice["data"]))
    except ValueError as error:
        raise CutError(str(error)) from None
    except OSError as error:
        raise FailedError(write_failure(path, error)) from None


class PeerPods(FollowedProcess):
    """One peer: the pods that the Job makes for it, one after the other.

    index: its place in the ring. alone: whether it can end for good without the others; then the Job alone decides.
    """

    def __init__(self, index: int, out: Path, send: Callable[[int], None], alone: bool = False) -> None:
        super().__init__(send)
        self.index, self._out, self._alone = index, out, alone

    def update(self, state: ClusterState, stopping: bool) -> None:
        """Report the end once the cluster, or the peer itself, has decided that there will be no other pod."""
        pods = state.of_peer(self.index)
        self.restarts = max(self.restarts, len(pods) - 1)
        if (code := self._code(state, pods[-1] if pods else None, stopping)) is not None:
            self.end(code)

    def _code(self, state: ClusterState, last: Pod | None, stopping: bool) -> int | None:
        job = state.job
        if (job and self.index in job.completed) or (last and last.phase == "Succeeded"):
            return 0
        if last and not last.ended:
            return None
        seen = last.code if last else None
        final = stopping or (job is not None and (bool(job.over) or self.index in job.failed))
        if seen and (final or (not self._alone and gave_up(self._out))):
            return seen
        return (-signal.SIGTERM if stopping or not last else -signal.SIGKILL) if final else None


POLL_INTERVAL_S = 30.0
"""Seconds after which the state is looked up even if no watch has reported a change."""
RETRY_INTERVAL_S = 2.0
"""Seconds before a connection that was cut is tried again."""
BURST_S = 0.2
"""Seconds in which changes are handled together, as a cluster reports many at a time."""
MAX_COLLECTORS = 5
"""How many pods that collect results may end before the first peer has begun."""


class ControlLoop:
    """Looks up the run's state in the cluster, does what is missing, and looks again whenever something changes.

    state: of the last look. begun: whether there is a Job. idle: whether no peer runs. readable: whether the pod is
    there through which the results are read.
    """

    def __init__(self, run: Run, cluster: Cluster, order: RunObjects, files: VolumeFiles) -> None:
        self._run, self._cluster, self._order, self._files = run, cluster, order, files
        alone, peers = run.spec.on_loss == "bypass", enumerate(run.spec.ids)
        self.peers = {id: PeerPods(index, run.files.out(id), self.ask, alone) for index, id in peers}
        self.state, self.begun = ClusterState(None, []), False
        self._collectors = 0
        self._asked = self._done = 0
        """1 after SIGTERM, 2 after SIGKILL, which nothing undoes: what was asked for, and what the cluster was sent."""
        self._handled, self._reported = set[str](), set[str]()
        self._changed, self.idle, self.readable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.idle.set()

    def ask(self, number: int) -> None:
        """Send SIGTERM to all peers, or SIGKILL: a run's peers end together."""
        self._asked = max(self._asked, 2 if number == signal.SIGKILL else 1)
        self._changed.set()

    def take_over(self, state: ClusterState) -> None:
        """Continue with a Job that is there."""
        self.state, self._handled = state, {pod.name for pod in state.pods if pod.ended}
        self._begin()

    def _begin(self) -> None:
        self.begun = True
        self.idle.clear()
        self._run.say(
            f"job {self._cluster.name} in the namespace {self._cluster.kubectl.namespace or 'default'} of the cluster"
        )

    @property
    def codes(self) -> Collection[int | None]:
        """The exit codes of all peers; None for one that has not ended, or in an unknown way."""
        return [peer.returncode for peer in self.peers.values()]

    @property
    def all_done(self) -> bool:
        return all(code == 0 for code in self.codes)

    async def run(self) -> None:
        """Reconcile until cancelled, as the tasks below."""
        while True:
            self._changed.clear()
            try:
                await self._step()
            except CutError as error:
                self._say_once(str(error))
            except FailedError as error:
                self._fail(error)
            await within(POLL_INTERVAL_S if self._asked == self._done else RETRY_INTERVAL_S, self._changed.wait())
            await asyncio.sleep(BURST_S)

    async def follow(self) -> None:
        while True:
            await self.readable.wait()
            try:
                await self._files.follow()
            except CutError:
                self._changed.set()
            except FailedError as error:
                self._fail(error)
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def watch(self, kind: str) -> None:
        """Wake the loop when an object of this kind changes."""
        while True:
            with suppress(TimeoutError):
                await self._cluster.watch(kind, self._changed.set)
            self._changed.set()
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def _step(self) -> None:
        await self._apply_signal()
        self.state = state = await self._cluster.look()
        if self._asked:
            self.idle.clear() if state.running else self.idle.set()
        else:
            await self._reconcile_collector(state.collector)
            await self._reconcile_job()
            await self._handle_failures([pod for pod in state.pods if pod.failed and pod.name not in self._handled])
            for pod in state.pods:
                if why := pod.pending:  # one of several that wait for the same stands for all
                    self._say_once(f"{self._name(pod)} waits: {why}", why)
        for peer in self.peers.values():
            peer.update(state, bool(self._asked))

    async def _apply_signal(self) -> None:
        if (asked := self._asked) > self._done:
            await self.log()
            await self._cluster.stop(kill=asked == 2)
            self._done = asked

    async def _reconcile_collector(self, pod: Pod | None) -> None:
        if pod and pod.ready:
            return self.readable.set()
        self.readable.clear()
        if pod and not self.begun:
            self._check(pod)
        if pod and pod.ended:
            self._collectors += 1
            await self._cluster.remove_pod(pod.name)
        if pod is None or pod.ended:
            await self._cluster.apply([self._order.collector()])
        return None

    def _check(self, pod: Pod) -> None:
        """Raise FailedError if the pods of the run cannot start."""
        image = self._order.settings.image
        if pod.unpullable:
            raise FailedError(
                f"the cluster cannot pull the image `{image}` ({pod.pending}); push it to where its nodes can, or name "
                "another with --option image=REGISTRY/NAME:TAG"
            )
        if pod.ended and self._collectors == MAX_COLLECTORS:
            raise FailedError(f"the pod {pod.name} {pod.exit_message}; is `{image}` an image of deploy/Dockerfile?")

    async def _reconcile_job(self) -> None:
        if self.begun and self.state.job is None and not self.all_done:
            raise FailedError(
                f"the job {self._cluster.name} was deleted from outside; the same command resumes the run"
            )
        if not self.begun and self.readable.is_set():
            await self._cluster.apply([self._order.job])
            self._begin()
            self._changed.set()

    async def _handle_failures(self, pods: Sequence[Pod]) -> None:
        """Copy the rest of what these pods wrote, before their peers' ends are decided on it."""
        if pods:
            await self._files.caught_up()
            await self.log(pods)
            for pod in pods:
                self._handled.add(pod.name)
                hint = "; give it more with --option memory=4Gi" if pod.why == "OOMKilled" else ""
                self._say_once(f"{self._name(pod)}: the pod {pod.name} {pod.exit_message}{hint}")

    def _say_once(self, sentence: str, subject: str = "") -> None:
        """Say it, unless it, or another sentence on the same subject, has been said."""
        if (subject or sentence) not in self._reported:
            self._reported.add(subject or sentence)
            self._run.say(sentence)

    def _name(self, pod: Pod) -> str:
        return "the pod for the results" if pod.index is None else self._run.spec.ids[pod.index]

    async def log(self, pods: Sequence[Pod] = ()) -> None:
        """Append what these pods, or all, have printed to the peers' logs; what cannot be had is left out."""
        pods = pods or self.state.pods
        indexes, printed, run = {pod.index for pod in pods}, dict[str, list[str]](), self._run
        with suppress(FailedError):
            printed = await self._cluster.log(indexes.pop() if len(indexes) == 1 else None)
        for pod in pods:
            if pod.index is None or pod.name not in printed:
                continue
            path, lines = run.files.log(run.spec.ids[pod.index]), [f"--- {pod.name}", *printed[pod.name]]
            with suppress(OSError):  # on a full disk the peers are to be stopped all the same
                if not path.exists() or lines[0] not in path.read_text(errors="replace").splitlines():
                    write_at(path, bytes_here(path), "".join(f"{line}\n" for line in lines).encode())

    def _fail(self, error: FailedError) -> None:
        """End all peers; waiting for one of them raises the error."""
        for peer in self.peers.values():
            peer.fail(error)
        self.ask(signal.SIGKILL)


COLLECTOR_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 60.0
"""Seconds for the cluster to make the results readable, and to end the peers."""
FETCH_ATTEMPTS = 3
"""How often to try to fetch the results if the connection is cut meanwhile."""
WATCHED = ("job", "pod")


class KubernetesDeployment(Deployment):
    """new: whether nothing of the run was in the cluster before."""

    def __init__(self, run: Run, cluster: Cluster, order: RunObjects, new: bool) -> None:
        self._run, self._cluster, self._order, self._new = run, cluster, order, new
        # As the collector sees them.
        directories = {id: str(RUNS / str(index) / id) for index, id in enumerate(run.spec.ids)}
        self._files = VolumeFiles(cluster.kubectl, f"{cluster.name}-collect", run, directories)
        self.loop = ControlLoop(run, cluster, order, self._files)
        self._collected = self._over = False

    async def prepare(self) -> None:
        """Take over the Job that is there if it is the same and has not failed; otherwise make room for a new one."""
        state = await self._cluster.look()
        job, asked = state.job, self._order.job["metadata"]["annotations"]
        if job and job.over != "Failed" and asked.items() <= job.annotations.items():
            self.loop.take_over(state)
            return
        try:
            await self._cluster.remove_peers()
            await self._cluster.apply(self._order.beside())
        except (FailedError, asyncio.CancelledError):
            with suppress(FailedError):
                await self._cluster.clear(claim=self._new)
            raise

    async def start(self, id: str) -> Process:
        return self.loop.peers[id]

    async def stop_all(self) -> None:
        self._over = True
        if self.loop.all_done:
            return
        self.loop.ask(signal.SIGKILL)
        if not await within(STOP_TIMEOUT_S, self.loop.idle.wait()):
            shown = f"kubectl get pods --selector=job-name={self._cluster.name}"
            self._run.say(f"the cluster has not ended all peers yet; `{shown}` shows them")

    async def collect(self) -> None:
        if not self.loop.all_done and not self.loop.readable.is_set():
            return
        await self.loop.log()
        if not await within(COLLECTOR_TIMEOUT_S, self.loop.readable.wait()):
            raise FailedError("the results cannot be read in the cluster now; the same command tries again")
        await self._files.caught_up()
        for left in reversed(range(FETCH_ATTEMPTS)):
            try:
                await self._files.fetch()
                break
            except CutError:
                if not left:
                    raise
                await asyncio.sleep(RETRY_INTERVAL_S)
        self._collected = True

    async def close(self) -> None:
        """Remove what is in the cluster, except checkpoints from which the run may be resumed."""
        if not self._over:
            return
        played = any(history(self._run.files.out(id)) for id in self._run.spec.ids)
        first = self._new and (not self.loop.begun or (WRONG_INPUT in self.loop.codes and not played))
        kept = not (first or (self.loop.all_done and self._collected))
        try:
            await self._cluster.clear(claim=not kept)
        except FailedError as error:
            self._run.say(f"{error}; what is left there: `kubectl get all,{CLAIM} {self._cluster.mine}`")
        if kept:
            self._run.say(
                f"the checkpoints stay in the cluster, in the claim {self._cluster.name}; if the run will not be "
                f"resumed, remove them with `dfl-launch discard {self._run.files.path}`"
            )
