"""The command line of dfl-launch: every command with its arguments, what is called for it, and what becomes of errors.

`--help` and a wrong argument answer at once, so nothing is imported here that takes long: a command is named by its
place, `module:function`, and imported when it is called. Only `run`, `attach` and `study` begin here: the first line of
a run is printed before anything is imported that takes seconds.

At the end is how a shell completes the command line, by argcomplete: it asks dfl-launch itself at every Tab.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launcher.commands.new import KINDS
from launcher.engines import ENGINES
from launcher.output import Output, make_legible
from peer.errors import FailedError, InputError
from peer.process import Parser, leaving_at_once

Command = Callable[[argparse.Namespace, Output], int]


def lazily(command: str) -> Command:
    """The function `module:name`, imported when it is called: `--help` and a wrong argument answer at once."""
    return partial(_imported, command)


def _imported(command: str, arguments: argparse.Namespace, output: Output) -> int:
    module, _, name = command.partition(":")
    code: int = getattr(import_module(module), name)(arguments, output)
    return code


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="dfl-launch", description="Starts and watches federations of peers.")
    top.add_argument("--version", action="version", version=f"dfl {version('dfl')}")
    top.set_defaults(json=False, quiet=False, resumes=False)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a federation, here or on other machines")
    spec_arguments(run)
    run.add_argument("--out", type=Path, metavar="DIR", help="the run's directory (default: runs/<name>)")
    run.add_argument("--fresh", action="store_true", help="discard the run that is in the directory")
    run.add_argument("--device", metavar="DEVICE", help="auto (default), cpu, mps, cuda or cuda:N, for all peers")
    run.add_argument("--certs", type=Path, metavar="DIR", help="use the certificates that `certs` made there")
    run.add_argument("--on", choices=[*ENGINES], default="local", help="what runs the peers (default: local)")
    option_arguments(run, "a setting of what runs the peers, such as memory=4g")
    run.add_argument("--hosts", metavar="FILE", help="on which machines, for `--on ssh`; short for --option hosts=FILE")
    run.add_argument("--install", action="store_true", help="install dfl there; short for --option install=true")
    run.add_argument(
        "--beside", choices=["solo"], help="first train each peer alone, to say if taking part is worth it"
    )
    quiet_argument(run)
    run.add_argument("--json", action="store_true", help="the summary, or what went wrong, as JSON on stdout")
    dashboard_argument(run)
    run.set_defaults(command=run_command, resumes=True)

    status = commands.add_parser("status", help="ask the peers of a federation what they do")
    spec_arguments(status)
    certificate_arguments(status)
    status.add_argument("--json", action="store_true", help="as JSON")
    status.set_defaults(command=lazily("launcher.commands.watch:status_command"))

    watch = commands.add_parser("watch", help="watch peers that run already, to their end")
    spec_arguments(watch)
    certificate_arguments(watch)
    quiet_argument(watch)
    watch.set_defaults(command=lazily("launcher.commands.watch:watch_command"))

    dashboard = commands.add_parser("dashboard", help="watch peers that run already on a page")
    spec_arguments(dashboard)
    certificate_arguments(dashboard)
    at_argument(dashboard)
    dashboard.set_defaults(command=lazily("launcher.commands.watch:dashboard_command"))

    leave = commands.add_parser("leave", help="have a peer leave, so that nobody waits for it")
    spec_arguments(leave)
    leave.add_argument("peer", metavar="PEER", help="the id of the one that is to leave")
    certificate_arguments(leave)
    leave.set_defaults(command=lazily("launcher.commands.membership:leave_command"))

    expel = commands.add_parser("expel", help="consent that a peer is voted out")
    spec_arguments(expel)
    expel.add_argument("peer", metavar="PEER", help="the id of the one that is to be voted out")
    whose = "who consents (default: all others whose certificates are there)"
    expel.add_argument("--by", nargs="+", default=[], metavar="ID", help=whose)
    certificate_arguments(expel)
    expel.set_defaults(command=lazily("launcher.commands.membership:expel_command"))

    attach = commands.add_parser("attach", help="go on with peers whose launcher is gone")
    attach.add_argument("run", type=Path, metavar="DIR", help="the run's directory")
    quiet_argument(attach)
    attach.add_argument("--json", action="store_true", help="the summary, or what went wrong, as JSON on stdout")
    dashboard_argument(attach)
    attach.set_defaults(command=attach_command, resumes=True)

    check = commands.add_parser("check", help="say what a federation needs, without running it")
    spec_arguments(check)
    quiet_argument(check)
    check.add_argument("--json", action="store_true", help="as JSON")
    check.set_defaults(command=lazily("launcher.commands.check:check_command"))

    compose = commands.add_parser("compose", help="write a federation's docker-compose.yml")
    spec_arguments(compose)
    compose.add_argument(
        "--out",
        type=Path,
        default=Path("docker-compose.yml"),
        metavar="FILE",
        help="where to (default: docker-compose.yml)",
    )
    compose.add_argument("--certs", type=Path, metavar="DIR", help="use the certificates that `certs` made there")
    compose.add_argument("--build", type=Path, metavar="DIR", help="let Compose build the image from this checkout")
    chosen = "image (default: dfl), memory (2g), cpus (all), gpus (none), pids (512) or restarts (5)"
    option_arguments(compose, f"of every container: {chosen}")
    compose.set_defaults(command=lazily("launcher.commands.export:compose_command"))

    certs = commands.add_parser("certs", help="make a CA and a certificate for every peer")
    spec_arguments(certs)
    certs.add_argument("--out", type=Path, default=Path("certs"), metavar="DIR", help="where to (default: certs)")
    certs.add_argument("--days", type=int, default=365, metavar="N", help="valid for so many days (default: 365)")
    certs.set_defaults(command=lazily("launcher.commands.export:certs_command"))

    manifests = commands.add_parser("manifests", help="write a federation for Kubernetes")
    spec_arguments(manifests)
    manifests.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to; replaces earlier ones")
    manifests.add_argument("--image", default="dfl", metavar="NAME", help="of deploy/Dockerfile (default: dfl)")
    manifests.add_argument("--certs", type=Path, metavar="DIR", help="copy the certificates that `certs` made there")
    manifests.set_defaults(command=lazily("launcher.commands.export:manifests_command"))

    compare = commands.add_parser("compare", help="what a run gained over the same peers alone")
    compare.add_argument("run", type=Path, metavar="DIR", help="a finished run")
    compare.add_argument("alone", type=Path, metavar="SOLO", help="a finished run of `solo` by the same peers")
    compare.add_argument("--json", action="store_true", help="as JSON")
    compare.set_defaults(command=lazily("launcher.commands.compare:compare_command"))

    summary = commands.add_parser("summary", help="sum up a run from its peers' directories")
    summary.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="a peer's, or one that holds peers'")
    summary.add_argument("--json", action="store_true", help="as JSON, like a run's summary.json")
    summary.add_argument("--out", type=Path, metavar="FILE", help="write it there, as JSON")
    summary.add_argument("--code", type=Path, metavar="DIR", help="import a protocol of your own from there")
    summary.set_defaults(command=lazily("launcher.commands.report:summary_command"))

    report = commands.add_parser("report", help="write a page that shows or compares runs")
    report.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="a run's, or one that holds peers'")
    report.add_argument("--out", type=Path, metavar="FILE", help="the page (default: DIR/report.html)")
    for name, what in (("csv", "the tables, for other programs"), ("png", "the figures"), ("svg", "the figures")):
        report.add_argument(f"--{name}", action="store_true", help=f"{what}, as {name.upper()} beside it, in a folder")
    report.add_argument("--code", type=Path, metavar="DIR", help="import a protocol of your own from there")
    report.set_defaults(command=lazily("launcher.commands.report:report_command"))

    study = commands.add_parser("study", help="run a grid of federations, and write their tables")
    study.add_argument("file", type=Path, metavar="study.yaml", help="the grid; see docs/studies.md")
    study.add_argument("--out", type=Path, metavar="DIR", help="the study's directory (default: studies/<name>)")
    study.add_argument(
        "--at-once", type=int, metavar="N", help="cells at once (default: as many as this machine carries)"
    )
    study.add_argument("--port", type=int, metavar="P", help="the first port, with `network: grpc` (default: 7700)")
    study.add_argument("--dask", metavar="ADDRESS", help="compute the cells on the workers of this Dask scheduler")
    quiet_argument(study)
    study.set_defaults(command=study_command, resumes=True)

    protocols = commands.add_parser("protocols", help="list the protocols")
    protocols.add_argument("--json", action="store_true", help="as JSON, with every parameter")
    protocols.set_defaults(command=lazily("launcher.commands.protocols:protocols_command"))

    new = commands.add_parser("new", help="write a starting file of your own, with its test")
    new.add_argument("kind", choices=KINDS, help="what it is to be")
    new.add_argument("name", metavar="NAME", help="of the module, such as my_ring")
    new.add_argument("--out", type=Path, default=Path("."), metavar="DIR", help="where to (default: here)")
    new.set_defaults(command=lazily("launcher.commands.new:new_command"))

    completion = commands.add_parser("completion", help="let a shell complete this command line")
    completion.add_argument("shell", choices=SHELLS, help="which; eval what is printed, in its start file")
    completion.set_defaults(command=completion_command)
    return top


def quiet_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quiet", action="store_true", help="say nothing but what went wrong")


def dashboard_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dashboard", action="store_true", help="show the run as a live page")
    at_argument(command)


def at_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("--at", metavar="HOST:PORT", help="where that page is (default: 127.0.0.1 and a free port)")


def spec_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("federation", type=Path, metavar="federation.yaml")
    command.add_argument("--peers", type=int, metavar="N", help="peer0 ... peerN-1 on loopback")
    command.add_argument("--port", type=int, metavar="P", help="their first port (default: 7700)")
    command.add_argument("--seed", type=int, metavar="S", help="in place of the spec's seed")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="in place of one of the spec's values, such as protocol.gamma=0.3; may be given again",
    )


def option_arguments(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="options",
        help=f"{what}; may be given again",
    )


def certificate_arguments(command: argparse.ArgumentParser) -> None:
    either = command.add_mutually_exclusive_group()
    either.add_argument("--certs", type=Path, metavar="DIR", help="ask with a certificate that `certs` made there")
    either.add_argument(
        "--tls", type=Path, nargs=3, metavar=("CA", "CERT", "KEY"), help="ask with this certificate of the federation"
    )


def run_command(arguments: argparse.Namespace, output: Output) -> int:
    from launcher.command_spec import header, resolved
    from peer.spec.document import Document

    for name in ("hosts", "install"):
        if getattr(arguments, name) and arguments.on != "ssh":
            raise InputError(f"--{name} is for peers on hosts by SSH; add `--on ssh`, or leave it out")
    document = Document.read(arguments.federation)
    if line := header(document, peers=arguments.peers, overrides=arguments.overrides, out=arguments.out):
        output.say(line)
    from launcher.commands.run import RunOptions, run
    from launcher.dashboard.server import dashboard_address
    from launcher.engines.base import engine, parsed_options

    given = parsed_options(arguments.options)
    given |= {"hosts": arguments.hosts} if arguments.hosts else {}
    given |= {"install": True} if arguments.install else {}
    options = RunOptions(
        spec=resolved(arguments, document),
        out=arguments.out,
        fresh=arguments.fresh,
        device=arguments.device,
        certs=arguments.certs,
        engine=engine(arguments.on, given),
        dashboard=dashboard_address(dashboard=arguments.dashboard, at=arguments.at, quiet=arguments.quiet),
        beside=arguments.beside is not None,
    )
    return run(options, output).report(output)


def attach_command(arguments: argparse.Namespace, output: Output) -> int:
    from launcher.command_spec import header
    from launcher.run_files import RunFiles
    from peer.spec.document import Document

    written = RunFiles(arguments.run).federation
    if written.is_file() and (line := header(Document.read(written), out=arguments.run)):
        output.say(line)
    from launcher.commands.run import attach
    from launcher.dashboard.server import dashboard_address

    at = dashboard_address(dashboard=arguments.dashboard, at=arguments.at, quiet=arguments.quiet)
    return attach(arguments.run, output, at).report(output)


def study_command(arguments: argparse.Namespace, output: Output) -> int:
    from launcher.study.command import StudyOptions, study
    from peer.spec.loading import FIRST_PORT

    port = FIRST_PORT if arguments.port is None else arguments.port
    return study(StudyOptions(arguments.file, arguments.out, arguments.at_once, port, arguments.dask), output)


def completion_command(arguments: argparse.Namespace, output: Output) -> int:
    output.text(completion_script(arguments.shell))
    return 0


SHELLS = ("bash", "zsh", "fish")
PEER_ARGUMENTS = ("peer", "by")
"""Arguments that are ids of peers."""


def completion_script(shell: str) -> str:
    """What the shell is to evaluate."""
    return str(argcomplete().shellcode(["dfl-launch"], shell=shell))


def complete_line(tree: argparse.ArgumentParser) -> None:
    """Answers the shell and ends the process."""
    for action in _actions(tree):
        if action.dest in PEER_ARGUMENTS:
            vars(action)["completer"] = peer_ids
    argcomplete().autocomplete(tree, always_complete_options=False)


def peer_ids(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The peers of the federation that the line names; none of a file that cannot be read."""
    from peer.spec.document import Document

    try:
        ring = Document.read(Path(parsed_args.federation)).content.get("ring")
        return [str(member["id"]) for member in ring] if ring else [f"peer{n}" for n in range(parsed_args.peers or 0)]
    except (InputError, TypeError, KeyError):
        return []


