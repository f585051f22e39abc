"""The objects of a federation in a cluster, as plain data.

The settings, what a federation's files contain inside a cluster, the objects themselves, and their two users: a run
(`RunObjects`: objects under names of its own, as its settings ask for) and `dfl-launch manifests` (`tree`: a kustomize
base, two components, and overlays that combine them).

An Indexed Job and no StatefulSet, as a federation has an end: a StatefulSet restarts a peer that is done, and one that
was refused, without end. The price: a Job has no claim per pod, so all peers share one, and each sees its own directory
of it.
"""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field

from launcher.engines.base import IMAGE_WANTED, Image, Run
from launcher.run_files import certificate_files
from peer.errors import InputError
from peer.process import WRONG_INPUT
from peer.settings import Settings, Wanted
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec

QUANTITY = r"^[1-9][0-9]*(\.[0-9]+)?([kMGTP]i?|Ki)?$"
Egress = Literal["peers", "any"]
SIZE = "a number with a unit of Kubernetes, such as 500Mi or 4Gi"


class KubernetesSettings(Settings):
    """A pod for every peer, of one Job."""

    image: Annotated[Image, Wanted(IMAGE_WANTED)]
    """The image of the peers, as the cluster's nodes can pull it; see deploy/Dockerfile."""
    context: str | None = None
    """The kubectl context. Not given: the current one."""
    namespace: str | None = None
    """Not given: the context's."""
    storage: Annotated[str, Field(pattern=QUANTITY), Wanted(SIZE)] = "10Gi"
    """Size of the volume for what all peers write while they run."""
    storage_class: str | None = None
    """The volume's storage class. Not given: the cluster's default."""
    access: Annotated[Literal["ReadWriteMany", "ReadWriteOnce"], Wanted("ReadWriteMany or ReadWriteOnce")] = (
        "ReadWriteMany"
    )
    """ReadWriteOnce will do on a cluster of one node."""
    cpus: Annotated[float, Field(gt=0), Wanted("a number of CPUs above 0, such as 1.5")] = 1
    """CPUs that every peer asks for."""
    memory: Annotated[Annotated[str, Field(pattern=QUANTITY)] | None, Wanted(SIZE)] = None
    """Memory that every peer asks for and may take: 4Gi. Not given: asks for 1Gi, may take 2Gi."""
    gpus: Annotated[int, Field(ge=0), Wanted("a whole number, such as 1")] = 0
    """GPUs of every peer."""
    data: str | None = None
    """A claim that is there already, which all peers see as /data."""
    egress: Annotated[Egress | None, Wanted("peers or any")] = None
    """Where peers may connect to: `peers` (its neighbours, and DNS), or `any`. Not given: any if data are downloaded or
    there is a tracker, else peers."""
    kubectl: Annotated[str, Field(min_length=1)] = "kubectl"
    """The program, or its path."""


PEER_PORT, HEALTH_PORT, METRICS_PORT = 7700, 7800, 9400
DNS_PORTS = (53, 5353)
"""The second is where the DNS pods of OpenShift listen: policies go by the pods' ports, not by the service's."""
CONFIG, RUNS, DATA, CODE, TLS = map(Path, ("/etc/dfl", "/runs", "/data", "/code", "/tls"))
MAX_NAME_LENGTH = 63
"""The most characters of a DNS label."""


