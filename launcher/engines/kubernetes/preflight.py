"""What would make a cluster refuse the run, found before anything is created."""

import asyncio
import json
import re
from pathlib import Path

from pydantic import ValidationError

from launcher.engines.base import Run
from launcher.engines.kubernetes.cluster import Cluster
from launcher.engines.kubernetes.identity import identity, known, place
from launcher.engines.kubernetes.kubectl import Kubectl
from launcher.engines.kubernetes.order import Order
from launcher.engines.kubernetes.settings import KubernetesSettings
from launcher.engines.local.preflight import check_certificates, check_resources
from launcher.plan import plan
from peer.errors import FailedError, InputError
from peer.spec.peer import PeerConfig

OLDEST = (1, 29)
"""The first Kubernetes in which all that is used is switched on."""
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def check(run: Run, settings: KubernetesSettings) -> None:
    """All of it; whether data and model go together, too. Raises InputError."""
    if not run.certs and not run.spec.allows_plaintext:
        raise InputError(
            "--on kubernetes: peers in a cluster speak over its network; make certificates with `dfl-launch certs` and "
            f"give --certs, or write {run.spec.to_allow_plaintext}"
        )
    check_device(run.device, settings)
    check_certificates(run.spec, run.certs)
    check_resources(run.spec, run.files.path)
    plan(run.spec)
    try:
        asyncio.run(check_cluster(run, settings))
    except FailedError as error:
        raise InputError(str(error)) from None


def check_device(device: str, settings: KubernetesSettings) -> None:
    try:
        PeerConfig(federation=Path("federation.yaml"), id="peer0", device=device)
    except ValidationError:
        raise InputError(f"--device {device}: choose auto, cpu, cuda or cuda:N") from None
    if device not in ("auto", "cpu") and not settings.gpus:
        raise InputError(f"--device {device}: a pod sees no GPU unless it is given one; add --option gpus=1")


async def check_cluster(run: Run, settings: KubernetesSettings) -> None:
    """The cluster itself says what it would make of the objects."""
    whose = await identity(run, settings)
    order = Order(run, place(run, whose), settings)
    kubectl = whose.kubectl(settings)
    await check_version(kubectl)
    await check_right(kubectl)
    made = [*order.beside(), order.collector()]
    await Cluster(kubectl, order.name).apply([*made, order.job] if known(run) is None else made, "--dry-run=server")


async def check_version(kubectl: Kubectl) -> None:
    answer = json.loads(await kubectl.ask("version", "--output=json"))
    server = answer.get("serverVersion", {})
    found = tuple(int(re.sub(r"\D.*", "", server.get(part, "")) or 0) for part in ("major", "minor"))
    if found < OLDEST:
        raise FailedError(
            f"the cluster is Kubernetes {'.'.join(map(str, found))}, and 1.29 is the first that can start a peer again "
            "without the others; choose another cluster with --option context=NAME"
        )


async def check_right(kubectl: Kubectl) -> None:
    """To execute in pods, which no dry run asks for."""
    right = {"namespace": kubectl.namespace, "verb": "create", "resource": "pods", "subresource": "exec"}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    asked = json.dumps(review | {"spec": {"resourceAttributes": right}})
    answer = json.loads(await kubectl.ask("create", f"--raw={REVIEWS}", "--filename=-", given=asked))
    if not answer["status"]["allowed"]:
        raise FailedError(
            "the cluster does not allow to create pods/exec, by which the results come here; ask for this right, or "
            "choose another --option namespace=NAME"
        )
