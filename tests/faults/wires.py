"""A simulated network: every message takes its time, order is kept within a pipe only, and pipes break."""

import asyncio
from collections import deque
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from faults.clock import LIFE, Life, VirtualLoop, here, in_life
from faults.liars import UNTIL, Lies, TwoTongued
from peer.errors import InputError
from peer.network.transport import (
    SERVICES,
    DisconnectedError,
    LocallyClosedError,
    Pipe,
    Service,
    StatusHandler,
    StreamHandler,
    Transport,
)

if TYPE_CHECKING:
    from faults.conspiracy import Conspiracy

DEPTH = 6


@dataclass(frozen=True)
class Stall:
    """For some seconds nothing arrives one way, and nobody is told: a cable, a firewall, a NAT that forgot."""

    sender: str
    receiver: str
    start: float
    end: float


@dataclass
class Weather:
    """How bad the network is; probabilities are a message's."""

    slowest: float = 0.02
    """Seconds; each pipe draws a mean latency up to this."""
    cut: float = 0.0
    """That the pipe breaks instead of carrying the message."""
    calm_after: float = 60.0
    """Virtual seconds from the start, after which nothing is cut any more."""
    closing: float = 0.05
    """Seconds that a transport takes to close; gRPC gives its handlers up to half a second."""
    stalls: tuple["Stall", ...] = ()
    liars: tuple[str, ...] = ()
    """Members that say wrong things about themselves and others."""
    traitors: tuple[str, ...] = ()
    """Members that say whatever the grammar allows, with their own keys and together (faults.conspiracy)."""
    treason: float = 40.0
    """Virtual seconds from the start, after which these are gone for good."""


class Way:
    """One direction of a pipe."""

    def __init__(self, wires: "Wires", sender: Life, receiver: Life) -> None:
        self.wires, self.sender, self.receiver = wires, sender, receiver
        self.latency = wires.random.uniform(0.0005, wires.weather.slowest)
        self.under_way = 0
        self.arrived: deque[bytes] = deque()
        self.last_arrival = 0.0
        self.broken = self.finished = self.gone = False
        self.changed = asyncio.Event()

    async def put(self, data: bytes) -> None:
        here("send")
        while self.under_way + len(self.arrived) >= DEPTH and not (self.broken or self.gone):
            await self.change()
        if self.broken or self.finished or self.gone:
            raise DisconnectedError("closed")
        loop, random = self.wires.loop, self.wires.random
        self.under_way += 1
        self.last_arrival = max(self.last_arrival + 1e-6, loop.time() + random.expovariate(1 / self.latency))
        if stall := self.wires.stalled(self.sender, self.receiver):
            # TCP tries again ever more seldom: what was lost arrives some time after the stall.
            back_off = random.random() * (stall.end - stall.start)
            self.last_arrival = max(self.last_arrival, self.wires.began + stall.end + back_off)
        loop.call_at(self.last_arrival, self.arrive, data, context=Context())

    def arrive(self, data: bytes) -> None:
        self.under_way -= 1
        if not self.broken:
            self.arrived.append(data)
        self.changed.set()

    async def take(self) -> bytes:
        while not self.arrived and not self.broken and not (self.finished and not self.under_way):
            await self.change()
        if not self.arrived:
            raise DisconnectedError("closed by the other end")
        self.changed.set()
        data = self.arrived.popleft()
        here("receive")
        return data

    async def finish(self) -> None:
        self.finished = True
        self.changed.set()
        while (self.under_way or self.arrived) and not self.broken:
            await self.change()

    def break_off(self, drop: bool) -> None:
        self.broken = True
        if drop:
            self.arrived.clear()
        self.changed.set()

    async def change(self) -> None:
        self.changed.clear()
        await self.changed.wait()


class Wire(Pipe):
    """One end of a pipe."""

    def __init__(self, wires: "Wires", service: Service, ways: tuple[Way, Way], origin: str) -> None:
        self.wires, self.service, self.origin = wires, service, origin
        self.outgoing, self.incoming = ways

    async def send(self, data: bytes) -> None:
        if self.service == "Views":
            here("views")
        if self.wires.cuts():
            self.break_off()
        await self.outgoing.put(data)

    async def receive(self) -> bytes:
        data = await self.incoming.take()
        if self.service == "Views":
            here("views")
        return data

    async def finish(self) -> None:
        await self.outgoing.finish()

    def abort(self) -> None:
        self.break_off()

    def break_off(self) -> None:
        """What has arrived may still be read, or not: both happen in a real network."""
        drop = self.wires.random.random() < 0.5
        self.outgoing.break_off(drop)
        self.incoming.break_off(drop)


