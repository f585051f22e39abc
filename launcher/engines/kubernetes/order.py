"""What a run asks of the cluster: the objects of the manifests, under names of its own, with what its settings say."""

import copy
import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.certificate_files import certificate_files
from launcher.engines.base import Run
from launcher.engines.kubernetes import objects
from launcher.engines.kubernetes.place import DATA, Place
from launcher.engines.kubernetes.settings import KubernetesSettings

RUN = "app.kubernetes.io/instance"
"""The label that everything of a run has."""
ORDER = "dfl/order"
"""The annotation of a Job that tells what was asked for."""
Object = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """One run's objects."""

    run: Run
    place: Place
    settings: KubernetesSettings

    @property
    def name(self) -> str:
        return self.place.name

    def beside(self) -> list[Object]:
        """All that the Job needs."""
        name, peers = self.name, len(self.place.spec.ids)
        made = [
            objects.service(name),
            objects.disruption_budget(name, peers),
            objects.network_policy(name),
            self._claim(),
            self._of("ConfigMap", name, data=self.place.files()),
        ]
        if self.run.certs:
            made.append(
                self._of("Secret", f"{name}-certificates", data=certificates(self.run.certs, self.place.spec.ids))
            )
        return [*map(dict, made)]

    @cached_property
    def job(self) -> Object:
        made = copy.deepcopy(dict(objects.job(self.place, self.settings.image)))
        pod = made["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        container["args"] = [*container["args"], "--quiet"]
        container["resources"] = self._resources(container["resources"])
        if self.run.certs:
            patch = objects.certificates_patch(self.name, self.place.spec.ids)["spec"]["template"]["spec"]
            container["volumeMounts"] += patch["containers"][0]["volumeMounts"]
            pod["volumes"] += patch["volumes"]
        if self.settings.data:
            container["volumeMounts"].append({"name": "data", "mountPath": str(DATA), "readOnly": True})
            pod["volumes"].append(
                {"name": "data", "persistentVolumeClaim": {"claimName": self.settings.data, "readOnly": True}}
            )
        made["metadata"]["annotations"] = {ORDER: self._digest_of(made)}
        return made

    @property
    def digest(self) -> str:
        """Tells whether a Job is what would be made now."""
        return str(self.job["metadata"]["annotations"][ORDER])

    def collector(self) -> Object:
        """Not under the peers' labels: it is none of theirs, and nobody is to reach it."""
        made = copy.deepcopy(dict(objects.collector(self.name, self.settings.image)))
        made["metadata"]["labels"] = {"app.kubernetes.io/name": "dfl-collect", RUN: self.name}
        return made

    def _claim(self) -> Object:
        made = copy.deepcopy(dict(objects.claim(self.name)))
        made["spec"] |= {
            "accessModes": [self.settings.access],
            "resources": {"requests": {"storage": self.settings.storage}},
        }
        if self.settings.storage_class:
            made["spec"]["storageClassName"] = self.settings.storage_class
        return made

    def _resources(self, usual: Object) -> Object:
        memory = self.settings.memory
        requests = {"cpu": f"{self.settings.cpus:g}", "memory": memory or usual["requests"]["memory"]}
        limits: Object = {"memory": memory or usual["limits"]["memory"]}
        if self.settings.gpus:
            limits["nvidia.com/gpu"] = self.settings.gpus
        return {"requests": requests, "limits": limits}

    def _digest_of(self, job: Object) -> str:
        asked = [job, self.place.files(), self.run.spec.digest()]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def _of(self, kind: str, name: str, data: dict[str, str]) -> Object:
        return {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": name, "labels": objects.labels(self.name)},
            "data": data,
        }


def certificates(directory: Path, ids: Sequence[str]) -> dict[str, str]:
    """The content of a Secret: everybody's files by name, in base64."""
    paths = [path for id in ids for path in certificate_files(directory, id).values()]
    return {path.name: b64encode(path.read_bytes()).decode() for path in paths}
