"""What a peer must have in common with the others: settled before round 1, or given to a peer that is admitted.

- Round 0 begins with what stands for missing values (`impute`), and the means and deviations of `standardize`
  (`settle_columns`). The federation's are up to three weighted means around the ring, of sums over all training
  samples; no peer reveals its own. A peer that is admitted later, with nothing but its data, is given the result
  (`admit_columns`).
- In the first round of a view an admitted peer gets from its left neighbour what all others have in common, or pass on
  (`sync_admitted`).
- What a protocol keeps about members has a row for each of them, which comes and goes with its member
  (`PerMemberState`).

In a view's first round the order is: means and deviations, state, and then the protocol's `begin_view`.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.data.samples import (
    Standardisation,
    first_pass,
    imputation_of,
    second_pass,
    standardisation_of,
    typical_values,
)
from peer.learning.model.layout import PARTS
from peer.network.collectives import Arrived
from peer.protocols.base import Protocol
from peer.spec.federation import IMPUTED, MEANS, VARIANCES

if TYPE_CHECKING:
    from peer.runtime.rounds.local_peer import Participant

ProtocolState = MutableMapping[str, Tensor]


def admission_name(name: str) -> str:
    """The name of a vector on its way to an admitted peer."""
    return f"{name} on entry"


ENTRY = admission_name("column means and deviations")


def first_rows(protocol: Protocol, state: ProtocolState, count: int) -> None:
    """Set the rows of `count` members to their first values, (count,), before anything is known about them."""
    for name, first in protocol.by_peer.items():
        state[name] = torch.full((count,), first, dtype=row_dtype(first))


def row_dtype(first: float | bool) -> torch.dtype:
    """The dtype of rows with such a first value."""
    return torch.bool if isinstance(first, bool) else torch.float64


@dataclass(frozen=True)
class PerMemberState:
    """The rows that a protocol keeps about members in one run; rows of peers that are not members are kept, too."""

    protocol: Protocol
    ids: tuple[str, ...]
    """All peers, in the order of the spec."""

    def remap(self, state: ProtocolState, before: Sequence[str], after: Sequence[str]) -> None:
        """Replace the rows in `state`, for the members `before`, with rows for the members `after` of a later view."""
        for name in self.protocol.by_peer:
            if name in state:
                self._put(state, name, self._of_all(state, name, before), after)

    def numbers(self, state: ProtocolState, name: str, members: Sequence[str]) -> list[float]:
        """The rows of all peers, one number each, in the order of the spec."""
        rows = self._of_all(state, name, members)
        return [float(rows[id]) for id in self.ids]

    def take_over(self, state: ProtocolState, name: str, numbers: Sequence[float], members: Sequence[str]) -> None:
        """Take over the rows that another member got from its `numbers`."""
        rows = torch.tensor(numbers, dtype=torch.float64).to(row_dtype(self.protocol.by_peer[name]))
        self._put(state, name, dict(zip(self.ids, rows, strict=True)), members)

    def _of_all(self, state: ProtocolState, name: str, members: Sequence[str]) -> dict[str, Tensor]:
        present, first = state[name].cpu(), self.protocol.by_peer[name]
        # A peer that was never a member has no row; it gets an average one.
        new = present.mean(0) if present.is_floating_point() else torch.full_like(present[0], first)
        known = dict.fromkeys(self.ids, new) | dict(zip(members, present, strict=True))
        if (kept := state.get(_away(name))) is not None:
            known |= dict(zip((id for id in self.ids if id not in members), kept.cpu(), strict=True))
        return known

    def _put(self, state: ProtocolState, name: str, rows: dict[str, Tensor], members: Sequence[str]) -> None:
        state[name] = torch.stack([rows[id] for id in members])
        state.pop(_away(name), None)
        if away := [rows[id] for id in self.ids if id not in members]:
            state[_away(name)] = torch.stack(away)


def _away(name: str) -> str:
    """The name under which the rows of absent peers are kept, in the order of the spec."""
    return f"{name} of who is away"


async def sync_admitted(participant: "Participant", entrants: Mapping[str, int]) -> None:
    """Give admitted peers, each from its left neighbour, what all others have in common, or pass on.

    entrants: the round of each one's private state, by id; -1: none.
    """
    peer, spec, send = participant.face, participant.setup.spec, participant.communicator.send_state
    protocol, shares = spec.protocol, {share.vector: share for share in spec.protocol.shares(spec.rounds)}
    if entrants.get(peer.id) == -1:
        first_rows(protocol, peer.state, len(peer.members))
        protocol.begin_late(peer)
    for name in protocol.state_contract.handed_over if entrants else ():
        has_rows = name in protocol.by_peer
        if peer.id in entrants:
            values, count = (0, len(participant.rows.ids)) if has_rows else (peer._length(shares[name]), 0)
            arrived = await participant.communicator.receive_state(admission_name(name), values, count)
            _replace(participant, name, arrived)
        if peer.right in entrants and has_rows:
            numbers = participant.rows.numbers(peer.state, name, peer.members)
            await send(admission_name(name), torch.empty(0), numbers)
        elif peer.right in entrants:
            await send(admission_name(name), getattr(peer, name) if name in PARTS else peer.state[name])


def _replace(participant: "Participant", name: str, by: Arrived) -> None:
    peer = participant.face
    if name in participant.setup.spec.protocol.by_peer:
        participant.rows.take_over(peer.state, name, by.scalars, peer.members)
    elif name in PARTS:
        getattr(peer, name).copy_(participant.communicator.placed(by.vector))
    else:
        peer.state[name] = participant.communicator.placed(by.vector)


async def settle_columns(participant: "Participant") -> None:
    """Find what stands for missing values, means and deviations, together with all members if the spec says so, and
    impute and standardise the samples."""
    spec, learner, samples = participant.setup.spec, participant.learner, participant.face.data
    names, count, settled = learner.shard.names, len(samples), None

    async def found(name: str, of_own: Callable[..., Tensor], *arguments: Any) -> Tensor:
        vector = await learner.compute(of_own, *arguments)
        if name in spec.found_together:
            await participant.communicator.runtime_mean(name, vector, count)
        return vector

    if spec.data.impute:
        try:
            settled = imputation_of(await found(IMPUTED, typical_values, samples, names), names)
        except InputError as error:
            await participant.network.let_arrive()  # the others find this out from what this peer has sent
            shares, _ = (await learner.compute(typical_values, samples, names)).chunk(2)
            if bool((shares > 0).all()):  # then nothing is wrong here, and a start later on may well succeed
                raise FailedError(
                    f"{error}; this peer has values of all columns, so another's figures are false"
                ) from None
            raise
        samples = samples.standardised(settled)
    if spec.data.standardize:
        first = await found(MEANS, first_pass, samples)
        standard = standardisation_of(first, await found(VARIANCES, second_pass, samples, first))
        settled = replace(standard, imputed=settled.imputed if settled else None)
    if settled:
        learner.standardise(settled)


async def admit_columns(participant: "Participant", entrants: Mapping[str, int]) -> None:
    """Give new peers, in a view's first round, what was settled of columns; private state already includes it."""
    peer, learner = participant.face, participant.learner
    new = [id for id, stands in entrants.items() if stands == -1]
    if not participant.setup.spec.found_together:
        if peer.id in new:
            await settle_columns(participant)
        return
    if peer.id in new:
        entry = participant.network.manifest.payload(ENTRY, participant.round.number)
        arrived = await participant.communicator.receive_state(ENTRY, entry.size)
        learner.standardise(Standardisation.from_vector(arrived.vector, learner.shard.names))
    if peer.right in new and learner.standard:
        await participant.communicator.send_state(ENTRY, learner.standard.vector)