class Wires:
    """Everybody's network."""

    def __init__(self, loop: VirtualLoop, random: Random, weather: Weather) -> None:
        self.loop, self.random, self.weather = loop, random, weather
        self.listening: dict[str, SimulatedTransport] = {}
        self.pipes: list[tuple[Life, Life, Wire]] = []
        self.cut = 0
        self.began = loop.time()
        self.secured = False
        """Whether each end knows the other by its certificate."""
        self.lies: dict[str, Lies] = {}
        """The lies of each liar."""
        self.conspiracy: Conspiracy | None = None

    def cuts(self) -> bool:
        if not self.weather.cut or self.loop.time() > self.began + self.weather.calm_after:
            return False
        cut = self.random.random() < self.weather.cut
        self.cut += cut
        return cut

    def stalled(self, sender: Life, receiver: Life) -> Stall | None:
        now = self.loop.time() - self.began
        for stall in self.weather.stalls:
            if (stall.sender, stall.receiver) == (sender.id, receiver.id) and stall.start <= now < stall.end:
                return stall
        return None

    def end(self, wire: Wire, life: Life, service: Service, dialled: bool) -> Pipe:
        """One end of a pipe as the process at it has it."""
        if self.conspiracy and life.id in self.conspiracy.liars:
            return self.conspiracy.pipe(wire, service, dialled, life)
        if life.id not in self.lies:
            return wire
        refuses = self.loop.time() < self.began + UNTIL
        return TwoTongued(wire, service, dialled, self.lies[life.id], refuses)

    def transport(self, address: str | None, life: Life) -> "SimulatedTransport":
        return SimulatedTransport(self, address, life)

    def gone(self, life: Life) -> None:
        """A process has ended: its machine closes what it had open."""
        for address, transport in [*self.listening.items()]:
            if transport.life is life:
                del self.listening[address]
        for end, other, wire in self.pipes:
            if life in (end, other):
                wire.break_off()
        self.pipes = [pipe for pipe in self.pipes if life not in pipe[:2]]


class SimulatedTransport(Transport):
    """One process's access to the network."""

    def __init__(self, wires: Wires, address: str | None, life: Life) -> None:
        self.wires, self.address, self.life = wires, address, life
        self.accept: StreamHandler | None = None
        self.anew: dict[str, asyncio.Event] = {}
        """Set when the attempts to connect to an address are given up."""

    async def listen(self, accept: StreamHandler) -> None:
        if self.address in self.wires.listening:
            raise InputError("address in use")
        self.accept = accept
        if self.address:
            self.wires.listening[self.address] = self

    async def run(self) -> None: ...

    async def dial(self, address: str, service: Service) -> Pipe:
        await asyncio.sleep(self.wires.random.expovariate(200))
        other = self.wires.listening.get(address)
        if other is None or other.accept is None:
            raise DisconnectedError("connection refused")
        if self.wires.stalled(self.life, other.life) or self.wires.stalled(other.life, self.life):
            anew = self.anew.setdefault(address, asyncio.Event())
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await anew.wait()
                    raise LocallyClosedError("the connection was made anew")
            raise DisconnectedError("timed out")
        there, back = Way(self.wires, self.life, other.life), Way(self.wires, other.life, self.life)
        near = Wire(self.wires, service, (there, back), address)
        far = Wire(self.wires, service, (back, there), self.address or "")
        self.wires.pipes.append((self.life, other.life, near))
        if len(self.wires.pipes) > 200:
            self.wires.pipes = [pipe for pipe in self.wires.pipes if not pipe[2].outgoing.broken]
        if self.wires.secured:
            near.identity, far.identity = other.life.id, self.life.id
        theirs = self.wires.end(far, other.life, service, dialled=False)
        self.wires.loop.create_task(serve(other.accept, service, theirs), context=in_life(other.life))
        return self.wires.end(near, self.life, service, dialled=True)

    async def reach(self, address: str) -> None:
        await asyncio.sleep(self.wires.random.expovariate(200))
        other = self.wires.listening.get(address)
        if other is None:
            raise DisconnectedError("connection refused")
        if self.wires.stalled(self.life, other.life) or self.wires.stalled(other.life, self.life):
            await asyncio.sleep(60)

    async def renew(self, address: str, *services: Service) -> None:
        """The other end hears of it only if the way is free."""
        if anew := self.anew.pop(address, None):
            anew.set()
        for end, other, wire in self.wires.pipes:
            if end is self.life and wire.origin == address and wire.service in (services or SERVICES):
                wire.incoming.break_off(drop=True)
                wire.outgoing.gone = True
                wire.outgoing.changed.set()
                if not self.wires.stalled(end, other):
                    wire.outgoing.break_off(drop=True)

    async def close(self) -> None:
        if self.address and self.wires.listening.get(self.address) is self:
            del self.wires.listening[self.address]
        await asyncio.sleep(self.wires.weather.closing)
        for end, other, wire in self.wires.pipes:
            if self.life in (end, other):
                wire.break_off()


async def serve(accept: StreamHandler, service: Service, pipe: Pipe) -> None:
    try:
        await accept(service, pipe)
    finally:
        await pipe.finish()


def factory(wires: Wires, address: str | None, life: Life) -> "type[Transport]":
    """What Runtime calls to get its transport."""

    def make(_status: StatusHandler) -> Transport:
        return wires.transport(address, life)

    return make  # type: ignore[return-value]


__all__ = ["LIFE", "Stall", "Weather", "Wires", "factory"]
