"""dfl-launch: the arguments, and what becomes of errors."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.engines.names import ENGINES
from peer.errors import FailedError, InputError
from peer.files import why_unwritable
from peer.process import leaving_at_once
from peer.text import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from peer.spec.federation import Spec


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 done, 1 failed, 2 wrong input, 129 hangup, 130 Ctrl-C, 143 SIGTERM."""
    with leaving_at_once():
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # not every terminal knows every character
        return outcome(parser().parse_args(argv))


def outcome(arguments: argparse.Namespace) -> int:
    """The exit code, and what went wrong on stderr."""
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
    except InputError as error:
        return complain(str(error), 2)
    except BrokenPipeError:
        # Or the interpreter writes what is left into the pipe at its end, and fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        goes_on = arguments.command in (run_federation, attach_to_run)
        way_out = "; the same command resumes the run" if goes_on else ""
        return complain(f"stopped, as nobody reads its output any more (`| head`?){way_out}", 1)
    except FailedError as error:
        return complain(str(error), 1)
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        return 130
    return code


def complain(message: str, code: int) -> int:
    print(f"dfl-launch: {one_line(message)}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="dfl-launch", description="Starts and watches federations of peers.", allow_abbrev=False
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a federation, here or on other machines", allow_abbrev=False)
    spec_arguments(run)
    run.add_argument("--out", type=Path, metavar="DIR", help="the run's directory (default: runs/<name>)")
    run.add_argument("--fresh", action="store_true", help="discard the run that is in the directory")
    run.add_argument("--device", metavar="DEVICE", help="auto (default), cpu, mps, cuda or cuda:N, for all peers")
    run.add_argument("--certs", type=Path, metavar="DIR", help="use the certificates that `certs` made there")
    run.add_argument("--on", choices=[*ENGINES], default="local", help="what runs the peers (default: local)")
    option_arguments(run, "a setting of what runs the peers, such as memory=4g")
    run.add_argument("--hosts", metavar="FILE", help="on which machines, for `--on ssh`; short for --option hosts=FILE")
    run.add_argument("--install", action="store_true", help="install dfl there; short for --option install=true")
    run.set_defaults(command=run_federation)

    status = commands.add_parser("status", help="ask the peers of a federation what they do", allow_abbrev=False)
    spec_arguments(status)
    certificate_arguments(status)
    status.add_argument("--json", action="store_true", help="as JSON")
    status.set_defaults(command=ask_peers)

    watch = commands.add_parser("watch", help="watch peers that run already, to their end", allow_abbrev=False)
    spec_arguments(watch)
    certificate_arguments(watch)
    watch.set_defaults(command=watch_peers)

    leave = commands.add_parser("leave", help="have a peer leave, so that nobody waits for it", allow_abbrev=False)
    spec_arguments(leave)
    leave.add_argument("peer", metavar="PEER", help="the id of the one that is to leave")
    certificate_arguments(leave)
    leave.set_defaults(command=have_leave)

    expel = commands.add_parser("expel", help="consent that a peer is voted out", allow_abbrev=False)
    spec_arguments(expel)
    expel.add_argument("peer", metavar="PEER", help="the id of the one that is to be voted out")
    whose = "who consents (default: all others whose certificates are there)"
    expel.add_argument("--by", nargs="+", default=[], metavar="ID", help=whose)
    certificate_arguments(expel)
    expel.set_defaults(command=vote_out)

    attach = commands.add_parser("attach", help="go on with peers whose launcher is gone", allow_abbrev=False)
    attach.add_argument("run", type=Path, metavar="DIR", help="the run's directory")
    attach.set_defaults(command=attach_to_run)

    check = commands.add_parser("check", help="say what a federation needs, without running it", allow_abbrev=False)
    spec_arguments(check)
    check.set_defaults(command=check_federation)

    compose = commands.add_parser("compose", help="write a federation's docker-compose.yml", allow_abbrev=False)
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
    compose.set_defaults(command=compose_federation)

    certs = commands.add_parser("certs", help="make a CA and a certificate for every peer", allow_abbrev=False)
    spec_arguments(certs)
    certs.add_argument("--out", type=Path, default=Path("certs"), metavar="DIR", help="where to (default: certs)")
    certs.add_argument("--days", type=int, default=365, metavar="N", help="valid for so many days (default: 365)")
    certs.set_defaults(command=make_certs)

    manifests = commands.add_parser("manifests", help="write a federation for Kubernetes", allow_abbrev=False)
    spec_arguments(manifests)
    manifests.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to; replaces earlier ones")
    manifests.add_argument("--image", default="dfl", metavar="NAME", help="of deploy/Dockerfile (default: dfl)")
    manifests.add_argument("--certs", type=Path, metavar="DIR", help="copy the certificates that `certs` made there")
    manifests.set_defaults(command=write_manifests)

    compare = commands.add_parser("compare", help="what a run gained over the same peers alone", allow_abbrev=False)
    compare.add_argument("run", type=Path, metavar="DIR", help="a finished run")
    compare.add_argument("alone", type=Path, metavar="SOLO", help="a finished run of `solo` by the same peers")
    compare.add_argument("--json", action="store_true", help="as JSON")
    compare.set_defaults(command=compare_runs)

    summary = commands.add_parser("summary", help="sum up a run from its peers' directories", allow_abbrev=False)
    summary.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="a peer's, or one that holds peers'")
    summary.add_argument("--json", action="store_true", help="as JSON, like a run's summary.json")
    summary.add_argument("--out", type=Path, metavar="FILE", help="write it there, as JSON")
    summary.add_argument("--code", type=Path, metavar="DIR", help="import a protocol of your own from there")
    summary.set_defaults(command=sum_up)

    protocols = commands.add_parser("protocols", help="list the protocols", allow_abbrev=False)
    protocols.add_argument("--json", action="store_true", help="as JSON, with every parameter")
    protocols.set_defaults(command=list_protocols)
    return top


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


