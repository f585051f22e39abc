"""How a peer's container is asked for."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from launcher.engines.base import Run
from launcher.engines.docker.errors import docker_sdk
from launcher.engines.docker.settings import DockerSettings
from launcher.engines.docker.sharing import PLACE, Shared, shared

RUN, PEER, ORDER = "dfl.run", "dfl.peer", "dfl.order"
"""Labels: the run's directory, the peer's id, and what was asked for."""
SCRATCH = {"/tmp": "size=64m,mode=1777"}
LOG = {"max-size": "5m", "max-file": "2"}
"""log.txt has all of it."""


def name(run: Run, *parts: str) -> str:
    """Of a container or network of this run: told apart from those of another directory."""
    mark = hashlib.sha256(str(run.files.path).encode()).hexdigest()[:8]
    return "-".join(("dfl", run.spec.name.strip("._-") or "run", mark, *parts))


def labels(run: Run, **more: str) -> dict[str, str]:
    return {RUN: str(run.files.path), **more}


def of_run(run: Run) -> dict[str, str]:
    """The filter for what belongs to this run."""
    return {"label": f"{RUN}={run.files.path}"}


def order(run: Run, id: str, settings: DockerSettings, user: str) -> dict[str, Any]:
    """The arguments of the SDK's `containers.create` but for the network."""
    docker = docker_sdk()
    asked: dict[str, Any] = {
        "image": settings.image,
        "command": [str(PLACE / run.files.config(id).name), "--quiet"],
        "name": name(run, id),
        "hostname": id,
        "user": user,
        "group_add": [str(group) for group in os.getgroups()],
        "environment": {"HOME": "/tmp"},
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": settings.pids,
        "tmpfs": SCRATCH,
        "mounts": [_mount(docker, one) for one in shared(run, id)],
        "restart_policy": restart_policy(settings.restarts),
        "log_config": docker.types.LogConfig(type="json-file", config=LOG),
    }
    if settings.memory:
        asked |= {"mem_limit": settings.memory, "memswap_limit": settings.memory}
    if settings.cpus:
        asked["nano_cpus"] = round(settings.cpus * 1e9)
    if settings.gpus:
        asked["device_requests"] = [docker.types.DeviceRequest(**gpu_request(settings.gpus))]
    return asked | {"labels": labels(run, **{PEER: id, ORDER: _digest(asked, run, id)})}


def restart_policy(restarts: int) -> dict[str, Any]:
    """A count of 0 would be without end."""
    return {"Name": "on-failure", "MaximumRetryCount": restarts} if restarts else {"Name": "no"}


def gpu_request(gpus: Any) -> dict[str, Any]:
    chosen = {"device_ids": list(gpus)} if isinstance(gpus, tuple) else {"count": -1 if gpus == "all" else gpus}
    return {"driver": "nvidia", "capabilities": [["gpu"]], **chosen}


def _mount(docker: Any, one: Shared) -> Any:
    if one.source is None:
        return docker.types.Mount(str(one.target), None, type="tmpfs", tmpfs_size=4096)
    return docker.types.Mount(str(one.target), str(one.source), type="bind", read_only=not one.writable)


def _digest(asked: Mapping[str, Any], run: Run, id: str) -> str:
    """Tells whether a container that is there already is what would be made now, for the directory of now."""
    out = run.files.out(id).stat()
    content = [asked, run.spec.digest(), out.st_dev, out.st_ino]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
