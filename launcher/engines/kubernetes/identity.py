"""Which run the objects in a cluster are of, and which cluster that is."""

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from launcher.engines.base import Run
from launcher.engines.kubernetes.kubectl import Kubectl
from launcher.engines.kubernetes.place import Place
from launcher.engines.kubernetes.settings import KubernetesSettings
from peer.errors import FailedError, InputError
from peer.files import write_atomically
from peer.reading import SETTINGS, read_plain


@dataclass(frozen=True)
class Identity:
    """context, namespace: empty where kubectl knows none, as in a pod."""

    context: str
    namespace: str
    mark: str
    """What tells this run's objects from those of another."""

    def write(self, run: Run) -> None:
        write_atomically(run.files.place, json.dumps(asdict(self)).encode(), permissions=0o600)

    def kubectl(self, settings: KubernetesSettings) -> Kubectl:
        return Kubectl(settings.kubectl, self.context, self.namespace)


def known(run: Run) -> Identity | None:
    """None before the first launch of the run in a cluster."""
    try:
        written = json.loads(read_plain(run.files.place, SETTINGS))
        return Identity(**written)
    except (FileNotFoundError, TypeError):
        return None


async def identity(run: Run, settings: KubernetesSettings) -> Identity:
    """The run's, or a new one. InputError where its checkpoints are in another place than the one that is chosen."""
    chosen = await _place(settings)
    earlier = known(run)
    if earlier is None:
        return Identity(*chosen, mark=secrets.token_hex(4))
    if (earlier.context, earlier.namespace) != chosen and (settings.context or settings.namespace):
        raise InputError(
            f"the run in {run.files.path} has its checkpoints in the namespace `{earlier.namespace}` of the context "
            f"`{earlier.context}`; choose these with --option, or another directory with --out"
        )
    return earlier


async def _place(settings: KubernetesSettings) -> tuple[str, str]:
    """Context and namespace."""
    kubectl = Kubectl(settings.kubectl, settings.context or "")
    try:
        view = json.loads(await kubectl.ask("config", "view", "--minify", "--output=json"))
    except FailedError:
        if settings.context:
            raise
        return "", settings.namespace or ""
    context: dict[str, Any] = next(iter(view.get("contexts") or []), {})
    namespace = context.get("context", {}).get("namespace", "default")
    return context.get("name", ""), settings.namespace or namespace


def place(run: Run, identity: Identity) -> Place:
    return Place(run.spec, certificates=run.certs is not None, mark=identity.mark, device=run.device)
