"""Files for peers that something else starts: `dfl-launch certs`, `dfl-launch compose` and `dfl-launch manifests`.

compose    a federation as a docker-compose.yml, which is a Swarm stack as well
manifests  a federation for Kubernetes, as plain files
certs      a CA and a certificate for every peer (`launcher/certificates.py` makes them)

What an earlier call has written is replaced; anything else in its place is left alone, and refused.
"""

import argparse
import shutil
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from launcher.certificates import make_certificates
from launcher.command_spec import resolved
from launcher.engines.base import IMAGE_WANTED, checked_settings, is_image, parsed_options
from launcher.engines.docker import DockerSettings, check_ids, in_containers
from launcher.engines.docker_compose import DOCKERFILE, Composition, key_owner
from launcher.engines.kubernetes_objects import ABOUT, CERTIFICATES, CODE, IGNORED, KubernetesSettings, tree
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
COMPOSE_MARK = f"# {COMPOSE_HEADER.partition(';')[0]}"
"""What a file begins with that an earlier call has written."""
PLAINTEXT_NOTE = """
The network is the containers' own, and nothing on it is encrypted: on several machines use --certs.
"""


def compose_command(arguments: argparse.Namespace, output: Output) -> int:
    """Write the file; InputError where the federation cannot run in containers."""
    settings = checked_settings(DockerSettings, parsed_options(arguments.options), "--option")
    spec, file, certs, build = resolved(arguments), arguments.out, arguments.certs, arguments.build
    check_compose_options(settings, build)
    if why := unwritable_reason(file.absolute().parent) or (f"{file} is a directory" if file.is_dir() else None):
        raise InputError(f"{why}; choose another file with --out")
    if is_foreign(file, COMPOSE_MARK):
        raise InputError(f"{file} was not made by `dfl-launch compose`; choose another file with --out")
    file.absolute().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, compose_text(spec, file, settings, certs, build).encode())
    if roots := [id for id in spec.ids if certs and key_owner(certs, id)[0] == 0]:
        output.say(
            f"Warning: the containers of {', '.join(roots)} will run as root, to whom their keys belong; make the "
            "certificates as an ordinary user, and write the file again."
        )
    output.say(f"{file}: start it with `docker compose -f {file} up`")
    return 0


def check_compose_options(settings: DockerSettings, build: Path | None) -> None:
    """InputError for what has no meaning in the file, or names what is not there."""
    for name in ("network", "subnet"):
        if getattr(settings, name) is not None:
            raise InputError(f"--option {name}: Compose makes a network for the file's own containers; leave it out")
    if build and not (build / DOCKERFILE).is_file():
        raise InputError(f"--build {build}: there is no {DOCKERFILE} in it; give the directory of a checkout of dfl")


def is_foreign(file: Path, *marks: str) -> bool:
    """Whether something is there that an earlier call has not written, which begins with one of the marks."""
    try:
        with open_plain(file) as found:
            return not found.read(max(map(len, marks))).decode(errors="replace").startswith(marks)
    except FileNotFoundError:
        return file.is_symlink()
    except OSError:
        return True


def compose_text(given: Spec, file: Path, settings: DockerSettings, certs: Path | None, build: Path | None) -> str:
    """What is in the file. Paths in it are relative to its directory. build: a checkout, from which Compose builds the
    image."""
    check_ids(given)
    check_certificates(given, certs)
    spec = in_containers(given)
    if not certs:
        spec = in_plaintext(spec)
    content = Composition(spec, settings, file.absolute().parent, certs, build).content()
    about = COMPOSE_HEADER.format(peer=spec.ids[0], file=file.name) + ("" if certs else PLAINTEXT_NOTE)
    writer = YAML()
    writer.width = 120
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    stream.writelines(f"# {line}".rstrip() + "\n" for line in about.splitlines())
    writer.dump(content, stream)
    return stream.getvalue()


CONFIGS = ("base/config", "components/certificates/config")
"""Replaced whole: there may be files of peers that are no more."""


def manifests_command(arguments: argparse.Namespace, output: Output) -> int:
    """Write the directory; what an earlier call wrote there is replaced. InputError where it cannot be written."""
    spec, out, certs = resolved(arguments), arguments.out, arguments.certs
    if not is_image(arguments.image):
        raise InputError(f"--image wants {IMAGE_WANTED} (given: {arguments.image})")
    files = tree(spec, KubernetesSettings(image=arguments.image, egress=arguments.egress))
    if not certs:
        refuse_plaintext(spec, "peers in a cluster speak over its network", "--certs")
    check_certificates(spec, certs)
    if why := unwritable_reason(out):
        raise InputError(f"{why}; choose another directory with --out")
    if foreign := foreign_in(out, files):
        raise InputError(f"{out} holds {foreign}, which is no manifest of ours; choose another directory with --out")
    for directory in CONFIGS:
        shutil.rmtree(out / directory, ignore_errors=True)
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    for id in spec.ids if certs else ():
        for what, file in certificate_files(certs, id).items():
            permissions = 0o600 if what == "key" else 0o644
            write_atomically(out / CERTIFICATES / file.name, file.read_bytes(), permissions=permissions)
    if spec.own_code:
        output.say(f"Note: the image needs your own code in {CODE}, for {', '.join(spec.own_code)}")
    overlay = "overlays/certificates" if certs else "base"
    output.say(f"{out}: kubectl apply -k {out / overlay}")
    return 0


def foreign_in(out: Path, names: Iterable[str]) -> str | None:
    """What would be overwritten, or lies where no manifests are, and was not made here; None if there is nothing."""
    if not out.is_dir():
        return None
    if not (out / "base" / "kustomization.yaml").exists():
        return next((entry.name for entry in sorted(out.iterdir())), None)
    there = [out / name for name in names] + [entry for place in CONFIGS for entry in sorted((out / place).glob("*"))]
    return next((str(path.relative_to(out)) for path in there if is_foreign(path, ABOUT, IGNORED)), None)


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
