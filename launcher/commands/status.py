"""`dfl-launch status`: what the peers of a federation say of themselves, wherever and by whomever they were started."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from launcher.certificates import any_certificate
from launcher.formatting import quantity
from launcher.headline import Headline
from launcher.monitor.status_feed import in_trouble
from launcher.output import Output
from launcher.table import HEAD
from peer.network.transport.asking import SHUT_AT_ONCE, Answer, PeerStatus, StatusClient
from peer.network.transport.tls import Certificates, Chain
from peer.spec.federation import Spec
from peer.telemetry.events import MAX_NAMED
from peer.text import duration, number, printable

LONG_ID = 32
"""Characters of an id that are kept together, whatever the width of the screen."""


def certificates(directory: Path | None, files: tuple[Path, Path, Path] | None) -> Chain | None:
    """Those with which peers are asked: any of a directory, or the CA's, a certificate and its key. InputError."""
    if files:
        return Certificates.of_anybody(*files).read()
    return any_certificate(directory).read() if directory else None


def client(spec: Spec, chain: Chain | None) -> StatusClient:
    return StatusClient(spec.name, spec.addresses, chain)


def status(spec: Spec, chain: Chain | None, output: Output) -> int:
    """Asks every peer that can be asked once; 1 if one of them does not answer."""
    answers = asyncio.run(ask(spec, chain))
    if output.as_json:
        output.document(plain(spec, answers))
    else:
        output.console.print(table(spec, answers))
        if not chain and (hint := encrypted(answers)):
            output.say(hint)
    return int(any(isinstance(answers[member.id], str) for member in spec.ring if member.address))


async def ask(spec: Spec, chain: Chain | None) -> dict[str, Answer]:
    async with aclosing(client(spec, chain)) as peers:
        return await peers.ask_all()


def encrypted(answers: Mapping[str, Answer]) -> str | None:
    """What may be the matter when peers hang up on whoever asks them without certificates."""
    if any(answer in (SHUT_AT_ONCE, "connection closed", "connection reset") for answer in answers.values()):
        return "Peers that have certificates answer only to certificates: give theirs with --certs or --tls."
    return None


def plain(spec: Spec, answers: Mapping[str, Answer]) -> dict[str, Any]:
    """For programs: {federation, rounds, peers}; of each peer what it says, or the reason why there is no answer."""
    peers = [
        {"id": member.id, "address": member.address, "answers": isinstance(answer, PeerStatus)}
        | (asdict(answer) if isinstance(answer, PeerStatus) else {"reason": answer})
        for member in spec.ring
        if (answer := answers[member.id])
    ]
    return {"federation": spec.name, "rounds": spec.rounds, "peers": peers}


def table(spec: Spec, answers: Mapping[str, Answer]) -> Table:
    """A row a peer; what is the matter goes on in a next line where there is no room."""
    made = Table(box=HEAD, pad_edge=False)
    made.add_column("peer", overflow="fold", min_width=min(LONG_ID, max(map(len, spec.ids))))
    for name in ("state", "round", Headline.of(spec).name, "sent"):
        made.add_column(name, no_wrap=True, justify="left" if name == "state" else "right")
    made.add_column("trouble", overflow="fold")
    for member in spec.ring:
        made.add_row(*(Text(printable(cell)) for cell in cells(member.address, member.id, answers[member.id])))
    return made


def cells(address: str | None, id: str, answer: Answer) -> list[str]:
    if isinstance(answer, str):
        return [id, "no answer", "", "", "", f"{answer} (at {address})" if address else answer]
    trouble = ", ".join(f"{one.id} {one.state} ({one.reason})" for one in in_trouble(answer))
    figures = [f"{answer.round}/{answer.rounds}", number(answer.figure), quantity(answer.bytes_sent)]
    alone = f"view {answer.view}, without {', '.join(answer.outside)}" if answer.outside else ""
    return [id, answer.state, *figures, ", ".join(filter(None, [alone, trouble, too_few(answer)]))]


def too_few(answer: PeerStatus) -> str:
    """That a decision waits for members, for whom, and since when by this machine's clock; empty where none does."""
    if not (short := answer.shortage):
        return ""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - short.seconds))
    more = len(answer.awaited) - MAX_NAMED
    who = ", ".join(one.id for one in answer.awaited[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{short}; waiting for {who} since {since} ({duration(short.seconds)})"
