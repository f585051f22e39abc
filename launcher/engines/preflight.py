"""Checks that several engines make of a run before anything is created.

Each raises InputError with a hint at what to do. Every engine calls those that apply to its place from its own `check`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.engines.base import Run
from launcher.plan import Plan, outline, plan
from launcher.run_files import certificate_files
from peer.errors import FailedError, InputError
from peer.runtime.dry_run import check_disk, disk_needed, dry_run_figures
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig, check_device, check_plaintext, refuse_plaintext
from peer.spec.recordings import fixed_resources, recorded_views


@contextmanager
def as_input_error(sentence: str = "{}") -> Iterator[None]:
    """Raise InputError for a FailedError inside the block, as nothing has begun yet. `{}` stands for its message."""
    try:
        yield
    except FailedError as error:
        raise InputError(sentence.replace("{}", str(error))) from None


def check_container_device(device: str, gpus: object, where: str, option: str) -> None:
    """Check that `--device` can be had in a container, which sees no GPU unless it is given one."""
    check_device(device)
    if device not in ("auto", "cpu") and not gpus:
        raise InputError(f"--device {device}: {where} sees no GPU unless it is given one; add --option gpus={option}")


def check_secrecy(run: Run, network: str = "") -> None:
    """Check that every peer's certificate is valid and made out to it, or that the spec does without.

    network: the sentence's beginning where plaintext would cross a network that others use.
    """
    if not run.certs and not network:
        check_plaintext(PeerConfig(federation=Path("federation.yaml"), id=run.spec.ids[0]), run.spec)
    elif not run.certs:
        refuse_plaintext(run.spec, network, "--certs")
    check_certificates(run.spec, run.certs)


def check_certificates(spec: Spec, certs: Path | None) -> None:
    """Check that every peer's certificate is there, valid and made out to it."""
    if certs:
        from peer.network.transport.tls import CertificatePaths

        for id in spec.ids:
            CertificatePaths(id, **certificate_files(certs, id)).read()


def check_resources(spec: Spec, out: Path) -> None:
    """Check that resources that are not measured, and views to be replayed, are there for every peer."""
    for id in spec.ids:
        config = PeerConfig(federation=Path("federation.yaml"), id=id, out=out / id)
        fixed_resources(config, spec)
        recorded_views(config, spec)


def laid_out(run: Run) -> Plan:
    """Check that data and model fit together: the first peer's data or, before a run is discarded, every peer's."""
    return plan(run.spec) if run.replaces else outline(run.spec)


def check_room(run: Run) -> None:
    """Check what `laid_out` does, and that the disk has room for what all peers together write; a peer itself checks
    for its own files only."""
    made, spec, first = laid_out(run), run.spec, run.spec.ids[0]
    needed = disk_needed(spec, made.model.sizes["model"], dry_run_figures(first, made.dry_run_input(first)))
    check_disk(run.files.path, len(spec.ring) * needed)
