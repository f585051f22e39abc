"""Peers in the pods of a Kubernetes cluster.

In reading order: the engine; which run the objects in a cluster are of, and which cluster that is; what would make a
cluster refuse the run; what a person is told of pods; the peers' files on the run's volume and what pods have printed,
brought here; a peer as the pods that the Job makes for it, one after the other; the loop that makes what a run has in
its cluster be as it should be (looks at it, does what is missing, looks again); and the deployment.

The objects are in `kubernetes_objects.py`, what is asked of a cluster in `kubernetes_cluster.py`, and what runs in the
pod that sees the volume in `programs/volume_agent.py`.
"""

import asyncio
import base64
import json
import os
import re
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.engines.base import Deployment, Engine, Process, Run, last_event
from launcher.engines.kubernetes_cluster import CLAIM, Cluster, ClusterState, CutError, Kubectl, Pod, refusal
from launcher.engines.kubernetes_objects import DIGEST_ANNOTATION, RUNS, ClusterLayout, KubernetesSettings, RunObjects
from launcher.engines.preflight import check_certificates, check_resources
from launcher.plan import plan
from launcher.run_files import RunFiles
from peer.errors import FailedError, InputError
from peer.files import MAX_SETTINGS_BYTES, read_plain, write_atomically
from peer.process import WRONG_INPUT
from peer.spec.peer import PeerConfig, refuse_plaintext
from peer.tasks import background, shielded
from peer.telemetry.events import Failed
from peer.telemetry.results import EVENTS, WANTED
from peer.text import one_line


class KubernetesEngine(Engine[KubernetesSettings]):
    """`--on kubernetes`: a Job starts crashed peers again, and peers go on when the launcher is gone."""

    name = "kubernetes"
    restarts_peers = True
    outlives_launcher = True
    Settings = KubernetesSettings

    def check(self, run: Run) -> None:
        check_kubernetes(run, self.settings)

    def clear(self, run: Run) -> None:
        if known_identity(run):
            try:
                asyncio.run(self._clear(run))
            except FailedError as error:
                raise InputError(f"what an earlier launch has left in the cluster cannot be removed: {error}") from None

    async def _clear(self, run: Run) -> None:
        whose = await cluster_identity(run, self.settings)
        await Cluster(whose.kubectl(self.settings), layout_of(run, whose).name).clear(claim=True)

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        new = known_identity(run) is None
        whose = await cluster_identity(run, self.settings)
        whose.write(run)
        order = RunObjects(run, layout_of(run, whose), self.settings)
        deployment = KubernetesDeployment(run, Cluster(whose.kubectl(self.settings), order.name), order, new)
        await deployment.prepare()
        try:
            async with background() as tasks:
                for task in deployment.tasks():
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
    """What tells this run's objects from those of another."""

    def write(self, run: Run) -> None:
        write_atomically(run.files.place, json.dumps(asdict(self)).encode(), permissions=0o600)

    def kubectl(self, settings: KubernetesSettings) -> Kubectl:
        return Kubectl(settings.kubectl, self.context, self.namespace)


def known_identity(run: Run) -> ClusterIdentity | None:
    """None before the first launch of the run in a cluster."""
    try:
        written = json.loads(read_plain(run.files.place, MAX_SETTINGS_BYTES))
        return ClusterIdentity(**written)
    except (FileNotFoundError, TypeError):
        return None


async def cluster_identity(run: Run, settings: KubernetesSettings) -> ClusterIdentity:
    """The run's, or a new one. InputError where its checkpoints are in another place than the one that is chosen."""
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
    """Context and namespace."""
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


def layout_of(run: Run, identity: ClusterIdentity) -> ClusterLayout:
    return ClusterLayout(run.spec, certificates=run.certs is not None, mark=identity.mark, device=run.device)


OLDEST = (1, 29)
"""The first Kubernetes in which all that is used is switched on."""
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def check_kubernetes(run: Run, settings: KubernetesSettings) -> None:
    """All of it; whether data and model go together, too. Raises InputError."""
    if not run.certs:
        refuse_plaintext(run.spec, "--on kubernetes: peers in a cluster speak over its network", "--certs")
    check_device(run.device, settings)
    check_certificates(run.spec, run.certs)
    check_resources(run.spec, run.files.path)
    plan(run.spec)
    try:
        asyncio.run(check_cluster(run, settings))
    except FailedError as error:
        raise InputError(str(error)) from None


