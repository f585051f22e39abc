"""`dfl-launch compose`: a federation as a docker-compose.yml, which is a Swarm stack as well."""

from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from launcher.engines.docker.composition import DOCKERFILE, Composition
from launcher.engines.docker.engine import in_containers
from launcher.engines.docker.preflight import check_ids
from launcher.engines.docker.settings import DockerSettings
from launcher.engines.local.preflight import check_certificates
from peer.errors import InputError
from peer.files import why_unwritable, write_atomically
from peer.reading import open_plain
from peer.spec.federation import Spec

ABOUT = """\
Made by `dfl-launch compose`; edit the federation and make it again.

    docker compose up                           # runs to the end; a peer's files are in the volume of its name
    docker compose cp {peer}:/runs/. results    # brings those of one peer
    docker compose down --volumes               # discards the run
    docker stack deploy -c {file} NAME
"""
MARK = f"# {ABOUT.partition(';')[0]}".encode()
"""What a file begins with that an earlier call has written."""
PLAIN = """
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


def compose(spec: Spec, options: ComposeOptions) -> None:
    """Writes the file; InputError where the federation cannot run in containers."""
    file = options.file
    check_options(options)
    if why := why_unwritable(file.absolute().parent) or (f"{file} is a directory" if file.is_dir() else None):
        raise InputError(f"{why}; choose another file with --out")
    if foreign(file):
        raise InputError(f"{file} was not made by `dfl-launch compose`; choose another file with --out")
    file.absolute().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text(spec, options).encode())


def check_options(options: ComposeOptions) -> None:
    """InputError for what has no meaning in the file, or names what is not there."""
    for name in ("network", "subnet"):
        if getattr(options.settings, name) is not None:
            raise InputError(f"--option {name}: Compose makes a network for the file's own containers; leave it out")
    if options.build and not (options.build / DOCKERFILE).is_file():
        raise InputError(
            f"--build {options.build}: there is no {DOCKERFILE} in it; give the directory of a checkout of dfl"
        )


def foreign(file: Path) -> bool:
    """Whether something is there that an earlier call has not written."""
    try:
        with open_plain(file) as found:
            return found.read(len(MARK)) != MARK
    except FileNotFoundError:
        return file.is_symlink()
    except OSError:
        return True


def text(given: Spec, options: ComposeOptions) -> str:
    """What is in the file. Paths in it are relative to its directory."""
    check_ids(given)
    check_certificates(given, options.certs)
    spec = in_containers(given)
    if not options.certs:
        spec = spec.in_plaintext()
    made = Composition(spec, options.settings, options.file.absolute().parent, options.certs, options.build)
    content = made.content()
    about = ABOUT.format(peer=spec.ids[0], file=options.file.name) + ("" if options.certs else PLAIN)
    writer = YAML()
    writer.width = 120
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    stream.writelines(f"# {line}".rstrip() + "\n" for line in about.splitlines())
    writer.dump(content, stream)
    return stream.getvalue()
