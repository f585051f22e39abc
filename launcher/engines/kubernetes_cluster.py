"""A cluster, by the user's own kubectl: what it is asked, what it answers, and what that says of a run at one moment.

`Kubectl` runs the program and puts what it complains of into one sentence with the way out; `ClusterState` is read of
its answers; `Cluster` is what a run does there: asks for its objects, looks at them, removes them. A CutError is one
that may pass: the cluster cannot be reached now.
"""

import asyncio
import json
import os
import re
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from launcher.engines.kubernetes_objects import INDEX_ANNOTATION, RUN_LABEL
from peer.errors import FailedError, InputError
from peer.exit_codes import in_words, of_container
from peer.text import one_line

ANSWER, PATIENCE = 20, 60.0
"""Seconds that the cluster has for one answer, and kubectl for all of them."""
UNREACHABLE = re.compile(
    r"unable to connect|connection to the server|dial tcp|i/o timeout|deadline exceeded|timed? ?out|connection refused"
    r"|request canceled|no configuration has been provided|\bEOF\b",
    re.IGNORECASE,
)
LONGEST_LINE = 1 << 20


class CutError(FailedError):
    """The cluster cannot be reached now; later it may."""


@dataclass(frozen=True)
class Kubectl:
    """context, namespace: empty for those that kubectl chooses itself."""

    program: str
    context: str = ""
    namespace: str = ""

    async def ask(self, *arguments: str, given: str = "") -> str:
        """What kubectl prints. FailedError with its reason, or when the cluster does not answer in time."""
        async with self._running(PIPE, f"--request-timeout={ANSWER}s", *arguments) as process:
            try:
                async with asyncio.timeout(PATIENCE):
                    answer, complaint = await process.communicate(given.encode())
            except TimeoutError:
                raise unreachable(f"no answer to `kubectl {arguments[0]}` in {PATIENCE:g} s") from None
        if process.returncode:
            raise refusal(arguments[0], complaint.decode(errors="replace"))
        return answer.decode(errors="replace")

    @asynccontextmanager
    async def listen(self, *arguments: str, given: str = "") -> AsyncIterator[asyncio.StreamReader]:
        """What kubectl prints for as long as the block lasts, its complaints included."""
        async with self._running(STDOUT, *arguments) as process:
            assert process.stdin
            assert process.stdout
            with suppress(ConnectionError):
                process.stdin.write(given.encode())
                await process.stdin.drain()
            process.stdin.close()
            yield process.stdout

    @asynccontextmanager
    async def _running(self, complaints: int, *arguments: str) -> AsyncIterator[Process]:
        chosen = {"context": self.context, "namespace": self.namespace}
        command = [self.program, *(f"--{key}={value}" for key, value in chosen.items() if value), *arguments]
        try:
            # In a group of its own: Ctrl-C is for the launcher, which still needs it.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=complaints, limit=LONGEST_LINE, process_group=0
            )
        except OSError as error:
            why = error.strerror or error
            raise InputError(
                f"--on kubernetes: `{self.program}` cannot be started ({why}); install kubectl, or name it with "
                "--option kubectl=/path/to/kubectl"
            ) from None
        try:
            yield process
        finally:
            if process.returncode is None:
                # process.kill() could take the exit code from who waits for it; and what kubectl has started goes, too.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def unreachable(why: str) -> CutError:
    return CutError(
        f"the cluster cannot be reached: {why}; see what `kubectl cluster-info` says, or choose another cluster with "
        "--option context=NAME"
    )


def refusal(verb: str, complaint: str) -> FailedError:
    """What kubectl says, as one sentence with the way out."""
    lines = [line for line in complaint.splitlines() if line.strip() and not line.lower().startswith("warning")]
    said = one_line(re.sub(r"^(error|Error from server \(\w+\)): ", "", lines[-1])) if lines else "it does not say why"
    if found := re.search(r'namespaces? "([^"]+)" not found', complaint):
        return FailedError(
            f"the cluster has no namespace `{found[1]}`; make it with `kubectl create namespace {found[1]}`, or choose "
            "another with --option namespace=NAME"
        )
    if "(Forbidden)" in complaint or "forbidden:" in complaint:
        return FailedError(
            f"the cluster does not allow it ({said}); ask for this right, or choose another --option namespace=NAME"
        )
    if re.search(r"context .*(does not exist|not found)|no context exists|cannot locate context", complaint):
        return FailedError(f"kubectl: {said}; `kubectl config get-contexts` lists those there are")
    if UNREACHABLE.search(complaint):
        return unreachable(said)
    return FailedError(f"kubectl {verb} failed: {said}")


