"""Peers that run already, wherever and by whomever they were started, asked at their addresses.

`dfl-launch status` asks each peer once, `dfl-launch watch` asks again and again until all have finished, and
`dfl-launch dashboard` shows the same as a page. The peers go on, whatever happens here.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from launcher.certificates import AskingBundle, Credentials
from launcher.command_spec import resolved
from launcher.dashboard.server import Dashboard, beside, opened, read_address
from launcher.headline import Headline
from launcher.history import SOON_S, expiry_words
from launcher.monitor.live_table import Display, display, render
from launcher.monitor.polled_federation import PolledFederation, advice, in_trouble
from launcher.output import Output
from launcher.run_files import RunFiles
from launcher.supervision.supervisor import Stop
from launcher.table import HEAD, named, quantity
from peer.network.operator_client import PeerStatus, StatusAnswer, StatusClient
from peer.spec.federation import Spec
from peer.tasks import background, within
from peer.text import duration, number, printable

LONG_ID = 32
"""Characters of an id that are kept together, whatever the width of the screen."""


def status_command(arguments: argparse.Namespace, output: Output) -> int:
    """Ask every peer that can be asked once; 1 if one of them does not answer."""
    spec, chain = resolved(arguments), Credentials(arguments.certs, arguments.tls).any()
    answers = asyncio.run(ask(spec, chain))
    if output.as_json:
        output.document(status_document(spec, answers))
    else:
        output.console.print(status_table(spec, answers))
        said = {id: answer for id, answer in answers.items() if isinstance(answer, PeerStatus)}
        hint = advice(answers.values(), secure=bool(chain))
        over = "" if said else has_finished(arguments.federation)
        output.say(*filter(None, (on_disk(said), releases(said), next_expiry(said), hint, over)))
    return int(any(isinstance(answers[member.id], str) for member in spec.ring if member.address))


async def ask(spec: Spec, chain: AskingBundle) -> dict[str, StatusAnswer]:
    async with aclosing(StatusClient(spec.name, spec.addresses, chain)) as peers:
        return await peers.ask_all()


def has_finished(place: Path) -> str:
    """Say that the run in that directory is over, and what shows it; empty if it is not known to be."""
    if not RunFiles(place).summary.is_file():
        return ""
    return f"This run has finished: `dfl-launch summary {place}` and `dfl-launch report {place}` show what it came to."


def status_document(spec: Spec, answers: Mapping[str, StatusAnswer]) -> dict[str, Any]:
    """The status for programs: {federation, rounds, peers}, with each peer's answer, or why there is none."""
    peers = [
        {"id": member.id, "address": member.address, "answers": isinstance(answer, PeerStatus)}
        | (asdict(answer) if isinstance(answer, PeerStatus) else {"reason": answer})
        for member in spec.ring
        if (answer := answers[member.id])
    ]
    return {"federation": spec.name, "rounds": spec.rounds, "peers": peers}


def status_table(spec: Spec, answers: Mapping[str, StatusAnswer]) -> Table:
    """A row a peer; what is the matter goes on in a next line where there is no room."""
    made = Table(box=HEAD, pad_edge=False)
    made.add_column("peer", overflow="fold", min_width=min(LONG_ID, max(map(len, spec.ids))))
    for name in ("state", "round", Headline.from_spec(spec).figure.name, "sent"):
        made.add_column(name, no_wrap=True, justify="left" if name == "state" else "right")
    made.add_column("trouble", overflow="fold")
    for member in spec.ring:
        made.add_row(*(Text(printable(cell)) for cell in status_cells(member.address, member.id, answers[member.id])))
    return made


def status_cells(address: str | None, id: str, answer: StatusAnswer) -> list[str]:
    if isinstance(answer, str):
        return [id, "no answer", "", "", "", f"{answer} (at {address})" if address else answer]
    trouble = ", ".join(f"{one.id} {one.state} ({one.reason})" for one in in_trouble(answer))
    figures = [f"{answer.round}/{answer.rounds}", number(answer.figure), quantity(answer.bytes_sent)]
    alone = f"view {answer.view}, without {', '.join(answer.outside)}" if answer.outside else ""
    expires, now = answer.certificate_expires, time.time()
    expiry = f"its certificate {expiry_words(expires, now)}" if expires and expires - now < SOON_S else ""
    return [id, answer.state, *figures, ", ".join(filter(None, [alone, trouble, too_few(answer), expiry]))]


