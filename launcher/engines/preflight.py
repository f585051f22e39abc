"""What would make peers refuse to start in any place, found before anything is created.

Each check raises InputError with the way out, and creates nothing. Every engine calls those that apply to its place
from its own `check`.
"""

from pathlib import Path

from pydantic import ValidationError

from launcher.plan import Plan
from launcher.run_files import certificate_files
from peer.errors import InputError
from peer.learning.device import choose_device
from peer.runtime.dry_run import check_disk, disk_needed, dry_run_figures
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
from peer.spec.recordings import fixed_resources, recorded_views


def check_device(device: str) -> None:
    """Whether `--device` is one that a peer's config can name, and this machine has it."""
    try:
        PeerConfig(federation=Path("federation.yaml"), id="peer0", device=device)
    except ValidationError:
        raise InputError(f"--device {device}: choose auto, cpu, mps, cuda or cuda:N") from None
    choose_device(device)


def check_certificates(spec: Spec, certs: Path | None) -> None:
    """Whether every peer's certificate is there, valid and made out to it."""
    if certs:
        from peer.network.transport.tls import CertificatePaths

        for id in spec.ids:
            CertificatePaths(id, **certificate_files(certs, id)).read()


def check_resources(spec: Spec, out: Path) -> None:
    """Whether every peer finds what its resources are to be, where they are not measured, and the views to replay."""
    for id in spec.ids:
        config = PeerConfig(federation=Path("federation.yaml"), id=id, out=out / id)
        fixed_resources(config, spec)
        recorded_views(config, spec)


def check_room(made: Plan, out: Path) -> None:
    """Whether the disk has room for what all peers together write; each looks for itself alone."""
    spec, first = made.spec, made.spec.ids[0]
    needed = disk_needed(spec, made.sizes["model"], dry_run_figures(spec, first, made.dry_run_input(first)))
    check_disk(out, len(spec.ring) * needed)
