"""The calls that a protocol makes: checked, and carried out on the round's collectives.

A vector's way out of a peer:

1. `CheckedPeer`, which a protocol calls, turns the names in the call into vectors of the peer and checks them against
   the declarations: a wrong call raises an InputError that says how to mend it, before anything has left. The result
   is a `CheckedCall`, which has the same form for every collective. A dry run only counts it
   (`peer.runtime.dry_run`); `LocalPeer` gives it to the `Communicator`, which does the rest:
2. each vector is fetched to the CPU as it is at the call; if the spec makes this peer misbehave, another one is sent in
   its place (`SimulatedAdversary`, applied here so that no protocol knows about it), and the trace keeps both;
3. when it has arrived, and the earlier calls have sent (`SendQueue`; at once as long as nothing had to be copied from
   a GPU), it is checked to be finite and encoded as `wire` says (`peer.runtime.rounds.encodings`), once for all
   receivers;
4. and the round's collective sends it (`peer.network.collectives`). Collectives number their calls, so only the queue
   starts them.

`plain_notes` turns what a protocol notes about a round into plain JSON.
"""

import asyncio
import hashlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from math import isfinite
from typing import Any, Literal, NamedTuple, SupportsFloat, TypeVar

import numpy as np
import torch
from torch import Tensor

from peer.errors import DivergedError, InputError, UserError, WrongMessageError
from peer.learning.device import HostCopy, Transfers, copies
from peer.learning.model.layout import PARTS
from peer.learning.model.model import Model
from peer.learning.training.phase import Phase
from peer.network.collectives import Arrived, Collective, Expected, Neighbourhood, Outgoing, Pending
from peer.protocols.base import Peer, Received
from peer.protocols.declarations import Share
from peer.runtime.lifecycle import Lifecycle
from peer.runtime.rounds.adversary import SimulatedAdversary
from peer.runtime.rounds.encodings import new_encoding
from peer.runtime.rounds.round import Round
from peer.spec.federation import Spec
from peer.telemetry.events import Note, RingOrdered
from peer.topology import receivers, senders

T = TypeVar("T")
Made = TypeVar("Made")
To = Collection[str] | Mapping[str, Tensor] | None
Of = Collection[str] | None
MAX_PENDING = 3
"""The exchanges that a peer may have under way: one fewer than the messages that a receiver holds per sender
(`Receiver._most_held`), or both could wait for ever."""


class CheckedCall(NamedTuple):
    """A call that has passed the checks."""

    collective: Collective
    share: Share
    vectors: Mapping[str, Tensor]
    """In an exchange, the vectors by receiver, without receivers that get none; otherwise the one vector, under "".
    Empty when a token is received."""
    numbers: Mapping[str, float]
    """The scalars sent along, in the order in which they travel."""
    around: Neighbourhood
    senders: Collection[str] = ()
    """The peers that may send a vector, in the order of the result."""
    required: Collection[str] = ()
    """The senders that must send one in an exchange."""
    each_its_own: bool = False
    """Whether each receiver gets a vector of its own."""
    weight: float = 0.0
    """The weight of the vector in a mean."""


