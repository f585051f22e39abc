"""A runtime for decentralised federated learning: every client is one process."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peer.learning.export import load_model
    from peer.learning.tasks import Figure, Task
    from peer.learning.training.optimiser import SGD, Adam, Optimiser
    from peer.learning.training.phase import Phase
    from peer.learning.training.scheduler import Scheduler
    from peer.network.wire.codec import Codec
    from peer.plugins import Preset
    from peer.protocols.base import Peer, Protocol, Received
    from peer.protocols.declarations import Record, Share
    from peer.runtime.in_process import federate

__all__ = [
    "SGD",
    "Adam",
    "Codec",
    "Figure",
    "Optimiser",
    "Peer",
    "Phase",
    "Preset",
    "Protocol",
    "Received",
    "Record",
    "Scheduler",
    "Share",
    "Task",
    "federate",
    "load_model",
]

_ELSEWHERE = {
    "federate": "peer.runtime.in_process",
    "load_model": "peer.learning.export",
    "SGD": "peer.learning.training.optimiser",
    "Adam": "peer.learning.training.optimiser",
    "Codec": "peer.network.wire.codec",
    "Figure": "peer.learning.tasks",
    "Task": "peer.learning.tasks",
    "Optimiser": "peer.learning.training.optimiser",
    "Phase": "peer.learning.training.phase",
    "Preset": "peer.plugins",
    "Scheduler": "peer.learning.training.scheduler",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when asked for: torch takes seconds."""
    if name in __all__:
        return getattr(import_module(_ELSEWHERE.get(name, "peer.protocols.base")), name)
    raise AttributeError(f"module `peer` has no `{name}`")
