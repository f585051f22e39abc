"""A federation as the content of a docker-compose.yml.

Compose 1.29 reads no `configs`, and a Swarm finds no files beside it on its machines. So a peer's settings are in its
environment, where the image's program finds them, and its certificates are secrets. What Swarm reads elsewhere, or
not at all, stands under `deploy` as well.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from launcher.engines.docker import HEALTH, DockerSettings, data_files, own_data, paths_read
from launcher.run_files import certificate_files
from peer.errors import InputError
from peer.learning.data.sources import Source
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec
from peer.spec.loading import FIRST_PORT

MAX_VARIABLE_BYTES = 120 << 10
"""The most bytes of an environment variable; Linux takes 128 KiB."""
FIRST_USER = 70_001
"""Each peer is a user of its own: the kernel counts threads by user, and Compose 1.29 and Swarm have no other limit of
them in common. Machines assign these numbers to no user."""
MEMORY = "${MEMORY:-2g}"
RUNS, SECRETS, CODE, RECORDING = Path("/runs"), Path("/run/secrets"), Path("/code"), Path("/recording")
DATA, OWN, WEIGHTS = Path("/data"), Path("/own"), Path("/weights")
PROBE = ["CMD", "/opt/dfl/.venv/bin/python", "/opt/dfl/health.py"]
DOCKERFILE = "deploy/Dockerfile"
"""The Dockerfile's path in a checkout."""
ARGUMENTS = {"BASE": "python:3.13-slim", "PIP_OPTIONS": "", "TORCH": "cpu", "EXTRAS": ""}


class Composition:
    """What all services have in common stands in the first and is named in the others.

    spec: as it is in containers. base: what the file's paths are relative to.
    """

    def __init__(
        self, spec: Spec, settings: DockerSettings, base: Path, certs: Path | None, build: Path | None
    ) -> None:
        self._spec, self._settings, self._base, self._certs = spec, settings, base, certs
        self._shared = DATA / "{id}" if spec.data.names_peers else DATA
        """The directory of the federation's data in a container."""
        self._federation = self._resolved()
        self._build = named("build", self._built(build)) if build else None
        health = {"test": row(*PROBE), "interval": "30s", "timeout": "20s", "start_period": "10m"}
        self._health = named("health", health)
        attempts = {"condition": "on-failure", "max_attempts": settings.restarts}
        placed = {"endpoint_mode": "dnsrr", "restart_policy": attempts, "resources": self._resources()}
        self._deploy = named("deploy", placed)

    def content(self) -> CommentedMap:
        ids = self._spec.ids
        # Before Docker 25 a stack needs a version.
        found = CommentedMap(version="3.9", services=CommentedMap((id, self._service(id)) for id in ids))
        found |= {"networks": {"ring": {}}, "volumes": {id: {} for id in ids}}
        if self._certs:
            files = {file.name: file for id in ids for file in certificate_files(self._certs, id).values()}
            found["secrets"] = {name: {"file": self._relative(file)} for name, file in files.items()}
        return found

    def _service(self, id: str) -> dict[str, Any]:
        config: dict[str, Any] = {"federation": "federation.yaml", "id": id, "listen": f"0.0.0.0:{FIRST_PORT}"}
        config |= {"health": HEALTH, "out": str(RUNS / id)}
        user = FIRST_USER + self._spec.ids.index(id)
        if own := own_data(self._spec, id):
            config["data"] = placed(own, data_files(own, id), OWN)
        service = self._contained() | {"user": DoubleQuotedScalarString(f"{user}:{user}")}
        service["ulimits"] = {"nproc": self._settings.pids}
        if self._certs:
            files = certificate_files(self._certs, id)
            config["tls"] = {what: str(SECRETS / file.name) for what, file in files.items()}
            service["secrets"] = row(*(file.name for file in files.values()))
            service["user"] = DoubleQuotedScalarString(":".join(map(str, key_owner(self._certs, id))))
            service["ulimits"] = {"nproc": self._settings.pids * len(self._spec.ids)}
        service["environment"] = {"DFL_FEDERATION": self._federation, "DFL_PEER": written(config)}
        service["volumes"] = [f"{id}:{RUNS}", scratch(), *self._mounts(id)]
        return service

    def _contained(self) -> dict[str, Any]:
        """Return what every service has. A peer writes its own volume and /tmp, and needs no other right."""
        restarts = self._settings.restarts
        return {
            "image": escaped(self._settings.image),
            **({"build": self._build} if self._build else {}),
            "networks": row("ring"),
            "read_only": True,
            "cap_drop": row("ALL"),
            "security_opt": row("no-new-privileges:true"),
            "stop_grace_period": "30s",
            "restart": f"on-failure:{restarts}" if restarts else "no",
            "healthcheck": self._health,
            "deploy": self._deploy,
        }

    def _resolved(self) -> LiteralScalarString:
        """Return the spec, with the paths that its files have in a container."""
        spec = self._spec
        content = spec.model_dump(mode="json", exclude_none=True)
        there = {key for id in spec.ids for key in data_files(spec.data, id)}
        content["data"] = placed(spec.data, there, self._shared)
        content["ring"] = [{"id": member.id, "address": member.address} for member in spec.ring]
        if self._spec.code:
            content["code"] = str(CODE)
        if self._spec.recording:
            content["recording"] = str(RECORDING)
        if self._spec.model.weights:
            content["model"]["weights"] = str(WEIGHTS / self._spec.model.weights.name)
        text = written(content, anchor="federation")
        if len(text.encode()) > MAX_VARIABLE_BYTES:
            raise InputError(f"a federation of {len(self._spec.ids)} peers is too long for one file of Compose's")
        return text

    def _mounts(self, id: str) -> Iterator[dict[str, Any]]:
        """The files of this machine that the peer reads."""
        folders = {"data": Path(str(self._shared).replace("{id}", id)), "own": OWN, "code": CODE}
        folders |= {"recording": RECORDING, "weights": WEIGHTS}
        for kind, name, path in paths_read(self._spec, id):
            if self._certs and self._certs.resolve().is_relative_to(path.resolve()):
                raise InputError(f"every peer would see all keys: {self._certs} lies in {path}; keep --certs elsewhere")
            target = str(folders[kind] / name)
            yield {"type": "bind", "source": self._relative(path), "target": target, "read_only": True}

    def _resources(self) -> dict[str, Any]:
        limits: dict[str, Any] = {"memory": self._settings.memory or MEMORY}
        if self._settings.cpus:
            limits["cpus"] = f"{self._settings.cpus:g}"
        gpus = self._settings.gpus
        if gpus is None:
            return {"limits": limits}
        chosen = {"device_ids": list(gpus)} if isinstance(gpus, tuple) else {"count": gpus}
        device = {"driver": "nvidia", "capabilities": row("gpu"), **chosen}
        return {"limits": limits, "reservations": {"devices": [device]}}

    def _built(self, checkout: Path) -> dict[str, Any]:
        arguments = {name: f"${{{name}:-{default}}}" for name, default in ARGUMENTS.items()}
        return {"context": self._relative(checkout), "dockerfile": DOCKERFILE, "args": arguments}

    def _relative(self, path: Path) -> str:
        relative = os.path.relpath(path.resolve(), self._base.resolve())
        return escaped(relative if relative.startswith(".") else f"./{relative}")


