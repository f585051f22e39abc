"""What the cluster says of a run at one moment."""

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from launcher.engines.kubernetes.objects import INDEX_ANNOTATION
from peer.text import one_line

UNPULLABLE = ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
"""Reasons that no image will come: ErrImagePull alone is one try."""
USUAL = ("ContainerCreating", "PodInitializing", "SchedulingGated")
"""What every pod waits for, for a while."""
ASKED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit codes of a peer that was told to stop."""


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
            code=exit_code(ended["exitCode"]) if ended else None,
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
    def obituary(self) -> str:
        if self.code is None:
            how = "was ended by the cluster"
        else:
            how = f"was killed by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"
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
class Job:
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
            completed=numbers(status.get("completedIndexes", "")),
            failed=numbers(status.get("failedIndexes", "")),
            over="Failed" if failed else "Complete" if "Complete" in conditions else "",
            told=one_line(failed.get("message", "")),
        )


@dataclass(frozen=True)
class State:
    """The Job, if there is one, and the pods that there are of the run."""

    job: Job | None
    pods: Sequence[Pod]

    @classmethod
    def read(cls, listed: str) -> Self:
        """Of `kubectl get job,pod --output=json`."""
        items = json.loads(listed)["items"]
        jobs = [Job.of(one) for one in items if one["kind"] == "Job" and "deletionTimestamp" not in one["metadata"]]
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


def exit_code(code: int) -> int:
    return code if code <= 128 or code in ASKED else 128 - code


def numbers(written: str) -> frozenset[int]:
    """Of "0,2-4"."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", written):
        found |= {*range(int(first), int(last or first) + 1)}
    return frozenset(found)
