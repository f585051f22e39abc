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

from launcher.engines.docker import (
    HEALTH,
    DockerSettings,
    code_files,
    data_files,
    recorded_files,
    sources,
    weight_files,
)
from launcher.run_files import certificate_files
from peer.errors import InputError
from peer.learning.data.sources import Source
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec
from peer.spec.loading import FIRST_PORT

LONGEST = 120 << 10
"""Bytes of one variable of the environment; Linux takes 128 KiB."""
FIRST_USER = 70_001
"""Each peer is a user of its own: the kernel counts threads by user, and no other limit of theirs is known to Compose
1.29 and to Swarm alike. Machines give these numbers to nobody."""
MEMORY = "${MEMORY:-2g}"
RUNS, SECRETS, CODE, RECORDING = Path("/runs"), Path("/run/secrets"), Path("/code"), Path("/recording")
DATA, OWN, WEIGHTS = Path("/data"), Path("/own"), Path("/weights")
PROBE = ["CMD", "/opt/dfl/.venv/bin/python", "/opt/dfl/health.py"]
DOCKERFILE = "deploy/Dockerfile"
"""Of a checkout."""
ARGUMENTS = {"BASE": "python:3.13-slim", "PIP_OPTIONS": "", "TORCH": "cpu", "EXTRAS": ""}


class Composition:
    """What all services have alike stands in the first and is named in the others.

    spec: as it is in containers. base: what the file's paths are relative to.
    """

    def __init__(
        self, spec: Spec, settings: DockerSettings, base: Path, certs: Path | None, build: Path | None
    ) -> None:
        self._spec, self._settings, self._base, self._certs = spec, settings, base, certs
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
        own = next(member.data for member in self._spec.ring if member.id == id)
        if own:
            config["data"] = placed(own, data_files(own, id), OWN)
        service = self._contained() | {"user": DoubleQuotedScalarString(f"{user}:{user}")}
        service["ulimits"] = {"nproc": self._settings.pids}
        if self._certs:
            files = certificate_files(self._certs, id)
            config["tls"] = {what: str(SECRETS / file.name) for what, file in files.items()}
            service["secrets"] = row(*(file.name for file in files.values()))
            service["user"] = DoubleQuotedScalarString(owner(files["key"]))
            service["ulimits"] = {"nproc": self._settings.pids * len(self._spec.ids)}
        service["environment"] = {"DFL_FEDERATION": self._federation, "DFL_PEER": written(config)}
        service["volumes"] = [f"{id}:{RUNS}", scratch(), *(self._bound(*pair) for pair in self._read(id))]
        return service

    def _contained(self) -> dict[str, Any]:
        """What no service does without. A peer writes its own volume and /tmp, and needs no right but that."""
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
        """The spec, with the places that what it names has in a container."""
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
        if len(text.encode()) > LONGEST:
            raise InputError(f"a federation of {len(self._spec.ids)} peers is too long for one file of Compose's")
        return text

    def _read(self, id: str) -> Iterator[tuple[Path, Path]]:
        """Files of this machine that the peer reads, and where it has them."""
        for source, folder in zip(sources(self._spec, id), (self._shared, OWN), strict=False):
            there = data_files(source, id)
            yield from ((path, Path(str(folder / key).replace("{id}", id))) for key, path in there.items())
        yield from ((path, CODE / path.name) for path in code_files(self._spec))
        yield from ((path, RECORDING / id / path.name) for path in recorded_files(self._spec, id))
        yield from ((path, WEIGHTS / path.name) for path in weight_files(self._spec))

    @property
    def _shared(self) -> Path:
        """Where a container has the federation's data."""
        return DATA / "{id}" if self._spec.data.names_peers else DATA

    def _bound(self, source: Path, target: Path) -> dict[str, Any]:
        if self._certs and self._certs.resolve().is_relative_to(source.resolve()):
            raise InputError(f"every peer would see all keys: {self._certs} lies in {source}; keep --certs elsewhere")
        return {"type": "bind", "source": self._relative(source), "target": str(target), "read_only": True}

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
    """A block `data` with the places that its files have in a container; InputError when one is needed and missing."""
    fields = type(source).model_fields
    for key, value in source:
        if isinstance(value, Path) and key not in there and fields[key].is_required():
            raise InputError(f"`data.{key}`: there is no {value}; a container could not see it: put the data there")
    content = source.model_dump(mode="json", exclude_none=True)
    kept = {key: value for key, value in content.items() if not isinstance(getattr(source, key), Path)}
    return kept | {key: str(folder / key) for key in sorted(there)}


def owner(file: Path) -> str:
    """A secret of Compose's is the file itself: only its owner can read a key."""
    status = file.stat()
    return f"{status.st_uid}:{status.st_gid}"


def scratch() -> dict[str, Any]:
    """/tmp in memory. A service's `tmpfs` Swarm leaves out."""
    return {"type": "tmpfs", "target": "/tmp", "tmpfs": {"size": 64 << 20}}


def escaped(text: str) -> str:
    """Compose puts variables where there is a dollar."""
    return text.replace("$", "$$")


def written(content: Mapping[str, Any], anchor: str | None = None) -> LiteralScalarString:
    text: LiteralScalarString = LiteralScalarString(escaped(dump_yaml(content)), anchor=anchor)
    return text


def named(anchor: str, content: dict[str, Any]) -> CommentedMap:
    """A mapping that is written once."""
    found = CommentedMap(content)
    found.yaml_set_anchor(anchor)
    return found


def row(*values: str) -> CommentedSeq:
    """A list in one line."""
    found = CommentedSeq(values)
    found.fa.set_flow_style()
    return found
