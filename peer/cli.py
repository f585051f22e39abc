"""dfl-peer: one client of a federation."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from peer.errors import FailedError, InputError, NotNowError
from peer.files import private
from peer.process import (
    DONE,
    FAILED,
    NOT_NOW,
    UNWRITABLE,
    WRONG_INPUT,
    Parser,
    ShowRelease,
    leaving_at_once,
    tune,
    unwritable_output,
)
from peer.telemetry.logs import start_logging
from peer.text import one_line

# What takes seconds to import is imported where it is used: by then Ctrl-C ends this process in order.


def main(argv: Sequence[str] | None = None) -> int:
    """Run a peer to its end; the exit status: 0 done, 1 failed, 2 wrong input, 75 certificates not valid now, 128 + n
    after signal n."""
    with leaving_at_once():
        parser = _parser()
        arguments = parser.parse_args(argv)
        if not (arguments.command or arguments.config or arguments.check):
            parser.error("give --config, --check or backup")
        return _outcome(arguments)


def _outcome(arguments: argparse.Namespace) -> int:
    """The exit status, and what went wrong on stderr."""
    start_logging()
    try:
        if arguments.config:
            return _run(arguments.config, arguments.quiet)
        code = _check(arguments.check) if arguments.check else _backup(arguments)
        sys.stdout.flush()
        return code
    except InputError as error:
        return _complain(error, NOT_NOW if isinstance(error, NotNowError) else WRONG_INPUT)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except FailedError as error:
        return _complain(error, FAILED)
    except OSError as error:
        if arguments.config or error.filename or error.errno not in UNWRITABLE:
            raise
        return _complain(FailedError(unwritable_output(error)), FAILED)


def _complain(error: Exception, code: int) -> int:
    print(f"dfl-peer: {one_line(error)}", file=sys.stderr)  # a neighbour may have chosen words of it
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="dfl-peer", description="One client of a decentralised federation.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    copying = commands.add_parser("backup", help="copy a peer's checkpoints, also while it runs")
    copying.add_argument("directory", type=Path, metavar="DIR", help="the peer's directory")
    copying.add_argument("to", type=Path, metavar="TO", help="a new directory, or a new file.tar")
    copying.add_argument("--round", type=int, metavar="N", help="only this round (default: all that the peer keeps)")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--config", type=Path, metavar="PEER.YAML", help="run the peer with these settings")
    task.add_argument("--check", type=Path, metavar="PEER.YAML", help="check what would keep the peer from starting")
    parser.add_argument("--quiet", action="store_true", help="log only events, as a launcher reports the progress")
    parser.add_argument("--version", action=ShowRelease, nargs=0, help="show the version and exit")
    return parser


def _backup(arguments: argparse.Namespace) -> int:
    from peer.runtime.backup import backup, rounds_in_words

    copied = backup(arguments.directory, arguments.to, arguments.round)
    print(f"{arguments.to}: {rounds_in_words(copied)} of {arguments.directory}")
    return DONE


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


def _at_once(path: Path) -> str:
    """The log's first line by what the files say, which is said now and not checked yet; empty if they cannot be read:
    the check says why."""
    from peer.spec.document import Document
    from peer.telemetry.operator_log import introduction
    from peer.telemetry.telemetry import log

    with suppress(InputError, KeyError, TypeError, AttributeError):
        own = Document.read(path).content
        file = path.parent / own["federation"]
        content = Document.read(file).content
        addresses = {member["id"]: member.get("address") for member in content["ring"]}
        protocol = content["protocol"]
        said = introduction(
            own["id"],
            content.get("name", file.stem),
            protocol if isinstance(protocol, str) else protocol["name"],
            own.get("listen") or addresses[own["id"]],
            len(addresses),
            content.get("rounds", 10),
        )
        log.info("%s", said)
        return said
    return ""


def _run(path: Path, quiet: bool) -> int:
    said = _at_once(path) if not quiet and sys.stderr.isatty() else ""
    from peer.learning.device import device_errors
    from peer.runtime.peer_process import operator_log, run_peer, subscribers
    from peer.runtime.setup import prepare
    from peer.spec.loading import load_peer
    from peer.telemetry.telemetry import Telemetry

    with device_errors():
        config, spec = load_peer(path)
        operator = None if quiet else operator_log(path, config, spec)
        telemetry = Telemetry(operator.on_event) if operator else Telemetry()
        setup = prepare(config, spec)
        watching = subscribers(setup, telemetry.emit)
        if operator:
            operator.introduce(said)  # only now but on a terminal: wrong input is one line, that of the mistake
        tune(setup.threads, setup.model.vector.nbytes)
        with private():  # only now: data that were fetched may be of use to others
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(run_peer(setup, telemetry, watching, operator))


if __name__ == "__main__":
    sys.exit(main())
