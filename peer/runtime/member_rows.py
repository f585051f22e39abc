"""What a protocol keeps of each member, when the members change: a row goes and comes with the one whom it is about."""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.protocols.base import Protocol

State = MutableMapping[str, Tensor]


@dataclass(frozen=True)
class MemberRows:
    """Of one run. The rows of those who are away are kept: who comes back finds what was thought of it."""

    protocol: Protocol
    everybody: tuple[str, ...]
    """Ids, as in the spec."""

    def follow(self, state: State, before: Sequence[str], after: Sequence[str]) -> None:
        """Give `state` the rows of the members of a view in place of those of an earlier one."""
        for name in self.protocol.by_peer:
            if name in state:
                self._put(state, name, self._of_everybody(state, name, before), after)

    def numbers(self, state: State, name: str, members: Sequence[str]) -> list[float]:
        """A row of one number for everybody, in the order of the spec."""
        rows = self._of_everybody(state, name, members)
        return [float(rows[id]) for id in self.everybody]

    def take_over(self, state: State, name: str, numbers: Sequence[float], members: Sequence[str]) -> None:
        """What `numbers` of another member gave."""
        rows = torch.tensor(numbers, dtype=torch.float64).to(dtype(self.protocol.by_peer[name]))
        self._put(state, name, dict(zip(self.everybody, rows, strict=True)), members)

    def _of_everybody(self, state: State, name: str, members: Sequence[str]) -> dict[str, Tensor]:
        present, first = state[name].cpu(), self.protocol.by_peer[name]
        # Who was never there has no row: then it is taken for one like the others.
        new = present.mean(0) if present.is_floating_point() else torch.full_like(present[0], first)
        known = dict.fromkeys(self.everybody, new) | dict(zip(members, present, strict=True))
        if (kept := state.get(_away(name))) is not None:
            known |= dict(zip((id for id in self.everybody if id not in members), kept.cpu(), strict=True))
        return known

    def _put(self, state: State, name: str, rows: dict[str, Tensor], members: Sequence[str]) -> None:
        state[name] = torch.stack([rows[id] for id in members])
        state.pop(_away(name), None)
        if away := [rows[id] for id in self.everybody if id not in members]:
            state[_away(name)] = torch.stack(away)


def first_rows(protocol: Protocol, state: State, count: int) -> None:
    """Before anything is known of so many members."""
    for name, first in protocol.by_peer.items():
        state[name] = torch.full((count,), first, dtype=dtype(first))


def dtype(first: float | bool) -> torch.dtype:
    """Of rows that begin so."""
    return torch.bool if isinstance(first, bool) else torch.float64


def _away(name: str) -> str:
    """Where the rows of those who are no members are kept, in the order of the spec."""
    return f"{name} of who is away"
