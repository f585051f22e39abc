"""What all streams of one peer share: its identity, its edges, what is durable where, what has passed (`NetworkState`).

`DialledStream` is what the three kinds of streams that a peer keeps open have in common. `link.py` and
`heartbeat.py` build on this module; it knows neither.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.network.durability import Durability, ImpossibleError, SharedDurability
from peer.network.limits import Limits, Timeouts
from peer.network.neighbours import Edges, Neighbour
from peer.network.streams.handshake import (
    Identity,
    NoAnswerError,
    RefusedError,
    Surprises,
    ThrottledReason,
    do_handshake,
)
from peer.network.streams.stream import Backoff, CountedPipe, DeliveryTracker, Traffic
from peer.network.transport import DisconnectedError, LocallyClosedError, Pipe, Service, Transport
from peer.network.wire.messages import Position, Refusal, Reply, Resources, UntrustedDecoder, Welcome
from peer.telemetry.events import Report

Memory = Callable[[int, torch.dtype], Tensor]
"""Allocates a vector of so many values on the CPU, uninitialised, in which a message is put together."""


def pageable(size: int, dtype: torch.dtype) -> Tensor:
    """Ordinary memory."""
    return torch.empty(size, dtype=dtype)


async def no_views(_pipe: Pipe) -> None:
    """Answer no question about views: the members of the run stay the same."""
    raise DisconnectedError("the members of this run stay the same")


@dataclass(frozen=True)
class NetworkCallbacks:
    """What the network asks of the peer above it."""

    report: Report
    state: Callable[[], tuple[str, int]]
    """What the peer does, and in which round."""
    resources: Callable[[], Resources]
    memory: Memory = pageable
    questions: Callable[[Pipe], Awaitable[None]] = no_views
    """Answers a question about views."""


class NetworkState:
    """What the streams of one peer share."""

    def __init__(
        self,
        identity: Identity,
        addresses: Mapping[str, str | None],
        transport: Transport,
        timeouts: Timeouts = Timeouts(),
        limits: Limits = Limits(),
    ) -> None:
        self.identity, self.transport = identity, transport
        self.timeouts, self.limits = timeouts, limits
        self.edges = Edges(addresses)
        board = transport.board
        self.durability = (
            SharedDurability(identity.id, self.edges, identity.rounds, board)
            if board
            else Durability(identity.id, self.edges, identity.rounds, identity.keyring, identity.view)
        )
        self.traffic, self.deliveries = Traffic(), DeliveryTracker(timeouts.delivery_timeout)
        self.decoder, self.surprises = UntrustedDecoder(limits, len(addresses)), Surprises(limits)
        self.round = 0
        """The one this peer is in."""
        self.last_round = identity.rounds
        """After which all peers end, as far as is known."""

    @property
    def id(self) -> str:
        return self.identity.id

    def welcome(self, round: int, positions: Iterable[Position] = ()) -> bytes:
        """The answer to a hello on a stream of tensors: what is durable here (R3), and what has arrived since."""
        welcome = Welcome(durable=self.durability.own, round=round, positions=positions, life=self.identity.life)
        return Reply(welcome=welcome).SerializeToString()

    @asynccontextmanager
    async def stream(self, neighbour: Neighbour, service: Service) -> AsyncIterator[tuple[CountedPipe, Welcome]]:
        """A stream to a neighbour that has been welcomed, dropped after the block; RefusedError, DisconnectedError."""
        assert neighbour.address
        pipe = CountedPipe(await self.transport.dial(neighbour.address, service), neighbour.id, self.traffic)
        try:
            hello = self.identity.hello(neighbour.id, self.durability.own, self.round)
            welcome = await do_handshake(pipe, hello, self.timeouts.answer, self.decoder)
            neighbour.mark_reachable()
            yield pipe, welcome
        except RefusedError as error:
            self._released(neighbour, error.refusal)
            raise RefusedError(error.refusal, self.identity) from None
        except NoAnswerError:
            await self.transport.renew(neighbour.address)
            raise
        except DisconnectedError:
            raise
        except Exception as error:  # noqa: BLE001 (as in `Network._accept`)
            raise DisconnectedError(f"this peer has closed its stream: {self.surprises.explain(error)}") from None
        finally:
            pipe.abort()

    def _released(self, neighbour: Neighbour, refusal: Refusal) -> None:
        """A neighbour that is in a later view, or has forgotten this edge first (R7), says how far it is."""
        if refusal.reason == Refusal.VIEW:
            neighbour.signs.last_heartbeat = asyncio.get_running_loop().time()  # it is on its way, and not lost
        if refusal.reason == Refusal.VIEW and refusal.HasField("durable"):
            with suppress(ImpossibleError):
                self.durability.record_first_hand(neighbour.id, refusal.durable)
                neighbour.progress.in_later_view = True
                self.durability.notify_changed()
        if refusal.reason == Refusal.STRANGER and refusal.HasField("durable") and not neighbour.progress.released:
            with suppress(ImpossibleError):
                self.durability.record_first_hand(neighbour.id, refusal.durable)
                neighbour.progress.released = neighbour.id not in self.edges.current()
                self.durability.notify_changed()


class DialledStream(ABC):
    """A stream of one kind to one neighbour that this peer keeps open: it dials again after each end, ever later."""

    service: Service

    def __init__(self, state: NetworkState, neighbour: Neighbour) -> None:
        self._state, self.neighbour = state, neighbour
        self._backoff, self._reason = Backoff(state.timeouts), ThrottledReason(state.limits, state.timeouts)

    async def run(self) -> None:
        """Until this peer is to dial no more."""
        while await self.wait_for_turn():
            try:
                async with self._state.stream(self.neighbour, self.service) as (pipe, welcome):
                    pause = await self.serve(pipe, welcome)
            except LocallyClosedError:
                pause = self._backoff.after_disconnect()
            except DisconnectedError as error:
                self.on_disconnect(self._reason.update(str(error)))
                pause = self._backoff.after_disconnect()
            except RefusedError as error:
                self.on_refusal(error, self._reason.update(str(error)))
                pause = self._backoff.after_refusal(error)
            await asyncio.sleep(pause)

    async def wait_for_turn(self) -> bool:
        """Wait until this peer is to dial; False once it is not to dial any more."""
        return True

    @abstractmethod
    async def serve(self, pipe: CountedPipe, welcome: Welcome) -> float:
        """One stream from its welcome to its end; return the seconds until the next attempt."""

    def on_disconnect(self, reason: str) -> None:
        """There is no stream, or not any more."""
        self.neighbour.mark_unreachable(reason)

    def on_refusal(self, _error: RefusedError, reason: str) -> None:
        """The neighbour refused the stream, or what was sent on it."""
        self.neighbour.mark_refused(reason)
