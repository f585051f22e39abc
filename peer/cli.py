"""dfl-peer: one client of a federation."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from peer.errors import FailedError, InputError
from peer.ownership import private
from peer.process import leaving_at_once, tune
from peer.telemetry.logs import start_logging
from peer.text import one_line

if TYPE_CHECKING:
    from peer.network.transport.base import Place
    from peer.network.transport.tls import Security
    from peer.runtime.setup import Setup
    from peer.telemetry.telemetry import Telemetry

# What takes seconds to import is imported where it is used: by then Ctrl-C ends this process in order.

DONE, FAILED, WRONG_INPUT = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a peer to its end; the exit status: 0 done, 1 failed, 2 wrong input, 128 + n after signal n."""
    with leaving_at_once():
        return _outcome(_parser().parse_args(argv).config)


def _outcome(config: Path) -> int:
    """The exit status, and what went wrong on stderr."""
    start_logging()
    try:
        return _run(config)
    except InputError as error:
        return _complain(error, WRONG_INPUT)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except FailedError as error:
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    print(f"dfl-peer: {one_line(error)}", file=sys.stderr)  # a neighbour may have chosen words of it
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dfl-peer", description="One client of a decentralised federation.")
    parser.add_argument("--config", type=Path, required=True, metavar="PEER.YAML", help="this peer's settings")
    parser.add_argument("--version", action="version", version=f"dfl {version('dfl')}")
    return parser


def _run(config: Path) -> int:
    from peer.runtime.setup import prepare
    from peer.spec.peer import load_peer
    from peer.telemetry.telemetry import Telemetry

    telemetry = Telemetry()
    setup = prepare(*load_peer(config))
    tune(setup.config.threads)
    with private():  # only now: data that were fetched may be of use to others
        if sys.platform == "win32":
            return asyncio.run(_live(setup, telemetry))
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_live(setup, telemetry))


async def _live(setup: "Setup", telemetry: "Telemetry") -> int:
    from peer.network.transport.grpc import GrpcTransport
    from peer.runtime.runtime import Runtime
    from peer.telemetry.events import Stopped

    caught: list[signal.Signals] = []
    task = asyncio.current_task()
    assert task

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    security = _security(setup, telemetry)
    with ThreadPoolExecutor(1, "train") as executor:
        transport = partial(GrpcTransport, _place(setup), security=security, report=telemetry.emit)
        runtime = Runtime(setup, transport, executor, telemetry)
        try:
            await runtime.run()
        except asyncio.CancelledError:
            if not caught:
                raise
            telemetry.emit(Stopped(signal=caught[0].name))
            return 128 + caught[0]
    return DONE


def _place(setup: "Setup") -> "Place":
    from peer.network.transport.base import Place
    from peer.topology.graphs import receivers, senders

    config, spec = setup.config, setup.spec
    around = [edges(spec.protocol.graph, spec.ids, config.id) for edges in (receivers, senders)]
    neighbours = len({peer for peers in around for peer in peers})
    ring = tuple(address for address in spec.addresses.values() if address)
    return Place(config.listen or spec.addresses[config.id], config.health, ring, neighbours)


def _security(setup: "Setup", telemetry: "Telemetry") -> "Security | None":
    from peer.network.transport.tls import Certificates, Security

    tls = setup.config.tls
    if tls is None:
        return None
    names = {address: id for id, address in setup.spec.addresses.items() if address}
    return Security(Certificates(setup.config.id, tls.ca, tls.cert, tls.key), names, telemetry.emit)


if __name__ == "__main__":
    sys.exit(main())