def placed(source: Source, there: Collection[str], folder: Path) -> dict[str, Any]:
    """Return a block `data` with paths in a container. Raises InputError if a required file is missing."""
    fields = type(source).model_fields
    for key, value in source:
        if isinstance(value, Path) and key not in there and fields[key].is_required():
            raise InputError(f"`data.{key}`: there is no {value}; a container could not see it: put the data there")
    content = source.model_dump(mode="json", exclude_none=True)
    kept = {key: value for key, value in content.items() if not isinstance(getattr(source, key), Path)}
    return kept | {key: str(folder / key) for key in sorted(there)}


def key_owner(certs: Path, id: str) -> tuple[int, int]:
    """Return user and group of a peer's key. A secret of Compose is the file itself: only its owner can read it."""
    status = certificate_files(certs, id)["key"].stat()
    return status.st_uid, status.st_gid


def scratch() -> dict[str, Any]:
    """Return /tmp in memory; Swarm ignores a service's `tmpfs`."""
    return {"type": "tmpfs", "target": "/tmp", "tmpfs": {"size": 64 << 20}}


def escaped(text: str) -> str:
    """Escape dollars, which Compose takes for variables."""
    return text.replace("$", "$$")


def written(content: Mapping[str, Any], anchor: str | None = None) -> LiteralScalarString:
    text: LiteralScalarString = LiteralScalarString(escaped(dump_yaml(content)), anchor=anchor)
    return text


def named(anchor: str, content: dict[str, Any]) -> CommentedMap:
    """Return a mapping that is written once, and named elsewhere."""
    found = CommentedMap(content)
    found.yaml_set_anchor(anchor)
    return found


def row(*values: str) -> CommentedSeq:
    """Return a list that is written in one line."""
    found = CommentedSeq(values)
    found.fa.set_flow_style()
    return found
