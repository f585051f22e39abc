"""Where the peers of a federation serve their figures: one port after the other."""

from collections.abc import Iterable, Mapping

from peer.network.transport.addresses import split
from peer.spec.member import MAX_PORT

ANYWHERE = ("0.0.0.0", "::")
"""Hosts that stand for all addresses of a machine."""


def ports_of(first: str, ids: Iterable[str]) -> dict[str, str]:
    """host:port by id, the first of them at `first`."""
    host, _, port = first.rpartition(":")
    return {id: f"{host}:{int(port) + number}" for number, id in enumerate(ids)}


def why_no_ports(first: str, ring: Mapping[str, str | None]) -> str | None:
    """Why the peers, whose addresses `ring` has by id, cannot serve figures there; None if they can."""
    host, port = split(first)
    if port + len(ring) - 1 > MAX_PORT:
        highest = MAX_PORT - len(ring) + 1
        return f"`metrics` begins at port {port} and {len(ring)} are needed; begin with {highest} at most"
    listening = [split(address) for address in ring.values() if address]
    taken = {at for where, at in listening if where == host or host in ANYWHERE}
    for number, id in enumerate(ring):
        if port + number in taken:
            where = f"port {port + number}, where a peer listens"
            return f"`metrics` of `{id}` would be at {where}; begin with another port"
    return None
