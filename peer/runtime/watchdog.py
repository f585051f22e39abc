"""For as long as a peer runs: watches its neighbours.

One that is lost is told of every minute, or ends the run; one that lives and sends nothing is told of.
"""

import asyncio
from collections.abc import Callable
from math import inf

from peer.errors import FailedError
from peer.network.membership.edges import Edges, Neighbour
from peer.network.network import Network
from peer.network.wire.frames import Key
from peer.runtime.bounds import Reminders
from peer.runtime.checkpointer import LostError
from peer.runtime.seat import Seat
from peer.spec.federation import Spec
from peer.telemetry.events import Awaited, Lost, Report, Waiting


async def watch_lost(
    edges: Edges, spec: Spec, seat: Seat, running: Callable[[], bool], report: Report, reminders: Reminders
) -> None:
    """A neighbour that is silent, or takes nothing, for longer than `patience`: say so now and then, or fail.

    It fails with `on_loss: stop` only. Who is silent where members change is left out, or waited for with all others
    that are away.
    """
    clock = asyncio.get_running_loop().time
    said: dict[str, float] = {}
    while True:
        await asyncio.sleep(reminders.look)
        for neighbour in [*edges.neighbours.values()]:
            heard = inf if seat.can_be_lost else neighbour.heard
            rejecting = neighbour.rejecting if neighbour.rejects else inf
            lost = clock() - min(heard, rejecting)
            if not running() or neighbour.state == "left" or lost < spec.patience:
                said.pop(neighbour.id, None)
                continue
            how = "so" if rejecting < heard else "silent"
            why = neighbour.rejects or neighbour.reason
            who = f"{neighbour.place} ({why}), {how} for {lost:.0f} s"
            if spec.on_loss == "stop":
                raise FailedError(f"stopped because of {who}; start it again, then this peer")
            if clock() - said.get(neighbour.id, -reminders.lost_again) >= reminders.lost_again:
                said[neighbour.id] = clock()
                report(
                    Lost(neighbour=neighbour.id, sentence=f"still waiting for {who}; if it has ended, start it again")
                )


async def watch_forgotten(edges: Edges, joining: Callable[[], bool], faulty: int = 0) -> None:
    """Whom all its receivers refuse because it is behind what it had announced cannot go on: LostError.

    The word of so many as may lie is not enough: if it is true, the others go on without this peer by themselves.
    """
    while True:
        await asyncio.sleep(1)
        receivers = [edges.neighbours[id] for id in edges.peers("send")]
        if joining() and len(receivers) > faulty and all(neighbour.ahead for neighbour in receivers):
            raise LostError(
                "this peer has lost rounds that it had on its disk, as all neighbours say; when the others have gone "
                "on without it, it is taken in anew"
            )


async def watch_stalled(network: Network, report: Report, reminders: Reminders) -> None:
    """A neighbour that gives signs of life, and from which the message that is waited for does not come: say so.

    It may have more to train, or its own neighbour keeps it waiting; then this is over some time. It may also run other
    code, or not tell the truth: then nothing else would show it. No deadline could tell the one from the other.
    """
    clock = asyncio.get_running_loop().time
    since: dict[str, tuple[Key, int, float]] = {}
    said: dict[str, float] = {}
    while True:
        await asyncio.sleep(reminders.look)
        now, before = clock(), since
        since, stalled, due = {}, dict[str, Awaited](), False
        for neighbour, key, frames in network.stalled():
            id, seen = neighbour.id, before.get(neighbour.id)
            since[id] = seen if seen and seen[:2] == (key, frames) else (key, frames, now)
            waited = now - since[id][2]
            told = now - said.get(id, -reminders.stalled_again) < reminders.stalled_again
            if (neighbour.state == "up" or neighbour.rejects) and waited >= reminders.stalled and not told:
                said[id], due = now, True
            stalled[id] = _stalled(neighbour, key.round, waited)
        back = [id for id in said if since.get(id) != before.get(id)]
        for id in back:
            del said[id]
        if due or back:
            report(_waiting([stalled[id] for id in said], back))


def _stalled(neighbour: Neighbour, round: int, waited: float) -> Awaited:
    reason = f"nothing more of round {round} for {waited:.0f} s; it says that it is {neighbour.doing}"
    return Awaited(neighbour.id, neighbour.address, "; ".join(filter(None, [reason, neighbour.rejects])))


def _waiting(stalled: list[Awaited], back: list[str]) -> Waiting:
    """All who are stalled now, and who is so no longer."""
    news = [f"{id} sends again" for id in back]
    if stalled:
        news.append(f"{'still ' if back else ''}waiting for {', '.join(map(str, stalled))}")
    return Waiting(cause="stalled", awaited=tuple(stalled), sentence="; ".join(news))
