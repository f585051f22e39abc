"""What an operator asks of members about views, by those members' own certificates where there are certificates.

`dfl-launch leave` tells a member to leave, and waits until the others go on without it. `dfl-launch expel` has members
consent to the expulsion of one, and waits for the decision if they are enough.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing

from launcher.certificates import Credentials
from launcher.command_spec import resolved
from launcher.monitor.polled_federation import INSIDE
from launcher.output import Output
from peer.errors import FailedError, InputError, suggest
from peer.network.operator_client import UNKNOWN_HOST, Ask, PeerStatus, StatusClient, UnansweredError, connect
from peer.network.transport.tls import CertificatePaths
from peer.spec.federation import Spec
from peer.telemetry.events import ViewDecided
from peer.views.statements import Decided, Denied, Expel, Heard, Leave
from peer.views.view import View


def leave_command(arguments: argparse.Namespace, output: Output) -> int:
    """FailedError says why it stays."""
    spec, credentials = resolved(arguments), Credentials(arguments.certs, arguments.tls)
    check_ids(spec, [arguments.peer], "leave")
    output.say(asyncio.run(_leave(spec, arguments.peer, credentials.of(arguments.peer))))
    return 0


def expel_command(arguments: argparse.Namespace, output: Output) -> int:
    """FailedError where it is not voted out: too few consent, or it cannot be."""
    spec, credentials = resolved(arguments), Credentials(arguments.certs, arguments.tls)
    id, by = arguments.peer, arguments.by
    check_ids(spec, [id, *by], "be voted out")
    if id in by:
        raise InputError(f"{id} cannot consent that it is voted out itself; leave it out of --by, or use `leave`")
    others = [other for other in spec.ids if other != id]
    if not (consenting := by or credentials.holders(others)):
        raise InputError(f"{arguments.certs}: holds the certificate of nobody who could vote {id} out")
    output.say(asyncio.run(_expel(spec, id, {other: credentials.of(other) for other in consenting})))
    return 0


def check_ids(spec: Spec, ids: Collection[str], what: str) -> None:
    """InputError where members stay the same, or one of these is not in the federation."""
    if spec.on_loss != "bypass":
        raise InputError(
            f"nobody can {what} with `on_loss: {spec.on_loss}`, as the others would wait; that needs `on_loss: bypass` "
            "from the start of the run"
        )
    if strangers := [id for id in ids if id not in spec.ids]:
        raise InputError(f"`{strangers[0]}` is not in the ring; {suggest(strangers[0], spec.ids)}")


def no_answer(spec: Spec, id: str, why: str) -> str:
    """Say that a peer does not answer, and what to do where its run has a `run` that the file given here has not."""
    hint = ": name the run by its directory, as `dfl-launch run` drew `run`" if not spec.run and "`run` " in why else ""
    return f"{id} does not answer ({why}){hint}"


def inside(reasons: Collection[str]) -> str:
    """What to do where peers do not answer for these reasons, if they may be in containers."""
    return f"; {INSIDE}" if UNKNOWN_HOST in reasons else ""


Certificates = CertificatePaths | None


def _member(spec: Spec, id: str, certificates: Certificates) -> AbstractAsyncContextManager[Ask]:
    """A function that asks a member during the block; it raises UnansweredError if there is no answer."""
    agreement = spec.link_agreement
    return connect(id, spec.addresses, agreement.content, agreement.digests, certificates)


async def _statuses(spec: Spec, ids: Collection[str], certificates: Certificates) -> list[PeerStatus]:
    """The statuses of the peers that answer."""
    chain = certificates.read() if certificates else None
    async with aclosing(StatusClient(spec.name, spec.addresses, chain)) as peers:
        return [one for one in (await peers.ask_all(ids)).values() if isinstance(one, PeerStatus)]


LAST_LOOKS = 10
"""How often the others are asked, once a second, what was decided when the leaving member has ended."""


async def _leave(spec: Spec, id: str, certificates: Certificates) -> str:
    has_answered = False
    async with _member(spec, id, certificates) as ask:
        while True:
            try:
                reply = await ask(Leave(0))
            except UnansweredError as error:
                if has_answered and (said := await _decided(spec, id, certificates)):
                    return said
                still = ", and too few others say that it has left" * has_answered
                raise FailedError(no_answer(spec, id, f"{error}") + still + inside([f"{error}"])) from None
            has_answered = True
            if isinstance(reply, Denied):
                raise FailedError(f"{id} cannot leave: {reply.why}")
            views = [one.view for one in reply.decisions] if isinstance(reply, Decided) else []
            if views and id not in views[-1].members:
                return str(ViewDecided(**last_left(id, views).as_json()))


def last_left(id: str, views: Sequence[View]) -> View:
    """The first of the views that have been without it ever since."""
    stays = max((at for at, view in enumerate(views) if id in view.members), default=-1)
    return views[stays + 1]


async def _decided(spec: Spec, id: str, certificates: Certificates) -> str | None:
    """What more of the others say than may lie, once it has ended."""
    others = [other for other in spec.ids if other != id]
    for _ in range(LAST_LOOKS):
        answers = await _statuses(spec, others, certificates)
        views = Counter((one.view, one.first) for one in answers if id in one.outside)
        for (view, first), count in views.items():
            if count > spec.tolerated(certificates is not None):
                return f"view {view} from round {first} on: without {id}"
        await asyncio.sleep(1)
    return None


DECISION_SECONDS = 15.0
"""Seconds, in addition to `absence`, to wait for a decision that has enough consents."""
SHORT_SECONDS = 4.0
"""Seconds to wait for a decision with too few consents here, as others may have consented before."""


async def _expel(spec: Spec, id: str, consenting: Mapping[str, Certificates]) -> str:
    clock = asyncio.get_running_loop().time
    async with AsyncExitStack() as stack:
        asks = {one: await stack.enter_async_context(_member(spec, one, own)) for one, own in consenting.items()}
        given, silent, claims = set[str](), dict[str, str](), dict[str, ViewDecided | str]()
        enough = min(len(asks), 1 + spec.tolerated(any(consenting.values())))  # that one of them does not lie
        began, seconds = clock(), SHORT_SECONDS
        while clock() < began + seconds:
            replies = await asyncio.gather(*(ask(Expel(0, id)) for ask in asks.values()), return_exceptions=True)
            for one, reply in zip(asks, replies, strict=True):
                match reply:
                    case Heard():
                        given.add(one)
                    case Decided(known) if views := [each.view for each in known if id in each.view.expelled]:
                        claims[one] = ViewDecided(**views[0].as_json())
                    case Denied(why):
                        claims[one] = why
                    case UnansweredError():
                        silent[one] = str(reply)
                    case BaseException():
                        raise reply
            for claim, count in Counter(claims.values()).items():
                if count >= enough and isinstance(claim, ViewDecided):
                    return str(claim)
                if count >= enough:
                    raise FailedError(f"{id} cannot be voted out: {claim}")
            if given and await _is_quorum(spec, given, consenting):
                seconds = spec.absence + DECISION_SECONDS
            await asyncio.sleep(0.5)
    who = ", ".join(sorted(given)) or "nobody"
    said = f"{id} is not voted out: the consent of {who} is noted, and more than half of the members must consent"
    told = [f"{one} says: {claim}" for one, claim in claims.items()]
    told += [no_answer(spec, one, why) for one, why in silent.items() if one not in given]
    raise FailedError("; ".join((said, *told)) + inside(silent.values()))


async def _is_quorum(spec: Spec, given: set[str], consenting: Mapping[str, Certificates]) -> bool:
    """Whether these are enough of the present members, by what these themselves report."""
    any_certificate = next((found for found in consenting.values() if found), None)
    answers = await _statuses(spec, given, any_certificate)
    newest = max(answers, key=lambda one: one.view, default=None)
    outside = newest.outside if newest else ()
    members = tuple(id for id in spec.ids if id not in outside)
    return View(0, members, 0).is_quorum(given, spec.tolerated(any_certificate is not None))
