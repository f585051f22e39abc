"""Subscribers to a peer's events besides its files, as set for the peer itself or else for the federation."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from peer.network.transport.addresses import names_of, split
from peer.runtime.setup import Setup
from peer.spec.peer import subscriber_settings
from peer.telemetry.events import Report
from peer.telemetry.metrics import Metrics
from peer.telemetry.telemetry import Subscriber, SubscriberThread, Telemetry, TensorBoard, Tracker


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
async def subscribed(telemetry: Telemetry, found: Sequence[Subscriber]) -> AsyncIterator[None]:
    """Publish every event to these subscribers inside the block; at its end, let them finish the last ones."""
    listeners = [SubscriberThread(one, telemetry.emit) for one in found]
    for one in listeners:
        telemetry.subscribe(one.publish)
    try:
        yield
    finally:
        await asyncio.gather(*(asyncio.to_thread(one.end) for one in listeners))
