"""What a run does in its cluster: asks for its objects, looks at them, removes them."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.engines.kubernetes.kubectl import Kubectl
from launcher.engines.kubernetes.order import RUN
from launcher.engines.kubernetes.state import State

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
        self.mine, self._peers = f"--selector={RUN}={name}", f"--selector=app.kubernetes.io/name=dfl,{RUN}={name}"

    @property
    def namespace(self) -> str:
        return self.kubectl.namespace or "default"

    async def apply(self, made: Sequence[Mapping[str, Any]], *more: str) -> None:
        """Makes the objects, or changes them to be like this."""
        listed = {"apiVersion": "v1", "kind": "List", "items": [*made]}
        await self.kubectl.ask("apply", *OURS, UNCHECKED, *more, "--filename=-", given=json.dumps(listed))

    async def look(self) -> State:
        return State.read(await self.kubectl.ask("get", "job,pod", self.mine, "--output=json"))

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
