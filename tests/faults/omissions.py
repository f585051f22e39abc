"""The rules of a change of view, each as it would be left out."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from peer.network.neighbours import Neighbour
from peer.network.network import Network
from peer.network.streams.handshake import Identity
from peer.network.streams.stream import NetworkState
from peer.network.wire.messages import Refusal
from peer.protocols.fedisp import FedISP
from peer.runtime import checkpoints, connection
from peer.runtime.checkpoints import Checkpoints, Journal
from peer.runtime.membership.gate import DynamicMembershipGate
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.proposer import Proposer
from peer.runtime.rounds import loop
from peer.runtime.rounds.local_peer import Participant
from peer.views.view import ViewChain

Omission = Callable[[pytest.MonkeyPatch], None]


def promises_are_written_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    async def persist(self: Membership) -> None:
        self._later = asyncio.create_task(written(self))  # type: ignore[attr-defined]

    written = Membership._persist
    patch.setattr(Membership, "_persist", persist)


def the_token_is_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FedISP, "passed_on", None)


def who_leaves_goes_at_once(patch: pytest.MonkeyPatch) -> None:
    def is_over(self: ViewChain, number: int, id: str) -> bool:
        return played(self, number, id) or id not in self.current.members

    played = ViewChain.is_over
    patch.setattr(ViewChain, "is_over", is_over)


def who_is_on_its_way_counts_as_silent(patch: pytest.MonkeyPatch) -> None:
    """Though it answers from another view, or questions, or would a moment later."""

    def released(self: NetworkState, neighbour: Neighbour, refusal: Refusal) -> None:
        last = neighbour.signs.last_heartbeat
        told(self, neighbour, refusal)
        neighbour.signs.last_heartbeat = last

    def silent_in_spite_of_answers(
        self: DynamicMembershipGate, seconds: float, answered: Mapping[str, float]
    ) -> list[str]:
        return silent(self, seconds, {})

    told, silent = NetworkState._learn_from_refusal, DynamicMembershipGate.lost_neighbours
    patch.setattr(NetworkState, "_learn_from_refusal", released)
    patch.setattr(DynamicMembershipGate, "lost_neighbours", silent_in_spite_of_answers)
    patch.setattr(Proposer, "_ask_patiently", lambda self, *asked: self._membership.ask(*asked))


def void_rounds_stay(patch: pytest.MonkeyPatch) -> None:
    class Keeping(Checkpoints):
        def drop_after(self, round: int) -> None: ...

    patch.setattr(checkpoints, "Checkpoints", Keeping)


def void_values_stay(patch: pytest.MonkeyPatch) -> None:
    class Keeping(Journal):
        def drop_after(self, round: int) -> None: ...

    patch.setattr(checkpoints, "Journal", Keeping)


def messages_of_another_view_count(patch: pytest.MonkeyPatch) -> None:
    def of_no_view(*arguments: Any, **named: Any) -> Identity:
        return replace(Identity(*arguments, **named), view=0)

    patch.setattr(connection, "Identity", of_no_view)


def the_finished_leave(patch: pytest.MonkeyPatch) -> None:
    async def leave(self: DynamicMembershipGate, network: Network, finished: bool) -> None:
        if not finished:
            await wait_to_end(self, network, finished)

    wait_to_end = DynamicMembershipGate.wait_to_end
    patch.setattr(DynamicMembershipGate, "wait_to_end", leave)


def checkpoints_stay_for_nobody_else(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DynamicMembershipGate, "oldest_needed_round", lambda self, durability: durability.own)


def nobody_is_given_what_all_have(patch: pytest.MonkeyPatch) -> None:
    async def sync_admitted(participant: Participant, entrants: Mapping[str, int]) -> None: ...

    patch.setattr(loop, "sync_admitted", sync_admitted)
