"""`dfl-launch leave`: tells a member to leave, and waits until the others go on without it."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from launcher.commands import orders
from launcher.output import Output
from launcher.views import told_in_a_line
from peer.errors import FailedError
from peer.network.transport.asking import PeerStatus, StatusClient
from peer.network.transport.tls import Certificates
from peer.network.views.orders import UnansweredError
from peer.spec.federation import Spec
from peer.views.statements import Decided, Denied, Leave
from peer.views.view import View

LAST_LOOKS = 10
"""Times that the others are asked what was decided, a second apart, when the one that leaves has ended."""


def leave(spec: Spec, id: str, certs: Path | None, tls: tuple[Path, Path, Path] | None, output: Output) -> int:
    """FailedError says why it stays."""
    orders.check(spec, [id], "leave")
    said = asyncio.run(_leave(spec, id, orders.own_certificate(id, certs, tls)))
    output.say(said)
    return 0


async def _leave(spec: Spec, id: str, certificates: Certificates | None) -> str:
    heard = False
    async with orders.member(spec, id, certificates) as ask:
        while True:
            try:
                reply = await ask(Leave(0))
            except UnansweredError as error:
                if heard and (said := await _decided(spec, id, certificates)):
                    return said
                raise FailedError(f"{id} does not answer ({error})" + ", and is still a member" * heard) from None
            heard = True
            if isinstance(reply, Denied):
                raise FailedError(f"{id} cannot leave: {reply.why}")
            views = [one.view for one in reply.decisions] if isinstance(reply, Decided) else []
            if views and id not in views[-1].members:
                return told_in_a_line(last_left(id, views))


def last_left(id: str, views: Sequence[View]) -> View:
    """The first of the views that have been without it ever since."""
    stays = max((at for at, view in enumerate(views) if id in view.members), default=-1)
    return views[stays + 1]


async def _decided(spec: Spec, id: str, certificates: Certificates | None) -> str | None:
    """What the others say once it has ended."""
    others = [other for other in spec.ids if other != id]
    chain = certificates.read() if certificates else None
    async with aclosing(StatusClient(spec.name, spec.addresses, chain)) as peers:
        for _ in range(LAST_LOOKS):
            answers = (await peers.ask_all(others)).values()
            known = [one for one in answers if isinstance(one, PeerStatus) and id in one.outside]
            if known:
                return f"view {known[0].view} from round {known[0].first} on: without {id}"
            await asyncio.sleep(1)
    return None
