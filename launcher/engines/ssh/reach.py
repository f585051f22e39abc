"""Whether each peer can be reached from its neighbours: somebody listens at its address and is dialled from there."""

import asyncio
import secrets
from collections.abc import Collection, Mapping

from launcher.engines.ssh.agent import RefusedError
from launcher.engines.ssh.placement import Place
from launcher.engines.ssh.visit import Visit
from peer.spec.federation import Spec
from peer.topology.graphs import receivers, senders

DIAL = 5.0
"""Seconds that an attempt to reach an address may take."""


def neighbours(spec: Spec) -> dict[str, list[str]]:
    """Whom each peer dials, by id: all others where the protocol puts the ring in another order."""
    graph = "complete" if spec.protocol.reorders else spec.protocol.graph
    found = {}
    for id in spec.ids:
        found[id] = [*dict.fromkeys((*receivers(graph, spec.ids, id), *senders(graph, spec.ids, id)))]
    return found


async def unreachable(
    spec: Spec, places: Mapping[str, Place], visits: Mapping[str, Visit], running: Collection[str]
) -> list[str]:
    """What is wrong between peers on hosts that can be visited; those that run listen at their addresses themselves."""
    met = {id: visits[place.host.host] for id, place in places.items() if place.host.host in visits}
    tokens = {id: "" if id in running or not places[id].address else secrets.token_hex(8) for id in met}
    refused = await asyncio.gather(*(_listen(met[id], places[id], tokens[id]) for id in met))
    deaf = {id: why for id, why in zip(met, refused, strict=True) if why}
    pairs = [(id, other) for id, others in neighbours(spec).items() for other in others]
    pairs = [(id, other) for id, other in pairs if id in met and other in met and other not in deaf]
    pairs = [(id, other) for id, other in pairs if places[other].address]
    reasons = await asyncio.gather(*(_dial(met[id], places[other].address, tokens[other]) for id, other in pairs))
    wrong = [f"{id} cannot listen at {places[id].listen} of {places[id].host.host}: {why}" for id, why in deaf.items()]
    return wrong + [
        _sentence(places[id], places[other], why) for (id, other), why in zip(pairs, reasons, strict=True) if why
    ]


async def _listen(visit: Visit, place: Place, token: str) -> str:
    try:
        if token:
            await visit.ask("listen", address=place.listen, token=token)
    except RefusedError as error:
        return f"{error}; end what uses it, or give the host another `port` or `listen`"
    return ""


async def _dial(visit: Visit, address: str | None, token: str) -> str:
    try:
        why: str = await visit.ask("dial", address=address, token=token, seconds=DIAL)
    except RefusedError as error:
        return str(error)
    return why


def _sentence(caller: Place, called: Place, why: str) -> str:
    port = (called.address or "").rpartition(":")[2]
    way_out = f"give {called.host.host} another `address`"
    if "else" not in why and "name" not in why:
        way_out = f"open port {port} of {called.host.host} to {caller.host.host}, or {way_out}"
    return (
        f"{caller.id} on {caller.host.host} cannot reach {called.id} on {called.host.host} at {called.address} "
        f"({why}): {way_out}"
    )
