"""Which peer runs on which host, where it listens there and how the others reach it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from launcher.engines.ssh.connection import named
from launcher.engines.ssh.hosts import Host
from peer.errors import InputError, nearest
from peer.network.transport.addresses import is_loopback
from peer.spec.federation import Spec
from peer.spec.member import MAX_PORT, Member


@dataclass(frozen=True)
class Place:
    """Of one peer."""

    id: str
    host: Host
    address: str | None
    """host:port by which the others reach it; None where it only dials out."""
    listen: str
    """host:port at which it accepts connections there."""


def placement(hosts: Sequence[Host], spec: Spec) -> dict[str, Place]:
    """By id; InputError where a peer has no host or two, or hosts.yaml names one that the ring does not have.

    An address of the ring that others can reach stays as it is, unless the host has one of its own.
    """
    hosted = assigned(hosts, spec.ids)
    members = {member.id: member for member in spec.ring}
    places = {}
    for host in hosts:
        name = host.address or named(host)
        for offset, id in enumerate(id for id in spec.ids if hosted[id] is host):
            places[id] = _place(host, name, members[id], host.port + offset)
    return {id: places[id] for id in spec.ids}


def assigned(hosts: Sequence[Host], ids: Sequence[str]) -> dict[str, Host]:
    """The host of each peer: the one that names it, else the next of those that name none."""
    found: dict[str, Host] = {}
    for host in hosts:
        for id in host.peers or ():
            if id not in ids:
                raise InputError(f"--hosts: `{host.host}` has `{id}`, which is not in the ring; {nearest(id, ids)}")
            if id in found:
                raise InputError(f"--hosts: `{id}` is on {found[id].host} and on {host.host}; leave it on one")
            found[id] = host
    left = [id for id in ids if id not in found]
    free = [host for host in hosts if host.peers is None]
    if left and not free:
        raise InputError(f"--hosts: {', '.join(left)} on no host; add them to the `peers` of one, or a host without")
    return found | dict(zip(left, cycle(free), strict=False))


def _place(host: Host, name: str, member: Member, port: int) -> Place:
    if port > MAX_PORT:
        raise InputError(f"--hosts: `{host.host}` has more peers than ports from {host.port}; give another `port`")
    address = f"{name}:{port}"
    if host.address is None and member.address and not is_loopback(member.address):
        address = member.address
        port = int(address.rpartition(":")[2])
    everywhere = "[::]" if address.startswith("[") else "0.0.0.0"
    return Place(member.id, host, None if member.dials_out else address, f"{host.listen or everywhere}:{port}")
