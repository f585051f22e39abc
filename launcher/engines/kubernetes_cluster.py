"""A cluster, by the user's own kubectl: requests, answers, and what these say of a run at one moment.

`Kubectl` runs the program and turns its errors into one sentence with a hint; `ClusterState` is read from its answers;
`Cluster` is what a run does there: makes its objects, looks at them, removes them. A CutError may pass: the cluster
cannot be reached now.
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

from launcher.engines.kubernetes_objects import POD_INDEX, RUN_LABEL
from peer.errors import FailedError, InputError
from peer.process import container_exit_code, exit_words
from peer.text import one_line

REQUEST_TIMEOUT_S, KUBECTL_TIMEOUT_S = 20, 60.0
"""Seconds for one answer of the cluster, and for a whole call of kubectl."""
UNREACHABLE = re.compile(
    r"unable to connect|connection to the server|dial tcp|i/o timeout|deadline exceeded|timed? ?out|connection refused"
    r"|request canceled|no configuration has been provided|\bEOF\b",
    re.IGNORECASE,
)
MAX_LINE_BYTES = 1 << 20


class CutError(FailedError):
    """The cluster cannot be reached now; later it may."""


@dataclass(frozen=True)
class Kubectl:
    """context, namespace: empty for kubectl's own choice."""

    program: str
    context: str = ""
    namespace: str = ""

    async def ask(self, *arguments: str, given: str = "") -> str:
        """Return what kubectl prints. Raises FailedError with its reason, or if the cluster does not answer in time."""
        async with self._running(PIPE, f"--request-timeout={REQUEST_TIMEOUT_S}s", *arguments) as process:
            try:
                async with asyncio.timeout(KUBECTL_TIMEOUT_S):
                    answer, complaint = await process.communicate(given.encode())
            except TimeoutError:
                raise unreachable(f"no answer to `kubectl {arguments[0]}` in {KUBECTL_TIMEOUT_S:g} s") from None
        if process.returncode:
            raise refusal(arguments[0], complaint.decode(errors="replace"))
        return answer.decode(errors="replace")

    @asynccontextmanager
    async def listen(self, *arguments: str, given: str = "") -> AsyncIterator[asyncio.StreamReader]:
        """What kubectl prints during the block, its errors included."""
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
            # In a process group of its own: Ctrl-C is for the launcher, which still needs kubectl.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=complaints, limit=MAX_LINE_BYTES, process_group=0
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
                # The group ends with it; and process.kill() could take the exit code from a caller that waits for it.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def unreachable(why: str) -> CutError:
    return CutError(
        f"the cluster cannot be reached: {why}; see what `kubectl cluster-info` says, or choose another cluster with "
        "--option context=NAME"
    )


def refusal(verb: str, complaint: str) -> FailedError:
    """Return kubectl's complaint as one sentence with a hint."""
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
"""Reasons why no image will come; ErrImagePull alone is one attempt."""
NORMAL_WAITS = ("ContainerCreating", "PodInitializing", "SchedulingGated")
"""What every pod waits for, for a while."""


@dataclass(frozen=True)
class Pod:
    """index: a peer's place in the ring; None for the pod that sees all peers' files."""

    name: str
    index: int | None
    phase: str
    ready: bool
    made: str
    """When, as text that sorts."""
    code: int | None
    """The exit code, -n after signal n; None if it has not ended, or in an unknown way."""
    why: str
    """Why it does not run, in the cluster's term: Unschedulable, ImagePullBackOff, OOMKilled, ..."""
    details: str
    """What the cluster adds to that."""

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
        index = metadata.get("annotations", {}).get(POD_INDEX)
        return cls(
            name=metadata["name"],
            index=None if index is None else int(index),
            phase=status.get("phase", "Pending"),
            ready=bool(container.get("ready")) and "deletionTimestamp" not in metadata,
            made=metadata.get("creationTimestamp", ""),
            code=container_exit_code(ended["exitCode"]) if ended else None,
            why=reason.get("reason", ""),
            details=one_line(reason.get("message", "")),
        )

    @property
    def ended(self) -> bool:
        return self.code is not None or self.phase in ("Succeeded", "Failed")

    @property
    def failed(self) -> bool:
        return bool(self.code) or (self.code is None and self.phase == "Failed")

    @property
    def exit_message(self) -> str:
        how = "was ended by the cluster" if self.code is None else exit_words(self.code)
        return f"{how} ({self.why})" if self.why not in ("", "Error") else how

    @property
    def unpullable(self) -> bool:
        return self.why in UNPULLABLE

    @property
    def pending(self) -> str:
        """Why it does not run yet; empty if that is normal or it does."""
        if self.phase != "Pending" or self.ended or not self.why or self.why in NORMAL_WAITS:
            return ""
        return f"{self.why}: {self.details}" if self.details else self.why