@dataclass(frozen=True)
class ClusterLayout:
    """One federation in a cluster. certificates: whether its peers have any."""

    spec: Spec
    certificates: bool = False
    mark: str = ""
    """A suffix of the name that distinguishes runs of the same federation; may be empty."""
    device: str = "auto"

    @property
    def name(self) -> str:
        """The name of the Job and its service; InputError if it cannot be a DNS name."""
        name = re.sub(r"[^a-z0-9]+", "-", f"{self.spec.name}-{self.mark}".lower()).strip("-")
        pods = f"{name}-{len(self.spec.ids) - 1}"
        if not re.fullmatch(r"[a-z].*", name) or len(pods) > MAX_NAME_LENGTH:
            raise InputError(
                f"the name `{self.spec.name}` cannot name a service: begin it with a letter, with {MAX_NAME_LENGTH} "
                "characters at most for it and a peer's number"
            )
        return name

    def address(self, index: int) -> str:
        """The pods of an Indexed Job are named by their number; the headless service makes that a name in DNS."""
        return f"{self.name}-{index}.{self.name}:{PEER_PORT}"

    def files(self) -> dict[str, str]:
        """Return the settings files of all peers by name; a peer's is its number, by which its pod finds it."""
        files = {"federation.yaml": dump_yaml(self._federation())}
        return files | {f"{index}.yaml": dump_yaml(self._peer(id)) for index, id in enumerate(self.spec.ids)}

    def _federation(self) -> Mapping[str, Any]:
        content = self.spec.model_dump(mode="json", exclude_none=True)
        sources = [content["data"], *(member["data"] for member in content["ring"] if "data" in member)]
        content.pop("code", None)
        content.pop("metrics", None)  # a port per peer of one machine; see `_peer`
        if self.spec.own_code:
            content["code"] = str(CODE)
        if "recording" in content:
            content["recording"] = str(DATA / "recording")
        for source in (*sources, content["model"]):
            source.update({key: _inside(source[key]) for key in ("root", "path", "weights") if key in source})
        for index, member in enumerate(content["ring"]):
            member["address"] = self.address(index)
            member.pop("dials_out", None)  # in a cluster every peer can be dialled
        return content

    def _peer(self, id: str) -> Mapping[str, Any]:
        content: dict[str, Any] = {"federation": "federation.yaml", "id": id, "listen": f"0.0.0.0:{PEER_PORT}"}
        content |= {"health": f"0.0.0.0:{HEALTH_PORT}", "out": str(RUNS / id)}
        content |= {"metrics": f"0.0.0.0:{METRICS_PORT}"} if self.spec.metrics else {}
        content |= {"device": self.device} if self.device != "auto" else {}
        if self.certificates:
            content |= {"tls": {what: str(TLS / f"{what}.pem") for what in ("ca", "cert", "key")}}
        return content


def _inside(path: str) -> str:
    """Return where data lie in a pod: the name of the file or directory, or the path from the part with `{id}` on."""
    parts = Path(path).parts
    own = next((place for place, part in enumerate(parts) if "{id}" in part), len(parts) - 1)
    return str(DATA.joinpath(*parts[own:]))


POD_INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation and, since Kubernetes 1.28, label of a pod: the number of its peer."""
RUN_LABEL = "app.kubernetes.io/instance"
"""The label of everything that belongs to a run."""
USER = 70001
"""The image's."""
RESTARTS = 5
GRACE_SECONDS = 30
"""Seconds for the checkpoint after SIGTERM."""
Object = dict[str, Any]


def labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "dfl", RUN_LABEL: name}


def _object(kind: str, api: str, name: str, run: str = "", **content: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels(run or name)}, **content}


MountedVolume = tuple[Object, Object]
"""Where the peer's container sees a volume of its pod, and the volume."""


def certificates_volume(name: str, ids: Sequence[str]) -> MountedVolume:
    """The Secret, with a directory for every peer of which its container sees its own."""
    mount = {"name": "tls", "mountPath": str(TLS), "subPathExpr": "$(DFL_INDEX)", "readOnly": True}
    items = []
    for index, id in enumerate(ids):
        files = {"ca.pem": "ca.pem", f"{id}.pem": "cert.pem", f"{id}.key": "key.pem"}
        items += [{"key": key, "path": f"{index}/{file}"} for key, file in files.items()]
    secret = {"secretName": f"{name}-certificates", "defaultMode": 0o440, "items": items}
    return mount, {"name": "tls", "secret": secret}