# Each command imports what it needs: `--help` and a wrong argument answer at once.


def output() -> "Console":
    """Standard output; that nobody reads it any more is for `outcome` to say."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Output()


def resolved(arguments: argparse.Namespace) -> "Spec":
    """The spec that `spec_arguments` stand for."""
    from peer.spec.peer import load_spec

    return load_spec(
        arguments.federation,
        peers=arguments.peers,
        port=arguments.port,
        seed=arguments.seed,
        overrides=arguments.overrides,
    )


def run_federation(arguments: argparse.Namespace) -> int:
    from launcher.commands.run import RunOptions, run
    from launcher.engines.chosen import engine, settings

    given = settings(arguments.options)
    for name in ("hosts", "install"):
        if getattr(arguments, name) and arguments.on != "ssh":
            raise InputError(f"--{name} is for peers on hosts by SSH; add `--on ssh`, or leave it out")
    given |= {"hosts": arguments.hosts} if arguments.hosts else {}
    given |= {"install": True} if arguments.install else {}
    options = RunOptions(
        spec=resolved(arguments),
        out=arguments.out,
        fresh=arguments.fresh,
        device=arguments.device,
        certs=arguments.certs,
        engine=engine(arguments.on, given),
    )
    return run(options, output())


def ask_peers(arguments: argparse.Namespace) -> int:
    from launcher.commands.status import certificates, status

    spec, chain = resolved(arguments), certificates(arguments.certs, arguments.tls)
    return status(spec, chain, arguments.json, output())


def watch_peers(arguments: argparse.Namespace) -> int:
    from launcher.commands.status import certificates
    from launcher.commands.watch import watch

    return watch(resolved(arguments), certificates(arguments.certs, arguments.tls), output())


def have_leave(arguments: argparse.Namespace) -> int:
    from launcher.commands.leave import leave

    return leave(resolved(arguments), arguments.peer, arguments.certs, arguments.tls, output())


def vote_out(arguments: argparse.Namespace) -> int:
    from launcher.commands.expel import expel

    return expel(resolved(arguments), arguments.peer, arguments.by, arguments.certs, arguments.tls, output())


def attach_to_run(arguments: argparse.Namespace) -> int:
    from launcher.commands.attach import attach

    return attach(arguments.run, output())


def check_federation(arguments: argparse.Namespace) -> int:
    from launcher.commands.check import check

    check(resolved(arguments), output())
    return 0


def compose_federation(arguments: argparse.Namespace) -> int:
    from launcher.commands.compose import ComposeOptions, compose
    from launcher.engines.chosen import checked, settings
    from launcher.engines.docker.settings import DockerSettings

    chosen = checked(DockerSettings, settings(arguments.options), "--option")
    compose(resolved(arguments), ComposeOptions(arguments.out, chosen, arguments.certs, arguments.build))
    print(f"{arguments.out}: start it with `docker compose -f {arguments.out} up`")
    return 0


def make_certs(arguments: argparse.Namespace) -> int:
    from launcher.certificates import make_certificates

    if not 1 <= arguments.days <= 36_500:
        raise InputError(f"--days {arguments.days}: give a number from 1 to 36500")
    spec = resolved(arguments)
    if unwritable := why_unwritable(arguments.out):
        raise InputError(f"{unwritable}; choose another directory with --out")
    try:
        make_certificates(spec, arguments.out, arguments.days)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"{arguments.out} cannot be written to ({why}); choose another directory with --out") from None
    print(f"{arguments.out}: ca.pem, and <id>.pem with <id>.key for {', '.join(spec.ids)}")
    print("Give each peer ca.pem and its own two files, as `tls: {ca, cert, key}` in its config; keep keys secret.")
    return 0


def write_manifests(arguments: argparse.Namespace) -> int:
    from launcher.commands.manifests import ManifestOptions, write

    write(resolved(arguments), ManifestOptions(arguments.out, arguments.image, arguments.certs))
    overlay = "overlays/certificates" if arguments.certs else "base"
    print(f"{arguments.out}: kubectl apply -k {arguments.out / overlay}")
    return 0


def compare_runs(arguments: argparse.Namespace) -> int:
    from launcher.commands.compare import compare

    compare(arguments.run, arguments.alone, arguments.json, output())
    return 0


def sum_up(arguments: argparse.Namespace) -> int:
    from launcher.commands import summary
    from peer.telemetry.results import AUDIT

    if arguments.out:
        summary.check_out(arguments.out)
    collected, made = summary.summarise(arguments.directories, arguments.code)
    if arguments.out:
        summary.write(made, arguments.out)
    if arguments.json or not arguments.out:
        summary.show(collected, made, arguments.json, output())
    if made.missing:
        named = ", ".join(f"{id} ({why})" for id, why in made.missing.items())
        raise FailedError(f"the run is not whole, and this is the summary of the others; missing: {named}")
    if unknown := made.privacy.get("unknown"):
        raise FailedError(f"the verdict on privacy is not whole, as {AUDIT} is missing of {', '.join(unknown)}")
    return 0


def list_protocols(arguments: argparse.Namespace) -> int:
    from launcher.commands import protocols

    protocols.show(arguments.json, output())
    return 0


if __name__ == "__main__":
    sys.exit(main())
