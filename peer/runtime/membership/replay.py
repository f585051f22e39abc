"""A peer's lives in the views of an earlier run, none of which is decided again.

In each view of which rounds count, its members play these rounds, and nobody plays others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from peer.errors import InputError
from peer.files import make_private
from peer.network.durability import Durability
from peer.network.network import Network
from peer.runtime.checkpoints import Checkpoints, Journal
from peer.runtime.lifecycle import MembershipGate, drain
from peer.runtime.membership.membership import ViewStore
from peer.runtime.setup import Setup, prepare
from peer.tasks import in_thread
from peer.telemetry.events import Report, ViewDecided
from peer.views.statements import Decision
from peer.views.view import View, view_rounds


@dataclass(frozen=True)
class ReplayedView:
    """One peer's part in one view."""

    number: int
    """How many views of the script are before it."""
    view: View
    """As recorded, but planned: nobody plays rounds that are void."""
    last: int
    """The view's last round."""
    brings: int | None
    """The round after which the private state stands with which the peer is taken in there, or -1; None: it is not."""
    brings_later: int
    """The least such round of its later views; -1 if there is none."""
    stay: frozenset[str]
    """Who is in a later view."""
    met_again: frozenset[str]
    """Who is in a later view of this peer's."""
    ends: bool
    """Whether the peer is in no later one."""


def replay_plan(id: str, views: Sequence[View], rounds: int) -> list[ReplayedView]:
    """A peer's scenes, by all views of a run of so many rounds."""
    whole = view_rounds(views, rounds)
    scenes = list[ReplayedView]()
    for number, span in enumerate(whole):
        if id not in span.view.members:
            continue
        later = [one.view for one in whole[number + 1 :]]
        own = [dict(view.entrants)[id] for view in later if id in dict(view.entrants)]
        scenes.append(
            ReplayedView(
                number,
                replace(span.view, planned=number > 0),
                span.last,
                dict(span.view.entrants).get(id),
                min((brought for brought in own if brought >= 0), default=-1),
                frozenset(member for view in later for member in view.members),
                frozenset(member for view in later if id in view.members for member in view.members),
                not any(id in view.members for view in later),
            )
        )
    return scenes


class ReplayedMembershipGate(MembershipGate):
    """All play the view to the end of its rounds; who is in no later one leaves then."""

    def __init__(self, scene: ReplayedView, patience: float, began: Callable[[], None]) -> None:
        """patience: seconds. began: called when the peer is about to live there."""
        super().__init__(scene.view, patience)
        self._scene, self._began = scene, began
        self.passed = dict.fromkeys(range(scene.view.number), scene.view.first - 1)

    def take(self, network: Network, done: int) -> None:
        network.set_last_round(self._scene.last)
        self._began()

    def least_wanted(self, durability: Durability) -> int:
        """Not later than the round to which this peer goes back when it is taken in."""
        brought = self._scene.brings_later
        return min([durability.low_watermark, *([brought] if brought >= 0 else [])])

    def patience(self, done: int) -> float:
        """In the run's first view as ever; later for ever, as others may have many rounds to play before it begins."""
        return inf if self._scene.number else self._patience

    async def may_pass_on(self, network: Network) -> None:
        """Who is in no later view may be gone without a word: it is waited for no longer than `patience`."""
        if self._scene.ends:
            await drain(network, self._patience)
            await network.close_gracefully()
            return
        while self._scene.stay & {*await drain(network, self._patience)}:
            await network.durability.wait_changed(network.durability.version)
        if network.edges.neighbours.keys() - self._scene.met_again:
            await (
                network.close_gracefully()
            )  # they would wait for this peer's last word, which no later handshake brings


class Replay:
    """`run` is all of them."""

    def __init__(
        self, setup: Setup, recorded: Sequence[Decision], live: Callable[[Setup], Awaitable[bool]], report: Report
    ) -> None:
        """live: a life in the seat that a setup has, and whether the run is over with it."""
        self._setup, self._live, self._report = setup, live, report
        self._decisions = recorded
        self._views = (View(0, setup.spec.ids, first=0), *(one.view for one in recorded))
        self._id, self._patience = setup.config.id, setup.spec.patience
        self._checkpoints, self._journal = Checkpoints(setup.out / "checkpoint"), Journal(setup.out / "journal")
        self._register = self._open()
        self._told = self._register.memory.entered

    def _open(self) -> ViewStore:
        """With the views that are replayed; InputError where this run has begun with others."""
        make_private(self._setup.out)
        register = ViewStore.open(self._setup.out, self._id)
        if not register.memory.decisions:
            register.memory.decisions = [*self._decisions]
        elif [one.view for one in register.memory.decisions] != [*self._views[1:]]:
            raise InputError(
                f"{self._setup.out}: has begun to replay other views than those of {self._setup.spec.recording}; give "
                "another `out`"
            )
        return register

    async def run(self) -> None:
        scenes = replay_plan(self._id, self._views, self._setup.spec.rounds)
        for scene in [scene for scene in scenes if scene.view.number >= self._register.memory.entered]:
            await self._enter(scene)
            seat = ReplayedMembershipGate(scene, self._patience, lambda scene=scene: self._tell(scene))  # type: ignore[misc]
            if await self._live(replace(self._setup, moved=seat)):
                return
        logging.getLogger("dfl").info("ended: %s was no member of the recorded run any more", self._id)

    async def _enter(self, scene: ReplayedView) -> None:
        """Where this peer lives is on disk before anything is dropped that the view before could still need."""
        self._register.memory.entered = scene.view.number
        await in_thread(self._register.write, self._register.content())
        if scene.brings is None or max(self._checkpoints.rounds(), default=-1) >= scene.view.first:
            return
        await in_thread(self._checkpoints.drop_after, scene.brings)
        await in_thread(self._journal.drop_after, scene.brings)
        if scene.brings < 0:
            self._setup = await asyncio.to_thread(prepare, self._setup.config, self._setup.spec)

    def _tell(self, scene: ReplayedView) -> None:
        """Of the views up to this one; in the last of its lives, of all."""
        until = self._views[-1].number if scene.ends else scene.view.number
        for view in self._views[self._told + 1 : until + 1]:
            self._report(ViewDecided(**view.as_json()))
        self._told = max(self._told, until)
