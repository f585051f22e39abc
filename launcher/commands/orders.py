"""What an operator asks of a member about views: by that member's own certificate, where there are certificates."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from launcher.certificates import certificate_files
from peer.errors import InputError, nearest
from peer.network.streams.handshake import Identity
from peer.network.transport.base import Place
from peer.network.transport.grpc import GrpcTransport
from peer.network.transport.tls import Certificates, Security
from peer.network.views.questions import Questions
from peer.spec.agreement import digests
from peer.spec.federation import Spec
from peer.views.messages import Reply, Request

Ask: TypeAlias = Callable[[Request], Awaitable[Reply]]


def check(spec: Spec, ids: Collection[str], what: str) -> None:
    """InputError where members stay the same, or one of these is none of the federation."""
    if spec.on_loss != "bypass":
        raise InputError(
            f"nobody can {what} with `on_loss: {spec.on_loss}`, as the others would wait; that needs `on_loss: bypass` "
            "from the start of the run"
        )
    if strangers := [id for id in ids if id not in spec.ids]:
        raise InputError(f"`{strangers[0]}` is none of the ring; {nearest(strangers[0], spec.ids)}")


def own_certificate(id: str, directory: Path | None, files: tuple[Path, Path, Path] | None) -> Certificates | None:
    """That member's, of a directory or by its three files; None where there are none. InputError if it is another's."""
    if files:
        found = Certificates.of_anybody(*files)
        if found.id != id:
            raise InputError(f"{files[1]}: is made out to {found.id or 'nobody'}; {id} obeys its own certificate only")
    elif directory:
        found = Certificates(id, **certificate_files(directory, id))
    else:
        return None
    found.read()
    return found


@asynccontextmanager
async def member(spec: Spec, id: str, certificates: Certificates | None) -> AsyncIterator[Ask]:
    """Ask that member; DisconnectedError and RefusedError where there is no answer."""
    addresses = {id: at for id, at in spec.addresses.items() if at}
    names = {at: id for id, at in addresses.items()}
    security = Security(certificates, names, lambda _event: None) if certificates else None
    transport = GrpcTransport(Place(listen=None), _untold, security)
    agreement = spec.agreement()
    questions = Questions(Identity(id, digests(agreement), manifest="", settings=agreement), addresses)

    async def ask(request: Request) -> Reply:
        return await questions.ask(transport, id, request)

    try:
        yield ask
    finally:
        await transport.close()


async def _untold(_request: bytes) -> bytes:
    """The status of somebody who does not listen."""
    return b""