UNPULLABLE = ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
"""Reasons that no image will come: ErrImagePull alone is one try."""
USUAL = ("ContainerCreating", "PodInitializing", "SchedulingGated")
"""What every pod waits for, for a while."""


@dataclass(frozen=True)
class Pod:
    """index: a peer's place in the ring; None for the pod that sees all files."""

    name: str
    index: int | None
    phase: str
    ready: bool
    made: str
    """When, as text that sorts."""
    code: int | None
    """Its exit code, -n after signal n; None: it has not ended, or nobody saw how."""
    why: str
    """Why it does not run, in the cluster's word: Unschedulable, ImagePullBackOff, OOMKilled, ..."""
    told: str
    """What more the cluster says of that."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        metadata, status = found["metadata"], found.get("status", {})
        # Some clusters put containers of their own into every pod.
        container: Mapping[str, Any] = next(
            (one for one in status.get("containerStatuses", []) if one["name"] == "peer"), {}
        )
        state = container.get("state", {})
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        conditions = {one["type"]: one for one in status.get("conditions", [])}
        scheduled = conditions.get("PodScheduled", {})
        unplaced = scheduled if scheduled.get("status") == "False" else {}
        reason = next((one for one in (ended, status, waiting, unplaced) if one and one.get("reason")), {})
        index = metadata.get("annotations", {}).get(INDEX_ANNOTATION)
        return cls(
            name=metadata["name"],
            index=None if index is None else int(index),
            phase=status.get("phase", "Pending"),
            ready=bool(container.get("ready")) and "deletionTimestamp" not in metadata,
            made=metadata.get("creationTimestamp", ""),
            code=of_container(ended["exitCode"]) if ended else None,
            why=reason.get("reason", ""),
            told=one_line(reason.get("message", "")),
        )

    @property
    def ended(self) -> bool:
        return self.code is not None or self.phase in ("Succeeded", "Failed")

    @property
    def failed(self) -> bool:
        return bool(self.code) or (self.code is None and self.phase == "Failed")

    @property
    def exit_message(self) -> str:
        how = "was ended by the cluster" if self.code is None else in_words(self.code)
        return f"{how} ({self.why})" if self.why not in ("", "Error") else how

    @property
    def unpullable(self) -> bool:
        return self.why in UNPULLABLE

    @property
    def pending(self) -> str:
        """What a person should know of why it does not run yet; empty if there is nothing."""
        if self.phase != "Pending" or self.ended or not self.why or self.why in USUAL:
            return ""
        return f"{self.why}: {self.told}" if self.told else self.why


@dataclass(frozen=True)
class JobState:
    """Peers are numbers, their places in the ring."""

    annotations: Mapping[str, str]
    completed: frozenset[int]
    failed: frozenset[int]
    """Those that the Job starts no more."""
    over: str
    """Complete or Failed; empty while it goes on."""
    told: str
    """Why it failed."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        status = found.get("status", {})
        conditions = {one["type"]: one for one in status.get("conditions", []) if one["status"] == "True"}
        failed = conditions.get("Failed") or conditions.get("FailureTarget") or {}
        return cls(
            annotations=found["metadata"].get("annotations", {}),
            completed=indexes(status.get("completedIndexes", "")),
            failed=indexes(status.get("failedIndexes", "")),
            over="Failed" if failed else "Complete" if "Complete" in conditions else "",
            told=one_line(failed.get("message", "")),
        )