def argcomplete() -> Any:
    """The imported library; InputError when it is not installed."""
    try:
        import argcomplete
    except ImportError:
        raise InputError(
            "completion needs argcomplete; install it with: pip install -c constraints.txt 'dfl[completion]'"
        ) from None
    return argcomplete


def _actions(tree: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in tree._actions:
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _actions(command)
        yield action


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 done, 1 failed, 2 wrong input, 129 hangup, 130 Ctrl-C, 143 SIGTERM."""
    with leaving_at_once():
        for stream in (sys.stdout, sys.stderr):
            make_legible(stream)
        tree = parser()
        if "_ARGCOMPLETE" in os.environ:  # set by a shell that asks how the line might go on
            complete_line(tree)
        code = outcome(tree.parse_args(argv))
        gc.freeze()  # or the interpreter walks over all of torch before it ends, for half a second and more
        return code


def outcome(arguments: argparse.Namespace) -> int:
    """The exit code, and what went wrong on stderr; with `--json` in the document, too."""
    output = Output(arguments.json, arguments.quiet)
    try:
        code: int = arguments.command(arguments, output)
        sys.stdout.flush()
    except InputError as error:
        return failed(output, str(error), 2)
    except BrokenPipeError:
        # Or the interpreter writes what is left into the pipe at its end, and fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        way_out = "; the same command resumes the run" if arguments.resumes else ""
        return failed(output, f"stopped: output pipe closed (`| head`?){way_out}", 1)
    except FailedError as error:
        return failed(output, str(error), 1)
    except OSError as error:
        return failed(output, f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        return 130
    return code


def failed(output: Output, message: str, code: int) -> int:
    output.failure(message, code)
    return code


if __name__ == "__main__":
    sys.exit(main())
