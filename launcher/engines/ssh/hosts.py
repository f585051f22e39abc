"""hosts.yaml: the machines that peers run on, and what differs there from what is usual."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, field_validator, model_validator

from peer.errors import InputError
from peer.settings import Settings
from peer.spec.document import Document, plain, validate
from peer.spec.federation import Address, Id
from peer.spec.peer import FIRST_PORT, MAX_PORT

ADDRESS: TypeAdapter[str] = TypeAdapter(Address)


def _interface(text: str) -> str:
    if ":" in text.strip("[]"):
        text = f"[{text.strip('[]')}]"
    ADDRESS.validate_python(f"{text}:1")
    return text


HostName = Annotated[str, AfterValidator(_interface)]
"""A name, an IPv4 address or an IPv6 address, with brackets or without; no port."""


class Host(Settings):
    """One machine."""

    host: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\s-]\S*$")]
    """An alias of ~/.ssh/config, a host name or an address; `user@` before it where the name there is another."""
    peers: tuple[Id, ...] | None = None
    """Ids of the peers that run there. Not given: the peers that no other host names are dealt round robin."""
    address: HostName | None = None
    """By which the other peers reach it, without a port. Not given: as ~/.ssh/config has it."""
    listen: HostName | None = None
    """The interface on which peers accept connections. Not given: all."""
    port: Annotated[int, Field(ge=1, le=MAX_PORT)] = FIRST_PORT
    """Of the first peer there; the next has the next."""
    python: Annotated[str, Field(min_length=1, max_length=4096)] = "python3"
    """The command of the Python there that has dfl, such as ~/dfl/.venv/bin/python; with --install, of one that makes
    such an environment."""
    directory: Annotated[str, Field(min_length=1, max_length=4096)] = "dfl"
    """Where runs lie there, each in a directory of its name; relative to the home directory."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] | None = None
    """auto, cpu, mps, cuda or cuda:N. Not given: as --device has it."""

    @property
    def environment(self) -> str:
        """Where --install makes one."""
        return f"{self.directory.rstrip('/')}/.venv"

    def interpreter(self, installed: bool) -> str:
        """The Python that peers run by."""
        return f"{self.environment}/bin/python" if installed else self.python

    def run(self, name: str) -> str:
        """The directory there of the run of that name."""
        return f"{self.directory.rstrip('/')}/{name}"


class HostsFile(Settings):
    """The whole file."""

    hosts: Annotated[tuple[Host, ...], Field(min_length=1)]


class SshSettings(Settings):
    """`--hosts` and `--install`."""

    hosts: tuple[Host, ...] = ()
    install: bool = False
    """Whether to make a Python environment on each host and to install dfl there."""
    extras: tuple[Literal["encrypted", "privacy", "tables", "vision"], ...] = ()
    """Of dfl, to be installed with it."""

    @field_validator("hosts", mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        document = Document.read(Path(given))
        return validate(HostsFile, plain(document.content), document, {}).hosts

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.hosts:
            raise InputError("--on ssh: on which hosts? Give --hosts hosts.yaml, a file that lists them under `hosts`")
        names = [host.host for host in self.hosts]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"--hosts: `{twice}` is there twice; list all its peers under one")
        return self