def data_volume(claim: str) -> MountedVolume:
    mount = {"name": "data", "mountPath": str(DATA), "readOnly": True}
    return mount, {"name": "data", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


EPHEMERAL_STORAGE = "128Mi"
"""Of the node's disk: /tmp, and what the peer prints."""


def job(
    place: ClusterLayout,
    settings: KubernetesSettings,
    arguments: Sequence[str] = (),
    volumes: Sequence[MountedVolume] = (),
) -> Object:
    """arguments: more of `dfl-peer`."""
    peers = len(place.spec.ids)
    pod = _pod(place.name, settings)
    (container,) = pod["containers"]
    container["args"] += arguments
    container["volumeMounts"] += [mount for mount, _ in volumes]
    about: Object = {"labels": labels(place.name)}
    if place.spec.metrics:
        container["ports"].append({"name": "metrics", "containerPort": METRICS_PORT})
        about["annotations"] = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT)}
    pod["volumes"] += [volume for _, volume in volumes]
    # Spread over nodes as evenly as can be; where they cannot be, the pods run all the same.
    apart = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod["topologySpreadConstraints"] = [apart | {"labelSelector": {"matchLabels": labels(place.name)}}]
    # Wrong input ends the Job, as a restart would not help, or the peer alone where the others can go on without it; an
    # evicted pod counts as no failure.
    bypass = place.spec.on_loss == "bypass"
    wrong = {"containerName": "peer", "operator": "In", "values": [WRONG_INPUT]}
    evicted = {"type": "DisruptionTarget", "status": "True"}
    action = "FailIndex" if bypass else "FailJob"
    failures = [{"action": action, "onExitCodes": wrong}, {"action": "Ignore", "onPodConditions": [evicted]}]
    spec = {
        "completions": peers,
        "parallelism": peers,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": RESTARTS,
        **({} if bypass else {"maxFailedIndexes": 0}),
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": failures},
        "template": {"metadata": about, "spec": pod},
    }
    return _object("Job", "batch/v1", place.name, spec=spec)