def on_disk(said: Mapping[str, PeerStatus]) -> str:
    """Say which round all that answer have on disk; empty if none says so."""
    known = [one.durable for one in said.values() if one.durable is not None]
    if not known:
        return ""
    return f"On disk at each peer that answers: {f'round {min(known)}' if min(known) >= 0 else 'nothing yet'}."


def releases(said: Mapping[str, PeerStatus]) -> str:
    """Say which releases the peers run, each with its peers if there are several; empty if none says so."""
    found: dict[str, list[str]] = {}
    for id, one in said.items():
        if one.release:
            found.setdefault(printable(one.release), []).append(id)
    if len(found) < 2:
        return "".join(f"All run dfl {name}." for name in found)
    each = (f"{named(ids)} dfl {name}" for name, ids in found.items())
    return f"Different releases: {'; '.join(each)}."


def next_expiry(said: Mapping[str, PeerStatus]) -> str:
    """Say when the first of the peers' certificates expires; empty without certificates."""
    found = [(one.certificate_expires, id) for id, one in said.items() if one.certificate_expires]
    if not found:
        return ""
    at, id = min(found)
    return f"The first certificate to expire is that of {id}: it {expiry_words(at, time.time())}."


def too_few(answer: PeerStatus) -> str:
    """Say that a decision waits for members, for whom, and since when by this machine's clock; empty if none waits."""
    if not (short := answer.shortage):
        return ""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - short.seconds))
    who = named([one.id for one in answer.awaited])
    return f"{short}; waiting for {who} since {since} ({duration(short.seconds)})"


POLL_SECONDS = 0.25
"""Seconds between an answer and the next question, and between two pictures."""


def watch_command(arguments: argparse.Namespace, output: Output, at: str | None = None) -> int:
    """Show the peers until all have finished; return 0, 1 if some were lost from sight, or 130 after Ctrl-C.

    at: HOST:PORT where they are shown as a page, too, if anywhere.
    """
    spec, chain = resolved(arguments), Credentials(arguments.certs, arguments.tls).any()
    federation = PolledFederation.from_spec(spec)
    if over := has_finished(arguments.federation):
        output.say(over)
    with opened(at) as dashboard:
        code = asyncio.run(_watch(federation, spec, chain, output, dashboard))
    if code is not None:
        output.say("The peers keep running.")
        return code
    output.console.print(render(federation, output.console))
    if outside := federation.outside:
        output.say(f"Excluded from the run: {', '.join(outside)}.")
    if lost := federation.unfinished:
        unseen = f"No peer answers any more; not seen to finish: {', '.join(lost)}."
        output.say(f"{unseen} `dfl-launch summary` shows whether they did.")
        return 1
    return 0


async def _watch(
    federation: PolledFederation, spec: Spec, chain: AskingBundle, output: Output, dashboard: Dashboard | None
) -> int | None:
    """The exit code that a signal asks for; None when there is nothing more to see."""
    client = StatusClient(spec.name, spec.addresses, chain)
    async with beside(dashboard, output.say, spec, federation, chain) as feed, aclosing(client) as peers:
        with Stop().listening() as stop, display(output.console) as screen:
            screen.say(f"{spec.protocol.name}, {len(spec.ids)} peers, asked at their addresses")
            for id in federation.unasked:
                screen.say(f"{id} only dials out and cannot be asked: its neighbours tell which round is on its disk")
            code = await _follow(federation, peers, screen, stop)
        if feed:
            feed.end("All peers have finished, or none answers any more." if code is None else "No longer watched.")
    return code


async def _follow(federation: PolledFederation, peers: StatusClient, screen: Display, stop: Stop) -> int | None:
    news: dict[str, StatusAnswer] = {}

    async def ask_again_and_again(id: str) -> None:
        while not federation.is_over(id):
            answer = await peers.ask_all([id])
            news.update(answer)
            await asyncio.sleep(POLL_SECONDS)

    hinted = False
    async with background() as tasks:
        for id in federation.peers.keys() - federation.unasked:
            tasks.create_task(ask_again_and_again(id))
        while not federation.all_unreachable():
            heard = dict(news)
            news.clear()
            for line in federation.record(heard, time.time()):
                screen.say(line)
            if federation.silence is None and not hinted and (hint := advice(heard.values(), peers.secure)):
                hinted = True
                screen.say(hint)
            screen.show(federation)
            if await within(POLL_SECONDS, stop.asked.wait()):
                return stop.code
    return None


def dashboard_command(arguments: argparse.Namespace, output: Output) -> int:
    return watch_command(arguments, output, read_address(arguments.at))
