"""What an operator asks of one member about views, by that member's own certificate: for whoever is no peer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from peer.network.streams.handshake import Identity, RefusedError
from peer.network.transport.base import DisconnectedError, Place
from peer.network.transport.grpc import GrpcTransport
from peer.network.transport.tls import Certificates, Security
from peer.network.views.questions import Questions
from peer.views.statements import InvalidError, Reply, Request

Ask: TypeAlias = Callable[[Request], Awaitable[Reply]]


class UnansweredError(Exception):
    """The member has not answered, and why, in a few words."""


@asynccontextmanager
async def asking(
    id: str,
    addresses: Mapping[str, str | None],
    agreement: Mapping[str, Any],
    digests: Mapping[str, str],
    certificates: Certificates | None,
) -> AsyncIterator[Ask]:
    """Ask that member for as long as the block lasts; UnansweredError where there is no answer.

    addresses: everybody's. agreement: what all members agree on, as plain JSON; digests: of each of its keys.
    """
    known = {member: at for member, at in addresses.items() if at}
    names = {at: member for member, at in known.items()}
    security = Security(certificates, names, lambda _event: None) if certificates else None
    transport = GrpcTransport(Place(listen=None), _untold, security)
    questions = Questions(Identity(id, digests, manifest="", settings=agreement), known)

    async def ask(request: Request) -> Reply:
        try:
            return await questions.ask(transport, id, request)
        except (DisconnectedError, RefusedError, InvalidError) as error:
            raise UnansweredError(str(error)) from None

    try:
        yield ask
    finally:
        await transport.close()


async def _untold(_request: bytes) -> bytes:
    """The status of somebody who does not listen."""
    return b""
