"""The rules of a change of view, each as it would be left out."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from peer.network.membership.edges import Neighbour
from peer.network.network import Network
from peer.network.node import Node
from peer.network.streams.handshake import Identity
from peer.network.wire.messages import Refusal
from peer.protocols.fedisp import FedISP
from peer.runtime import runtime
from peer.runtime.checkpoint import Checkpoints
from peer.runtime.communicating import Communicating
from peer.runtime.journal import Journal
from peer.runtime.membership import lives
from peer.runtime.membership.deciding import Proposer
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.moving_seat import MovingSeat
from peer.views.view import Chain

Omission = Callable[[pytest.MonkeyPatch], None]


def promises_are_written_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    async def take_note(self: Membership) -> None:
        self._later = asyncio.create_task(written(self))  # type: ignore[attr-defined]

    written = Membership._take_note
    patch.setattr(Membership, "_take_note", take_note)


def the_token_is_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FedISP, "passed_on", None)


def who_leaves_goes_at_once(patch: pytest.MonkeyPatch) -> None:
    def is_over(self: Chain, number: int, id: str) -> bool:
        return played(self, number, id) or id not in self.current.members

    played = Chain.is_over
    patch.setattr(Chain, "is_over", is_over)


def who_leaves_says_no_farewell(patch: pytest.MonkeyPatch) -> None:
    async def leave(self: Network) -> None: ...

    patch.setattr(Network, "leave", leave)


def who_is_on_its_way_counts_as_silent(patch: pytest.MonkeyPatch) -> None:
    """Though it answers from another view, or questions, or would a moment later."""

    def released(self: Node, neighbour: Neighbour, refusal: Refusal) -> None:
        heard = neighbour.heard
        told(self, neighbour, refusal)
        neighbour.heard = heard

    def silent_in_spite_of_answers(self: MovingSeat, seconds: float, answered: Mapping[str, float]) -> list[str]:
        return silent(self, seconds, {})

    told, silent = Node._released, MovingSeat.silent
    patch.setattr(Node, "_released", released)
    patch.setattr(MovingSeat, "silent", silent_in_spite_of_answers)
    patch.setattr(Proposer, "_ask_patiently", lambda self, *asked: self._membership.ask(*asked))


def void_rounds_stay(patch: pytest.MonkeyPatch) -> None:
    class Keeping(Checkpoints):
        def drop_after(self, round: int) -> None: ...

    patch.setattr(lives, "Checkpoints", Keeping)


def void_values_stay(patch: pytest.MonkeyPatch) -> None:
    class Keeping(Journal):
        def drop_after(self, round: int) -> None: ...

    patch.setattr(lives, "Journal", Keeping)


def messages_of_another_view_count(patch: pytest.MonkeyPatch) -> None:
    def of_no_view(*arguments: Any, **named: Any) -> Identity:
        return replace(Identity(*arguments, **named), view=0)

    patch.setattr(runtime, "Identity", of_no_view)


def the_finished_leave(patch: pytest.MonkeyPatch) -> None:
    async def leave(self: MovingSeat, network: Network) -> None: ...

    patch.setattr(MovingSeat, "may_finish", leave)


def checkpoints_stay_for_nobody_else(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MovingSeat, "least_wanted", lambda self, durability: durability.own)


def nobody_is_given_what_all_have(patch: pytest.MonkeyPatch) -> None:
    async def take_in(self: Communicating, entrants: Mapping[str, int]) -> None: ...

    patch.setattr(Communicating, "take_in", take_in)
