"""Whether a connection to an address can be made from here, tried once with plain TCP and closed at once."""

import asyncio
import socket
from dataclasses import dataclass

from peer.network.transport.addresses import split

SECONDS = 3.0
"""For which a name or a host may keep silent."""


@dataclass(frozen=True)
class Reach:
    """How it went. That nobody listens yet is no fault: the host is there and answered."""

    right: bool
    said: str
    accepted: bool = False
    """Somebody listens there, whoever that is."""


async def reach(address: str, seconds: float = SECONDS) -> Reach:
    """`host:port` looked up and called, at each of its addresses until one answers."""
    host, port = split(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return Reach(False, f"the name {host} is not resolved within {seconds:g} s; see to this machine's DNS")
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        return Reach(False, f"the name {host} is not known here ({why}); correct it in the ring, or give an IP address")
    met = [await _call(family, place, seconds) for family, _, _, _, place in found]
    return next((one for one in met if one.right), met[-1])


async def _call(family: int, place: tuple[object, ...], seconds: float) -> Reach:
    port = place[1]
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().sock_connect(probe, place)
    except ConnectionRefusedError:
        return Reach(True, "reached; nobody listens there yet, which is right before that peer's start")
    except TimeoutError:
        return Reach(
            False,
            f"no answer within {seconds:g} s: is the machine up, and do firewalls let this one reach its port {port}?",
        )
    except OSError as error:
        return Reach(
            False, f"{(error.strerror or str(error)).lower()}: see to the address and to this machine's routes"
        )
    return Reach(True, "something accepts connections there", accepted=True)
