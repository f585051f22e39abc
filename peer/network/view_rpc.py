"""One request about views and its reply, on a stream of its own, between any two members of the spec.

`peer/views/` parses and decides; this module only carries the messages and identifies their senders.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from peer.network.limits import Limits, Timeouts
from peer.network.streams.handshake import REASON_WITHHELD, Identity, RefusedError
from peer.network.transport import BreachError, DisconnectedError, Pipe, Transport
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Answer, Question, Refusal, UntrustedDecoder
from peer.views.statements import Enter, Expel, InvalidError, Leave, Reply, Request, read_reply, read_request, written

RequestHandler = Callable[[str, Request], Awaitable[Reply]]
"""Answers a request by the member with that id."""


class ViewRpc:
    """Both ends of the Views RPC."""

    def __init__(
        self,
        identity: Identity,
        addresses: Mapping[str, str],
        limits: Limits = Limits(),
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self._identity, self.addresses, self.limits, self.timeouts = identity, addresses, limits, timeouts
        self._decoder = UntrustedDecoder(limits, len(addresses))

    async def ask(self, transport: Transport, member: str, asked: Request) -> Reply:
        """Send a request; DisconnectedError or RefusedError if there is no reply, InvalidError for a bad one."""
        question = self._identity.question(member)
        text = written(asked)
        pipe = await transport.dial(self.addresses[member], "Views")
        try:
            async with asyncio.timeout(self.timeouts.view_rpc_timeout):
                await pipe.send(question)
                await pipe.send(text)
                answer = self._decoder.view_answer(await pipe.receive())
            if answer.HasField("refusal"):
                raise RefusedError(answer.refusal, self._identity)
            return read_reply(answer.reply)
        except TimeoutError:
            raise DisconnectedError(f"no answer in {self.timeouts.view_rpc_timeout:g} s") from None
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        finally:
            pipe.abort()

    async def answer(self, pipe: Pipe, hear: RequestHandler) -> None:
        """Serve an incoming stream to its end; BreachError for what no member sends."""
        try:
            async with asyncio.timeout(self.timeouts.hello):
                question = self._decoder.question(await pipe.receive())
                refusal = self._identity.check_member(question, pipe.identity)
                if question.id not in self.addresses:
                    refusal = refusal or Refusal(reason=Refusal.IDENTITY, detail=f"`{question.id}` is no member")
                if refusal is None:
                    pipe.identify(question.id, neighbour=False)
                    request = read_request(self._decoder.views(await pipe.receive()))
                    _check_asker(request, question)
        except (TimeoutError, BadFrameError, InvalidError) as error:
            raise BreachError(str(error) or "it sent no request") from None
        if refusal:
            answer = Answer(refusal=refusal if await pipe.is_known() else REASON_WITHHELD)
        else:
            try:
                answer = Answer(reply=written(await hear(question.id, request)))
            except TimeoutError:  # this peer does not know its own progress yet
                raise DisconnectedError("there is no answer yet") from None
        await pipe.tell(answer.SerializeToString(), self.timeouts.read)


def _check_asker(request: Request, question: Question) -> None:
    """Raise InvalidError unless an operator uses the asked peer's own certificate, and an entrant asks for itself."""
    own = {Leave: question.to, Expel: question.to, Enter: request.entry.signer if isinstance(request, Enter) else ""}
    if own.get(type(request), question.id) != question.id:
        raise InvalidError("it asked in the name of another")
