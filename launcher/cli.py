"""The command line of dfl-launch: every command with its arguments, what is called for it, and what becomes of errors.

`--help` and a wrong argument answer at once, so nothing is imported here that takes long: a command is named by its
module in launcher, which is imported when it is called. Only `run` and `attach` begin here: the first line of a run is
printed before anything is imported that takes seconds.

At the end is how a shell completes the command line, by argcomplete: it asks dfl-launch itself at every Tab.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from launcher.engines import ENGINES
from launcher.output import Output, make_legible
from peer.errors import FailedError, InputError, NotNowError, optional
from peer.process import (
    NOT_NOW,
    PIPE_CLOSED,
    STOPS,
    UNWRITABLE,
    WRONG_INPUT,
    Parser,
    ShowRelease,
    leaving_at_once,
    one_thread,
    unwritable_output,
)

Command = Callable[[argparse.Namespace, Output], int]


def lazily(module: str, name: str, arguments: argparse.Namespace, output: Output) -> int:
    """Call the function of a module of launcher, which is imported only now."""
    code: int = getattr(import_module(f"launcher.{module}"), name)(arguments, output)
    return code


GROUPS = {
    "start": ("check", "run", "attach", "study"),
    "look": ("list", "status", "watch", "dashboard", "logs", "summary", "report", "compare"),
    "before and after training": ("statistics", "cross-evaluation", "predict", "export"),
    "several machines": ("certs", "compose", "manifests", "leave", "expel", "rewind", "discard"),
    "code of your own, and tools": ("protocols", "tasks", "new", "completion"),
}
"""The commands by what they are for, as `--help` lists them."""
EPILOGUE = """
examples:
  dfl-launch check federation.yaml --peers 5
  dfl-launch run federation.yaml --peers 5 --dashboard
  dfl-launch report runs/one runs/other --out both.html

exit status: 0 done, 1 failed, 2 wrong input, 75 certificates not valid now, 128 + n ended by signal n
`dfl-launch COMMAND --help` has a command's arguments."""


