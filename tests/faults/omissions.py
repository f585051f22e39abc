"""The rules of a change of view, each as it would be left out."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from peer.network.streams.handshake import Identity
from peer.runtime import runtime
from peer.runtime.checkpoint import Checkpoints
from peer.runtime.checkpointer import Checkpointer
from peer.runtime.communicating import Communicating
from peer.runtime.journal import Journal
from peer.runtime.membership import lives
from peer.runtime.membership.lives import Lives
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.moving_seat import MovingSeat
from peer.runtime.membership.register import Register
from peer.runtime.runtime import Runtime

Omission = Callable[[pytest.MonkeyPatch], None]


def promises_are_written_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    async def take_note(self: Membership) -> None:
        self._later = asyncio.create_task(written(self))  # type: ignore[attr-defined]

    written = Membership._take_note
    patch.setattr(Membership, "_take_note", take_note)


def promises_are_not_written(patch: pytest.MonkeyPatch) -> None:
    def write(self: Register) -> None:
        kept, slot = self.acceptor._kept, self.acceptor.slot
        self.acceptor._kept = replace(slot, promised=None, released=False, accepted=None)
        try:
            whole(self)
        finally:
            self.acceptor._kept = kept

    whole = Register.write
    patch.setattr(Register, "write", write)


def the_held_announce_what_is_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MovingSeat, "tellable", lambda self, durable: durable)


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


def entrants_are_given_nothing(patch: pytest.MonkeyPatch) -> None:
    async def take_in(self: Communicating, entrants: Mapping[str, int]) -> None:
        if entrants.get(self.id) == -1:
            self._protocol.begin_late(self)

    patch.setattr(Communicating, "take_in", take_in)


def the_finished_leave(patch: pytest.MonkeyPatch) -> None:
    async def leave(self: Runtime) -> None: ...

    patch.setattr(Runtime, "_wait_for_all", leave)


def checkpoints_stay_for_those_heard_of(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpointer, "_low_watermark", property(lambda self: self._peer.network.durability.low_watermark))


def checkpoints_stay_for_nobody_else(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpointer, "_low_watermark", property(lambda self: self._peer.network.durability.own))


def who_has_what_it_needs_passes_on(patch: pytest.MonkeyPatch) -> None:
    async def pass_on(self: Runtime) -> None:
        await self._checkpointer.finish()

    patch.setattr(Runtime, "_pass_on", pass_on)


def old_training_goes_on(patch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        """Waits for a thread that does nothing else."""

        def __init__(self, of: Lives) -> None:
            self._of = of

        def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
            mine = None if function is int else executor
            return loop().run_in_executor(mine, function, *arguments)

    class Asyncio:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        def get_running_loop(self) -> Any:
            return Elsewhere(None)  # type: ignore[arg-type]

    loop = asyncio.get_running_loop
    patch.setattr(lives, "asyncio", Asyncio())


OMISSIONS = [
    promises_are_written_after_the_answer,
    promises_are_not_written,
    the_held_announce_what_is_new,
    void_rounds_stay,
    void_values_stay,
    messages_of_another_view_count,
    entrants_are_given_nothing,
    the_finished_leave,
    checkpoints_stay_for_those_heard_of,
    checkpoints_stay_for_nobody_else,
    who_has_what_it_needs_passes_on,
    old_training_goes_on,
]
