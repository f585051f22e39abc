"""Connections to hosts by SSH, with the user's own keys, agent, ~/.ssh/config and known hosts."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from errno import ECONNREFUSED
from typing import TYPE_CHECKING

from launcher.engines.ssh.hosts import Host
from peer.errors import FailedError, InputError

if TYPE_CHECKING:
    import asyncssh

PATIENCE = 10
"""Seconds that an attempt to connect, and then one to log in, may take."""
ALIVE = 5
"""Seconds between two signs of life; when two in a row are not answered, the connection is lost."""


class UnreachableError(FailedError):
    """There is no connection to a host; the message says why, without naming the host."""


def check_library() -> None:
    """InputError unless asyncssh is here."""
    try:
        import asyncssh  # noqa: F401
    except ImportError:
        raise InputError(
            "--on ssh needs asyncssh; install it with: pip install -c constraints.txt 'dfl[ssh]'"
        ) from None


def parts(host: Host) -> dict[str, str]:
    """User, if one is given, and host, as asyncssh wants them."""
    user, _, name = host.host.rpartition("@")
    found = {"host": name.strip("[]")}
    return found | {"username": user} if user else found


def named(host: Host) -> str:
    """By which ~/.ssh/config reaches the host; in brackets if it is an IPv6 address."""
    check_library()
    import asyncssh

    try:
        name = asyncssh.SSHClientConnectionOptions(**parts(host), config=()).host
    except (OSError, ValueError, asyncssh.Error) as error:
        raise InputError(f"~/.ssh/config cannot be used for `{host.host}`: {error}") from None
    return f"[{name}]" if ":" in name else name


@asynccontextmanager
async def connected(host: Host) -> AsyncIterator["asyncssh.SSHClientConnection"]:
    """UnreachableError when there is none, or the server is not the one that is known."""
    import asyncssh

    with telling(host):
        connection = await asyncssh.connect(
            **parts(host),
            connect_timeout=PATIENCE,
            login_timeout=PATIENCE,
            keepalive_interval=ALIVE,
            keepalive_count_max=2,
        )
    try:
        yield connection
    finally:
        connection.abort()
        await connection.wait_closed()


@contextmanager
def telling(host: Host) -> Iterator[None]:
    """What goes wrong with a connection comes out as an UnreachableError."""
    import asyncssh

    try:
        yield
    except (OSError, ValueError, asyncssh.Error) as error:
        raise UnreachableError(why(error, host)) from None


def why(error: Exception, host: Host) -> str:
    """In words, with the way out where a person has to do something."""
    import asyncssh

    match error:
        case asyncssh.HostKeyNotVerifiable():
            return f"its host key is not known here, or has changed; connect once by `ssh {host.host}`, which shows it"
        case asyncssh.PermissionDenied():
            return (
                f"it accepts none of your keys; see that `ssh {host.host}` works without a password (ssh-copy-id, "
                "ssh-add)"
            )
        case TimeoutError() | asyncio.TimeoutError():
            return "timed out"
        case socket.gaierror():
            return "no such host name; write one, or an alias of ~/.ssh/config"
        case OSError() if error.errno == ECONNREFUSED or f"[Errno {ECONNREFUSED}]" in str(error):
            port = asyncssh.SSHClientConnectionOptions(**parts(host), config=()).port
            return (
                f"SSH refused the connection at its port {port}: start sshd there, or write the port at which it "
                "listens as `Port` into ~/.ssh/config"
            )
        case asyncssh.Error():
            return error.reason.rstrip(".") or type(error).__name__
        case OSError():
            return (os.strerror(error.errno) if error.errno else str(error)).lower()
    return str(error)
