"""Who is told of a peer's events besides its files: as its own file has it, or else the federation's."""

from dataclasses import dataclass

from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig


@dataclass(frozen=True)
class Watching:
    """metrics: host:port at which figures are read; tracker: `module:name` of the user's code."""

    metrics: str | None
    tensorboard: bool
    tracker: str | None


def watching(config: PeerConfig, spec: Spec) -> Watching:
    """What holds for this peer."""
    return Watching(
        config.metrics or spec.metrics_addresses.get(config.id),
        spec.tensorboard if config.tensorboard is None else config.tensorboard,
        config.tracker or spec.tracker,
    )