def parser() -> argparse.ArgumentParser:
    raw, helps, siblings = argparse.RawDescriptionHelpFormatter, dict[str, str](), list[Parser]()
    top = Parser(
        prog="dfl-launch",
        usage="dfl-launch [-h] [--version] COMMAND ...",
        description="Starts and watches federations of peers.",
        formatter_class=raw,
    )
    top.add_argument("--version", action=ShowRelease, nargs=0, help="show the version and exit")
    top.set_defaults(json=False, quiet=False, resumes=False)
    commands = top.add_subparsers(required=True, prog=top.prog, metavar="COMMAND", help=argparse.SUPPRESS)

    def command(
        name: str, found: Command | str, help: str, *shared: Callable[[argparse.ArgumentParser], None], **defaults: Any
    ) -> Callable[..., argparse.Action]:
        """found: what is called, or the module of launcher that has it as NAME_command."""
        made = commands.add_parser(name, description=f"{help[0].upper()}{help[1:]}.")
        helps[name], made.siblings = help, siblings
        siblings.append(made)
        for add_arguments in shared:
            add_arguments(made)
        named = f"{name.replace('-', '_')}_command"
        made.set_defaults(command=found if callable(found) else partial(lazily, found, named), **defaults)
        return made.add_argument

    add = command("run", run_command, "run a federation, here or on other machines", spec_arguments, resumes=True)
    add("--out", type=Path, metavar="DIR", help="the run's directory (default: runs/<name>)")
    add("--fresh", action="store_true", help="discard the run that is in the directory")
    add("--device", metavar="DEVICE", help="auto (default), cpu, cuda or cuda:N, for all peers")
    add("--certs", type=Path, metavar="DIR", help="use the certificates that `certs` made there")
    add("--on", choices=[*ENGINES], default="local", help="the engine, which runs the peers (default: local)")
    option_argument(add, "a setting of the engine, such as memory=4g")
    add("--hosts", metavar="FILE", help="a list of machines, for `--on ssh`; short for --option hosts=FILE")
    add("--install", action="store_true", help="install dfl on these machines; short for --option install=true")
    add("--beside", choices=["solo"], help="first train each peer alone, to judge if taking part is worth it")
    showing_arguments(add)

    asking = spec_arguments, certificate_arguments
    add = command("status", "commands.watch", "show the status of all peers", *asking)
    add("--json", action="store_true", help="as JSON")
    add = command("watch", "commands.watch", "watch running peers to their end", *asking)
    quiet_argument(add)
    add = command("dashboard", "commands.watch", "watch running peers on a page", *asking)
    at_argument(add)
    add = command("leave", "commands.membership", "make a peer leave the federation", *asking)
    peers_argument(add, "peer", metavar="PEER", help="the id of the peer that leaves")
    add = command("expel", "commands.membership", "vote to expel a peer", *asking)
    peers_argument(add, "peer", metavar="PEER", help="the id of the peer to expel")
    whose = "the peers that vote (default: all others whose certificates are there)"
    peers_argument(add, "--by", nargs="+", default=[], metavar="ID", help=whose)

    add = command("rewind", "commands.rewind", "make all peers go back to an earlier round", spec_arguments)
    add("--to", type=int, metavar="N", help="the round (default: the newest that all peers hold)")
    add("--out", type=Path, metavar="DIR", help="the run's directory (default: runs/<name>)")

    add = command("attach", attach_command, "reattach to a running federation", resumes=True)
    add("run", type=Path, metavar="DIR", help="the run's directory")
    showing_arguments(add)

    add = command("discard", "commands.run", "remove what an ended run has left elsewhere")
    add("run", type=Path, metavar="DIR", help="the run's directory, which stays as it is")

    add = command("check", "commands.check", "estimate samples, traffic and disk without running", spec_arguments)
    quiet_argument(add)
    add("--json", action="store_true", help="as JSON")

    add = command("compose", "commands.deployment_files", "write a federation's docker-compose.yml", spec_arguments)
    written = Path("docker-compose.yml")
    add("--out", type=Path, default=written, metavar="FILE", help=f"output file (default: {written})")
    add("--certs", type=Path, metavar="DIR", help="use the certificates that `certs` made there")
    add("--build", type=Path, metavar="DIR", help="let Compose build the image from this checkout")
    chosen = "image (default: dfl), memory (2g), cpus (all), gpus (none), pids (512) or restarts (5)"
    option_argument(add, f"of every container: {chosen}")

    add = command("certs", "commands.deployment_files", "make a CA and a certificate for every peer", spec_arguments)
    add("--out", type=Path, default=Path("certs"), metavar="DIR", help="output directory (default: certs)")
    add("--days", type=int, default=365, metavar="N", help="days for which they are valid (default: 365)")

    add = command("manifests", "commands.deployment_files", "write a federation for Kubernetes", spec_arguments)
    add("--out", type=Path, required=True, metavar="DIR", help="output directory; earlier manifests there are replaced")
    add("--image", default="dfl", metavar="NAME", help="the image, built by deploy/Dockerfile (default: dfl)")
    add("--certs", type=Path, metavar="DIR", help="copy the certificates that `certs` made there")
    add("--egress", choices=["peers", "any"], help="where peers may connect to (default: any if they download data)")

    has = "show what data each site has, before any training"
    add = command("statistics", partial(asking_command, "commands.statistics"), has)
    add("federation", type=Path, metavar="PATH", help="federation.yaml, or the directory of a run of `statistics`")
    add("--peers", type=int, metavar="N", help="peer0 ... peerN-1 on loopback")
    override_argument(add)
    add("--out", type=Path, metavar="DIR", help="the run's directory (default: runs/<name>-statistics)")
    add("--json", action="store_true", help="as JSON")

    is_worth = "show how good each peer's model is at every other peer"
    add = command("cross-evaluation", partial(asking_command, "commands.cross_evaluation"), is_worth)
    add("run", type=Path, metavar="DIR", help="a finished run, or a run of `cross-evaluation`")
    add("--out", type=Path, metavar="NEW", help="the run's directory (default: DIR-cross-evaluation)")
    add("--json", action="store_true", help="as JSON")

    add = command("export", "commands.models", "write a peer's model in a format that other programs read")
    add("peer", type=Path, metavar="DIR", help="a peer's directory, such as runs/demo/peer0")
    add("--to", type=Path, required=True, metavar="TARGET", help="a new file or directory")
    formats = "state-dict (default), torchscript, onnx, or one that a package adds, such as pretrained"
    add("--format", default="state-dict", metavar="NAME", help=formats)
    add("--code", type=Path, metavar="DIR", help="import a custom model or task from there")

    add = command("predict", "commands.models", "write the answers of a peer's model for new samples")
    add("peer", type=Path, metavar="DIR", help="a peer's directory, such as runs/demo/peer0")
    add("samples", type=Path, metavar="SAMPLES", help="a table, arrays, images, or a folder of images or of .npy files")
    add("--to", type=Path, required=True, metavar="FILE", help="answers.csv, or answers.npz for large answers")
    option_argument(add, "how to read the samples, such as decimal=',' for a CSV file")
    add("--code", type=Path, metavar="DIR", help="import a custom model or task from there")

    add = command("list", "commands.runs", "list the runs in a directory")
    add("directory", type=Path, nargs="?", default=Path("runs"), metavar="DIR", help="the directory (default: runs)")
    add("--json", action="store_true", help="as JSON")

    add = command("logs", "commands.runs", "print what the peers of a run have logged")
    add("run", type=Path, metavar="DIR", help="the run's directory")
    add("peers", nargs="*", metavar="PEER", help="only these peers (default: all, in order of time)")
    add("-f", "--follow", action="store_true", help="print what they add, until Ctrl-C")

    add = command("compare", "commands.compare", "compare a run with local-only training")
    add("run", type=Path, metavar="DIR", help="a finished run")
    add("alone", type=Path, metavar="SOLO", help="a finished run of `solo` by the same peers")
    add("--json", action="store_true", help="as JSON")

    add = command("summary", "commands.report", "sum up a run from its peers' directories")
    add("directories", type=Path, nargs="+", metavar="DIR", help="a peer's, or one that holds peers'")
    add("--json", action="store_true", help="as JSON, like a run's summary.json")
    add("--out", type=Path, metavar="FILE", help="write it there, as JSON")
    add("--code", type=Path, metavar="DIR", help="import a custom protocol from there")

    add = command("report", "commands.report", "write a page that shows or compares runs")
    add("directories", type=Path, nargs="+", metavar="DIR", help="a run's, or one that holds runs, or peers'")
    add("--out", type=Path, metavar="FILE", help="the page (default: DIR/report.html)")
    for name, what in (("csv", "the tables"), ("png", "the figures"), ("svg", "the figures")):
        add(f"--{name}", action="store_true", help=f"also write {what} as {name.upper()}, in a folder beside the page")
    timeline = "also write what each peer did when, as trace.json in that folder, for ui.perfetto.dev"
    add("--perfetto", action="store_true", help=timeline)
    add("--code", type=Path, metavar="DIR", help="import a custom protocol from there")

    add = command("study", "study.command", "run a grid of federations, and write their tables", resumes=True)
    add("file", type=Path, metavar="study.yaml", help="the grid; see docs/studies.md")
    add("--out", type=Path, metavar="DIR", help="the study's directory (default: studies/<name>)")
    add("--at-once", type=int, metavar="N", help="cells that run at once (default: as many as fit here)")
    add("--port", type=int, metavar="P", help="the first port, with `network: grpc` (default: 7700)")
    add("--dask", metavar="ADDRESS", help="compute the cells on the workers of this Dask scheduler")
    quiet_argument(add)

    add = command("protocols", "commands.protocols", "list the protocols")
    add("--json", action="store_true", help="as JSON, with every parameter")
    add = command("tasks", "commands.protocols", "list the tasks, and what installed packages add")
    add("--json", action="store_true", help="as JSON")

    add = command("new", "commands.new", "write a federation for a table, or code of your own to begin with")
    add("kind", choices=("protocol", "model", "data", "federation"), help="what to write")
    add("name", metavar="NAME", help="a module, such as my_ring; for a federation a table, such as patients.csv")
    add("--label", metavar="COLUMN", help="the table's column to predict (default: a guess)")
    add("--peers", type=int, default=3, metavar="N", help="the peers of a federation (default: 3)")
    add("--out", type=Path, default=Path("."), metavar="DIR", help="output directory (default: here)")

    add = command("completion", completion_command, "print what lets a shell complete commands")
    add("shell", choices=SHELLS, help="the shell, whose start file evaluates the output")
    lists = ["\n".join([f"{what}:", *(f"  {name:<18}{helps[name]}" for name in GROUPS[what])]) for what in GROUPS]
    top.epilog = "\n\n".join(lists) + f"\n{EPILOGUE}"
    return top


