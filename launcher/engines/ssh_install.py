"""`--install`: a Python environment on a host with this very dfl, however it was installed here, and the versions and
hashes of all that it needs.

These are in constraints.txt and requirements/, beside this package in a checkout, else where pip has put them.
"""

import asyncio
import base64
import hashlib
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import distribution, version
from pathlib import Path

import launcher
import peer
from launcher.engines.ssh_connection import agent
from launcher.engines.ssh_hosts import Host
from peer.errors import FailedError, InputError


async def install_dfl(hosts: Iterable[Host], device: str, extras: Sequence[str], say: Callable[[str], None]) -> None:
    """Install this dfl on all hosts at once. FailedError names each host where it did not work.

    device: of hosts that have none of their own. It decides which build of torch is installed.
    """
    name, wheel = build_wheel()
    same = {"wheel": (name, base64.b64encode(wheel).decode()), "extras": extras, "pins": read_pins()}

    async def install_on(host: Host) -> str:
        """Return why it could not be installed there; empty if it was."""
        order = {**same, "directory": host.directory, "torch": host.torch, "device": host.device or device}
        try:
            async with agent(host, host.python) as one:
                if await one.ask("installed", **order):
                    return ""
                say(
                    f"{host.host}: makes a Python environment in {host.environment} with dfl {version('dfl')} and what "
                    "it needs, by pip; the first time that takes minutes"
                )
                await one.ask("install", **order)
            async with agent(host, host.interpreter(installed=True)) as one:
                if why := await one.ask("device", name="auto"):
                    raise FailedError(why)
        except FailedError as error:
            return f"{host.host}: dfl could not be installed: {error}"
        say(f"{host.host}: dfl {version('dfl')} is installed")
        return ""

    if problems := [why for why in await asyncio.gather(*map(install_on, hosts)) if why]:
        raise FailedError(*problems)


PINS = ("constraints.txt", "requirements/pip.txt", "requirements/torch-cpu.txt")


def read_pins() -> dict[str, str]:
    """Return the text of each file of `PINS`, by its last name. Raises InputError if one is missing."""
    checkout = Path(launcher.__path__[0]).parent
    found = {path.name: path for path in map(checkout.joinpath, PINS) if path.is_file()}
    if len(found) < len(PINS):
        installed = (file for file in distribution("dfl").files or () if "share/dfl" in file.as_posix())
        found = {file.name: Path(str(file.locate())) for file in installed}
    try:
        return {name: found[name].read_text() for name in (Path(pin).name for pin in PINS)}
    except (KeyError, FileNotFoundError) as error:
        raise InputError(
            f"--install: {error} of dfl is not here, and so the versions to install are unknown; run dfl-launch from a "
            "checkout or a wheel, or install dfl on the hosts yourself"
        ) from None


WHEEL_METADATA = "Wheel-Version: 1.0\nGenerator: dfl-launch\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
WHEEL_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every file in it: the same code gives the same bytes."""


def build_wheel() -> tuple[str, bytes]:
    """Build a wheel (PyPA, binary distribution format 1.0); return its file name and content."""
    version = distribution("dfl").version
    record, buffer = [], io.BytesIO()
    info = f"dfl-{version}.dist-info"
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _content(info):
            archive.writestr(zipfile.ZipInfo(name, WHEEL_TIME), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", WHEEL_TIME), "".join([*record, f"{info}/RECORD,,\n"]))
    return f"dfl-{version}-py3-none-any.whl", buffer.getvalue()


def _content(info: str) -> Iterator[tuple[str, bytes]]:
    """Every file by its name in the wheel. info: the directory of those about it."""
    for package in (launcher, peer):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root.parent).as_posix(), path.read_bytes()
    yield f"{info}/WHEEL", WHEEL_METADATA.encode()
    found = distribution("dfl")
    # In a checkout that setuptools has built, Python finds dfl.egg-info first, whose metadata is in PKG-INFO.
    yield f"{info}/METADATA", (found.read_text("METADATA") or found.read_text("PKG-INFO") or "").encode()
    yield f"{info}/entry_points.txt", (found.read_text("entry_points.txt") or "").encode()
