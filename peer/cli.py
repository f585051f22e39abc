"""dfl-peer: one client of a federation."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from peer.errors import FailedError, InputError
from peer.files import private
from peer.process import Parser, leaving_at_once, tune
from peer.telemetry.logs import start_logging
from peer.text import one_line

if TYPE_CHECKING:
    from peer.network.transport.base import ListenConfig
    from peer.network.transport.tls import TlsCredentials
    from peer.runtime.setup import Setup
    from peer.spec.federation import Spec
    from peer.spec.peer import PeerConfig
    from peer.telemetry.operator_log import OperatorLog
    from peer.telemetry.telemetry import Subscriber, Telemetry

# What takes seconds to import is imported where it is used: by then Ctrl-C ends this process in order.

DONE, FAILED, WRONG_INPUT = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a peer to its end; the exit status: 0 done, 1 failed, 2 wrong input, 128 + n after signal n."""
    with leaving_at_once():
        return _outcome(_parser().parse_args(argv))


def _outcome(arguments: argparse.Namespace) -> int:
    """The exit status, and what went wrong on stderr."""
    start_logging()
    try:
        return _check(arguments.check) if arguments.check else _run(arguments.config, arguments.quiet)
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
    parser = Parser(prog="dfl-peer", description="One client of a decentralised federation.")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--config", type=Path, metavar="PEER.YAML", help="run the peer with these settings")
    task.add_argument("--check", type=Path, metavar="PEER.YAML", help="say what would keep it from starting here now")
    parser.add_argument("--quiet", action="store_true", help="say what happens, and no more: a launcher tells the rest")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    return parser


class _Version(argparse.Action):
    """Looked up when it is asked for: what that reads and imports is 2 MB of every peer."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"dfl {version('dfl')}")
        parser.exit()


def _check(config: Path) -> int:
    """One line for each thing that a start needs."""
    sys.dont_write_bytecode = True  # nothing is created, also not beside code of the user's
    from rich.console import Console
    from rich.text import Text

    from peer.runtime.check import check

    console, wrong = Console(), False
    marks = {True: ("right", "green"), False: ("WRONG", "bold red"), None: ("-", "dim")}
    for found in check(config):
        wrong |= found.ok is False
        line = Text.assemble(f"{one_line(found.subject):<17}", (f"{marks[found.ok][0]:<7}", marks[found.ok][1]))
        console.print(line.append(one_line(found.message)), soft_wrap=True, highlight=False)
    return WRONG_INPUT if wrong else DONE


def _run(path: Path, quiet: bool) -> int:
    from peer.learning.device import memory_errors
    from peer.runtime.resources import whole_cores
    from peer.runtime.setup import prepare
    from peer.runtime.subscribers import subscribers
    from peer.spec.loading import load_peer
    from peer.telemetry.telemetry import Telemetry

    with memory_errors():
        config, spec = load_peer(path)
        operator = None if quiet else _operator_log(path, config, spec)
        telemetry = Telemetry(operator.hear) if operator else Telemetry()
        setup = prepare(config, spec)
        watching = subscribers(setup, telemetry.emit)
        if operator:
            operator.introduce()  # only now: wrong input is one line, that of the mistake
        tune(whole_cores() if setup.config.threads == "auto" else setup.config.threads)
        with private():  # only now: data that were fetched may be of use to others
            if sys.platform == "win32":
                return asyncio.run(_live_watched(setup, telemetry, watching, operator))
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_live_watched(setup, telemetry, watching, operator))


def _operator_log(path: Path, config: "PeerConfig", spec: "Spec") -> "OperatorLog":
    from peer.telemetry.operator_log import Identification, OperatorLog
    from peer.telemetry.results import MODEL

    out = config.out or Path(config.id)
    about = Identification(
        config.id,
        spec.name,
        spec.protocol.name,
        config.listen or spec.addresses[config.id],
        peers=len(spec.ids),
        rounds=spec.rounds,
        config=path,
        out=out,
        model=out / MODEL,
    )
    return OperatorLog(about)


async def _live_watched(
    setup: "Setup", telemetry: "Telemetry", watching: "Sequence[Subscriber]", operator: "OperatorLog | None"
) -> int:
    from peer.runtime.subscribers import subscribed

    async with operator.shown() if operator else nullcontext(), subscribed(telemetry, watching):
        return await _live(setup, telemetry)


async def _live(setup: "Setup", telemetry: "Telemetry") -> int:
    from peer.network.transport.grpc import GrpcTransport
    from peer.runtime.membership.view_runner import ViewRunner
    from peer.telemetry.events import Stopped

    caught: list[signal.Signals] = []
    task = asyncio.current_task()
    assert task

    def cancel() -> None:
        task.cancel()

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        leaves = number == signal.SIGTERM and len(caught) == 1 and setup.spec.on_stop == "leave"
        if not leaves or not lives.leave(otherwise=cancel):
            cancel()

    security = _security(setup, telemetry)
    with ThreadPoolExecutor(1, "train") as executor:
        transport = partial(GrpcTransport, _place(setup), security=security, report=telemetry.emit)
        lives = ViewRunner(setup, transport, executor, telemetry)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        try:
            await lives.run()
        except asyncio.CancelledError:
            if not caught:
                raise
            while task.uncancel():  # what was asked is done: whoever waits for this task may end in order
                pass
            telemetry.emit(Stopped(signal=caught[0].name))
            return 128 + caught[0]
    return DONE


def _place(setup: "Setup") -> "ListenConfig":
    from peer.network.transport.base import ListenConfig
    from peer.topology import neighbours

    config, spec = setup.config, setup.spec
    around = neighbours(spec.protocol.graph, spec.ids, config.id)
    ring = tuple(address for address in spec.addresses.values() if address)
    return ListenConfig(config.listen or spec.addresses[config.id], config.health, ring, len(around))


def _security(setup: "Setup", telemetry: "Telemetry") -> "TlsCredentials | None":
    from peer.network.transport.tls import CertificatePaths, TlsCredentials

    tls = setup.config.tls
    if tls is None:
        return None
    names = {address: id for id, address in setup.spec.addresses.items() if address}
    return TlsCredentials(CertificatePaths(setup.config.id, tls.ca, tls.cert, tls.key), names, telemetry.emit)


if __name__ == "__main__":
    sys.exit(main())
