"""What a peer waits for: its neighbours at the start, the staleness bound of each round, its neighbours at the end."""

import asyncio
from contextlib import suppress
from math import inf

from peer.errors import FailedError
from peer.network.membership.durability import NOTHING, Durability
from peer.network.membership.edges import CORRECT, ONE_WAY, Edges, Neighbour
from peer.network.network import Network
from peer.network.streams.handshake import MAKE_ALIKE
from peer.spec.federation import Spec
from peer.tasks import background
from peer.telemetry.events import MAX_NAMED, Awaited, Report, Waiting
from peer.views.view import STALENESS_BOUND


async def join(edges: Edges, report: Report, patience: float) -> None:
    """Wait for a handshake with every neighbour; FailedError after `patience` seconds names who did not come."""
    try:
        async with asyncio.timeout(None if patience == inf else patience), background() as group:
            group.create_task(_say_for_whom(edges, report))
            await edges.complete()
    except TimeoutError:
        if not (missing := edges.missing()):
            return  # the last one came in the same moment
        who = "; ".join(f"{neighbour.place}: {why}" for neighbour, why in missing)
        raise FailedError(f"gave up after {patience:g} s of waiting for {who}{_way_out(missing)}") from None
    report(_joining([]))


def _way_out(missing: list[tuple[Neighbour, str]]) -> str:
    """What to do, unless the reasons say so themselves."""
    reasons = [why for _, why in missing]
    if not all("refused:" in why or "certificate" in why or why.endswith((ONE_WAY, CORRECT)) for why in reasons):
        return "; start it or correct its address"
    if all("refused:" in why for why in reasons) and not any(MAKE_ALIKE in why for why in reasons):
        return "; make the peers agree"
    return ""


async def await_staleness_bound(durability: Durability, spec: Spec, round: int, report: Report, seconds: float) -> None:
    """Wait until nobody is more than W rounds behind `round` (rule R6); say for whom whenever that has changed.

    Shorter waits than so many seconds are not worth a word.

    The one who is behind need not be a neighbour: then no link is down here, and nothing else would tell.
    """
    said = None
    while True:
        try:
            async with asyncio.timeout(seconds):
                await durability.allows(round)
        except TimeoutError:
            behind = durability.behind(round)  # nobody, if the news came in the same moment
            if behind and (waiting := _behind_bound(behind, spec, round)) != said:
                report(waiting)
                said = waiting
            continue
        if said:
            over = f"nobody is too far behind any more: round {round} begins"
            report(Waiting(cause="staleness", awaited=(), sentence=over))
        return


async def drain(network: Network, patience: float = inf) -> list[str]:
    """Wait until the neighbours have all on disk that they may ask for (rule R8); those of whom that was not heard.

    The wait ends when those that are behind have given no sign of life for `patience` seconds.
    """
    edges, durability, end = network.edges, network.durability, network.last_round
    clock = asyncio.get_running_loop().time
    began = clock()
    while behind := [n for n in edges.neighbours.values() if durability.of(n.id) < edges.last(n.id, end)]:
        left = max(began, *(neighbour.heard for neighbour in behind)) + patience - clock()
        if left < 0.01:
            return [neighbour.id for neighbour in behind]
        with suppress(TimeoutError):
            async with asyncio.timeout(None if left == inf else left):
                await durability.beyond(durability.version)
    return []


async def _say_for_whom(edges: Edges, report: Report) -> None:
    said = None
    while True:
        await asyncio.sleep(1)
        waiting = _joining(edges.missing())
        if waiting != said:
            report(waiting)
            said = waiting


def _behind_bound(behind: dict[str, int], spec: Spec, round: int) -> Waiting:
    """Those who are furthest behind, at most MAX_NAMED, and how many there are besides."""
    addresses = spec.addresses
    first = sorted(behind, key=lambda id: behind[id])[:MAX_NAMED]
    who = tuple(Awaited(id, addresses[id], _on_disk(behind[id], round)) for id in first)
    others = len(behind) - len(first)
    named = ", ".join(map(str, who)) + (f" and {others} others" if others else "")
    sentence = f"round {round} cannot begin: waiting for {named}"
    return Waiting(cause="staleness", awaited=who, others=others, sentence=sentence)


def _on_disk(durable: int, round: int) -> str:
    known = f"only its round {durable}" if durable > NOTHING else "no round of it"
    return f"{known} is known to be on disk, {round - STALENESS_BOUND} is needed"


def _joining(missing: list[tuple[Neighbour, str]]) -> Waiting:
    who = tuple(Awaited(neighbour.id, neighbour.address, why) for neighbour, why in missing)
    sentence = f"waiting for {'; '.join(map(str, who))}" if who else "all neighbours are here"
    return Waiting(cause="join", awaited=who, sentence=sentence)
