"""What an operator asks of members about views, by those members' own certificates where there are certificates.

`dfl-launch leave` tells a member to leave, and waits until the others go on without it. `dfl-launch expel` has members
consent to the expulsion of one, and waits for the decision if they are enough.
"""

import argparse
import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from pathlib import Path

from launcher.output import Output
from launcher.run_files import certificate_files
from launcher.views import view_as_log_line
from peer.errors import FailedError, InputError, suggest
from peer.network.operator_client import Ask, PeerStatus, StatusClient, UnansweredError, connect
from peer.network.transport.tls import CertificatePaths
from peer.spec.agreement import digests
from peer.spec.federation import Spec
from peer.views.statements import Decided, Denied, Expel, Leave, Reply
from peer.views.view import View


def check_ids(spec: Spec, ids: Collection[str], what: str) -> None:
    """InputError where members stay the same, or one of these is none of the federation."""
    if spec.on_loss != "bypass":
        raise InputError(
            f"nobody can {what} with `on_loss: {spec.on_loss}`, as the others would wait; that needs `on_loss: bypass` "
            "from the start of the run"
        )
    if strangers := [id for id in ids if id not in spec.ids]:
        raise InputError(f"`{strangers[0]}` is none of the ring; {suggest(strangers[0], spec.ids)}")


def own_certificate(id: str, directory: Path | None, files: tuple[Path, Path, Path] | None) -> CertificatePaths | None:
    """That member's, of a directory or by its three files; None where there are none. InputError if it is another's."""
    if files:
        found = CertificatePaths.of_anybody(*files)
        if found.id != id:
            raise InputError(f"{files[1]}: is made out to {found.id or 'nobody'}; {id} obeys its own certificate only")
    elif directory:
        found = CertificatePaths(id, **certificate_files(directory, id))
    else:
        return None
    found.read()
    return found


def member_connection(spec: Spec, id: str, certificates: CertificatePaths | None) -> AbstractAsyncContextManager[Ask]:
    """Ask that member; UnansweredError where there is no answer."""
    agreement = spec.agreement()
    return connect(id, spec.addresses, agreement, digests(agreement), certificates)


LAST_LOOKS = 10
"""Times that the others are asked what was decided, a second apart, when the one that leaves has ended."""


def leave(spec: Spec, id: str, certs: Path | None, tls: tuple[Path, Path, Path] | None, output: Output) -> int:
    """FailedError says why it stays."""
    check_ids(spec, [id], "leave")
    said = asyncio.run(_leave(spec, id, own_certificate(id, certs, tls)))
    output.say(said)
    return 0


async def _leave(spec: Spec, id: str, certificates: CertificatePaths | None) -> str:
    heard = False
    async with member_connection(spec, id, certificates) as ask:
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
                return view_as_log_line(last_left(id, views))


def last_left(id: str, views: Sequence[View]) -> View:
    """The first of the views that have been without it ever since."""
    stays = max((at for at, view in enumerate(views) if id in view.members), default=-1)
    return views[stays + 1]


async def _decided(spec: Spec, id: str, certificates: CertificatePaths | None) -> str | None:
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
    check_ids(spec, [id, *by], "be voted out")
    if id in by:
        raise InputError(f"{id} cannot consent that it is voted out itself; leave it out of --by, or use `leave`")
    consenting = _consenting(spec, id, by, certs, tls)
    said = asyncio.run(_expel(spec, id, consenting))
    output.say(said)
    return 0


def _consenting(
    spec: Spec, id: str, by: Sequence[str], certs: Path | None, tls: tuple[Path, Path, Path] | None
) -> dict[str, CertificatePaths | None]:
    """Whose consent is given, each with its own certificate."""
    others = [other for other in spec.ids if other != id]
    if tls and not by:
        others = [CertificatePaths.of_anybody(*tls).id]
    elif certs and not by:
        others = [other for other in others if certificate_files(certs, other)["key"].exists()]
    if not (ids := by or others):
        raise InputError(f"{certs}: holds the certificate of nobody who could vote {id} out")
    return {other: own_certificate(other, certs, tls) for other in ids}


async def _expel(spec: Spec, id: str, consenting: Mapping[str, CertificatePaths | None]) -> str:
    clock = asyncio.get_running_loop().time
    async with AsyncExitStack() as stack:
        asks = {
            one: await stack.enter_async_context(member_connection(spec, one, certificate))
            for one, certificate in consenting.items()
        }
        given, silent = set[str](), dict[str, str]()
        began, seconds = clock(), TO_LOOK
        while clock() < began + seconds:
            replies = await asyncio.gather(*(_consent(ask, id) for ask in asks.values()))
            for one, reply in zip(asks, replies, strict=True):
                if isinstance(reply, Decided):
                    return view_as_log_line(next(one.view for one in reply.decisions if id in one.view.expelled))
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


async def _is_quorum(spec: Spec, given: set[str], consenting: Mapping[str, CertificatePaths | None]) -> bool:
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


def leave_command(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.command_spec import resolved

    return leave(resolved(arguments), arguments.peer, arguments.certs, arguments.tls, output)


def expel_command(arguments: argparse.Namespace, output: "Output") -> int:
    from launcher.command_spec import resolved

    return expel(resolved(arguments), arguments.peer, arguments.by, arguments.certs, arguments.tls, output)
