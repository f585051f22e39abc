"""Who listens at an address of this machine."""

from contextlib import suppress

import psutil

from peer.network.transport.addresses import split


def holder(address: str) -> str | None:
    """The process that listens at the port of `host:port`, in words; None where that cannot be seen."""
    _, port = split(address)
    with suppress(psutil.Error, OSError):  # on some systems only root may look
        for connection in psutil.net_connections("tcp"):
            here = connection.laddr and connection.laddr.port == port
            if here and connection.status == psutil.CONN_LISTEN and connection.pid:
                return f"{psutil.Process(connection.pid).name()}, process {connection.pid}"
    return None
