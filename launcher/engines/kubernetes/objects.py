"""The objects of a federation in a cluster, as plain data.

An Indexed Job and no StatefulSet, for a federation has an end: a StatefulSet starts a peer that is done again for ever,
and one that was refused as well. The price: a Job has no claim for each pod, so all peers share one, and each sees its
own directory of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.engines.kubernetes.place import CONFIG, HEALTH_PORT, PEER_PORT, RUNS, TLS, Place

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
USER = 70001
"""The image's."""
RESTARTS = 5
WRONG_INPUT = 2
GRACE_SECONDS = 30
"""For the checkpoint after SIGTERM."""
Object = Mapping[str, Any]


def labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "dfl", "app.kubernetes.io/instance": name}


def _object(kind: str, api: str, name: str, **content: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels(name)}, **content}


def job(place: Place, image: str) -> Object:
    peers = len(place.spec.ids)
    spec = {
        "completions": peers,
        "parallelism": peers,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": RESTARTS,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failures()},
        "template": {"metadata": {"labels": labels(place.name)}, "spec": _pod(place.name, image)},
    }
    return _object("Job", "batch/v1", place.name, spec=spec)


def _failures() -> list[Object]:
    """Wrong input ends all, as it would be no better the next time; a pod that was evicted counts for nothing."""
    wrong = {"containerName": "peer", "operator": "In", "values": [WRONG_INPUT]}
    return [
        {"action": "FailJob", "onExitCodes": wrong},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _pod(name: str, image: str) -> Object:
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
        "containers": [_container(image)],
        "volumes": [
            {"name": "config", "configMap": {"name": name}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": name}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }


def _container(image: str) -> Object:
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}}
    return {
        "name": "peer",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": [f"{CONFIG}/$(DFL_INDEX).yaml"],
        "env": [{"name": "DFL_INDEX", "valueFrom": index}],
        "ports": [{"name": "peer", "containerPort": PEER_PORT}, {"name": "health", "containerPort": HEALTH_PORT}],
        "startupProbe": _probe(periodSeconds=5, failureThreshold=120),
        "livenessProbe": _probe(periodSeconds=30, failureThreshold=4),
        "readinessProbe": _probe(periodSeconds=10),
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
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
    """Gives every pod its name, before it is ready as well: ready is who has met its neighbours."""
    ports = [{"name": "peer", "port": PEER_PORT}]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels(name), "ports": ports}
    return _object("Service", "v1", name, spec=spec)


def claim(name: str) -> Object:
    """Of many nodes at a time, since the pods are on many."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}
    return _object("PersistentVolumeClaim", "v1", name, spec=spec)


def disruption_budget(name: str, peers: int) -> Object:
    """One peer at a time may be evicted: the others wait for it."""
    spec = {
        "minAvailable": peers - 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": labels(name)},
    }
    return _object("PodDisruptionBudget", "policy/v1", name, spec=spec)


def network_policy(name: str) -> Object:
    """Peers hear each other and nobody else. All of them, as who is whose neighbour may change from round to round."""
    peers = {"podSelector": {"matchLabels": labels(name)}}
    heard = {"from": [peers], "ports": [{"protocol": "TCP", "port": PEER_PORT}]}
    spec = {"podSelector": {"matchLabels": labels(name)}, "policyTypes": ["Ingress"], "ingress": [heard]}
    return _object("NetworkPolicy", "networking.k8s.io/v1", name, spec=spec)


def collector(name: str, image: str) -> Object:
    """A pod that does nothing, through which the peers' files can be copied when they are done."""
    pod, container = _pod(name, image), _container(image)
    idle = {key: container[key] for key in ("name", "image", "imagePullPolicy", "securityContext")} | {
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": "runs", "mountPath": str(RUNS), "readOnly": True}],
    }
    spec = {key: pod[key] for key in ("automountServiceAccountToken", "enableServiceLinks", "securityContext")}
    spec |= {"containers": [idle], "volumes": [volume for volume in pod["volumes"] if volume["name"] == "runs"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-collect"}, "spec": spec}


def gpu_patch(name: str) -> Object:
    resources = {"limits": {"nvidia.com/gpu": 1}}
    return _patch(name, {"containers": [{"name": "peer", "resources": resources}]})


def certificates_patch(name: str, ids: Sequence[str]) -> Object:
    """The Secret holds a directory for every peer, of which its container sees its own."""
    mount = {"name": "tls", "mountPath": str(TLS), "subPathExpr": "$(DFL_INDEX)", "readOnly": True}
    items = []
    for index, id in enumerate(ids):
        files = {"ca.pem": "ca.pem", f"{id}.pem": "cert.pem", f"{id}.key": "key.pem"}
        items += [{"key": key, "path": f"{index}/{file}"} for key, file in files.items()]
    secret = {"secretName": f"{name}-certificates", "defaultMode": 0o440, "items": items}
    container = {"name": "peer", "volumeMounts": [mount]}
    return _patch(name, {"containers": [container], "volumes": [{"name": "tls", "secret": secret}]})


def _patch(name: str, pod: Object) -> Object:
    spec = {"template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