Add = Callable[..., argparse.Action]
"""`add_argument` of a command."""


def quiet_argument(add: Add) -> None:
    add("--quiet", action="store_true", help="print errors only")


def showing_arguments(add: Add) -> None:
    """How a run is shown, and its end."""
    quiet_argument(add)
    add("--json", action="store_true", help="the summary, or what went wrong, as JSON on stdout")
    add("--dashboard", action="store_true", help="show the run as a live page")
    at_argument(add)


def at_argument(add: Add) -> None:
    add("--at", metavar="HOST:PORT", help="the page's address (default: 127.0.0.1 and a free port)")


def peers_argument(add: Add, name: str, **more: Any) -> None:
    """Ids of peers, which a shell completes."""
    vars(add(name, **more))["completer"] = peer_ids


def option_argument(add: Add, what: str) -> None:
    add("--option", action="append", default=[], metavar="KEY=VALUE", dest="options", help=f"{what}; repeatable")


def spec_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("federation", type=Path, metavar="federation.yaml")
    add("--peers", type=int, metavar="N", help="peer0 ... peerN-1 on loopback")
    add("--port", type=int, metavar="P", help="their first port (default: 7700)")
    add("--seed", type=int, metavar="S", help="override the seed")
    override_argument(add)


def override_argument(add: Add) -> None:
    what = "override one of the spec's values, such as protocol.gamma=0.3; repeatable"
    made = add("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=what)
    vars(made)["completer"] = settings


def certificate_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_mutually_exclusive_group().add_argument
    add("--certs", type=Path, metavar="DIR", help="ask with a certificate that `certs` made there")
    add("--tls", type=Path, nargs=3, metavar=("CA", "CERT", "KEY"), help="ask with this certificate of the federation")


def run_command(arguments: argparse.Namespace, output: Output) -> int:
    code: int = outcome_of_run(arguments, output).report(output)
    return code


def outcome_of_run(arguments: argparse.Namespace, output: Output) -> Any:
    """The `RunOutcome`."""
    from launcher.command_spec import header, resolved
    from peer.spec.document import Document

    by_ssh = {name: value for name in ("hosts", "install") if (value := getattr(arguments, name))}
    if by_ssh and arguments.on != "ssh":
        raise InputError(f"--{next(iter(by_ssh))} is for peers on hosts by SSH; add `--on ssh`, or leave it out")
    document = Document.read(arguments.federation)
    if line := header(document, peers=arguments.peers, overrides=arguments.overrides, out=arguments.out):
        output.say(line)
    if arguments.on == "local":
        one_thread()  # peers are forks of this process
    from launcher.engines.base import engine, parsed_options

    chosen = engine(arguments.on, parsed_options(arguments.options) | by_ssh)
    with chosen.ahead():
        from launcher.commands.run import RunOptions, run
        from launcher.dashboard.server import dashboard_address

        options = RunOptions(
            spec=resolved(arguments, document),
            out=arguments.out,
            fresh=arguments.fresh,
            device=arguments.device,
            certs=arguments.certs,
            engine=chosen,
            dashboard=dashboard_address(dashboard=arguments.dashboard, at=arguments.at, quiet=arguments.quiet),
            beside=arguments.beside is not None,
        )
        return run(options, output)


def asking_command(module: str, arguments: argparse.Namespace, output: Output) -> int:
    """Ask the peers by a run of its own, which begins anew each time, and show what they have told in it."""
    from launcher.recorded_spec import RecordedSpec
    from launcher.run_files import RunFiles

    asking = import_module(f"launcher.{module}")
    run, line = asking.run_line(arguments)
    if line:
        there = RunFiles(run).federation
        if there.is_file() and RecordedSpec.read(there).keys.protocol.name != asking.PROTOCOL:
            raise InputError(f"{run} holds another run; choose another directory with --out")
        output.say(f"Asking the peers, in {run}")
        line = ["run", *line, "--quiet", "--fresh", "--out", str(run)]
        quiet = Output(quiet=True)
        ended = outcome_of_run(parser().parse_args(line), quiet)
        if ended.code in STOPS.values():
            return output.failure(ended.code, "stopped")
        if ended.report(quiet):
            return output.failure(ended.code, f"the run in {run} has failed; its logs say why")
    shown: int = asking.show(run, output)
    return shown


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


def completion_command(arguments: argparse.Namespace, output: Output) -> int:
    output.text(str(argcomplete().shellcode(["dfl-launch"], shell=arguments.shell)))
    return 0


SHELLS = ("bash", "zsh", "fish")


def peer_ids(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The peers of the federation that the line names; none of a file that cannot be read."""
    from peer.spec.document import Document

    try:
        ring = Document.read(Path(parsed_args.federation)).content.get("ring")
        return [str(member["id"]) for member in ring] if ring else [f"peer{n}" for n in range(parsed_args.peers or 0)]
    except (InputError, TypeError, KeyError):
        return []


def settings(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The keys of the federation that the line names; behind a key, protocols' names, or the value that it has."""
    from launcher.command_spec import flat
    from peer.protocols.registry import PROTOCOLS
    from peer.spec.document import Document
    from peer.spec.loading import load_spec

    if parsed_args.federation is None:  # it stands behind
        return []
    try:
        document = Document.read(parsed_args.federation)
        peers = None if document.content.get("ring") else parsed_args.peers or 5
        known = flat(load_spec(document, peers=peers).model_dump(mode="json", exclude={"format", "name", "ring"}))
    except InputError:
        return []
    values: dict[str, Any] = {key: [value] for key, value in known.items()} | {"protocol": PROTOCOLS}
    key, has_value = prefix.partition("=")[:2]
    return [f"{key}={value}" for value in values.get(key, ())] if has_value else [f"{one}=" for one in values]


def argcomplete() -> Any:
    """The imported library; InputError when it is not installed."""
    return optional("argcomplete", "completion", "argcomplete", "completion")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code, as `EPILOGUE` has them."""
    if not sys.stdout:  # what is opened next would get its descriptor, and what is printed
        sys.exit("dfl-launch: standard output is closed; send it to /dev/null if nobody is to read it")
    with leaving_at_once():
        for stream in (sys.stdout, sys.stderr):
            make_legible(stream)
        tree = parser()
        if "_ARGCOMPLETE" in os.environ:  # set by a shell that asks how the line might go on, and is answered here
            argcomplete().autocomplete(tree, always_complete_options=False)
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
        return output.failure(NOT_NOW if isinstance(error, NotNowError) else WRONG_INPUT, *error.args)
    except FailedError as error:
        return output.failure(1, *error.args)
    except OSError as error:
        if error.filename or not (isinstance(error, BrokenPipeError) or error.errno in UNWRITABLE):
            return output.failure(1, f"{error.filename}: {error.strerror}" if error.filename else str(error))
        why = unwritable_output(error)
        if isinstance(error, BrokenPipeError) and not arguments.resumes:
            return PIPE_CLOSED
        return output.failure(1, f"stopped: {why}{'; the same command resumes the run' * arguments.resumes}")
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