def check_device(device: str, settings: KubernetesSettings) -> None:
    try:
        PeerConfig(federation=Path("federation.yaml"), id="peer0", device=device)
    except ValidationError:
        raise InputError(f"--device {device}: choose auto, cpu, cuda or cuda:N") from None
    if device not in ("auto", "cpu") and not settings.gpus:
        raise InputError(f"--device {device}: a pod sees no GPU unless it is given one; add --option gpus=1")


async def check_cluster(run: Run, settings: KubernetesSettings) -> None:
    """The cluster itself says what it would make of the objects."""
    whose = await cluster_identity(run, settings)
    order = RunObjects(run, layout_of(run, whose), settings)
    kubectl = whose.kubectl(settings)
    await check_version(kubectl)
    await check_right(kubectl)
    made = [*order.beside(), order.collector()]
    await Cluster(kubectl, order.name).apply(
        [*made, order.job] if known_identity(run) is None else made, "--dry-run=server"
    )


async def check_version(kubectl: Kubectl) -> None:
    answer = json.loads(await kubectl.ask("version", "--output=json"))
    server = answer.get("serverVersion", {})
    found = tuple(int(re.sub(r"\D.*", "", server.get(part, "")) or 0) for part in ("major", "minor"))
    if found < OLDEST:
        raise FailedError(
            f"the cluster is Kubernetes {'.'.join(map(str, found))}, and 1.29 is the first that can start a peer again "
            "without the others; choose another cluster with --option context=NAME"
        )


async def check_right(kubectl: Kubectl) -> None:
    """To execute in pods, which no dry run asks for."""
    right = {"namespace": kubectl.namespace, "verb": "create", "resource": "pods", "subresource": "exec"}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    asked = json.dumps(review | {"spec": {"resourceAttributes": right}})
    answer = json.loads(await kubectl.ask("create", f"--raw={REVIEWS}", "--filename=-", given=asked))
    if not answer["status"]["allowed"]:
        raise FailedError(
            "the cluster does not allow to create pods/exec, by which the results come here; ask for this right, or "
            "choose another --option namespace=NAME"
        )


class PodReporter:
    """ids: the peers', by their places in the ring."""

    def __init__(self, say: Callable[[str], None], ids: Sequence[str]) -> None:
        self._say, self._ids = say, ids
        self._told = set[str]()

    def once(self, sentence: str, subject: str = "") -> None:
        """Unless it, or another of the same subject, has been said."""
        if (subject or sentence) not in self._told:
            self._told.add(subject or sentence)
            self._say(sentence)

    def pending(self, pods: Sequence[Pod]) -> None:
        """Why they wait; of several that wait for the same, one stands for all."""
        for pod in pods:
            if pod.pending:
                self.once(f"{self._name(pod)} waits: {pod.pending}", pod.pending)

    def failed(self, pod: Pod) -> None:
        hint = "; give it more with --option memory=4Gi" if pod.why == "OOMKilled" else ""
        self.once(f"{self._name(pod)}: the pod {pod.name} {pod.obituary}{hint}")

    def _name(self, pod: Pod) -> str:
        return "the pod for the results" if pod.index is None else self._ids[pod.index]


VOLUME_AGENT = Path(__file__).parent / "programs" / "volume_agent.py"
TRACE = "trace"
SILENCE = 30.0
"""Seconds after which a connection that says nothing counts as cut."""
PASSES = 2
"""So many looks at all files, and one of them began after now."""


