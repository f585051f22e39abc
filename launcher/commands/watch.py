"""`dfl-launch watch`: the live view of peers that somebody else has started, here or elsewhere."""

import asyncio
import signal
import time
from collections.abc import Coroutine
from contextlib import aclosing

from rich.console import Console

from launcher.commands.status import client, encrypted
from launcher.dashboard.dashboard import Dashboard
from launcher.headline import Headline
from launcher.monitor.asked_federation import AskedFederation
from launcher.monitor.picture import picture
from launcher.monitor.terminal import Display, display
from launcher.output import Output
from peer.network.transport.asking import Answer, StatusClient
from peer.network.transport.tls import Chain
from peer.spec.federation import Spec
from peer.tasks import background

PAUSE = 0.25
"""Seconds between an answer and the next question, and between two pictures."""
STOPS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
"""The exit code after each signal that ends the view; the peers go on."""


def watch(spec: Spec, chain: Chain | None, output: Output, dashboard: Dashboard | None = None) -> int:
    """Shows the peers until all have finished: 0. 1 if some were lost from sight, 130 after Ctrl-C."""
    unasked = [member.id for member in spec.ring if not member.address]
    federation = AskedFederation(spec.ids, spec.rounds, Headline.of(spec), unasked)
    watching = _watch(federation, spec, chain, output.console)
    code = asyncio.run(_beside(dashboard, spec, federation, output, watching) if dashboard else watching)
    if code is not None:
        output.say("The peers go on.")
        return code
    output.console.print(picture(federation, output.console))
    if outside := federation.outside:
        output.say(f"Lost, and the others went on without: {', '.join(outside)}.")
    if lost := federation.unfinished:
        said = f"Nobody answers any more. It was not seen that {', '.join(lost)} finished: `dfl-launch summary` tells."
        output.say(said)
        return 1
    return 0


async def _beside(
    dashboard: Dashboard,
    spec: Spec,
    federation: AskedFederation,
    output: Output,
    watching: Coroutine[None, None, int | None],
) -> int | None:
    """What is watched, on a page, too."""
    from launcher.dashboard.feed import Feed  # or every `watch` would wait for it

    output.say(f"dashboard: {dashboard.url}")
    async with dashboard.showing(Feed(spec, federation), output.say) as feed:
        code = await watching
        feed.end("Nobody answers any more, or all have finished." if code is None else "Nobody watches any more.")
    return code


async def _watch(federation: AskedFederation, spec: Spec, chain: Chain | None, console: Console) -> int | None:
    """The exit code that a signal asks for; None when there is nothing more to see."""
    stop: asyncio.Queue[int] = asyncio.Queue()
    for number, code in STOPS.items():
        asyncio.get_running_loop().add_signal_handler(number, stop.put_nowait, code)
    async with aclosing(client(spec, chain)) as peers:
        with display(console) as screen:
            screen.say(f"{spec.protocol.name}, {len(spec.ids)} peers, asked at their addresses")
            for id in federation.unasked:
                screen.say(f"{id} only dials out and cannot be asked: its neighbours tell which round is on its disk")
            return await _follow(federation, peers, screen, stop)


async def _follow(
    federation: AskedFederation, peers: StatusClient, screen: Display, stop: asyncio.Queue[int]
) -> int | None:
    news: dict[str, Answer] = {}

    async def ask_again_and_again(id: str) -> None:
        while not federation.is_over(id):
            answer = await peers.ask_all([id])
            news.update(answer)
            await asyncio.sleep(PAUSE)

    hinted = False
    async with background() as tasks:
        for id in federation.peers.keys() - federation.unasked:
            tasks.create_task(ask_again_and_again(id))
        while not federation.gone(time.time()):
            heard = dict(news)
            news.clear()
            for line in federation.hear(heard, time.time()):
                screen.say(line)
            if not (hinted or peers.secure or federation.met) and (hint := encrypted(heard)):
                hinted = True
                screen.say(hint)
            screen.show(federation)
            try:
                return await asyncio.wait_for(stop.get(), PAUSE)
            except TimeoutError:
                continue
    return None