class CheckedPeer(Peer):
    """Refuses wrong calls of a protocol with an InputError that says how to mend them; subclasses start the others."""

    def __init__(self, spec: Spec, model: Model, initial: Tensor | None = None) -> None:
        """initial: the model that all peers know at the start, (p,); None if there is none."""
        self._protocol, self._model = spec.protocol, model
        self._encoding = new_encoding(spec.wire, model.sizes, initial)
        self._declared = spec.protocol.declarations(spec.rounds)
        self._running = ""
        """The call round the ring that is under way; empty if there is none."""
        self._training = False
        """Whether the model is being trained."""
        self._made: list[tuple[str, Pending[Any]]] = []
        """The calls of the present round that are to be awaited, by name."""
        self._failed: UserError | None = None
        """The error of the first call that was refused or has failed."""

    @abstractmethod
    def _start(self, call: CheckedCall) -> Awaitable[dict[str, Received]]:
        """Begin a call; return what came from each sender. An exchange sends now, other calls perhaps when awaited."""

    @abstractmethod
    async def _gather(self, record: str, numbers: Sequence[float]) -> Mapping[str, Sequence[float]]:
        """Return every member's numbers, by id."""

    @abstractmethod
    def _use_ring(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        """Use that order of the ring from now on, as all others do."""

    def __getattribute__(self, name: str) -> Any:
        """Record calls when they are made: one that is never awaited would do nothing, without a word."""
        found = super().__getattribute__(name)
        return partial(self._call, name, found) if name in Peer.__abstractmethods__ else found

    def _call(self, name: str, method: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        if iscoroutinefunction(method):
            call = Pending(lambda: self._awaited(lambda: method(*arguments, **keywords)))
        else:
            with self._keeping_errors():
                begun = method(*arguments, **keywords)
            if not isinstance(begun, Pending):
                return begun
            call = Pending(lambda: self._awaited(lambda: begun))
        self._made.append((name, call))
        return call

    async def _awaited(self, begin: Callable[[], Awaitable[T]]) -> T:
        with self._keeping_errors():
            return await begin()

    @contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        """Keep the first error of a call: a protocol that catches it goes on without what the others send or get."""
        try:
            yield
        except UserError as error:
            self._failed = self._failed or error
            with suppress(RuntimeError):  # a thread without a loop
                if task := asyncio.current_task():
                    task.add_done_callback(_retrieved)
            raise

    def _check_calls(self) -> None:
        """At a round's end, raise what a call raised, though the protocol may have caught it, or InputError if a call
        was not awaited, or left under way in a task."""
        made, self._made = self._made, []
        if self._failed:
            raise self._failed
        for name, call in made:
            if not call.over:
                why = " and does not wait for it; write `await` before the call, or await what it returned"
                raise self._refused(f"calls `{name}`", why)

    def exchange(self, share: str, /, to: To = None, of: Of = None, **scalars: float) -> Awaitable[dict[str, Received]]:
        declared = self._share(share)
        numbers = self._numbers(declared, scalars)
        self._check_pending()
        around = self._neighbourhood()
        vectors = self._addressed(declared, around.receivers, to)
        if of is not None:
            self._check_ids(declared, "of", of, around.senders)
        each_its_own = isinstance(to, Mapping)
        self._encoding.check("exchange", declared, each_its_own)
        senders = tuple(id for id in around.senders if of is None or id in of)
        required = senders if to is None or of is not None else ()
        return self._start(CheckedCall("exchange", declared, vectors, numbers, around, senders, required, each_its_own))

    async def weighted_mean(self, share: str, weight: float) -> None:
        declared = self._share(share)
        with self._around_ring("weighted_mean"):
            mean = f"takes the mean of `{share}`"
            if declared.bytes:
                raise self._refused(mean, ", which is declared as bytes; a mean is of float32 values")
            if not (isinstance(weight, SupportsFloat) and isfinite(weight) and weight >= 0):
                raise self._refused(mean, f" with weight {weight}; a weight is a number from 0 up")
            await self._start(self._of_one_vector("weighted_mean", declared)._replace(weight=float(weight)))

    async def all_gather(self, share: str, /, **scalars: float) -> dict[str, Received]:
        declared = self._share(share)
        numbers = self._numbers(declared, scalars)
        with self._around_ring("all_gather"):
            call = self._of_one_vector("all_gather", declared)
            return await self._start(call._replace(numbers=numbers, senders=self.members))

    async def pass_token(self, share: str) -> None:
        declared = self._share(share)
        with self._around_ring("pass_token"):
            await self._start(self._of_one_vector("token", declared))

    async def receive_token(self, share: str) -> Tensor:
        declared = self._share(share)
        with self._around_ring("receive_token"):
            call = CheckedCall("token", declared, {}, {}, self._neighbourhood(), (self.left,))
            return (await self._start(call))[self.left].vector

    async def gather(self, record: str, values: Tensor) -> dict[str, Tensor]:
        with self._around_ring("gather"):
            records = await self._gather(record, self._record(record, values))
        return {peer: torch.tensor(records[peer], dtype=torch.float64) for peer in self.members}

    async def agree(self, record: str, decision: Tensor | None) -> None:
        own = decision_digest(decision)
        with self._around_ring("agree"):
            digests = await self._gather(record, self._record(record, torch.tensor([own])))
        others = [peer for peer in self.members if digests[peer][0] not in (UNDECIDED, own)]
        if others and decision is not None:
            raise WrongMessageError(
                f"{self.id} decided otherwise than {', '.join(others)} about `{record}` in round {self.round}; a "
                "decision may rest only on what is equal at all peers, and its last bits need one kind of CPU",
                *others,
            )

    async def reorder(self, order: Sequence[str], cost_before: float, cost_after: float) -> None:
        if not self._protocol.reorders:
            raise self._refused("reorders the ring", "; declare it: `reorders = True`")
        # Last bits differ between kinds of CPU: a ring on which the peers disagree must not come into use.
        await self.agree("order", torch.tensor([self.members.index(peer) for peer in order]))
        self._use_ring(tuple(order), cost_before, cost_after)

    def _neighbourhood(self) -> Neighbourhood:
        """The ring's order, and the receivers and senders of messages in the present round."""
        ring, graph = self.ring, self._protocol.graph
        return Neighbourhood(ring, receivers(graph, ring, self.id), senders(graph, ring, self.id))

    def _of_one_vector(self, collective: Collective, share: Share) -> CheckedCall:
        self._encoding.check(collective, share)
        return CheckedCall(collective, share, {"": self._vector(share)}, {}, self._neighbourhood())

    def _record(self, record: str, values: object) -> list[float]:
        """The numbers of a record; InputError unless they are finite and as many as declared."""
        if not isinstance(values, Tensor):
            why = f" with a {type(values).__name__}; give a tensor: torch.tensor([...])"
            raise self._refused(f"gathers `{record}`", why)
        length = self._declared.record(record, self.round).length(self._model, len(self.members))
        self._declared.check_record(record, values, self.round, length)
        numbers: list[float] = values.double().flatten().tolist()
        if not all(map(isfinite, numbers)):
            raise self._refused(f"gathers `{record}`", " with numbers that are not finite")
        return numbers

    def _check_phases(self, phases: Sequence[object]) -> None:
        """Raise InputError unless these are phases for the trainer."""
        if wrong := [phase for phase in phases if not isinstance(phase, Phase)] or not phases:
            given = f"a {type(wrong[0]).__name__}" if isinstance(wrong, list) else "nothing"
            raise self._refused(f"gives `train` {given}", "; give it phases: await peer.train(*self.local())")

    @contextmanager
    def _around_training(self, phases: Sequence[object]) -> Iterator[None]:
        """Refuse to train while a call round the ring, which may replace the model, or other training is under way."""
        self._check_phases(phases)
        self._check_idle("train")
        self._training = True
        try:
            yield
        finally:
            self._training = False

    def _check_function(self, function: object, called: str = "compute") -> None:
        """Raise InputError unless this is a plain function that can run in the worker thread."""
        if iscoroutinefunction(function) or not callable(function):
            given = "an async function" if callable(function) else f"a {type(function).__name__}"
            right = f"await peer.{called}(f{', x' * (called == 'compute')})"
            raise self._refused(f"gives `{called}` {given}", f"; give it a plain function and its arguments: {right}")

    def _check_drawn(self, made: object) -> Tensor:
        """The tensor that was made for `once`; InputError for anything else."""
        if not isinstance(made, Tensor):
            raise self._refused(f"draws a {type(made).__name__} by `once`", "; return a tensor: torch.tensor(...)")
        return made

    def _vector(self, share: Share) -> Tensor:
        """The vector that a share names, a part of the peer's model or in its state; InputError unless as declared."""
        if share.own and share.vector not in self.state:
            hint = f"write peer.state[{share.vector!r}] = ... before"
            neither = f", which is neither {', '.join(PARTS)} nor kept in `peer.state`; {hint}"
            raise self._refused(f"sends `{share.vector}`", neither)
        found: Tensor = self.state[share.vector] if share.own else getattr(self, share.vector)
        self._check_vector(share, found)
        return found

    def _length(self, share: Share) -> int | None:
        """The number of values of the vector, the same at every peer; None if each may send its own length."""
        return None if share.bytes or share.part is None else self._model.sizes[share.part]

    def _share(self, name: str) -> Share:
        """The declaration of that vector in the present round."""
        return self._declared.share(name, self.round)

    def _numbers(self, share: Share, scalars: Mapping[str, float]) -> dict[str, float]:
        """The scalars sent with a vector, in the order in which they travel; InputError if not finite or declared."""
        self._declared.check_scalars(share, scalars, self.round)
        numbers = {name: float(scalars[name]) for name in sorted(scalars)}
        if wrong := [name for name, value in numbers.items() if not isfinite(value)]:
            sent = f"sends {wrong[0]}={numbers[wrong[0]]} beside `{share.vector}`"
            raise self._refused(sent, "; only finite numbers leave a peer")
        return numbers

    def _addressed(self, share: Share, neighbours: Collection[str], to: To) -> dict[str, Tensor]:
        """The vector for each receiver in an exchange, without neighbours that get none."""
        if to is None:
            return dict.fromkeys(neighbours, self._vector(share)) if neighbours else {}
        self._check_ids(share, "to", to, neighbours)
        if not isinstance(to, Mapping):
            chosen = [neighbour for neighbour in neighbours if neighbour in to]
            return dict.fromkeys(chosen, self._vector(share)) if chosen else {}
        if not share.own:
            hint = "; that goes with a vector of the protocol's own: declare one under another name"
            raise self._refused(f"gives each neighbour its own `{share.vector}`", hint)
        for vector in to.values():
            self._check_vector(share, vector)
        return {neighbour: to[neighbour] for neighbour in neighbours if neighbour in to}

    def _check_vector(self, share: Share, vector: Tensor) -> None:
        self._declared.check(share, vector, self.round, self._model.sizes["model"])
        length = self._length(share)
        if share.own and length is not None and vector.numel() != length:
            declared = f"declares it like={share.like!r}, which has {length}; make it as long or leave out `like`"
            raise self._refused(f"sends `{share.vector}`", f" with {vector.numel()} values, and {declared}")

    def _check_ids(
        self, share: Share, which: Literal["to", "of"], ids: Collection[str], neighbours: Collection[str]
    ) -> None:
        """Raise InputError unless `ids` are neighbours that an exchange can send `to`, or wait for (`of`)."""
        if not isinstance(ids, Collection) or isinstance(ids, Tensor):
            hint = 'name the vector alone, and numbers by their names: peer.exchange("extractor", loss=0.3)'
            raise self._refused(f"exchanges `{share.vector}`", f" with {which}={type(ids).__name__}; {hint}")
        if isinstance(ids, str):
            given = f" with {which}={ids!r}; write a list of ids: {which}=[{ids!r}]"
            raise self._refused(f"exchanges `{share.vector}`", given)
        if strangers := ", ".join(sorted(set(ids) - set(neighbours))):
            does, hint = ("sends", "send to") if which == "to" else ("waits for", "wait for")
            known = f", and the neighbours are {', '.join(neighbours) or 'none'}; {hint} neighbours only"
            raise self._refused(f"{does} `{share.vector}` {which} {strangers}", known)

    def _check_pending(self) -> None:
        """Limit the exchanges under way: a receiver holds four messages per sender; more could wait for ever."""
        if (pending := sum(name == "exchange" and not call.awaited for name, call in self._made)) >= MAX_PENDING:
            raise self._refused(f"has {pending} exchanges under way", " and begins another; `await` one of them first")

    @contextmanager
    def _around_ring(self, call: str) -> Iterator[None]:
        """Refuse a call where there is no ring, and two at a time: with their frames between each other's, large
        messages of both could wait for room for ever (`Inbox.wait_for_room`)."""
        if self._protocol.graph == "none":
            hint = ", and its graph is `none`; let `graph` return another, such as `ring`"
            raise self._refused(f"calls `{call}`", hint)
        self._check_idle(call)
        self._running = call
        try:
            yield
        finally:
            self._running = ""

    def _check_idle(self, call: str) -> None:
        if busy := self._running or "train" * self._training:
            raise self._refused(f"calls `{call}`", f" while `{busy}` is under way; `await` that one first")

    def _refused(self, what: str, why: str) -> InputError:
        return InputError(f"`{self._protocol.name}` {what} in round {self.round}{why}")


class SendQueue:
    """Sends calls in order, each when its vectors are on the CPU and the calls before it have sent."""

    def __init__(self) -> None:
        self._last: asyncio.Future[Any] | None = None

    def enqueue(self, fetched: Collection[HostCopy], send: Callable[[], T]) -> asyncio.Future[T]:
        """Return the result of `send`. If there is nothing to wait for, it is called, and may raise, at once."""
        if self._last is None and all(one.copied is None for one in fetched):
            sent = asyncio.get_running_loop().create_future()
            sent.set_result(send())
            return sent
        task = asyncio.get_running_loop().create_task(_in_turn(self._last, fetched, send))
        task.add_done_callback(_retrieved)
        self._last = task
        return task


def _retrieved(done: asyncio.Task[Any]) -> None:
    """Take a task's error, which is told elsewhere, so that asyncio does not report it as well."""
    if not done.cancelled():
        done.exception()


async def _in_turn(before: asyncio.Future[Any] | None, fetched: Collection[HostCopy], send: Callable[[], T]) -> T:
    if before:
        await before
    for one in fetched:
        await asyncio.to_thread(one.wait)
    return send()


def map_unique(given: Mapping[str, T], make: Callable[[T], Made]) -> dict[str, Made]:
    """Apply `make` to each receiver's value, but only once to a value that several share, in order of first use."""
    made = {at: make(one) for at, one in {id(one): one for one in given.values()}.items()}
    return {to: made[id(one)] for to, one in given.items()}


UNDECIDED = -1
"""The number that a peer without a decision of its own sends."""


@dataclass
class RingOrder:
    """The ring's order, and its cost before and after ordering."""

    order: tuple[str, ...]
    cost_before: float | None = None
    cost_after: float | None = None


class Communicator:
    """Carries out the calls of one peer, each on the present round's collectives."""

    def __init__(self, peer: CheckedPeer, spec: Spec, model: Model, lifecycle: Lifecycle, round: Round) -> None:
        """peer: the one that makes the calls. round: the present one."""
        self._peer, self._lifecycle, self._round = peer, lifecycle, round
        self._encoding = peer._encoding
        self._adversary = SimulatedAdversary(spec.behaviour.get(peer.id), model, spec.seed, peer.id)
        self._transfers, self._queue = Transfers(model.device), SendQueue()
        self.ring = RingOrder(peer.members)

    def begin(self, round: Round) -> None:
        self._adversary.begin(round.number)
        self._round = round

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What must survive a crash: tensors on the CPU that do not change later, and plain JSON."""
        tensors = copies({f"wire/{name}": tensor for name, tensor in self._encoding.state.items()})
        tensors |= {f"behaviour/{name}": tensor for name, tensor in self._adversary.state_dict().items()}
        return tensors, {"ring": {**vars(self.ring)}}

    def load_state_dict(
        self, wire: Mapping[str, Tensor], behaviour: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        self._encoding.state = dict(wire)
        self._adversary.load_state_dict(behaviour)
        self.ring = RingOrder(**{**facts["ring"], "order": tuple(facts["ring"]["order"])})

    def start(self, call: CheckedCall) -> Awaitable[dict[str, Received]]:
        """Return what came from each sender. An exchange sends, or raises its errors, before this returns, unless
        something must be copied first."""
        match call.collective:
            case "exchange":
                return self._exchange(call)
            case "weighted_mean":
                return self._weighted_mean(call)
            case "all_gather":
                return self._all_gather(call)
            case "token":
                return self._pass_token(call) if call.vectors else self._receive_token(call)

    def _exchange(self, call: CheckedCall) -> Pending[dict[str, Received]]:
        name, collectives = call.share.vector, self._round.collectives
        if (trace := self._round.trace) and trace.shared == name:
            trace.passes(self._peer._vector(call.share))
            trace.facts |= call.numbers
        with self._communicating():
            expected = Expected(self._bytes(call.share), call.required, call.senders)
            sent = self._leave(
                call,
                lambda vectors: collectives.exchange(call.around, name, Outgoing(vectors, call.numbers), expected),
            )
        return Pending(lambda: self._received(call, sent))

    async def _weighted_mean(self, call: CheckedCall) -> dict[str, Received]:
        with self._communicating():
            vector = await self._leave(call, lambda vectors: vectors[""])
            # Not earlier, as this may create the state that the encoding keeps for this vector.
            rounding = self._encoding.rounding(call.share, vector)
            await self._round.collectives.weighted_mean(call.around, call.share.vector, vector, call.weight, rounding)
            self._transfers.copy_into(vector, call.vectors[""])
        return {}

    def _all_gather(self, call: CheckedCall) -> Awaitable[dict[str, Received]]:
        length, collectives = self._bytes(call.share), self._round.collectives
        sent = self._leave(
            call,
            lambda vectors: collectives.all_gather(call.around, call.share.vector, vectors[""], call.numbers, length),
        )
        return self._received(call, sent)

    async def _pass_token(self, call: CheckedCall) -> dict[str, Received]:
        with self._communicating():
            vector = await self._leave(call, lambda vectors: vectors[""])
            await self._round.collectives.pass_token(call.around, call.share.vector, vector)
        return {}

    async def _receive_token(self, call: CheckedCall) -> dict[str, Received]:
        with self._communicating():
            length = self._bytes(call.share)
            token = await self._round.collectives.receive_token(call.around, call.share.vector, length)
        return {sender: Received(self._decoded(call.share, token.vector), {}) for sender in call.senders}

    async def gather(self, record: str, numbers: Sequence[float]) -> dict[str, tuple[float, ...]]:
        """Return every member's numbers, by id."""
        with self._communicating():
            collectives, around = self._round.collectives, self._peer._neighbourhood()
            return await (await self._queue.enqueue((), lambda: collectives.gather(around, record, tuple(numbers))))

    def use_ring(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        """Use that order of the ring from now on, as all others do."""
        self.ring = RingOrder(order, cost_before, cost_after)
        network, number, around = self._round.network, self._round.number, self._peer._neighbourhood()
        network.audit.reordered(number, order)
        network.set_edges(number, around.receivers, around.senders)
        self._lifecycle.report(RingOrdered(order=order, cost_before=cost_before, cost_after=cost_after))

    # -- the runtime's own calls, with vectors and records that no protocol names; they travel unencoded --

    async def runtime_mean(self, name: str, vector: Tensor, weight: float) -> None:
        """Replace a CPU vector with its weighted mean over all members."""
        with self._communicating():
            await self._round.collectives.weighted_mean(self._peer._neighbourhood(), name, vector, weight)

    async def receive_state(self, name: str, values: int | None, numbers: int = 0) -> Arrived:
        """Receive what the left neighbour sends to this peer, which is being admitted; the vector is on the CPU.

        values: how many float32 values it has; None: any number.
        """
        length = None if values is None else values * torch.float32.itemsize
        with self._communicating():
            return await self._round.collectives.receive_token(self._peer._neighbourhood(), name, length, numbers)

    async def send_state(self, name: str, vector: Tensor, numbers: Sequence[float] = ()) -> None:
        """Send state to the right neighbour, which is being admitted."""
        leaving = self._transfers.fetch(vector)
        with self._communicating():
            here = await self._queue.enqueue([leaving], lambda: leaving.vector)
            await self._round.collectives.pass_token(self._peer._neighbourhood(), name, here, numbers)

    def placed(self, vector: Tensor) -> Tensor:
        """Move a tensor from the CPU to the model's device."""
        return self._transfers.to_device(vector)

    # -- on the way out --

    def _leave(self, call: CheckedCall, start: Callable[[dict[str, Tensor]], T]) -> asyncio.Future[T]:
        """Fetch a call's vectors now; `start` with them, encoded, when they are there and earlier calls have sent."""
        leaving = map_unique(call.vectors, lambda vector: self._fetch(call.share, vector))
        return self._queue.enqueue(leaving.values(), lambda: start(self._encoded(call, leaving)))

    def _fetch(self, share: Share, vector: Tensor) -> HostCopy:
        """Start copying a vector to the CPU, or another one if the spec makes this peer misbehave; trace both."""
        trace = self._round.trace if self._round.trace and self._round.trace.shared == share.vector else None
        if trace:
            trace.communicates(vector)
        leaving = self._adversary.transform(share, vector)
        if trace and leaving is not vector:
            trace.sends(leaving)
        return self._transfers.fetch(leaving)

    def _encoded(self, call: CheckedCall, fetched: Mapping[str, HostCopy]) -> dict[str, Tensor]:
        """Encode vectors that are on the CPU; DivergedError if one is not finite."""
        # Check all before encoding any: an encoding must not keep what was never sent.
        plain = map_unique(fetched, lambda one: self._finite(call, one.vector))
        if call.collective == "weighted_mean":
            return plain  # its parts are rounded as they leave
        try:
            return map_unique(
                plain, lambda vector: self._encoding.encode(call.collective, call.share, vector, call.each_its_own)
            )
        except OverflowError as error:
            raise self._diverged(call.share, f"has values {error}") from None

    def _finite(self, call: CheckedCall, vector: Tensor) -> Tensor:
        if vector.is_floating_point() and not bool(torch.isfinite(vector.sum())):
            wrong = int((~torch.isfinite(vector)).sum())  # 0 if only the sum is too large
            if wrong and ":" in (protocol := self._peer._protocol.name):
                called = "pass_token" if call.collective == "token" else call.collective
                raise DivergedError(
                    f"{self._peer.id}: `{protocol}` calls `{called}` in round {self._round.number}, and "
                    f"`{call.share.vector}` is not finite in {wrong} of {vector.numel()} values, though training left "
                    "the model finite; correct what the protocol computes"
                )
            raise self._diverged(call.share, "is not finite")
        return vector

    def _diverged(self, share: Share, what: str) -> DivergedError:
        return DivergedError(
            f"{self._peer.id}: its {share.vector} {what} in round {self._round.number}; lower the learning rate"
        )

    # -- on the way in --

    async def _received(self, call: CheckedCall, sent: Awaitable[Awaitable[dict[str, Arrived]]]) -> dict[str, Received]:
        with self._communicating():
            arrived = await (await sent)
        return {
            sender: Received(self._decoded(call.share, one.vector), dict(zip(call.numbers, one.scalars, strict=True)))
            for sender in call.senders
            if (one := arrived.get(sender))
        }

    def _decoded(self, share: Share, arrived: Tensor) -> Tensor:
        return self._encoding.decode(share, arrived, lambda: self._peer._vector(share), self._transfers.to_device)

    def _bytes(self, share: Share) -> int | None:
        """The bytes of the vector as it travels, the same at every peer; None if each may send its own length."""
        length = self._peer._length(share)
        return None if length is None else self._encoding.length(share, length)

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        """Count the time of the block as communication."""
        self._lifecycle.become("communicating")
        with self._lifecycle.timed("communicate"):
            yield


def decision_digest(decision: Tensor | None) -> int:
    """A digest of a decision as an integer that float64 holds exactly; UNDECIDED for None."""
    if decision is None:
        return UNDECIDED
    content = repr((str(decision.dtype), decision.cpu().tolist())).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "little")


def plain_notes(protocol: str, values: Mapping[str, object], round: int) -> dict[str, Note]:
    """Notes as plain JSON: numbers, or lists of them, None if not finite; InputError for anything else."""
    if "round" in values:
        raise InputError(f"`{protocol}` notes a `round`; that name is the round's own: choose another")
    found = {}
    for name, value in values.items():
        try:
            found[name] = _plain_note(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"`{protocol}` notes a {type(value).__name__} as `{name}` in round {round}; note a number or a list "
                "of numbers"
            ) from None
    return found


def _plain_note(value: object) -> Note:
    plain = value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value
    if isinstance(plain, Sequence) and not isinstance(plain, str):
        return [_finite(one) for one in plain]
    return _finite(plain)


def _finite(value: Any) -> float | None:
    """A number, or None if it is not finite: JSON has no such numbers, and an infinite norm should not end a run."""
    if isinstance(value, str):
        raise TypeError("float() would read it")
    number = float(value)
    return number if isfinite(number) else None
