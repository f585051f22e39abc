"""How good each site's model is at each other site: `protocol: cross-evaluation`.

The models go round the ring, a step a round, and every peer evaluates what it has after each round as ever, on its own
test samples: with as many rounds as peers, each has judged the models of all. Nothing is trained, no test sample leaves
its site, and neither does a figure. The whole models travel, heads included: that is what is asked for here.

Between its site and the one that judges it a model passes through others, which could change it. So each peer notes
the SHA-256 of what it has judged (`sha256`, a number for each byte) beside whose it should be (`judged`, the place in
the spec's ring): whoever reads the results of all peers sees whether it is what its site has sent.
"""

import hashlib
from typing import ClassVar

from torch import Tensor

from peer import Peer, Phase, Protocol, Share
from peer.protocols.base import Init
from peer.topology import Graph

LARGEST = 1e30
"""A liar's larger values could not be passed on, as what leaves a peer must have a finite sum, and would end it."""


class CrossEvaluation(Protocol):
    """Every site's model, judged on every site's test samples. Nothing is trained."""

    paper: ClassVar[str] = "none: the models of one run at all sites"
    graph: ClassVar[Graph] = "directed ring"
    init: ClassVar[Init] = "independent"
    exact: ClassVar[bool] = True

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model", rounds=range(2, rounds + 1)),)

    def local(self) -> tuple[Phase, ...]:
        return ()

    def why_rounds_are_fixed(self) -> str | None:
        return "with a round for each peer all models have been judged everywhere"

    def why_members_are_fixed(self) -> str | None:
        return "each model has to come round"

    def why_data_are_fixed(self) -> str | None:
        return "all models are judged on the same samples"

    async def round(self, peer: Peer) -> None:
        if peer.round > 1:
            received = await peer.exchange("model")
            peer.model.copy_(received[peer.left].vector.clamp(-LARGEST, LARGEST))
        site = peer.ring[(peer.position - peer.round + 1) % len(peer.ring)]
        digest = await peer.compute(sha256, peer.model)
        peer.note(judged=peer.members.index(site), sha256=[*digest])


def sha256(vector: Tensor) -> bytes:
    """Of a vector (p,), float32."""
    return hashlib.sha256(vector.detach().cpu().contiguous().numpy().tobytes()).digest()
