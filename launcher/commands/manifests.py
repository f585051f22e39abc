"""`dfl-launch manifests`: a federation for Kubernetes, as plain files."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from launcher.certificate_files import certificate_files
from launcher.engines.image import WANTED, is_image
from launcher.engines.kubernetes.tree import ABOUT, CERTIFICATES, IGNORED, tree
from launcher.engines.local.preflight import check_certificates
from peer.errors import InputError
from peer.files import why_unwritable, write_atomically
from peer.spec.federation import Spec

CONFIGS = ("base/config", "components/certificates/config")
"""Replaced whole: there may be files of peers that are no more."""


@dataclass(frozen=True)
class ManifestOptions:
    """What the command line asks for.

    certs: the directory of `dfl-launch certs`; copied to where kustomize finds it.
    """

    out: Path
    image: str
    certs: Path | None = None


def write(spec: Spec, options: ManifestOptions) -> None:
    """Writes the directory; what an earlier call wrote there is replaced. InputError where it cannot be written."""
    if not is_image(options.image):
        raise InputError(f"--image wants {WANTED} (given: {options.image})")
    files = tree(spec, options.image)
    if not options.certs and not spec.allows_plaintext:
        raise InputError(
            "peers in a cluster speak over its network; make certificates with `dfl-launch certs` and give --certs, or "
            f"write {spec.to_allow_plaintext}"
        )
    check_certificates(spec, options.certs)
    if why := why_unwritable(options.out):
        raise InputError(f"{why}; choose another directory with --out")
    if foreign := foreign_in(options.out, files):
        raise InputError(
            f"{options.out} holds {foreign}, which is no manifest of ours; choose another directory with --out"
        )
    for directory in CONFIGS:
        shutil.rmtree(options.out / directory, ignore_errors=True)
    for name, text in files.items():
        path = options.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    if options.certs:
        copy_certificates(spec, options.certs, options.out / CERTIFICATES)


def foreign_in(out: Path, names: Iterable[str]) -> str | None:
    """What would be overwritten, or lies where no manifests are, and was not made here; None if there is nothing."""
    if not out.is_dir():
        return None
    if not (out / "base" / "kustomization.yaml").exists():
        return next((entry.name for entry in sorted(out.iterdir())), None)
    there = [out / name for name in names] + [entry for place in CONFIGS for entry in sorted((out / place).glob("*"))]
    return next((str(path.relative_to(out)) for path in there if path.exists() and not made_here(path)), None)


def made_here(path: Path) -> bool:
    return path.is_file() and path.read_bytes().startswith((ABOUT.encode(), IGNORED.encode()))


def copy_certificates(spec: Spec, certs: Path, to: Path) -> None:
    """Beside a .gitignore that keeps them out of the repository."""
    for id in spec.ids:
        for what, file in certificate_files(certs, id).items():
            permissions = 0o600 if what == "key" else 0o644
            write_atomically(to / file.name, file.read_bytes(), permissions=permissions)
