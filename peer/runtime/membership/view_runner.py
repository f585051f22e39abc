"""A peer from its start to the end of the run: a life in each view, one after the other.

Who is no member of the next view asks its way back in (`Rejoin`), listening to nobody meanwhile.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

from peer.errors import FailedError, InputError
from peer.files import make_private
from peer.network.streams.handshake import Identity
from peer.network.transport import StatusHandler, Transport
from peer.network.view_rpc import ViewRpc
from peer.runtime.checkpoints import Checkpoints, Journal
from peer.runtime.lifecycle import CheckpointLostError, ReportIntervals, RuntimeLimits
from peer.runtime.membership.gate import MembershipSettings
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.proposer import ExcludedError, Proposer, WaitReporter
from peer.runtime.membership.replay import Replay
from peer.runtime.runtime import Runtime
from peer.runtime.setup import Setup, prepare
from peer.tasks import background, in_thread
from peer.telemetry.events import Departed, Failed, Returning, Waiting
from peer.telemetry.telemetry import Telemetry
from peer.views.decision import Rules
from peer.views.signing import CertifiedKeyring, Keyring
from peer.views.statements import Ask, Enter, Entry
from peer.views.view import View


class ExpelledError(FailedError):
    """The others have expelled this peer."""


class Rejoin:
    """Asks the members, on connections that it opens itself: it listens to nobody before it is a member again."""

    def __init__(
        self, membership: Membership, transport: Callable[[StatusHandler], Transport], reminders: ReportIntervals
    ) -> None:
        self._membership, self._make = membership, transport
        self._absence, self._patience = membership.acceptor.rules.absence, membership.terms.patience
        self._random = Random(membership.id)
        self._reminders = reminders

    async def next_view(self, private: int) -> View:
        """That in which this peer is to live next; `private`: the round after which the state stands that it has."""
        membership = self._membership
        self._check_votes()
        if following := membership.chain.after(membership.memory.entered, membership.id):
            return following
        async with self._connected() as transport:
            async for silent in self._ask_again_and_again(transport):
                if following := membership.chain.after(membership.memory.entered, membership.id):
                    break
                present = membership.chain.current
                # Who does not reach the others would only be lost again; but liars keep nobody out by their silence.
                if len(silent) <= membership.tolerates:
                    enter = Enter(membership.keyring.sign(Entry(present.number, private)))
                    answering = [id for id in self._others if id not in silent]
                    await membership.ask(self._random.choice(answering), enter, transport)
        assert following
        return following

    async def wait_for_exclusion(self) -> None:
        """Until the others have gone on without this peer, which has nothing left to go on from as a member."""
        async with self._connected() as transport:
            async for _ in self._ask_again_and_again(transport):
                if self._membership.id not in self._membership.chain.current.members:
                    return

    async def _ask_again_and_again(self, transport: Transport) -> AsyncIterator[list[str]]:
        """What members tell of later views is taken up; who of them does not answer.

        LeftBehindError when nobody has answered for `patience` seconds.
        """
        clock, news = asyncio.get_running_loop().time, WaitReporter(self._membership.report, self._reminders)
        begun, answered = clock(), dict[str, float]()
        while True:
            # On a machine that is too busy not all answer each time; nor are they lost to each other for that.
            answered |= dict.fromkeys(await self._ask_everybody(transport), clock())
            self._check_votes()
            silent = [id for id in self._others if clock() - answered.get(id, -inf) > self._absence]
            if clock() - max(answered.values(), default=begun) > self._patience:
                raise ExcludedError(
                    f"the others have gone on without this peer since round {self._membership.chain.current.first}, "
                    f"and none of them has answered for {self._patience:g} s: they have finished, or are away; "
                    "start it again if they are not done"
                )
            news.look(self._waiting(silent))
            yield silent
            await asyncio.sleep(self._membership.timeouts.ask)

    def _check_votes(self) -> None:
        chain, id = self._membership.chain, self._membership.id
        if by := [view for view in chain.since(-1) if id in view.expelled]:
            why = f"view {by[0].number}: {by[0].reason}"
            raise ExpelledError(f"{id} was voted out of the federation ({why}), and is not taken in again")

    async def _ask_everybody(self, transport: Transport) -> list[str]:
        """Which members answer; what they prove of later views is taken up."""
        ask, others = Ask(self._membership.chain.current.number), self._others
        replies = await asyncio.gather(*(self._membership.ask(id, ask, transport) for id in others))
        return [id for id, reply in zip(others, replies, strict=True) if reply]

    def _waiting(self, silent: Sequence[str]) -> Waiting:
        awaited = tuple(map(self._membership.awaited, silent))
        sentence = f"to be taken in: waiting for {', '.join(silent)} to answer" if silent else "all members answer"
        return Waiting(cause="join", awaited=awaited, sentence=sentence)

    @property
    def _others(self) -> list[str]:
        return [id for id in self._membership.chain.current.members if id != self._membership.id]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Transport]:
        transport = self._make(no_status)
        try:
            yield transport
        finally:
            await transport.close()


async def no_status(_request: bytes) -> bytes:
    """The status of a peer to which nobody listens: it is never asked."""
    return b""


def _authority(path: Path) -> str:
    """A CA's certificate in PEM."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        load_pem_x509_certificate(content := path.read_bytes())
        return content.decode()
    except (OSError, ValueError):
        raise InputError(
            f"{path}: `tls.earlier` names CA certificates in PEM, and this is not a readable one"
        ) from None