@dataclass(frozen=True)
class ClusterState:
    """The Job, if there is one, and the pods that there are of the run."""

    job: JobState | None
    pods: Sequence[Pod]

    @classmethod
    def read(cls, listed: str) -> Self:
        """Of `kubectl get job,pod --output=json`."""
        items = json.loads(listed)["items"]
        jobs = [
            JobState.of(one) for one in items if one["kind"] == "Job" and "deletionTimestamp" not in one["metadata"]
        ]
        pods = sorted((Pod.of(one) for one in items if one["kind"] == "Pod"), key=lambda pod: (pod.made, pod.name))
        return cls(jobs[0] if jobs else None, pods)

    @property
    def collector(self) -> Pod | None:
        return next((pod for pod in self.pods if pod.index is None), None)

    def of_peer(self, index: int) -> list[Pod]:
        """The oldest first."""
        return [pod for pod in self.pods if pod.index == index]

    @property
    def running(self) -> bool:
        """Whether a peer may still be at work, or be started again."""
        at_work = any(not pod.ended for pod in self.pods if pod.index is not None)
        return at_work or (self.job is not None and not self.job.over)


def indexes(written: str) -> frozenset[int]:
    """Of "0,2-4"."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", written):
        found |= {*range(int(first), int(last or first) + 1)}
    return frozenset(found)


REMOVED = ("job", "pod", "service", "configmap", "secret", "poddisruptionbudget", "networkpolicy")
CLAIM = "persistentvolumeclaim"
OURS = ("--server-side", "--force-conflicts", "--field-manager=dfl-launch")
"""Nothing of a Secret or of long settings goes into an annotation, as it would without."""
PROMPTLY = ("--grace-period=1", "--timeout=50s", "--request-timeout=50s")
UNCHECKED = "--validate=false"
"""Older kubectls would want the cluster's whole schema for that; ours are checked against it by tests."""
QUIET = 300.0
"""Seconds after which a watch that tells nothing is begun anew: its connection may have been cut."""


class Cluster:
    """The objects of the run that is called `name`."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.kubectl, self.name = kubectl, name
        self.mine, self._peers = (
            f"--selector={RUN_LABEL}={name}",
            f"--selector=app.kubernetes.io/name=dfl,{RUN_LABEL}={name}",
        )

    @property
    def namespace(self) -> str:
        return self.kubectl.namespace or "default"

    async def apply(self, made: Sequence[Mapping[str, Any]], *more: str) -> None:
        """Makes the objects, or changes them to be like this."""
        listed = {"apiVersion": "v1", "kind": "List", "items": [*made]}
        await self.kubectl.ask("apply", *OURS, UNCHECKED, *more, "--filename=-", given=json.dumps(listed))

    async def look(self) -> ClusterState:
        return ClusterState.read(await self.kubectl.ask("get", "job,pod", self.mine, "--output=json"))

    async def watch(self, kind: str, news: Callable[[], None]) -> None:
        """Tells that something has changed, until the connection ends."""
        async with self.kubectl.listen("get", kind, self.mine, "--watch", "--output=name") as lines:
            while await asyncio.wait_for(lines.readline(), QUIET):
                news()

    async def log(self, index: int | None) -> dict[str, list[str]]:
        """What the pods have printed, by their names; of one peer or of all."""
        peer = "" if index is None else f",batch.kubernetes.io/job-completion-index={index}"
        how = ("--prefix", "--tail=-1", "--max-log-requests=100000", "--ignore-errors")
        said = await self.kubectl.ask("logs", f"{self._peers}{peer}", *how)
        found: dict[str, list[str]] = {}
        for line in said.splitlines():
            pod, closed, text = line.removeprefix("[pod/").partition("/peer] ")
            if closed:
                found.setdefault(pod, []).append(text)
        return found

    async def stop(self) -> None:
        """Sends all peers SIGTERM, and lets none begin."""
        await self.kubectl.ask("delete", f"job/{self.name}", "--ignore-not-found", "--wait=false")

    async def kill(self) -> None:
        """A second later, SIGKILL."""
        await self.stop()
        await self.kubectl.ask("delete", "pod", self._peers, "--grace-period=1", "--wait=false")

    async def remove_peers(self) -> None:
        """The Job and its pods; returns when they are gone."""
        await self.kubectl.ask("delete", "job,pod", self._peers, *PROMPTLY)

    async def remove_pod(self, name: str) -> None:
        await self.kubectl.ask("delete", f"pod/{name}", "--ignore-not-found", *PROMPTLY)

    async def clear(self, claim: bool) -> None:
        """Removes all that there is of the run; with `claim` what the peers have written, too."""
        kinds = ",".join((*REMOVED, CLAIM) if claim else REMOVED)
        await self.kubectl.ask("delete", kinds, self.mine, *PROMPTLY)
