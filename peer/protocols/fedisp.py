"""FedISP: one token goes round the ring; incremental subgradient-proximal steps. FedISP paper, Algorithm 1."""

from math import cos, pi
from typing import ClassVar, Literal

from peer.learning.model.layout import ModelPart
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.protocols.base import Init, Peer, Protocol
from peer.protocols.blocks.global_model import Participation, common_start
from peer.protocols.blocks.training import BatchSize, Fraction, Rate, corrected, proximal
from peer.protocols.declarations import Share
from peer.topology import Graph

Schedule = Literal["fixed", "equispaced", "exponential", "linear", "cosine", "harmonic"]


class FedISP(Participation, Protocol):
    """z ≈ argmin f_i(z) + ‖z − w‖²/(2α_k), then w ← z − α_k∇f_i(z), and w goes to the right neighbour.

    Both steps are one local epoch of mini-batch SGD at rate α_k with a new momentum each. One round is one
    full circulation; peers that are not drawn relay the token.
    """

    name: Literal["fedisp"] = "fedisp"
    lr: Rate = 0.01
    """α_0: the first step size."""
    schedule: Schedule = "fixed"
    """How α_k falls with the circulation k."""
    momentum: Fraction = 0.5
    """Momentum of SGD within a step."""
    weight_decay: Fraction = 1e-5
    """Weight decay of SGD."""
    batch_size: BatchSize = 64

    paper: ClassVar[str] = "FedISP, Algorithm 1"
    passed_on: ClassVar[ModelPart | None] = "model"
    graph: ClassVar[Graph] = "directed ring"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"),)

    def step_size(self, k: int, rounds: int) -> float:
        """α_k."""
        first = self.lr
        match self.schedule:
            case "fixed":
                return first
            case "equispaced":
                return first * 0.5 ** (k // 50)
            case "exponential":
                return first * 0.99**k
            case "linear":
                return first * (1 - 0.99 * k / max(rounds - 1, 1))
            case "cosine":
                return first * (1 + cos(pi * k / rounds)) / 2
            case "harmonic":
                return first if k < 50 else first / (k - 49)

    def why_rounds_are_fixed(self) -> str | None:
        return (
            f"its {self.schedule} schedule ends with the last round" if self.schedule in ("linear", "cosine") else None
        )

    def why_optimiser_is_fixed(self) -> str:
        return "both of its steps are of SGD at the rate α_k, which its proximal term is divided by"

    def local(self) -> tuple[Phase, ...]:
        return (self._epoch(self.lr), self._epoch(self.lr))

    def _epoch(self, lr: float) -> Phase:
        return Phase("model", 1, SGD(lr, self.momentum, self.weight_decay), self.batch_size)

    async def start(self, peer: Peer, init: Init) -> None:
        await common_start(peer, init)

    async def round(self, peer: Peer) -> None:
        first = peer.position == 0
        if not first:
            peer.model.copy_(await peer.receive_token("model"))
        elif "token" in peer.state:
            peer.model.copy_(peer.state["token"])
        if peer.id in self.drawn(peer):
            await self.step(peer)
        await peer.pass_token("model")
        if first:
            peer.state["token"] = await peer.receive_token("model")

    async def begin_view(self, peer: Peer) -> None:
        """The first peer may be another now, or the token's holder be lost: the last peer passes on its own model."""
        peer.state.pop("token", None)
        if peer.position == len(peer.ring) - 1:
            await peer.pass_token("model")
        if peer.position == 0:
            peer.state["token"] = await peer.receive_token("model")

    async def step(self, peer: Peer) -> None:
        size = self.step_size(peer.round - 1, peer.rounds)
        towards_received = proximal(peer.model.clone(), 1 / size)
        await peer.train(*corrected([self._epoch(size)], towards_received), self._epoch(size))