class ViewRunner:
    """`run` is all of them."""

    def __init__(
        self,
        setup: Setup,
        transport: Callable[[StatusHandler], Transport],
        executor: Executor,
        telemetry: Telemetry,
        bounds: RuntimeLimits = RuntimeLimits(),
    ) -> None:
        self._setup, self._transport, self._executor = setup, transport, executor
        self._telemetry, self._bounds = telemetry, bounds
        self._checkpoints, self._journal = Checkpoints(setup.out / "checkpoint"), Journal(setup.out / "journal")
        self.runtime: Runtime | None = None
        """The present one, or the last."""
        self._membership: Membership | None = None

    @property
    def views(self) -> tuple[View, ...]:
        """All that were decided, as far as this peer knows."""
        if self._membership:
            return self._membership.chain.since(-1)
        return (View(0, self._setup.spec.ids, first=0), *(one.view for one in self._setup.recorded or ()))

    async def _live(self, setup: Setup) -> bool:
        self.runtime = Runtime(setup, self._transport, self._executor, self._telemetry, self._bounds)
        return await self.runtime.run()

    async def run(self) -> None:
        """FailedError: the run cannot go on; asyncio.CancelledError: stopped in good order."""
        if self._setup.recorded is not None:
            await Replay(self._setup, self._setup.recorded, self._live, self._telemetry.emit).run()
            return
        if self._setup.spec.on_loss != "bypass":
            await self._live(self._setup)
            return
        if self._setup.config.tls is None:
            logging.getLogger("dfl").warning(
                "no certificates: any process that reaches the peers' ports can decide who is a member; make "
                "certificates with `dfl-launch certs` where others do"
            )
        make_private(self._setup.out)
        spec, questions = self._setup.spec, self._questions()
        terms = MembershipSettings(spec.patience, spec.protocol.min_peers, spec.start_with)
        rest = self._telemetry.emit, terms
        self._membership = Membership.open(self._setup.out, self._rules(), self._keyring(), questions, rest)
        async with background() as group:
            group.create_task(Proposer(self._membership, self._bounds.reminders).run())
            await self._live_on(self._membership, Rejoin(self._membership, self._transport, self._bounds.reminders))

    def leave(self, otherwise: Callable[[], None]) -> bool:
        """Have the others go on without this peer, and `otherwise` if that cannot be; False if it is no member."""
        membership = self._membership
        if membership and membership.is_member:
            membership.order.give(otherwise)
            return True
        return False

    def _questions(self) -> ViewRpc:
        spec, agreement = self._setup.spec, self._setup.spec.link_agreement
        identity = Identity(self._setup.config.id, agreement.digests, manifest="", settings=agreement.content)
        addresses = {id: at for id, at in spec.addresses.items() if at}
        return ViewRpc(identity, addresses, self._bounds.limits, self._bounds.timeouts)

    def _rules(self) -> Rules:
        spec, secured = self._setup.spec, self._setup.config.tls is not None
        return Rules(spec.ids, spec.rounds, spec.tolerated(secured), spec.protocol.min_peers, spec.absence)

    def _keyring(self) -> Keyring:
        """Signs with the files that are there at the moment, as they may be renewed."""
        id, tls, federation = self._setup.config.id, self._setup.config.tls, self._setup.spec.agreement.lasting_digest
        if tls is None:
            return Keyring(id, federation)
        from peer.network.transport.tls import CertificatePaths  # loads X.509

        certificates = CertificatePaths(id, tls.ca, tls.cert, tls.key)
        read = dict[tuple[int, ...], tuple[bytes, bytes, bytes]]()

        def files() -> tuple[bytes, bytes, bytes]:
            """The last ones that belonged together: they may be being replaced just now."""
            if (version := certificates.version) not in read:
                try:
                    chain = certificates.read()
                except InputError:
                    if not read:
                        raise
                    return [*read.values()][-1]
                read.clear()
                read[version] = chain.ca, chain.cert, chain.key
            return read[version]

        return CertifiedKeyring(id, federation, files, [_authority(path) for path in tls.earlier])

    async def _live_on(self, membership: Membership, back: Rejoin) -> None:
        """One life after the other."""
        while True:
            if not membership.is_over(membership.view):
                try:
                    if await self._live_once(membership):
                        return
                except CheckpointLostError as error:
                    self._telemetry.emit(Returning(sentence=str(error)))
                    await back.wait_for_exclusion()
            if membership.has_left:
                await self._depart(membership)
                return
            try:
                await self._move(membership, back)
            except ExpelledError as error:
                self._telemetry.emit(Failed(message=str(error)))
                raise

    async def _live_once(self, membership: Membership) -> bool:
        """Whether the run is over with this life."""
        view, seat = membership.view, membership.open_gate()
        try:
            async with background() as group:
                running = group.create_task(self._live(replace(self._setup, moved=seat)))
                moved = group.create_task(membership.moved(view))
                await asyncio.wait((running, moved), return_when=asyncio.FIRST_COMPLETED)
        finally:
            seat.leave()
        return not running.cancelled() and running.result()

    async def _depart(self, membership: Membership) -> None:
        """Started again, this peer asks to be taken in."""
        await self._drop_after(membership.chain.last_valid_round(membership.memory.entered))
        view = membership.chain.current
        await membership.enter(view)
        self._telemetry.emit(
            Departed(
                sentence=f"left: view {view.number} goes on without this peer; started again, it asks to be taken in"
            )
        )

    async def _move(self, membership: Membership, back: Rejoin) -> None:
        """To the next view, as somebody who comes back if there is none for this peer."""
        # What still trains would write into the model that the next life begins with.
        await asyncio.get_running_loop().run_in_executor(self._executor, int)
        await self._drop_after(membership.chain.last_valid_round(membership.memory.entered))
        following = await back.next_view(await asyncio.to_thread(self._checkpoints.newest_whole))
        entering = membership.id in dict(following.entrants)  # all others have the last round, and only end there
        if entering and following.first > self._setup.spec.rounds:
            raise ExcludedError("the others have finished without this peer, which came back in their last round")
        # Others may have been decided meanwhile, in which less of it counts.
        await self._drop_after(dict(following.entrants).get(membership.id, following.first - 1))
        await membership.enter(following)
        if await asyncio.to_thread(self._checkpoints.newest_whole) < 0:
            load, setup = asyncio.get_running_loop().run_in_executor, self._setup
            self._setup = await load(self._executor, prepare, setup.config, setup.spec, setup.common)

    async def _drop_after(self, round: int | None) -> None:
        """What lies after that round is void; None: nothing is."""
        if round is not None:
            await in_thread(self._checkpoints.drop_after, round)
            await in_thread(self._journal.drop_after, round)
