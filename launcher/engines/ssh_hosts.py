"""hosts.yaml: the machines that peers run on, their settings, and which peer runs on which.

Other peers reach a host by its name in ~/.ssh/config, unless hosts.yaml gives one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import asyncssh
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, field_validator, model_validator

from peer.errors import InputError, suggest
from peer.network.transport.addresses import is_loopback
from peer.settings import Settings, Wanted
from peer.spec.blocks import MAX_PORT, Address, Id, Member
from peer.spec.document import Document, Location, validate
from peer.spec.federation import Spec
from peer.spec.loading import FIRST_PORT
from peer.spec.peer import DEVICES, Device

ADDRESS: TypeAdapter[str] = TypeAdapter(Address)


def _interface(text: str) -> str:
    if ":" in text.strip("[]"):
        text = f"[{text.strip('[]')}]"
    ADDRESS.validate_python(f"{text}:1")
    return text


HostName = Annotated[str, AfterValidator(_interface)]
"""A name, an IPv4 address or an IPv6 address, with brackets or without; no port."""


def _listed(given: Any) -> Any:
    listed = [one.strip() for one in given.split(",")] if isinstance(given, str) else given
    return tuple(listed) if isinstance(listed, list) else listed


Extras = Annotated[tuple[Literal["encrypted", "privacy", "tables", "vision"], ...], BeforeValidator(_listed)]


class Host(Settings):
    """One machine."""

    host: Annotated[
        str,
        Field(min_length=1, max_length=253, pattern=r"^[^\s-]\S*$"),
        Wanted("what `ssh` takes, such as north or alice@east.example.org"),
    ]
    """An alias of ~/.ssh/config, a host name or an address, with `user@` before it if the user name differs."""
    peers: Annotated[tuple[Id, ...] | None, Wanted("a list of ids of the ring, such as [peer0, peer1]")] = None
    """Ids of the peers that run there. Not given: the peers that no other host names are dealt round robin."""
    address: Annotated[HostName | None, Wanted("a name or an address without a port, such as 10.0.0.2")] = None
    """The address at which the other peers reach the host, without a port. Not given: that in ~/.ssh/config."""
    listen: Annotated[HostName | None, Wanted("an address of the host without a port, such as 10.0.0.2")] = None
    """The interface on which peers accept connections. Not given: all."""
    port: Annotated[int, Field(ge=1, le=MAX_PORT), Wanted(f"a port from 1 to {MAX_PORT}, such as 7700")] = FIRST_PORT
    """The port of the first peer there; the others have the following ones."""
    python: Annotated[
        str, Field(min_length=1, max_length=4096), Wanted("a command, such as python3 or ~/dfl/.venv/bin/python")
    ] = "python3"
    """The command of the Python there that has dfl, such as ~/dfl/.venv/bin/python; with --install, of one that makes
    such an environment."""
    directory: Annotated[str, Field(min_length=1, max_length=4096), Wanted("a directory there, such as dfl")] = "dfl"
    """The directory of runs there, each in one of its name; relative to the home directory."""
    device: Annotated[Device | None, Wanted(DEVICES)] = None
    """auto, cpu, cuda or cuda:N. Not given: as --device has it."""

    torch: Annotated[Literal["cpu", "cuda"] | None, Wanted("cpu or cuda")] = None
    """The build of torch that --install takes. Not given: `cuda` where `device` is CUDA, or auto and there is an NVIDIA
    GPU; else `cpu`."""

    gigabytes: Annotated[float, Field(gt=0, le=1e6), Wanted("a number above 0, such as 50")] = 50.0
    """The most that the launcher takes from each peer there: of its events, of its log, and of all that it leaves."""

    models: Annotated[Literal["fetch", "leave"], Wanted("fetch or leave")] = "fetch"
    """`fetch`: at the end the models of the peers there, heads included, and traces are copied to the machine of the
    launcher. `leave`: they stay on the host, in `directory`."""

    @property
    def environment(self) -> str:
        """The Python environment that --install makes."""
        return f"{self.directory.rstrip('/')}/.venv"

    def interpreter(self, installed: bool) -> str:
        """Return the Python that runs peers."""
        return f"{self.environment}/bin/python" if installed else self.python

    @property
    def bytes_of_a_peer(self) -> int:
        return int(self.gigabytes * 10**9)

    def too_much(self, what: str) -> str:
        """Return why no more of it is fetched, with a hint."""
        return (
            f"{self.host}: {what} comes to more than {self.gigabytes:g} GB; see what it is, and raise `gigabytes` of "
            "that host if it is right"
        )

    def run(self, name: str) -> str:
        """Return the directory there of the run of that name."""
        return f"{self.directory.rstrip('/')}/{name}"


class HostsFile(Settings):
    """The whole file."""

    hosts: Annotated[tuple[Host, ...], Field(min_length=1), Wanted("a list of machines, such as [{host: north}]")]


class SshSettings(Settings):
    """`--hosts` and `--install`."""

    hosts: Annotated[tuple[Host, ...], Wanted("a file that lists them, such as hosts.yaml")] = ()
    install: Annotated[bool, Wanted("true or false")] = False
    """Whether to make a Python environment on each host and to install dfl there."""
    extras: Annotated[
        Extras, Wanted("one or more of encrypted, privacy, tables, vision, such as [tables, vision]")
    ] = ()
    """The extras of dfl to install."""

    @field_validator("hosts", mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if isinstance(given, tuple):
            return given
        if isinstance(given, str):
            document = Document.read(Path(given))
        else:  # as a run's record has them
            document = Document(Path("hosts"), {"hosts": given}, None)
        listed = document.content.get("hosts")
        number = len(listed) if isinstance(listed, list) else 0
        blocks: dict[Location, type[Settings]] = {("hosts", place): Host for place in range(number)}
        return validate(HostsFile, document.content, document, blocks).hosts

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.hosts:
            raise InputError("--on ssh: on which hosts? Give --hosts hosts.yaml, a file that lists them under `hosts`")
        names = [host.host for host in self.hosts]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"--hosts: `{twice}` is there twice; list all its peers under one")
        return self


def user_and_host(host: Host) -> dict[str, str]:
    """Return the host, and the user if one is given, as arguments of asyncssh."""
    user, _, name = host.host.rpartition("@")
    found = {"host": name.strip("[]")}
    return found | {"username": user} if user else found


def ssh_options(host: Host) -> asyncssh.SSHClientConnectionOptions:
    """Return what ~/.ssh/config says of the host."""
    return asyncssh.SSHClientConnectionOptions(**user_and_host(host), config=())


def name_for_others(host: Host) -> str:
    """Return the name in ~/.ssh/config, in brackets if it is an IPv6 address."""
    try:
        name = ssh_options(host).host
    except (OSError, ValueError, asyncssh.Error) as error:
        raise InputError(f"~/.ssh/config cannot be used for `{host.host}`: {error}") from None
    return f"[{name}]" if ":" in name else name


@dataclass(frozen=True)
class Placement:
    """Where one peer runs."""

    id: str
    host: Host
    address: str | None
    """host:port at which the others reach it; None if it only dials out."""
    listen: str
    """host:port at which it accepts connections there."""


def placement(hosts: Sequence[Host], spec: Spec) -> dict[str, Placement]:
    """Return placements by id. Raises InputError if a peer has no host or two, or is not in the ring.

    An address in the ring that others can reach is kept, unless the host has one of its own.
    """
    hosted = assigned(hosts, spec.ids)
    members = {member.id: member for member in spec.ring}
    places = {}
    for host in hosts:
        name = host.address or name_for_others(host)
        for offset, id in enumerate(id for id in spec.ids if hosted[id] is host):
            places[id] = _placed(host, name, members[id], host.port + offset)
    return {id: places[id] for id in spec.ids}


def assigned(hosts: Sequence[Host], ids: Sequence[str]) -> dict[str, Host]:
    """Return the host of each peer: the one that names it, or the next of those that name none."""
    found: dict[str, Host] = {}
    for host in hosts:
        for id in host.peers or ():
            if id not in ids:
                raise InputError(f"--hosts: `{host.host}` has `{id}`, which is not in the ring; {suggest(id, ids)}")
            if id in found:
                raise InputError(f"--hosts: `{id}` is on {found[id].host} and on {host.host}; leave it on one")
            found[id] = host
    left = [id for id in ids if id not in found]
    free = [host for host in hosts if host.peers is None]
    if left and not free:
        raise InputError(f"--hosts: no host for {', '.join(left)}; name them in the `peers` of one, or add one without")
    return found | dict(zip(left, cycle(free), strict=False))


def _placed(host: Host, name: str, member: Member, port: int) -> Placement:
    if port > MAX_PORT:
        raise InputError(f"--hosts: `{host.host}` has more peers than ports from {host.port}; give another `port`")
    address = f"{name}:{port}"
    if host.address is None and member.address and not is_loopback(member.address):
        address = member.address
        port = int(address.rpartition(":")[2])
    everywhere = "[::]" if address.startswith("[") else "0.0.0.0"
    return Placement(member.id, host, None if member.dials_out else address, f"{host.listen or everywhere}:{port}")