class VolumeFiles:
    """places: where each peer's directory is on the volume, by id. pod: the one through which it is read."""

    def __init__(self, kubectl: Kubectl, pod: str, files: RunFiles, places: Mapping[str, str]) -> None:
        self._kubectl, self._pod, self._files = kubectl, pod, files
        self._here = {f"{place}/{EVENTS}": files.out(id) / EVENTS for id, place in places.items()}
        self._places = places
        self._passes = 0
        self._passed = asyncio.Condition()

    async def follow(self) -> None:
        """Brings what the peers' events are, until the connection is cut. CutError says why it was."""
        offsets = {there: here.stat().st_size if here.exists() else 0 for there, here in self._here.items()}
        async for notice in self._notices(f"follow({offsets!r})"):
            if "data" in notice and notice["file"] in self._here:
                write_at(self._here[notice["file"]], notice["at"], base64.b64decode(notice["data"]))
            elif not notice:
                async with self._passed:
                    self._passes += 1
                    self._passed.notify_all()

    async def caught_up(self) -> None:
        """Until all that the peers have told by now is here; not for ever, where the connection is cut."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SILENCE), self._passed:
                enough = self._passes + PASSES
                await self._passed.wait_for(lambda: self._passes >= enough)

    async def bring(self) -> None:
        """What the summary needs of every peer, each file whole or not at all. CutError when that cannot be."""
        here = {f"{place}/{name}": (id, name) for id, place in self._places.items() for name in (*WANTED, TRACE)}
        over = False
        async for notice in self._notices(f"bring({[*here]!r})"):
            over = over or "over" in notice
            if path := self._wanted(here, str(notice.get("file", ""))):
                part = path.with_name(f".{path.name}.part")
                if "data" in notice:
                    write_at(part, notice["at"], base64.b64decode(notice["data"]))
                elif notice["size"] == 0:
                    write_at(path, 0, b"")
                elif not part.exists():
                    raise CutError(f"the cluster told of {path.name} and did not send it; run the command again")
                elif part.stat().st_size == notice["size"]:
                    part.replace(path)
        if not over:
            raise CutError("the connection to the cluster was cut while results were brought; run the command again")

    def _wanted(self, here: Mapping[str, tuple[str, str]], there: str) -> Path | None:
        """Where a file that was asked for comes to lie; None for any other."""
        directory, _, name = there.rpartition("/")
        id, place = here.get(there) or here.get(directory) or ("", "")
        if not id or name in ("", ".", "..") or (there not in here and place != TRACE):
            return None
        if there in here:
            return self._files.out(id) / name
        (self._files.out(id) / TRACE).mkdir(exist_ok=True)
        return self._files.out(id) / TRACE / name

    async def _notices(self, call: str) -> AsyncIterator[dict[str, Any]]:
        program = f"{VOLUME_AGENT.read_text()}\n{call}\n"
        # Its length, as not every way into a pod can tell of the end of an input.
        begin = f"import sys; exec(sys.stdin.read({len(program)}))"
        command = ("exec", "--stdin", "--container=peer", self._pod, "--", "python", "-P", "-c", begin)
        last = ""
        async with self._kubectl.listen(*command, given=program) as lines:
            while True:
                try:
                    line = await asyncio.wait_for(lines.readline(), SILENCE)
                except TimeoutError:
                    raise CutError(f"the cluster has said nothing for {SILENCE:g} s") from None
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


def write_at(path: Path, at: int, data: bytes) -> None:
    """FailedError when it cannot be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            if at < os.fstat(descriptor).st_size:  # the file there was begun anew
                file.truncate(at)
            file.seek(at)
            file.write(data)
    except OSError as error:
        raise FailedError(f"{path} cannot be written: {error.strerror or error}") from None


def volume_place(index: int, id: str) -> str:
    """A peer's directory as the pod sees it that sees all of them."""
    return str(RUNS / str(index) / id)


async def append_logs(cluster: Cluster, run: Run, pods: Sequence[Pod]) -> None:
    """Of these pods, which are all of one peer or all that there are."""
    indexes = {pod.index for pod in pods}
    printed = await cluster.log(indexes.pop() if len(indexes) == 1 else None)
    for pod in pods:
        if pod.index is not None and pod.name in printed:
            _append_log(run, run.spec.ids[pod.index], pod.name, printed[pod.name])


def _append_log(run: Run, id: str, pod: str, lines: list[str]) -> None:
    path, head = run.files.log(id), f"--- {pod}"
    before = path.read_text(errors="replace").splitlines() if path.exists() else []
    if head not in before:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write("\n".join([head, *lines]) + "\n")


class PeerPods(Process):
    """index: its place in the ring. ask: told of signals."""

    def __init__(self, index: int, out: Path, ask: Callable[[int], None]) -> None:
        self.index, self._out, self._ask = index, out, ask
        self._pods = 0
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def restarts(self) -> int:
        return max(0, self._pods - 1)

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    def signal(self, number: int) -> None:
        if not self.ended.done():
            self._ask(number)

    def judge(self, state: ClusterState, stopping: bool) -> None:
        """Ends with the exit code, once the cluster or the peer itself has decided that there will be no other pod."""
        pods = state.of_peer(self.index)
        self._pods = max(self._pods, len(pods))
        last = pods[-1] if pods else None
        if not self.ended.done() and (code := self._code(state, last, stopping)) is not None:
            self.ended.set_result(code)

    def _code(self, state: ClusterState, last: Pod | None, stopping: bool) -> int | None:
        job = state.job
        if (job and self.index in job.completed) or (last and last.phase == "Succeeded"):
            return 0
        if last and not last.ended:
            return None
        seen = last.code if last else None
        final = stopping or (job is not None and (bool(job.over) or self.index in job.failed))
        if seen and (final or self._gives_up()):
            return seen
        return (-signal.SIGTERM if stopping or not last else -signal.SIGKILL) if final else None

    def _gives_up(self) -> bool:
        """Whether the peer itself has said that it cannot go on."""
        return isinstance(last_event(self._out / EVENTS), Failed)


