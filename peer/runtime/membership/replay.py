"""A peer that replays the views of an earlier run, without deciding on any of them.

In each view with rounds that count, the members play exactly those rounds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from peer.errors import InputError
from peer.files import make_private
from peer.network.durability import Durability
from peer.network.network import Network
from peer.runtime.checkpoints import Checkpoints, drop_after
from peer.runtime.lifecycle import MembershipGate, drain
from peer.runtime.membership.view_store import ViewStore
from peer.runtime.setup import Setup
from peer.tasks import in_thread
from peer.telemetry.events import Report, ViewDecided
from peer.views.statements import Decision
from peer.views.view import View, view_rounds


@dataclass(frozen=True)
class ReplayedView:
    """A peer's part in one view."""

    view: View
    """The recorded view, but planned, as void rounds are not played."""
    last: int
    """The view's last round."""
    brings: int | None
    """The round of the private state with which the peer is admitted to it, -1 for none; None: it is not admitted."""
    brings_later: int
    """The least round that it brings to a later view; -1 if there is none."""
    stay: frozenset[str]
    """The members of all later views."""
    met_again: frozenset[str]
    """The members of all later views that this peer is in."""

    @property
    def ends(self) -> bool:
        """Whether the peer is in no later view."""
        return not self.met_again


def replay_plan(id: str, views: Sequence[View], rounds: int) -> list[ReplayedView]:
    """Return a peer's part in each view that it plays of a run of so many rounds."""
    spans, plan = view_rounds(views, rounds), list[ReplayedView]()
    for number, span in enumerate(spans):
        if id not in span.view.members:
            continue
        later = [one.view for one in spans[number + 1 :]]
        brought = [dict(view.entrants)[id] for view in later if id in dict(view.entrants)]
        plan.append(
            ReplayedView(
                replace(span.view, planned=number > 0),
                span.last,
                dict(span.view.entrants).get(id),
                min((round for round in brought if round >= 0), default=-1),
                frozenset(member for view in later for member in view.members),
                frozenset(member for view in later if id in view.members for member in view.members),
            )
        )
    return plan


class ReplayedMembershipGate(MembershipGate):
    """The gate of a replayed view, which all play to the end of its rounds; a peer in no later view leaves then."""

    def __init__(self, part: ReplayedView, patience: float, began: Callable[[], None]) -> None:
        """patience: seconds. began: called when the peer is about to play the view."""
        super().__init__(part.view, patience)
        self._part, self._began = part, began
        self.last_rounds = dict.fromkeys(range(part.view.number), part.view.first - 1)

    def attach(self, network: Network, done: int) -> None:
        network.set_last_round(self._part.last)
        self._began()

    def oldest_needed_round(self, durability: Durability) -> int:
        """The low watermark, but no later than the round that this peer goes back to when it is admitted."""
        brought = self._part.brings_later
        return min(durability.low_watermark, brought) if brought >= 0 else durability.low_watermark

    def join_timeout(self, done: int) -> float:
        """No limit after the run's first view, as others may have many rounds to play before this one."""
        return inf if self._part.view.planned else self._patience

    async def wait_to_end(self, network: Network, finished: bool) -> None:
        """Wait as usual, but at most `patience` seconds for a neighbour in no later view: it may end without a word."""
        if finished:
            return
        if self._part.ends:
            await drain(network, self._patience)
            await network.close_gracefully()
            return
        await drain(network, self._patience, lambda: self._part.stay)
        if network.edges.neighbours.keys() - self._part.met_again:
            # Those would wait for this peer's last word, and no later handshake brings it to them.
            await network.close_gracefully()


class Replay:
    """Runs a peer through the views of a recording."""

    def __init__(
        self, setup: Setup, recorded: Sequence[Decision], play: Callable[[Setup], Awaitable[bool]], report: Report
    ) -> None:
        """play: plays the view of a setup's gate and returns whether the run is over."""
        self._setup, self._play, self._report = setup, play, report
        self._views = (View(0, setup.spec.ids, first=0), *(one.view for one in recorded))
        self._id, self._patience = setup.config.id, setup.spec.patience
        self._checkpoints = Checkpoints(setup.out / "checkpoint")
        make_private(setup.out)
        self._store = ViewStore.open(setup.out, self._id)
        memory = self._store.memory
        memory.decisions = memory.decisions or [*recorded]
        if [one.view for one in memory.decisions] != [*self._views[1:]]:
            raise InputError(
                f"{setup.out}: has begun to replay other views than those of {setup.spec.recording}; give another `out`"
            )
        self._reported = memory.entered

    async def run(self) -> None:
        plan = replay_plan(self._id, self._views, self._setup.spec.rounds)
        for part in [part for part in plan if part.view.number >= self._store.memory.entered]:
            await self._enter(part)
            gate = ReplayedMembershipGate(part, self._patience, partial(self._report_views, part))
            if await self._play(replace(self._setup, given_gate=gate)):
                return
        logging.getLogger("dfl").info("ended: %s was no member of the recorded run any more", self._id)

    async def _enter(self, part: ReplayedView) -> None:
        """Note the view on disk before dropping anything that the view before could still need."""
        self._store.memory.entered = part.view.number
        await self._store.save()
        if part.brings is None or max(self._checkpoints.rounds(), default=-1) >= part.view.first:
            return
        await in_thread(drop_after, self._setup.out, part.brings)
        if part.brings < 0:
            self._setup = await asyncio.to_thread(self._setup.from_scratch)

    def _report_views(self, part: ReplayedView) -> None:
        """Report the views up to this one; in the last view of this peer, report all."""
        until = self._views[-1].number if part.ends else part.view.number
        for view in self._views[self._reported + 1 : until + 1]:
            self._report(ViewDecided(**view.as_json()))
        self._reported = max(self._reported, until)
