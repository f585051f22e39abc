"""A member's certificate in the wrong hands: whoever holds it asks and answers about views as it likes."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from real_peers import SmallFederation

from launcher.run_files import certificate_files
from peer.network.limits import Limits
from peer.network.streams.handshake import Identity, RefusedError
from peer.network.transport import DisconnectedError, ListenConfig, Pipe, Service
from peer.network.transport.grpc import GrpcTransport
from peer.network.transport.tls import CertificatePaths, TlsCredentials
from peer.network.view_rpc import ViewRpc
from peer.network.wire.messages import Answer
from peer.spec.agreement import lasting_digest
from peer.views.signing import CertifiedKeyring
from peer.views.statements import InvalidError, Reply, Request, read_request, written

T = TypeVar("T")
Answers = Callable[[Request], Reply | None]
"""What it answers; None: nothing, for as long as the asker waits."""


class Thief:
    """Calls the others with the certificate of `id`, and if `answers` is given listens at that member's address."""

    def __init__(self, federation: SmallFederation, certs: Path, id: str, answers: Answers | None = None) -> None:
        self._federation, self._certs, self.id, self._answers = federation, certs, id, answers
        spec = federation.spec
        files = certificate_files(certs, id)
        content = files["ca"].read_bytes(), files["cert"].read_bytes(), files["key"].read_bytes()
        self.keyring = CertifiedKeyring(id, lasting_digest(spec.agreement.digests), lambda: content)
        self.asked: list[Request] = []
        """By honest members."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def ask(self, to: str, request: Request) -> Reply | str:
        """What `to` answers, or why it does not."""
        return self._call(self._ask(to, request))

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _open(self) -> None:
        spec = self._federation.spec
        files = certificate_files(self._certs, self.id)
        certificates = CertificatePaths(self.id, files["ca"], files["cert"], files["key"])
        addresses = {id: at for id, at in spec.addresses.items() if at}
        security = TlsCredentials(certificates, {at: id for id, at in addresses.items()}, lambda _event: None)
        place = ListenConfig(
            addresses[self.id] if self._answers else None, ring=tuple(addresses.values()), neighbours=4
        )
        self._transport = GrpcTransport(place, _no_status, security)
        self._identity = Identity(
            self.id, spec.link_agreement.digests, manifest="", settings=spec.link_agreement.content
        )
        self._questions = ViewRpc(self._identity, addresses, Limits())
        if self._answers:
            await self._transport.listen(self._accept)
            self._running = asyncio.create_task(self._transport.run())

    async def _close(self) -> None:
        if self._answers:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._transport.close()

    async def _ask(self, to: str, request: Request) -> Reply | str:
        try:
            return await self._questions.ask(self._transport, to, request)
        except (DisconnectedError, RefusedError, InvalidError) as error:
            return str(error)

    async def _accept(self, service: Service, pipe: Pipe) -> None:
        if service != "Views" or self._answers is None:
            return
        try:
            await pipe.receive()
            request = read_request(await pipe.receive())
            self.asked.append(request)
            reply = self._answers(request)
            if reply is None:
                await asyncio.Event().wait()
            else:
                await pipe.send(Answer(reply=written(reply)).SerializeToString())
        except DisconnectedError:
            return


async def _no_status(_request: bytes) -> bytes:
    return b""
