"""dfl-peer that dies by its own SIGKILL at one event, named by the environment: FAULT=event:count.

An entry for the fork server, in place of `peer.cli:main`. Without FAULT it is the plain dfl-peer. With
HOST=name it lives in that network namespace, with LIAR=seed it lies (faults.liars), with LOADS=seconds it takes that
long to read what it has on disk when it enters a later view.
"""

import asyncio
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import peer.runtime.checkpoints
import peer.runtime.rounds.reports
from faults.disk import half_written
from faults.liars import make_liar
from peer import files
from peer.cli import main as peer_main
from peer.files import Buffer
from peer.learning.training.trainer import Trainer
from peer.network.collectives import AllGather, AllReduce, Collectives
from peer.network.network import Network
from peer.network.streams import stream
from peer.network.streams.heartbeat import NeighbourHeartbeats
from peer.network.streams.link import Receiver
from peer.network.streams.stream import CountedPipe
from peer.network.transport.grpc import ClientPipe
from peer.network.wire.messages import Beat
from peer.runtime.checkpoints import Checkpoints, Journal
from peer.runtime.rounds.reports import Evaluator
from peer.runtime.runtime import Runtime
from peer.telemetry.results import ModelFigures

LARGE = 1 << 16


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fault:
    """Counts down to the event at which the process dies."""

    def __init__(self, count: int) -> None:
        self.left = count

    def due(self) -> bool:
        self.left -= 1
        return self.left == 0

    def hit(self) -> None:
        if self.due():
            die()


def before(owner: Any, name: str, fault: Fault) -> None:
    """Die before the call of a function, plain or async."""
    function = getattr(owner, name)

    @wraps(function)
    def replacement(*arguments: Any, **named: Any) -> Any:
        fault.hit()
        return function(*arguments, **named)

    setattr(owner, name, replacement)


def after(owner: Any, name: str, fault: Fault) -> None:
    """Die after the return of an async function."""
    function = getattr(owner, name)

    @wraps(function)
    async def replacement(*arguments: Any, **named: Any) -> Any:
        result = await function(*arguments, **named)
        fault.hit()
        return result

    setattr(owner, name, replacement)


def training(fault: Fault) -> None:
    before(Trainer, "check_stop", fault)


def mid_frame(fault: Fault) -> None:
    """While a frame is on its way through the socket."""
    send = ClientPipe.send

    async def replacement(self: ClientPipe, data: bytes) -> None:
        if len(data) >= LARGE and fault.due():
            threading.Timer(0.001, die).start()
        await send(self, data)

    ClientPipe.send = replacement  # type: ignore[method-assign]


def communicating(fault: Fault) -> None:
    """When a message that it has waited for is there, and nothing was made of it yet."""
    after(Network, "message", fault)


def evaluating(fault: Fault) -> None:
    before(Evaluator, "evaluate", fault)


def looking_closer(fault: Fault) -> None:
    """When predictions are on disk, and the result that tells of them is not."""
    before(peer.runtime.rounds.reports, "write_result", fault)


def overtaken(fault: Fault) -> None:
    """While it evaluates, when a neighbour has said that it is in the next round already."""
    hear, evaluate = NeighbourHeartbeats._on_beat, Evaluator.evaluate
    rounds, told = [0], asyncio.Event()

    async def heard(self: NeighbourHeartbeats, pipe: CountedPipe, beat: Beat) -> None:
        await hear(self, pipe, beat)
        rounds.append(beat.round)
        told.set()

    async def evaluate_slowly(self: Evaluator) -> ModelFigures:
        if fault.due():
            while max(rounds) <= self._participant.lifecycle.round:
                told.clear()
                await told.wait()
            die()
        return await evaluate(self)

    NeighbourHeartbeats._on_beat = heard  # type: ignore[method-assign]
    Evaluator.evaluate = evaluate_slowly  # type: ignore[method-assign]


def mid_pass(fault: Fault) -> None:
    after(Collectives, "_arrivals", fault)


def all_reduce(fault: Fault) -> None:
    before(AllReduce, "_relay", fault)


def all_gather(fault: Fault) -> None:
    before(AllGather, "_take", fault)


def once(fault: Fault) -> None:
    """When a secret is drawn and not on disk yet, and when it is there and nothing that depends on it is sent."""
    write = Journal.write

    def replacement(self: Journal, round: int, number: int, value: Any) -> Any:
        fault.hit()
        kept = write(self, round, number, value)
        fault.hit()
        return kept

    Journal.write = replacement  # type: ignore[method-assign]


def token(fault: Fault) -> None:
    after(Collectives, "receive_token", fault)


def checkpoint(fault: Fault) -> None:
    """In the middle of a file, or after it and before the fsync of the directory."""

    def write(path: Path, content: Buffer | Sequence[Buffer], over: Path | None = None) -> None:
        if path.parent.name == "journal":  # not of a checkpoint
            files.write_atomically(path, content, over)
            return
        half_written(path, content, over)
        fault.hit()
        files.write_atomically(path, content)
        fault.hit()

    peer.runtime.checkpoints.write_atomically = write  # type: ignore[attr-defined]


def acknowledgement(fault: Fault) -> None:
    before(Network, "announce", fault)


def greeting(fault: Fault) -> None:
    """When its hello has been sent and not been answered."""
    shake_hands = stream.do_handshake

    async def replacement(pipe: Any, hello: bytes, *rest: Any) -> Any:
        await pipe.send(hello)
        fault.hit()
        return await shake_hands(pipe, hello, *rest)

    if fault.left == 1:
        stream.do_handshake = replacement  # type: ignore[attr-defined]


def greeted(fault: Fault) -> None:
    after(Receiver, "admit", fault)


def serving(fault: Fault) -> None:
    before(Runtime, "_serve", fault)


EVENTS: dict[str, Callable[[Fault], None]] = {
    "training": training,
    "communicating": communicating,
    "evaluating": evaluating,
    "overtaken": overtaken,
    "looking-closer": looking_closer,
    "mid-frame": mid_frame,
    "mid-pass": mid_pass,
    "all-reduce": all_reduce,
    "token": token,
    "all-gather": all_gather,
    "once": once,
    "checkpoint": checkpoint,
    "acknowledgement": acknowledgement,
    "greeting": greeting,
    "greeted": greeted,
    "serving": serving,
}


def move_to(namespace: str) -> None:
    """Before any socket and any other thread of the peer."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def load_slowly(seconds: float) -> None:
    newest_intact = Checkpoints.newest_intact

    def replacement(self: Checkpoints) -> int:
        time.sleep(seconds)
        return newest_intact(self)

    Checkpoints.newest_intact = replacement  # type: ignore[method-assign]


def main(argv: list[str]) -> int:
    if host := os.environ.get("HOST"):
        move_to(host)
    if seed := os.environ.get("LIAR"):
        make_liar(seed, Path(argv[argv.index("--config") + 1]))
    if seconds := os.environ.get("LOADS"):
        load_slowly(float(seconds))
    event, _, count = os.environ.get("FAULT", "").partition(":")
    if event:
        EVENTS[event](Fault(int(count)))
    return peer_main(argv)
