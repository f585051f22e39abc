"""A runtime for decentralised federated learning: every client is one process."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peer.learning.export import load_model as load_model
    from peer.learning.tasks import Figure as Figure
    from peer.learning.tasks import Task as Task
    from peer.learning.training.optimiser import SGD as SGD
    from peer.learning.training.optimiser import Adam as Adam
    from peer.learning.training.optimiser import Optimiser as Optimiser
    from peer.learning.training.phase import Phase as Phase
    from peer.learning.training.scheduler import Scheduler as Scheduler
    from peer.network.wire.codec import Codec as Codec
    from peer.plugins import Preset as Preset
    from peer.protocols.base import Peer as Peer
    from peer.protocols.base import Protocol as Protocol
    from peer.protocols.base import Received as Received
    from peer.protocols.declarations import Record as Record
    from peer.protocols.declarations import Share as Share
    from peer.runtime.in_process import federate as federate

_HOMES = {
    "peer.learning.export": ["load_model"],
    "peer.learning.tasks": ["Figure", "Task"],
    "peer.learning.training.optimiser": ["SGD", "Adam", "Optimiser"],
    "peer.learning.training.phase": ["Phase"],
    "peer.learning.training.scheduler": ["Scheduler"],
    "peer.network.wire.codec": ["Codec"],
    "peer.plugins": ["Preset"],
    "peer.protocols.base": ["Peer", "Protocol", "Received"],
    "peer.protocols.declarations": ["Record", "Share"],
    "peer.runtime.in_process": ["federate"],
}
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    """The public names, imported when asked for: torch takes seconds."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module `peer` has no `{name}`")
