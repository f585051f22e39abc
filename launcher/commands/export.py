"""Files for peers that something else starts: `dfl-launch certs`, `dfl-launch compose` and `dfl-launch manifests`.

compose    a federation as a docker-compose.yml, which is a Swarm stack as well
manifests  a federation for Kubernetes, as plain files
certs      a CA and a certificate for every peer (`launcher/certificates.py` makes them)

What an earlier call has written is replaced; anything else in its place is left alone, and refused.
"""

import argparse
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from launcher.certificates import make_certificates
from launcher.command_spec import resolved
from launcher.engines.base import IMAGE_WANTED, checked_settings, is_image, parsed_options
from launcher.engines.docker import DockerSettings, check_ids, in_containers
from launcher.engines.docker_compose import DOCKERFILE, Composition, key_owner
from launcher.engines.kubernetes_objects import ABOUT, CERTIFICATES, CODE, IGNORED, Egress, tree
from launcher.engines.preflight import check_certificates
from launcher.output import Output
from launcher.run_files import certificate_files
from peer.errors import InputError
from peer.files import open_plain, unwritable_reason, write_atomically
from peer.spec.federation import Spec
from peer.spec.peer import in_plaintext, refuse_plaintext

COMPOSE_HEADER = """\
Made by `dfl-launch compose`; edit the federation and make it again.

    docker compose up                           # runs to the end; a peer's files are in the volume of its name
    docker compose cp {peer}:/runs/. results    # brings those of one peer
    docker compose down --volumes               # discards the run
    docker stack deploy -c {file} NAME
"""
COMPOSE_MARK = f"# {COMPOSE_HEADER.partition(';')[0]}".encode()
"""What a file begins with that an earlier call has written."""
PLAINTEXT_NOTE = """
The network is the containers' own, and nothing on it is encrypted: on several machines use --certs.
"""


@dataclass(frozen=True)
class ComposeOptions:
    """What the command line asks for.

    build: a checkout of dfl, from which Compose builds the image.
    """

    file: Path
    settings: DockerSettings
    certs: Path | None = None
    build: Path | None = None


def write_compose_file(spec: Spec, options: ComposeOptions) -> None:
    """Write the file; InputError where the federation cannot run in containers."""
    file = options.file
    check_compose_options(options)
    if why := unwritable_reason(file.absolute().parent) or (f"{file} is a directory" if file.is_dir() else None):
        raise InputError(f"{why}; choose another file with --out")
    if is_foreign(file):
        raise InputError(f"{file} was not made by `dfl-launch compose`; choose another file with --out")
    file.absolute().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, compose_text(spec, options).encode())


def check_compose_options(options: ComposeOptions) -> None:
    """InputError for what has no meaning in the file, or names what is not there."""
    for name in ("network", "subnet"):
        if getattr(options.settings, name) is not None:
            raise InputError(f"--option {name}: Compose makes a network for the file's own containers; leave it out")
    if options.build and not (options.build / DOCKERFILE).is_file():
        raise InputError(
            f"--build {options.build}: there is no {DOCKERFILE} in it; give the directory of a checkout of dfl"
        )


def is_foreign(file: Path) -> bool:
    """Whether something is there that an earlier call has not written."""
    try:
        with open_plain(file) as found:
            return found.read(len(COMPOSE_MARK)) != COMPOSE_MARK
    except FileNotFoundError:
        return file.is_symlink()
    except OSError:
        return True


def compose_text(given: Spec, options: ComposeOptions) -> str:
    """What is in the file. Paths in it are relative to its directory."""
    check_ids(given)
    check_certificates(given, options.certs)
    spec = in_containers(given)
    if not options.certs:
        spec = in_plaintext(spec)
    made = Composition(spec, options.settings, options.file.absolute().parent, options.certs, options.build)
    content = made.content()
    about = COMPOSE_HEADER.format(peer=spec.ids[0], file=options.file.name) + ("" if options.certs else PLAINTEXT_NOTE)
    writer = YAML()
    writer.width = 120
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    stream.writelines(f"# {line}".rstrip() + "\n" for line in about.splitlines())
    writer.dump(content, stream)
    return stream.getvalue()


CONFIGS = ("base/config", "components/certificates/config")
"""Replaced whole: there may be files of peers that are no more."""


@dataclass(frozen=True)
class ManifestOptions:
    """What the command line asks for.

    certs: the directory of `dfl-launch certs`; copied to where kustomize finds it. egress: as of `--on kubernetes`.
    """

    out: Path
    image: str
    certs: Path | None = None
    egress: Egress | None = None


def write_manifest_tree(spec: Spec, options: ManifestOptions) -> None:
    """Write the directory; what an earlier call wrote there is replaced. InputError where it cannot be written."""
    if not is_image(options.image):
        raise InputError(f"--image wants {IMAGE_WANTED} (given: {options.image})")
    files = tree(spec, options.image, options.egress)
    if not options.certs:
        refuse_plaintext(spec, "peers in a cluster speak over its network", "--certs")
    check_certificates(spec, options.certs)
    if why := unwritable_reason(options.out):
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
    """Copy certificates, and add a .gitignore that keeps them out of the repository."""
    for id in spec.ids:
        for what, file in certificate_files(certs, id).items():
            permissions = 0o600 if what == "key" else 0o644
            write_atomically(to / file.name, file.read_bytes(), permissions=permissions)


def compose_command(arguments: argparse.Namespace, output: Output) -> int:
    chosen = checked_settings(DockerSettings, parsed_options(arguments.options), "--option")
    spec = resolved(arguments)
    write_compose_file(spec, ComposeOptions(arguments.out, chosen, arguments.certs, arguments.build))
    if roots := [id for id in spec.ids if arguments.certs and key_owner(arguments.certs, id)[0] == 0]:
        output.say(
            f"Warning: the containers of {', '.join(roots)} will run as root, to whom their keys belong; make the "
            "certificates as an ordinary user, and write the file again."
        )
    output.say(f"{arguments.out}: start it with `docker compose -f {arguments.out} up`")
    return 0


def certs_command(arguments: argparse.Namespace, output: Output) -> int:
    if not 1 <= arguments.days <= 36_500:
        raise InputError(f"--days {arguments.days}: give a number from 1 to 36500")
    spec = resolved(arguments)
    if unwritable := unwritable_reason(arguments.out):
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


def manifests_command(arguments: argparse.Namespace, output: Output) -> int:
    spec = resolved(arguments)
    options = ManifestOptions(arguments.out, arguments.image, arguments.certs, arguments.egress)
    write_manifest_tree(spec, options)
    if spec.own_code:
        output.say(f"Note: the image needs your own code in {CODE}, for {', '.join(spec.own_code)}")
    overlay = "overlays/certificates" if arguments.certs else "base"
    output.say(f"{arguments.out}: kubectl apply -k {arguments.out / overlay}")
    return 0
