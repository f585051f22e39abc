"""Images for the tests where there is no registry: this machine's own Python, and the packages that it has."""

import hashlib
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SITE = Path(sysconfig.get_path("purelib"))
UNUSED = re.compile(r"^torch/(include|test)/|^sympy/.*/tests/")
PROGRAMS = ("sh", "env", "mkdir", "rm", "cp", "mv", "cat", "grep", "ls", "id", "sleep", "true")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
LEFT_OUT = re.compile(r"/(test|tests|idlelib|site-packages|config-[^/]*|lib2to3|turtledemo)(/|$)")


def peer_image() -> str:
    """Its tag; what has been built before is built again only where it has changed."""
    base, packages = (f"dfl-test-{name}:{_mark()}" for name in ("base", "packages"))
    if not docker("images", "--quiet", base).strip():
        build_base(base)
    if not docker("images", "--quiet", packages).strip():
        build_packages(packages)
    build_peer("dfl-test", base, packages)
    return "dfl-test"


def _mark() -> str:
    """A mark of this Python and its packages' versions."""
    versions = [f"{package}=={importlib.metadata.version(package)}" for package in sorted(_needed("dfl"))]
    content = (sys.version, sys.base_prefix, *versions, Path(__file__).read_text())
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:12]


def build_base(tag: str, packages: Iterable[str] = ()) -> None:
    """An image of this Python, put into /usr/local, with the few programs that a Dockerfile calls.

    packages: of this environment, for the one that the Dockerfile makes.
    """
    home = Path(sys.base_prefix)
    python = (home / "bin" / NAME).resolve()
    programs = {name: Path(found).resolve() for name in PROGRAMS if (found := shutil.which(name))}
    extensions = (home / "lib" / NAME / "lib-dynload").glob("*.so")
    compiled = [*extensions, *_files("torch", "grpcio", "numpy", what=r"\.so$")]
    with _importing(tag) as archive:
        archive.add(python, f"usr/local/bin/{NAME}")
        for name in ("python3", "python"):
            _link(archive, f"usr/local/bin/{name}", NAME)
        archive.add(home / "lib" / NAME, f"usr/local/lib/{NAME}", filter=_wanted)
        for name, path in programs.items():
            archive.add(path, f"bin/{name}")
        for library in _libraries([python, *programs.values(), *compiled]):
            # Python's own is found beside it, which is elsewhere in the image.
            system = library.startswith(("/lib", "/usr/lib"))
            archive.add(Path(library).resolve(), library if system else f"usr/lib/{Path(library).name}")
        if CERTIFICATES.exists():
            archive.add(CERTIFICATES.resolve(), str(CERTIFICATES))
        for name, text in FILES.items():
            _file(archive, name, text.encode())
        for name, mode in (("tmp", 0o1777), ("root", 0o700), ("usr/bin", 0o755)):
            _directory(archive, name, mode)
        for package in packages:
            for path in _files(package):
                archive.add(path, f"opt/dfl/.venv/lib/{NAME}/site-packages/{path.relative_to(SITE)}")


def build_packages(tag: str) -> None:
    """The base with all that dfl needs, copied from this environment."""
    build_base(tag, sorted(_needed("dfl") | {"pip", "setuptools"}))


def build_peer(tag: str, base: str, packages: str) -> None:
    """By the Dockerfile, without downloading anything."""
    given = {"BASE": base, "BUILDER": packages, "PIP_OPTIONS": "--no-index"}
    arguments = [word for name, value in given.items() for word in ("--build-arg", f"{name}={value}")]
    docker("build", "--quiet", "--network", "none", "-f", "deploy/Dockerfile", "--tag", tag, *arguments, ".")


def docker(*arguments: str) -> str:
    """What the command prints; OSError with what it complains of."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode:
        raise OSError(f"docker {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def _importing(tag: str) -> Iterator[tarfile.TarFile]:
    """An archive that is an image at the end of the block."""
    command = ["docker", "import", "--change", 'CMD ["/bin/sh"]', "-", tag]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin
        with tarfile.open(fileobj=process.stdin, mode="w|") as archive:
            yield archive
        process.stdin.close()
    if process.returncode:
        raise OSError(f"{' '.join(command)}: exit code {process.returncode}")


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if LEFT_OUT.search(member.name.partition(NAME)[2]) else member


def _needed(package: str) -> set[str]:
    """The package's requirements, and theirs."""
    found, to_do = set[str](), [(package, "")]
    while to_do:
        name, extra = to_do.pop()
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            one = canonicalize_name(requirement.name)
            if one not in found and (not requirement.marker or requirement.marker.evaluate({"extra": extra})):
                found.add(one)
                to_do += [(one, extra) for extra in ("", *requirement.extras)]
    return found


def _files(*packages: str, what: str = "") -> list[Path]:
    """The packages' files in site-packages, without those that the Dockerfile removes."""
    files = (file for package in packages for file in importlib.metadata.files(package) or ())
    paths = (Path(str(file.locate())) for file in files if ".." not in file.parts and not UNUSED.search(str(file)))
    return [path for path in paths if re.search(what, path.name) and path.is_file()]


def _libraries(programs: Iterable[Path]) -> list[str]:
    """The libraries outside of site-packages that these need."""
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    return sorted({path for path in re.findall(r"(/[^\s:]+) \(0x", told) if not path.startswith(str(SITE))})


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    archive.addfile(member)


def _file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))


def _directory(archive: tarfile.TarFile, name: str, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, mode
    archive.addfile(member)
