"""What the pods of a peer have printed, in its log.txt here, each pod once and under its name."""

import os
from collections.abc import Sequence

from launcher.engines.base import Run
from launcher.engines.kubernetes.cluster import Cluster
from launcher.engines.kubernetes.state import Pod


async def append(cluster: Cluster, run: Run, pods: Sequence[Pod]) -> None:
    """Of these pods, which are all of one peer or all that there are."""
    indexes = {pod.index for pod in pods}
    printed = await cluster.log(indexes.pop() if len(indexes) == 1 else None)
    for pod in pods:
        if pod.index is not None and pod.name in printed:
            _append(run, run.spec.ids[pod.index], pod.name, printed[pod.name])


def _append(run: Run, id: str, pod: str, lines: list[str]) -> None:
    path, head = run.files.log(id), f"--- {pod}"
    before = path.read_text(errors="replace").splitlines() if path.exists() else []
    if head not in before:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write("\n".join([head, *lines]) + "\n")