def _pod(name: str, settings: KubernetesSettings) -> Object:
    return {
        "subdomain": name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(settings)],
        "volumes": [
            {"name": "config", "configMap": {"name": name}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": name}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }


def _container(settings: KubernetesSettings) -> Object:
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{POD_INDEX}']"}}
    gpus = {"nvidia.com/gpu": settings.gpus} if settings.gpus else {}
    memory = settings.memory
    requests = {"cpu": f"{settings.cpus:g}", "memory": memory or "1Gi", "ephemeral-storage": EPHEMERAL_STORAGE}
    return {
        "name": "peer",
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "args": [f"{CONFIG}/$(DFL_INDEX).yaml"],
        "env": [{"name": "DFL_INDEX", "valueFrom": index}],
        "ports": [{"name": "peer", "containerPort": PEER_PORT}, {"name": "health", "containerPort": HEALTH_PORT}],
        "startupProbe": _probe(periodSeconds=5, failureThreshold=120),
        "livenessProbe": _probe(periodSeconds=30, failureThreshold=4),
        "readinessProbe": _probe(periodSeconds=10),
        "resources": {"requests": requests, "limits": {"memory": memory or "2Gi", **gpus}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": str(CONFIG), "readOnly": True},
            {"name": "runs", "mountPath": str(RUNS), "subPathExpr": "$(DFL_INDEX)"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _probe(**timing: int) -> Object:
    return {"grpc": {"port": HEALTH_PORT}, "timeoutSeconds": 5, **timing}


def service(name: str) -> Object:
    """Gives every pod its name, even before it is ready: a pod is ready once it has met its neighbours."""
    ports = [{"name": "peer", "port": PEER_PORT}]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels(name), "ports": ports}
    return _object("Service", "v1", name, spec=spec)


def claim(name: str, settings: KubernetesSettings) -> Object:
    """A claim on a volume, by default for several nodes at once, as the pods are on several."""
    spec: Object = {"accessModes": [settings.access], "resources": {"requests": {"storage": settings.storage}}}
    spec |= {"storageClassName": settings.storage_class} if settings.storage_class else {}
    return _object("PersistentVolumeClaim", "v1", name, spec=spec)


def disruption_budget(name: str, peers: int) -> Object:
    """One peer at a time may be evicted; the others wait for it."""
    spec = {
        "minAvailable": peers - 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": labels(name)},
    }
    return _object("PodDisruptionBudget", "policy/v1", name, spec=spec)


PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
"""The label of the pods that may read figures, in any namespace."""


def network_policies(place: ClusterLayout, egress: Egress | None) -> Iterator[Object]:
    """Each peer speaks to its neighbours only, or to all peers where those may change; and asks for names."""
    spec, outside = place.spec, connects_outside(place.spec, egress)
    number = {id: str(index) for index, id in enumerate(spec.ids)}
    partners = {id: [number[other] for other in spec.partners(id)] for id in spec.ids}
    if all(len(others) == len(spec.ids) - 1 for others in partners.values()):
        peers = {"matchLabels": labels(place.name)}
        yield _network_policy(place, place.name, peers, peers, outside)
        return
    for id, others in partners.items():
        own = {"matchLabels": {**labels(place.name), POD_INDEX: number[id]}}
        # Without neighbours, a number that no pod has.
        near = [{"key": POD_INDEX, "operator": "In", "values": others or ["none"]}]
        theirs = {"matchLabels": labels(place.name), "matchExpressions": near}
        yield _network_policy(place, f"{place.name}-{number[id]}", own, theirs, outside)


def _network_policy(place: ClusterLayout, name: str, own: Object, theirs: Object, outside: bool) -> Object:
    peers, port = {"podSelector": theirs}, {"protocol": "TCP", "port": PEER_PORT}
    ingress: list[Object] = [{"from": [peers], "ports": [port]}]
    if place.spec.metrics:
        reader = {"namespaceSelector": {}, "podSelector": {"matchLabels": PROMETHEUS}}
        ingress.append({"from": [reader], "ports": [{"protocol": "TCP", "port": METRICS_PORT}]})
    names = [{"protocol": protocol, "port": port} for port in DNS_PORTS for protocol in ("UDP", "TCP")]
    egress: list[Object] = [{}] if outside else [{"to": [peers], "ports": [port]}, {"ports": names}]
    spec = {"podSelector": own, "policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress}
    plain = json.loads(json.dumps(spec))  # nothing twice, or YAML has anchors
    return _object("NetworkPolicy", "networking.k8s.io/v1", name, place.name, spec=plain)


def connects_outside(spec: Spec, egress: Egress | None) -> bool:
    """Whether its peers may connect to more than each other: as `egress` says, or where they download data, or a
    tracker receives their events."""
    if egress is not None:
        return egress == "any"
    sources = (spec.data, *(member.data for member in spec.ring))
    return spec.tracker is not None or any(getattr(source, "download", False) for source in sources)


def collector(name: str, settings: KubernetesSettings, **metadata: Any) -> Object:
    """A pod that does nothing, through which the peers' files can be copied when they are done.

    It has not the peers' labels: it is none of them, and need not be reached.
    """
    pod = _pod(name, settings)
    (container,) = pod["containers"]
    idle = {key: container[key] for key in ("name", "image", "imagePullPolicy", "securityContext")} | {
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": "runs", "mountPath": str(RUNS), "readOnly": True}],
    }
    spec = {key: pod[key] for key in ("automountServiceAccountToken", "enableServiceLinks", "securityContext")}
    spec |= {"containers": [idle], "volumes": [volume for volume in pod["volumes"] if volume["name"] == "runs"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-collect", **metadata}, "spec": spec}


DIGEST_ANNOTATION = "dfl/order"
"""The annotation of a Job that tells what was asked for, and so whether it is what would be made now."""


@dataclass(frozen=True)
class RunObjects:
    """One run's objects."""

    run: Run
    place: ClusterLayout
    settings: KubernetesSettings

    def beside(self) -> list[Object]:
        """All that the Job needs."""
        name, ids = self.place.name, self.place.spec.ids
        made = [
            service(name),
            disruption_budget(name, len(ids)),
            *network_policies(self.place, self.settings.egress),
            claim(name, self.settings),
            _object("ConfigMap", "v1", name, data=self.place.files()),
        ]
        if self.run.certs:
            paths = [path for id in ids for path in certificate_files(self.run.certs, id).values()]
            data = {path.name: b64encode(path.read_bytes()).decode() for path in paths}
            made.append(_object("Secret", "v1", f"{name}-certificates", run=name, data=data))
        return made

    @cached_property
    def job(self) -> Object:
        settings = self.settings
        volumes = [certificates_volume(self.place.name, self.place.spec.ids)] if self.run.certs else []
        volumes += [data_volume(settings.data)] if settings.data else []
        made = job(self.place, settings, ("--quiet",), volumes)
        asked = json.dumps([made, self.place.files(), self.run.spec.agreement.digest], sort_keys=True)
        made["metadata"]["annotations"] = {DIGEST_ANNOTATION: hashlib.sha256(asked.encode()).hexdigest()}
        return made

    def collector(self) -> Object:
        labels = {"app.kubernetes.io/name": "dfl-collect", RUN_LABEL: self.place.name}
        return collector(self.place.name, self.settings, labels=labels)


KUSTOMIZATION, COMPONENT = "kustomize.config.k8s.io/v1beta1", "kustomize.config.k8s.io/v1alpha1"
CERTIFICATES = PurePosixPath("components/certificates/certs")
"""kustomize reads no file outside of the directories that it is given."""
OVERLAYS = {"certificates": ("certificates",), "gpu": ("gpu",), "certificates-gpu": ("certificates", "gpu")}
ABOUT = "# Made by `dfl-launch manifests`: change the federation and make it again, or patch it in an overlay.\n"
IGNORED = "# Keys stay out of the repository.\n*\n!.gitignore\n"


def tree(spec: Spec, settings: KubernetesSettings) -> dict[str, str]:
    """Return every file by its path; all of it may be committed."""
    place = ClusterLayout(spec)
    secured, name, ids = replace(place, certificates=True), place.name, spec.ids
    base = {
        "service": [service(name)],
        "claim": [claim(name, settings)],
        "job": [job(place, settings)],
        "disruption-budget": [disruption_budget(name, len(ids))],
        "network-policy": [*network_policies(place, settings.egress)],
    }
    resources = [f"{file}.yaml" for file in base]
    one_gpu = {"name": "peer", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    mount, volume = certificates_volume(name, ids)
    peer = {"name": "peer", "volumeMounts": [mount]}
    names = ["ca.pem", *(f"{id}.{end}" for id in ids for end in ("pem", "key"))]
    secret = {"name": f"{name}-certificates", "files": [f"certs/{one}" for one in names]}
    objects = {
        **{f"base/{file}": content for file, content in base.items()},
        "base/kustomization": [_kustomization(resources=resources, configMapGenerator=[_settings(place)])],
        **_component("gpu", name, {"containers": [one_gpu]}),
        **_component(
            "certificates",
            name,
            {"containers": [peer], "volumes": [volume]},
            configMapGenerator=[_settings(secured) | {"behavior": "replace"}],
            secretGenerator=[secret],
        ),
        "collect": [collector(name, settings)],
    }
    for overlay, components in OVERLAYS.items():
        parts = [f"../../components/{one}" for one in components]
        objects[f"overlays/{overlay}/kustomization"] = [_kustomization(resources=["../../base"], components=parts)]
    files = {f"{path}.yaml": "---\n".join(map(dump_yaml, content)) for path, content in objects.items()}
    files |= {f"base/config/{file}": text for file, text in place.files().items()}
    files |= {f"components/certificates/config/{file}": text for file, text in secured.files().items()}
    return {path: ABOUT + text for path, text in files.items()} | {f"{CERTIFICATES}/.gitignore": IGNORED}


def _component(component: str, name: str, pod: Object, **more: Any) -> dict[str, list[Object]]:
    """What adds to the pods of the Job of that name. pod: what it adds."""
    patch = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": {"spec": pod}}}
    made = {"apiVersion": COMPONENT, "kind": "Component", "patches": [{"path": "job.yaml"}], **more}
    return {f"components/{component}/job": [patch], f"components/{component}/kustomization": [made]}


def _settings(place: ClusterLayout) -> Object:
    """What makes the ConfigMap of the settings files."""
    return {"name": place.name, "files": [f"config/{file}" for file in place.files()]}


def _kustomization(**content: Any) -> Object:
    return {"apiVersion": KUSTOMIZATION, "kind": "Kustomization", **content}
