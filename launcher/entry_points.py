"""What is called for each command. It imports what the command needs: `--help` and a wrong argument answer at once."""

import argparse
from typing import TYPE_CHECKING

from peer.errors import FailedError, InputError
from peer.files import why_unwritable

if TYPE_CHECKING:
    from launcher.output import Output


def run_federation(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.header import header, resolved
    from peer.spec.document import Document

    for name in ("hosts", "install"):
        if getattr(arguments, name) and arguments.on != "ssh":
            raise InputError(f"--{name} is for peers on hosts by SSH; add `--on ssh`, or leave it out")
    document = Document.read(arguments.federation)
    if line := header(document, peers=arguments.peers, overrides=arguments.overrides, out=arguments.out):
        output.say(line)
    from launcher.commands.run import RunOptions, run
    from launcher.dashboard.address import chosen
    from launcher.engines.chosen import engine, settings

    given = settings(arguments.options)
    given |= {"hosts": arguments.hosts} if arguments.hosts else {}
    given |= {"install": True} if arguments.install else {}
    options = RunOptions(
        spec=resolved(arguments, document),
        out=arguments.out,
        fresh=arguments.fresh,
        device=arguments.device,
        certs=arguments.certs,
        engine=engine(arguments.on, given),
        dashboard=chosen(dashboard=arguments.dashboard, at=arguments.at, quiet=arguments.quiet),
        beside=arguments.beside is not None,
    )
    return run(options, output).told(output)


def ask_peers(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.status import certificates, status
    from launcher.header import resolved

    spec, chain = resolved(arguments), certificates(arguments.certs, arguments.tls)
    return status(spec, chain, output)


def watch_peers(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.status import certificates
    from launcher.commands.watch import watch
    from launcher.header import resolved

    return watch(resolved(arguments), certificates(arguments.certs, arguments.tls), output)


def show_peers(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.status import certificates
    from launcher.commands.watch import watch
    from launcher.dashboard.address import Address
    from launcher.dashboard.dashboard import opened
    from launcher.header import resolved

    at = Address.read(arguments.at)
    spec, chain = resolved(arguments), certificates(arguments.certs, arguments.tls)
    with opened(at) as dashboard:
        return watch(spec, chain, output, dashboard)


def have_leave(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.leave import leave
    from launcher.header import resolved

    return leave(resolved(arguments), arguments.peer, arguments.certs, arguments.tls, output)


def vote_out(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.expel import expel
    from launcher.header import resolved

    return expel(resolved(arguments), arguments.peer, arguments.by, arguments.certs, arguments.tls, output)


def attach_to_run(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.header import header
    from launcher.run_files import RunFiles
    from peer.spec.document import Document

    written = RunFiles(arguments.run).federation
    if written.is_file() and (line := header(Document.read(written), out=arguments.run)):
        output.say(line)
    from launcher.commands.attach import attach
    from launcher.dashboard.address import chosen

    at = chosen(dashboard=arguments.dashboard, at=arguments.at, quiet=arguments.quiet)
    return attach(arguments.run, output, at).told(output)


def check_federation(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.check import check
    from launcher.header import resolved

    check(resolved(arguments), output)
    return 0


def compose_federation(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.compose import ComposeOptions, compose
    from launcher.engines.chosen import checked, settings
    from launcher.engines.docker.settings import DockerSettings
    from launcher.header import resolved

    chosen = checked(DockerSettings, settings(arguments.options), "--option")
    compose(resolved(arguments), ComposeOptions(arguments.out, chosen, arguments.certs, arguments.build))
    output.say(f"{arguments.out}: start it with `docker compose -f {arguments.out} up`")
    return 0


def make_certs(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.certificates import make_certificates
    from launcher.header import resolved

    if not 1 <= arguments.days <= 36_500:
        raise InputError(f"--days {arguments.days}: give a number from 1 to 36500")
    spec = resolved(arguments)
    if unwritable := why_unwritable(arguments.out):
        raise InputError(f"{unwritable}; choose another directory with --out")
    try:
        ca = make_certificates(spec, arguments.out, arguments.days)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"{arguments.out} cannot be written to ({why}); choose another directory with --out") from None
    output.say(f"{arguments.out}: ca.pem, and <id>.pem with <id>.key for {', '.join(spec.ids)}; the CA is {ca}")
    where = "as `tls: {ca, cert, key}` in its config"
    output.say(f"Give each peer ca.pem and its own two files, {where}; keep keys secret.")
    return 0


def write_manifests(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.manifests import ManifestOptions, write
    from launcher.header import resolved

    write(resolved(arguments), ManifestOptions(arguments.out, arguments.image, arguments.certs))
    overlay = "overlays/certificates" if arguments.certs else "base"
    output.say(f"{arguments.out}: kubectl apply -k {arguments.out / overlay}")
    return 0


def compare_runs(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.compare import compare

    compare(arguments.run, arguments.alone, output)
    return 0


def sum_up(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands import summary
    from peer.telemetry.results import AUDIT

    if arguments.out:
        summary.check_out(arguments.out)
    collected, made = summary.summarise(arguments.directories, arguments.code)
    if arguments.out:
        summary.write(made, arguments.out)
    if arguments.json or not arguments.out:
        summary.show(collected, made, output)
    if made.missing:
        named = ", ".join(f"{id} ({why})" for id, why in made.missing.items())
        raise FailedError(f"the run is not whole, and this is the summary of the others; missing: {named}")
    if unknown := made.privacy.get("unknown"):
        raise FailedError(f"the verdict on privacy is not whole, as {AUDIT} is missing of {', '.join(unknown)}")
    return 0


def write_report(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.report import ReportOptions, report

    wanted = frozenset(name for name in ("csv", "png", "svg") if getattr(arguments, name))
    written = report(ReportOptions(arguments.directories, arguments.out, wanted, arguments.code))
    output.say(*map(str, written))
    return 0


def run_study(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.study.command import StudyOptions, study
    from peer.spec.peer import FIRST_PORT

    port = FIRST_PORT if arguments.port is None else arguments.port
    return study(StudyOptions(arguments.file, arguments.out, arguments.at_once, port, arguments.dask), output)


def list_protocols(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands import protocols

    protocols.show(output)
    return 0


def write_new(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.commands.new import new

    output.say(*new(arguments.kind, arguments.name, arguments.out))
    return 0


def write_completion(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.completion import script

    output.text(script(arguments.shell))
    return 0
