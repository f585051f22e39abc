"""A peer's lives in the views of an earlier run, none of which is decided again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from peer.errors import InputError
from peer.ownership import make_private
from peer.runtime.checkpoint import Checkpoints
from peer.runtime.journal import Journal
from peer.runtime.membership.register import Register
from peer.runtime.membership.replayed_seat import ReplayedSeat
from peer.runtime.membership.script import Scene, script
from peer.runtime.setup import Setup, prepare
from peer.tasks import in_thread
from peer.telemetry.events import Report, ViewDecided
from peer.views.view import View


class Replay:
    """In each view of which rounds count, its members play these rounds, and nobody plays others."""

    def __init__(
        self, setup: Setup, views: Sequence[View], live: Callable[[Setup], Awaitable[bool]], report: Report
    ) -> None:
        """live: a life in the seat that a setup has, and whether the run is over with it."""
        self._setup, self._views, self._live, self._report = setup, views, live, report
        self._id, self._patience = setup.config.id, setup.spec.patience
        self._checkpoints, self._journal = Checkpoints(setup.out / "checkpoint"), Journal(setup.out / "journal")
        self._register = self._open()
        self._told = self._register.entered

    def _open(self) -> Register:
        """With the views that are replayed; InputError where this run has begun with others."""
        make_private(self._setup.out)
        register = Register.open(self._setup.out, self._id, self._views[0])
        chain = register.acceptor.chain
        if len(known := chain.since(-1)) == 1:
            for view in self._views[1:]:
                chain.extend(view)
        elif known != (*self._views,):
            raise InputError(
                f"{self._setup.out}: has begun to replay other views than those of {self._setup.spec.recording}; give "
                "another `out`"
            )
        return register

    async def run(self) -> None:
        scenes = script(self._id, self._views, self._setup.spec.rounds)
        for scene in [scene for scene in scenes if scene.view.number >= self._register.entered]:
            await self._enter(scene)
            seat = ReplayedSeat(scene, self._patience, lambda scene=scene: self._tell(scene))  # type: ignore[misc]
            if await self._live(replace(self._setup, moved=seat)):
                return
        logging.getLogger("dfl").info("ended: %s was no member of the recorded run any more", self._id)

    async def _enter(self, scene: Scene) -> None:
        """Where this peer lives is on disk before anything is dropped that the view before could still need."""
        self._register.entered = scene.view.number
        await in_thread(self._register.write, self._register.content())
        if scene.brings is None or max(self._checkpoints.rounds(), default=-1) >= scene.view.first:
            return
        await in_thread(self._checkpoints.drop_after, scene.brings)
        await in_thread(self._journal.drop_after, scene.brings)
        if scene.brings < 0:
            self._setup = await asyncio.to_thread(prepare, self._setup.config, self._setup.spec)

    def _tell(self, scene: Scene) -> None:
        """Of the views up to this one; in the last of its lives, of all."""
        until = self._views[-1].number if scene.ends else scene.view.number
        for view in self._views[self._told + 1 : until + 1]:
            self._report(ViewDecided(**view.as_json()))
        self._told = max(self._told, until)
