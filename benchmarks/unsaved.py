"""A fibfl whose peers write no checkpoint: what benchmarks.checkpoints compares with."""

from peer.protocols.fibfl import FibFL
from peer.runtime.checkpoints import Checkpointer


class Unsaved(FibFL):
    """FibFL under a name of its own, so that its module is imported in every peer."""

    name: str = "benchmarks.unsaved:Unsaved"  # type: ignore[assignment]


async def announce_only(checkpointer: Checkpointer, round: int) -> None:
    """In place of `save`: the neighbours are told what they wait for, and nothing is copied or written."""
    checkpointer._network.announce(round - 1)
    checkpointer.last = round  # type: ignore[attr-defined]


async def announce_last(checkpointer: Checkpointer) -> None:
    checkpointer._network.announce(checkpointer.last)  # type: ignore[attr-defined]


for name, instead in (("save", announce_only), ("verify_last", announce_last)):
    setattr(Checkpointer, name, instead)
