"""Which losses a run can bear: those that its peers go on without."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from peer.spec.federation import Spec
from peer.views.view import View


@dataclass(frozen=True)
class Bearable:
    """at_least: members that every view has; None where every peer is needed. faulty: f, how many may lie."""

    at_least: int | None = None
    faulty: int = 0

    @classmethod
    def of(cls, spec: Spec, certificates: bool) -> Self:
        return cls(spec.protocol.min_peers, spec.tolerated(certificates)) if spec.on_loss == "bypass" else cls()

    def without(self, failed: Collection[str], view: View) -> bool:
        """Whether the rest of the view's members can decide to go on, and are enough."""
        if self.at_least is None:
            return not failed
        left = [id for id in view.members if id not in failed]
        return len(left) >= self.at_least and view.is_quorum(left, self.faulty)