LOOK = 30.0
"""Seconds after which the cluster is looked at where no watch has told anything."""
AGAIN = 2.0
"""Seconds before a connection that was cut is tried again."""
BURST = 0.2
"""Seconds in which changes are taken together: a cluster tells of many at a time."""
COLLECTORS = 5
"""So many pods for the results may end before the first peer has begun."""


class ControlLoop:
    """state: of the last look. begun: whether there is a Job. still: whether no peer runs. readable: the results."""

    def __init__(self, run: Run, cluster: Cluster, order: RunObjects, files: VolumeFiles) -> None:
        self._run, self._cluster, self._order, self._files = run, cluster, order, files
        self._telling = PodReporter(run.say, run.spec.ids)
        self.peers = {id: PeerPods(index, run.files.out(id), self.ask) for index, id in enumerate(run.spec.ids)}
        self.state, self.begun = ClusterState(None, []), False
        self._collectors = 0
        self._asked = self._done = 0
        """1 after SIGTERM, 2 after SIGKILL: what was asked for, and what the cluster has been told."""
        self._heard = set[str]()
        self._news, self.still, self.readable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.still.set()

    def ask(self, number: int) -> None:
        """SIGTERM to all peers, or SIGKILL: a run's peers are ended together."""
        self._asked = max(self._asked, 2 if number == signal.SIGKILL else 1)
        self._news.set()

    def take_up(self, state: ClusterState) -> None:
        """A Job that is there."""
        self.state, self._heard = state, {pod.name for pod in state.pods if pod.ended}
        self._begin()

    def _begin(self) -> None:
        self.begun = True
        self.still.clear()
        self._run.say(f"job {self._order.name} in the namespace {self._cluster.namespace} of the cluster")

    @property
    def codes(self) -> Collection[int | None]:
        """Of all peers; None: not ended yet, or nobody knows how."""
        ended = [peer.ended for peer in self.peers.values()]
        return [one.result() if one.done() and not one.exception() else None for one in ended]

    @property
    def all_done(self) -> bool:
        return all(code == 0 for code in self.codes)

    async def run(self) -> None:
        """For as long as the launcher works, as the others below."""
        while True:
            self._news.clear()
            try:
                await self._step()
            except CutError as error:
                self._telling.once(str(error))
            except FailedError as error:
                self._fail(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK if self._asked == self._done else AGAIN)
            await asyncio.sleep(BURST)

    async def follow(self) -> None:
        """Brings the peers' events."""
        while True:
            await self.readable.wait()
            try:
                await self._files.follow()
            except CutError:
                self._news.set()
            except FailedError as error:
                self._fail(error)
            await asyncio.sleep(AGAIN)

    async def watch(self, kind: str) -> None:
        """Wakes the loop when one of this kind changes."""
        while True:
            with suppress(TimeoutError):
                await self._cluster.watch(kind, self._news.set)
            self._news.set()
            await asyncio.sleep(AGAIN)

    async def _step(self) -> None:
        await self._obey()
        self.state = state = await self._cluster.look()
        if self._asked:
            self.still.clear() if state.running else self.still.set()
        else:
            await self._see_to_collector(state.collector)
            await self._see_to_job()
            await self._hear_of_failures([pod for pod in state.pods if pod.failed and pod.name not in self._heard])
            self._telling.pending(state.pods)
        for peer in self.peers.values():
            peer.judge(state, bool(self._asked))

    async def _obey(self) -> None:
        if (asked := self._asked) > self._done:
            await self.log()
            await (self._cluster.stop() if asked == 1 else self._cluster.kill())
            self._done = asked

    async def _see_to_collector(self, pod: Pod | None) -> None:
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
        """FailedError where the pods of the run will not come to run."""
        image = self._order.settings.image
        if pod.unpullable:
            raise FailedError(
                f"the cluster cannot pull the image `{image}` ({pod.pending}); push it to where its nodes can, or name "
                "another with --option image=REGISTRY/NAME:TAG"
            )
        if pod.ended and self._collectors == COLLECTORS:
            raise FailedError(f"the pod {pod.name} {pod.obituary}; is `{image}` an image of deploy/Dockerfile?")

    async def _see_to_job(self) -> None:
        if self.begun and self.state.job is None and not self.all_done:
            raise FailedError(f"somebody has deleted the job {self._order.name}; the same command resumes the run")
        if not self.begun and self.readable.is_set():
            await self._cluster.apply([self._order.job])
            self._begin()
            self._news.set()

    async def _hear_of_failures(self, pods: Sequence[Pod]) -> None:
        """The rest of what these pods said is brought before anybody judges their ends."""
        if pods:
            await self._files.caught_up()
            await self.log(pods)
            for pod in pods:
                self._heard.add(pod.name)
                self._telling.failed(pod)

    async def log(self, pods: Sequence[Pod] = ()) -> None:
        """Brings what these pods have printed, or all; what it cannot have it does without."""
        with suppress(FailedError):
            await append_logs(self._cluster, self._run, pods or self.state.pods)

    def _fail(self, error: FailedError) -> None:
        """Ends all; whoever waits raises it."""
        for peer in self.peers.values():
            if not peer.ended.done():
                peer.ended.set_exception(error)
                peer.ended.exception()
        self.ask(signal.SIGKILL)


