"""Where the page is: an address of this machine, taken before anything else begins."""

import re
import socket
from dataclasses import dataclass
from typing import Self

from peer.errors import InputError
from peer.network.transport.addresses import is_loopback
from peer.spec.member import MAX_PORT

WRITTEN = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):)?(?P<port>[0-9]{1,5})")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """port: 0 stands for one that is free."""

    host: str = LOOPBACK
    port: int = 0

    @classmethod
    def read(cls, text: str | None) -> Self:
        """What `--at` says: HOST:PORT or PORT, or nothing; InputError for anything else."""
        if text is None:
            return cls()
        found = WRITTEN.fullmatch(text)
        if not found or int(found["port"]) > MAX_PORT:
            raise InputError(f"--at {text}: give HOST:PORT, such as 127.0.0.1:8080, or leave it out")
        return cls((found["host"] or LOOPBACK).strip("[]"), int(found["port"]))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(str(self))

    def taken(self) -> socket.socket:
        """A socket that listens there from now on; InputError where that cannot be."""
        try:
            kind, _, _, _, where = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            made = socket.socket(kind, socket.SOCK_STREAM)
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind(where)
                made.listen()
            except BaseException:
                made.close()
                raise
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(f"--at {self}: {why}; give another HOST:PORT, or none for a free port") from None
        return made

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def chosen(*, dashboard: bool, at: str | None, quiet: bool) -> Address | None:
    """What `run --dashboard --at HOST:PORT` stands for; None without a dashboard."""
    if not dashboard:
        if at is not None:
            raise InputError(f"--at {at} says where the live page is; add --dashboard to have one")
        return None
    if quiet:
        raise InputError("--quiet would hide the address of the --dashboard; leave one of them out")
    return Address.read(at)
