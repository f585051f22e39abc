"""Members that say wrong but well-formed things: their code is the real one, what it writes on its pipes is changed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from peer.network.collectives import Collectives
from peer.network.streams.handshake import MORE
from peer.network.transport import Pipe, Service, StreamHandler
from peer.network.transport.grpc import GrpcTransport
from peer.network.wire.messages import Beat, Hello, Question, Refusal, Reply, Welcome
from peer.runtime.rounds.local_peer import LocalPeer
from peer.spec.loading import load_peer
from peer.versions import WIRE, release

Introduction = TypeVar("Introduction", Hello, Question)
FAR = 2**62
UNTIL = 30.0
"""Seconds in which a liar also refuses; after that it only says wrong things."""


@dataclass(frozen=True)
class Lies:
    """What one liar says; `members` of a run of so many `rounds`."""

    random: Random
    members: Sequence[str]
    rounds: int
    names: Random = field(default_factory=lambda: Random("releases"))
    """Draws what it says of its process; by itself, so that all other lies of a seed stay the same."""

    def release(self) -> str:
        """What it says that it runs, in each handshake something else."""
        return self.names.choice(["", release(), "9.9.9+00000000", "\x1b[2J\n0.1.0", f"{self.names.random()}" * 40])

    def introduction(self, said: Introduction) -> Introduction:
        """With versions that its neighbour must take for one that both speak, and a wrong release."""
        spoken = [(WIRE.writes, 0), (WIRE.writes, WIRE.reads), (WIRE.writes + 1, WIRE.writes), (2**32 - 1, 1)]
        said.version, said.oldest = self.names.choice(spoken)
        said.release = self.release()
        return said

    def welcome(self, welcome: Welcome, service: Service) -> None:
        """With a wrong release, and on heartbeats as another process, in another round."""
        welcome.release = self.release()
        if service == "Heartbeat":
            welcome.life = self.names.choice([0, 1, self.names.getrandbits(64), welcome.life])
            welcome.round = self.names.choice([0, self.rounds, 2**31, welcome.round])

    def beat(self, beat: Beat) -> Beat:
        """Its own durable round as it is, or no round at all: to claim more than it has harms only itself."""
        random = self.random
        for id in random.sample([*self.members, "nobody"], random.randint(0, 3)):
            beat.others[id] = random.choice([self.rounds, random.randint(0, self.rounds), FAR, -7])
        for id in random.sample([*self.members], random.randint(0, len(self.members))):
            beat.others[id] = random.choice([self.rounds, random.randint(-1, self.rounds)])
        if random.random() < 0.2:
            beat.durable = random.choice([-1, -9, FAR])
        if random.random() < 0.2:
            beat.state, beat.round = random.choice(["training", "failed", "\x1b[2J", "done"]), random.randint(0, 2**31)
        if random.random() < 0.2:
            beat.taken = random.choice([0, FAR])
        return beat

    def refusal(self) -> Refusal:
        reason = self.random.choice([*Refusal.Reason.values()])
        return Refusal(reason=reason, detail="\x1b[2Jno", keys=["seed"] * 9 + [MORE], settings=[MORE], durable=FAR)


class TwoTongued(Pipe):
    """One end of a liar's pipe: what it says of itself and others is changed, tensors are not."""

    def __init__(self, pipe: Pipe, service: Service, dialled: bool, lies: Lies, refuses: bool) -> None:
        self._pipe, self._service, self._dialled, self._lies, self._refuses = pipe, service, dialled, lies, refuses
        self.identity, self.origin = pipe.identity, pipe.origin
        self._messages = 0

    async def send(self, data: bytes) -> None:
        self._messages += 1
        if self._dialled and self._messages == 1:
            kind = Question if self._service == "Views" else Hello
            data = self._lies.introduction(kind.FromString(data)).SerializeToString()
        elif self._service == "Fetch" and not self._dialled and self._messages > 1:
            pass  # frames
        elif not self._dialled or self._service == "Fetch":
            data = self._reply(Reply.FromString(data))
        elif self._service == "Heartbeat" and self._messages > 1:
            data = self._lies.beat(Beat.FromString(data)).SerializeToString()
        await self._pipe.send(data)

    def _reply(self, reply: Reply) -> bytes:
        if reply.HasField("welcome") and self._refuses and self._lies.random.random() < 0.3:
            reply = Reply(refusal=self._lies.refusal())
        elif reply.HasField("welcome"):
            self._lies.welcome(reply.welcome, self._service)
        elif reply.HasField("beat"):
            reply.beat.CopyFrom(self._lies.beat(reply.beat))
        return reply.SerializeToString()

    async def receive(self) -> bytes:
        return await self._pipe.receive()

    async def finish(self) -> None:
        await self._pipe.finish()

    def abort(self) -> None:
        self._pipe.abort()

    def welcome(self, member: str, neighbour: bool = True) -> None:
        self.member = member
        self._pipe.identify(member, neighbour)

    def in_use(self) -> None:
        self._pipe.in_use()

    async def is_known(self) -> bool:
        return await self._pipe.is_known()


def make_liar(seed: str, config: Path) -> None:
    """This process lies from now on: over its pipes, and of its accuracy and its weight in means.

    The numbers depend on the round alone, as honest ones do: a round that is replayed is the same lie.
    """
    settings, spec = load_peer(config)
    lies = Lies(Random(f"{seed} {settings.id}"), spec.ids, spec.rounds)
    listen, dial, mean, began = GrpcTransport.listen, GrpcTransport.dial, Collectives.weighted_mean, list[float]()

    def two_tongued(pipe: Pipe, service: Service, dialled: bool) -> Pipe:
        now = asyncio.get_running_loop().time()
        began.append(now)
        return TwoTongued(pipe, service, dialled, lies, refuses=now < began[0] + UNTIL)

    async def lying_listen(self: GrpcTransport, accept: StreamHandler) -> None:
        await listen(self, lambda service, pipe: accept(service, two_tongued(pipe, service, dialled=False)))

    async def lying_dial(self: GrpcTransport, address: str, service: Service) -> Pipe:
        return two_tongued(await dial(self, address, service), service, dialled=True)

    async def lying_accuracy(self: LocalPeer) -> float:
        return self.round * 0.37 % 1

    async def lying_mean(self: Collectives, around: Any, name: str, vector: Any, weight: float, *rest: Any) -> None:
        await mean(self, around, name, vector, weight * 3 + self._round, *rest)

    GrpcTransport.listen, GrpcTransport.dial = lying_listen, lying_dial  # type: ignore[method-assign]
    LocalPeer.accuracy, Collectives.weighted_mean = lying_accuracy, lying_mean  # type: ignore[method-assign]
