"""One extractor for all: its mean goes round the ring; every peer keeps a head of its own, which never leaves."""

from peer.protocols.base import Protocol, Share
from peer.topology.graphs import Graph


class MeanExtractor(Protocol):
    """Peers share the extractor alone, by `weighted_mean`."""

    @property
    def graph(self) -> Graph:
        return "directed ring"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("extractor"),)
