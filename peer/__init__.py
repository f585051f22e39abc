"""A runtime for decentralised federated learning: every client is one process."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peer.learning.export import load_model
    from peer.protocols.base import Peer, Protocol, Received, Record, Share

__all__ = ["Peer", "Protocol", "Received", "Record", "Share", "load_model"]


def __getattr__(name: str) -> Any:
    """The public names, imported when asked for: torch takes seconds."""
    if name == "load_model":
        from peer.learning.export import load_model

        return load_model
    if name in __all__:
        from peer.protocols import base

        return getattr(base, name)
    raise AttributeError(f"module `peer` has no `{name}`")
