"""`dfl-launch expel`: has members consent that one is voted out, and waits until it is if they are enough."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

from launcher.certificate_files import certificate_files
from launcher.commands import orders
from launcher.output import Output
from launcher.views import told_in_a_line
from peer.errors import FailedError, InputError
from peer.network.transport.asking import PeerStatus, StatusClient
from peer.network.transport.tls import Certificates
from peer.network.views.orders import Ask, UnansweredError
from peer.spec.federation import Spec
from peer.views.statements import Decided, Denied, Expel, Reply
from peer.views.view import View

TO_DECIDE = 15.0
"""Seconds, beside `absence`, for which a decision is awaited that has enough consents."""
TO_LOOK = 4.0
"""Seconds for which it is when too few consent here: others may have done so before."""


def expel(
    spec: Spec,
    id: str,
    by: Sequence[str],
    certs: Path | None,
    tls: tuple[Path, Path, Path] | None,
    output: Output,
) -> int:
    """FailedError where it is not voted out: too few consent, or it cannot be."""
    orders.check(spec, [id, *by], "be voted out")
    if id in by:
        raise InputError(f"{id} cannot consent that it is voted out itself; leave it out of --by, or use `leave`")
    consenting = _consenting(spec, id, by, certs, tls)
    said = asyncio.run(_expel(spec, id, consenting))
    output.say(said)
    return 0


def _consenting(
    spec: Spec, id: str, by: Sequence[str], certs: Path | None, tls: tuple[Path, Path, Path] | None
) -> dict[str, Certificates | None]:
    """Whose consent is given, each with its own certificate."""
    others = [other for other in spec.ids if other != id]
    if tls and not by:
        others = [Certificates.of_anybody(*tls).id]
    elif certs and not by:
        others = [other for other in others if certificate_files(certs, other)["key"].exists()]
    if not (ids := by or others):
        raise InputError(f"{certs}: holds the certificate of nobody who could vote {id} out")
    return {other: orders.own_certificate(other, certs, tls) for other in ids}


async def _expel(spec: Spec, id: str, consenting: Mapping[str, Certificates | None]) -> str:
    clock = asyncio.get_running_loop().time
    async with AsyncExitStack() as stack:
        asks = {
            one: await stack.enter_async_context(orders.member(spec, one, certificate))
            for one, certificate in consenting.items()
        }
        given, silent = set[str](), dict[str, str]()
        began, seconds = clock(), TO_LOOK
        while clock() < began + seconds:
            replies = await asyncio.gather(*(_consent(ask, id) for ask in asks.values()))
            for one, reply in zip(asks, replies, strict=True):
                if isinstance(reply, Decided):
                    return told_in_a_line(next(one.view for one in reply.decisions if id in one.view.expelled))
                if isinstance(reply, Denied):
                    raise FailedError(f"{id} cannot be voted out: {reply.why}")
                if isinstance(reply, str):
                    silent[one] = reply
                else:
                    given.add(one)
            if given and await _is_quorum(spec, given, consenting):
                seconds = spec.absence + TO_DECIDE
            await asyncio.sleep(0.5)
    raise FailedError(_short(id, given, {one: why for one, why in silent.items() if one not in given}))


async def _consent(ask: Ask, id: str) -> Reply | str:
    """The member's answer, or why there is none."""
    try:
        return await ask(Expel(0, id))
    except UnansweredError as error:
        return str(error)


async def _is_quorum(spec: Spec, given: set[str], consenting: Mapping[str, Certificates | None]) -> bool:
    """Whether these are enough of the present members, by what they themselves say of who is one."""
    faulty = spec.tolerated(any(consenting.values()))
    chain = next((found.read() for found in consenting.values() if found), None)
    async with aclosing(StatusClient(spec.name, spec.addresses, chain)) as peers:
        answers = [one for one in (await peers.ask_all(given)).values() if isinstance(one, PeerStatus)]
    newest = max(answers, key=lambda one: one.view, default=None)
    outside = newest.outside if newest else ()
    return View(0, tuple(id for id in spec.ids if id not in outside), 0).is_quorum(given, faulty)


def _short(id: str, given: set[str], silent: Mapping[str, str]) -> str:
    who = ", ".join(sorted(given)) or "nobody"
    said = f"{id} is not voted out: the consent of {who} is noted, and more than half of the members must consent"
    return said + "".join(f"; {one} does not answer ({why})" for one, why in silent.items())
