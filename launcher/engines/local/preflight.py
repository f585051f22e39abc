"""What would make peers on this machine refuse to start, found before anything is created."""

from pathlib import Path

from pydantic import ValidationError

from launcher.certificate_files import certificate_files
from launcher.engines.base import Run
from launcher.engines.local.holder import holder
from launcher.plan import Plan, plan
from peer.errors import InputError
from peer.learning.device import choose_device
from peer.network.transport.addresses import why_taken
from peer.runtime.disk import check_disk, disk_needed, rehearse
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig, check_plaintext
from peer.spec.recorded_views import recorded_views
from peer.spec.resources import given
from peer.telemetry.metrics import client
from peer.telemetry.tensorboard import writer_class
from peer.telemetry.tracker import load_tracker


def check_device(device: str) -> None:
    """Whether `--device` is one that a peer's config can name, and this machine has it."""
    try:
        PeerConfig(federation=Path("federation.yaml"), id="peer0", device=device)
    except ValidationError:
        raise InputError(f"--device {device}: choose auto, cpu, mps, cuda or cuda:N") from None
    choose_device(device)


def check_addresses(spec: Spec) -> None:
    """Whether every peer could listen at its address on this machine now."""
    for member in spec.ring:
        if member.address and (why := why_taken(member.address)):
            if who := holder(member.address):
                why += f" ({who})"
            raise InputError(
                f"{member.id} cannot listen at {member.address}: {why}; `dfl-launch run` starts every peer on this "
                "machine: end what uses the address, or give the peers others (under `ring`, or with --peers another "
                "first --port)"
            )


def check_watching(spec: Spec) -> None:
    """Whether every peer could serve its metrics here now, and what else is told of events is there."""
    if spec.metrics:
        client()
    for id, address in spec.metrics_addresses.items():
        if why := why_taken(address):
            raise InputError(f"{id} cannot serve metrics at {address}: {why}; choose other ports in `metrics`")
    if spec.tensorboard:
        writer_class()
    if spec.tracker:
        load_tracker(spec.tracker)


def check_certificates(spec: Spec, certs: Path | None) -> None:
    """Whether every peer's certificate is there, valid and made out to it."""
    if certs:
        from peer.network.transport.tls import Certificates

        for id in spec.ids:
            Certificates(id, **certificate_files(certs, id)).read()


def check_resources(spec: Spec, out: Path) -> None:
    """Whether every peer finds what its resources are to be, where they are not measured, and the views to replay."""
    for id in spec.ids:
        config = PeerConfig(federation=Path("federation.yaml"), id=id, out=out / id)
        given(config, spec)
        recorded_views(config, spec)


def check_room(made: Plan, out: Path) -> None:
    """Whether the disk has room for what all peers together write; each looks for itself alone."""
    spec, first = made.spec, made.spec.ids[0]
    needed = disk_needed(spec, made.sizes["model"], rehearse(spec, first, made.rehearsal(first)))
    check_disk(out, len(spec.ring) * needed)


def check(run: Run) -> None:
    """All of it; whether data and model go together, too. Raises InputError."""
    spec, out = run.spec, run.files.path
    check_device(run.device)
    if not run.certs:
        check_plaintext(PeerConfig(federation=Path("federation.yaml"), id=spec.ids[0]), spec)
    check_certificates(spec, run.certs)
    check_addresses(spec)
    check_watching(spec)
    check_resources(spec, out)
    check_room(plan(spec), out)
