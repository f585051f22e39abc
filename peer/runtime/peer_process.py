"""One peer as a process of its own: its sockets, its certificates, who gets its events, and how it handles signals."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from peer.network.transport import ListenConfig
from peer.network.transport.addresses import names_of, split
from peer.network.transport.grpc import GrpcTransport
from peer.process import DONE
from peer.runtime.membership.view_runner import ViewRunner
from peer.runtime.setup import Setup
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig, subscriber_settings
from peer.telemetry.events import Report, Stopped
from peer.telemetry.metrics import Metrics
from peer.telemetry.operator_log import Identification, OperatorLog
from peer.telemetry.results import MODEL
from peer.telemetry.telemetry import Subscriber, SubscriberThread, Telemetry, TensorBoard, Tracker

if TYPE_CHECKING:
    from peer.network.transport.tls import TlsCredentials


def operator_log(path: Path, config: PeerConfig, spec: Spec) -> OperatorLog:
    """The log for a person who starts the peer by hand, with the settings in `path`."""
    about = Identification(
        config.id,
        spec.name,
        spec.protocol.name,
        config.listen or spec.addresses[config.id],
        peers=len(spec.ids),
        rounds=spec.rounds,
        config=path,
        out=config.directory,
        model=config.directory / MODEL,
    )
    return OperatorLog(about)


def subscribers(setup: Setup, report: Report) -> list[Subscriber]:
    """All subscribers in the settings; InputError if a package, port or user code is missing. Creates no files."""
    watched, found = subscriber_settings(setup.config, setup.spec), list[Subscriber]()
    if watched.tracker:
        found.append(Tracker(watched.tracker))
    if watched.tensorboard:
        found.append(TensorBoard(setup.out / "tensorboard"))
    if watched.metrics:
        metrics = Metrics(setup.out)
        metrics.listen(split(watched.metrics), names_of(watched.metrics), report)
        found.append(metrics)
    return found


@asynccontextmanager
async def _subscribed(telemetry: Telemetry, found: Sequence[Subscriber]) -> AsyncIterator[None]:
    """Publish every event to these subscribers inside the block; at its end, let them finish the last ones."""
    listeners = [SubscriberThread(one, telemetry.emit) for one in found]
    for one in listeners:
        telemetry.subscribe(one.publish)
    try:
        yield
    finally:
        await asyncio.gather(*(asyncio.to_thread(one.end) for one in listeners))


async def run_peer(
    setup: Setup, telemetry: Telemetry, watching: Sequence[Subscriber], operator: OperatorLog | None
) -> int:
    """Run to the end, or until SIGTERM or SIGINT; return the exit code. `watching` and `operator` get its events."""
    async with operator.shown() if operator else nullcontext(), _subscribed(telemetry, watching):
        return await _run(setup, telemetry)


async def _run(setup: Setup, telemetry: Telemetry) -> int:
    """Run; with `on_stop: leave`, the first SIGTERM asks the others to go on without this peer, if possible."""
    caught: list[signal.Signals] = []
    task = asyncio.current_task()
    assert task

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        leaves = number == signal.SIGTERM and len(caught) == 1 and setup.spec.on_stop == "leave"
        if not leaves or not views.leave(otherwise=task.cancel):
            task.cancel()

    security = _credentials(setup, telemetry)
    with ThreadPoolExecutor(1, "train") as executor:
        transport = partial(GrpcTransport, _listening(setup), security=security, report=telemetry.emit)
        views = ViewRunner(setup, transport, executor, telemetry)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        try:
            await views.run()
        except asyncio.CancelledError:
            if not caught:
                raise
            while task.uncancel():  # the cancellation is dealt with: whoever waits for this task may end in order
                pass
            telemetry.emit(Stopped(signal=caught[0].name))
            return 128 + caught[0]
        finally:
            # What is left is for the subscribers to finish, in bounded time: a cancellation would lose the exit code.
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, caught.append, number)
    return DONE


def _listening(setup: Setup) -> ListenConfig:
    config, spec = setup.config, setup.spec
    ring = tuple(address for address in spec.addresses.values() if address)
    around = spec.neighbours(config.id)
    return ListenConfig(config.listen or spec.addresses[config.id], config.health, ring, len(around))


def _credentials(setup: Setup, telemetry: Telemetry) -> "TlsCredentials | None":
    tls = setup.config.tls
    if tls is None:
        return None
    from peer.network.transport.tls import CertificatePaths, TlsCredentials  # loads X.509

    names = {address: id for id, address in setup.spec.addresses.items() if address}
    return TlsCredentials(CertificatePaths(setup.config.id, tls.ca, tls.cert, tls.key), names, telemetry.emit)