@dataclass(frozen=True)
class JobState:
    """The state of a Job, with peers by their numbers in the ring."""

    annotations: Mapping[str, str]
    completed: frozenset[int]
    failed: frozenset[int]
    """The peers that the Job no longer restarts."""
    over: str
    """Complete or Failed; empty while the Job runs."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        status = found.get("status", {})
        conditions = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
        failed = conditions & {"Failed", "FailureTarget"}
        return cls(
            annotations=found["metadata"].get("annotations", {}),
            completed=indexes(status.get("completedIndexes", "")),
            failed=indexes(status.get("failedIndexes", "")),
            over="Failed" if failed else "Complete" if "Complete" in conditions else "",
        )


@dataclass(frozen=True)
class ClusterState:
    """The Job of a run, if there is one, and its pods."""

    job: JobState | None
    pods: Sequence[Pod]

    @classmethod
    def read(cls, listed: str) -> Self:
        """Read the output of `kubectl get job,pod --output=json`."""
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
        """Whether a peer may still run, or be restarted."""
        at_work = any(not pod.ended for pod in self.pods if pod.index is not None)
        return at_work or (self.job is not None and not self.job.over)


def indexes(written: str) -> frozenset[int]:
    """Return the numbers in "0,2-4"."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", written)
    return frozenset(number for first, last in spans for number in range(int(first), int(last or first) + 1))


REMOVED = ("job", "pod", "service", "configmap", "secret", "poddisruptionbudget", "networkpolicy")
CLAIM = "persistentvolumeclaim"
APPLY = ("--server-side", "--force-conflicts", "--field-manager=dfl-launch")
"""Otherwise Secrets and long settings would be copied into an annotation."""
PROMPTLY = ("--grace-period=1", "--timeout=50s", "--request-timeout=50s")
UNCHECKED = "--validate=false"
"""No validation, for which an older kubectl would fetch the cluster's whole schema; tests check the objects."""
WATCH_TIMEOUT_S = 300.0
"""Seconds after which a silent watch is begun anew, as its connection may have been cut."""


class Cluster:
    """The objects of the run of that name."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.kubectl, self.name = kubectl, name
        self.mine = f"--selector={RUN_LABEL}={name}"
        self._peers = f"{self.mine},app.kubernetes.io/name=dfl"

    async def apply(self, made: Sequence[Mapping[str, Any]], *more: str) -> None:
        """Create the objects, or change them to these."""
        listed = {"apiVersion": "v1", "kind": "List", "items": [*made]}
        await self.kubectl.ask("apply", *APPLY, UNCHECKED, *more, "--filename=-", given=json.dumps(listed))

    async def look(self) -> ClusterState:
        return ClusterState.read(await self.kubectl.ask("get", "job,pod", self.mine, "--output=json"))

    async def watch(self, kind: str, on_change: Callable[[], None]) -> None:
        """Call `on_change` for every change, until the connection ends."""
        async with self.kubectl.listen("get", kind, self.mine, "--watch", "--output=name") as lines:
            while await asyncio.wait_for(lines.readline(), WATCH_TIMEOUT_S):
                on_change()

    async def log(self, index: int | None) -> dict[str, list[str]]:
        """Return what the pods of one peer, or of all, have printed, by their names."""
        peer = "" if index is None else f",{POD_INDEX}={index}"
        how = ("--prefix", "--tail=-1", "--max-log-requests=100000", "--ignore-errors")
        said = await self.kubectl.ask("logs", f"{self._peers}{peer}", *how)
        found: dict[str, list[str]] = {}
        for line in said.splitlines():
            pod, closed, text = line.removeprefix("[pod/").partition("/peer] ")
            if closed:
                found.setdefault(pod, []).append(text)
        return found

    async def stop(self, kill: bool) -> None:
        """Send all peers SIGTERM, with `kill` SIGKILL a second later, and let none start."""
        await self.kubectl.ask("delete", f"job/{self.name}", "--ignore-not-found", "--wait=false")
        if kill:
            await self.kubectl.ask("delete", "pod", self._peers, "--grace-period=1", "--wait=false")

    async def remove_peers(self) -> None:
        """Remove the Job and its pods; returns when they are gone."""
        await self.kubectl.ask("delete", "job,pod", self._peers, *PROMPTLY)

    async def remove_pod(self, name: str) -> None:
        await self.kubectl.ask("delete", f"pod/{name}", "--ignore-not-found", *PROMPTLY)

    async def clear(self, claim: bool) -> str:
        """Remove all objects of the run, with `claim` also what the peers have written; return their names."""
        kinds = ",".join((*REMOVED, CLAIM) if claim else REMOVED)
        said = await self.kubectl.ask("delete", kinds, self.mine, *PROMPTLY, "--output=name")
        return ", ".join(word for word in said.split() if "/" in word)  # not "No resources found"