REACH, END = 60.0, 60.0
"""Seconds that the cluster is waited for to show the results, and to end the peers."""
TRIES = 3
"""To bring the results, where a connection is cut meanwhile."""


class KubernetesDeployment(Deployment):
    """new: whether nothing of the run has been in the cluster before."""

    def __init__(self, run: Run, cluster: Cluster, order: RunObjects, new: bool) -> None:
        self._run, self._cluster, self._order, self._new = run, cluster, order, new
        places = {id: volume_place(index, id) for index, id in enumerate(run.spec.ids)}
        self._files = VolumeFiles(cluster.kubectl, f"{order.name}-collect", run.files, places)
        self._loop = ControlLoop(run, cluster, order, self._files)
        self._collected = self._over = False

    async def prepare(self) -> None:
        """Takes up the Job that is there if it is the same and has not failed, else makes room for a new one."""
        state = await self._cluster.look()
        job = state.job
        if job and job.over != "Failed" and job.annotations.get(DIGEST_ANNOTATION) == self._order.digest:
            self._loop.take_up(state)
            return
        try:
            await self._cluster.remove_peers()
            await self._cluster.apply(self._order.beside())
        except FailedError:
            with suppress(FailedError):
                await self._cluster.clear(claim=self._new)
            raise

    def tasks(self) -> Iterator[Coroutine[None, None, None]]:
        """What is to be done for as long as the launcher works."""
        yield self._loop.run()
        yield self._loop.follow()
        yield from map(self._loop.watch, ("job", "pod"))

    async def start(self, id: str) -> Process:
        return self._loop.peers[id]

    async def end(self) -> None:
        self._over = True
        if self._loop.all_done:
            return
        self._loop.ask(signal.SIGKILL)
        try:
            await asyncio.wait_for(self._loop.still.wait(), END)
        except TimeoutError:
            shown = f"kubectl get pods --selector=job-name={self._order.name}"
            self._run.say(f"the cluster has not ended all peers yet; `{shown}` shows them")

    async def collect(self) -> None:
        if not self._loop.all_done and not self._loop.readable.is_set():
            return
        await self._loop.log()
        try:
            await asyncio.wait_for(self._loop.readable.wait(), REACH)
        except TimeoutError:
            raise FailedError("the results cannot be read in the cluster now; the same command tries again") from None
        await self._files.caught_up()
        await self._bring()
        self._collected = True

    async def _bring(self) -> None:
        for left in reversed(range(TRIES)):
            try:
                await self._files.bring()
                break
            except CutError:
                if not left:
                    raise
                await asyncio.sleep(AGAIN)

    async def close(self) -> None:
        """Removes what is in the cluster, but for the checkpoints where somebody may want to go on from them."""
        if not self._over:
            return
        first = self._new and (not self._loop.begun or WRONG_INPUT in self._loop.codes)
        kept = not (first or (self._loop.all_done and self._collected))
        try:
            await self._cluster.clear(claim=not kept)
        except FailedError as error:
            self._run.say(f"{error}; what is left there: `kubectl get all,{CLAIM} {self._cluster.mine}`")
        if kept:
            by_hand = f"kubectl delete {CLAIM}/{self._order.name}"
            self._run.say(f"the checkpoints stay in the cluster; who does not go on removes them with `{by_hand}`")
