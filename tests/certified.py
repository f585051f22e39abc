"""Federations with certificates, and callers that hold one of a member."""

import signal
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
from raw_http2 import INITIAL_WINDOW, RawConnection, connect, prefix
from real_peers import SmallFederation, until
from wire_client import Caller

from launcher.certificates import make_certificates
from launcher.run_files import certificate_files
from peer.network.limits import UnknownCallerLimits
from peer.network.wire.messages import SERVICE

CONNECTIONS = 160
"""More than a peer takes in all."""


def secured(federation: SmallFederation, days: float = 2) -> Path:
    """Certificates for all of its peers; where they lie."""
    certs = federation.directory / "certs"
    make_certificates(federation.spec, certs, days)
    for id in federation.ids:
        federation.configure(id, tls={name: str(path) for name, path in certificate_files(certs, id).items()})
    return certs


class Member(Caller):
    """A stream to `to`, by whoever holds the certificate of the member `id`."""

    def __init__(self, federation: SmallFederation, certs: Path, id: str, to: str, service: str = "Heartbeat") -> None:
        self.open(channel(federation, certs, id, to), service)


def channel(
    federation: SmallFederation, certs: Path, id: str, to: str, compression: grpc.Compression | None = None
) -> grpc.Channel:
    """From the member `id` to `to`."""
    files = {name: path.read_bytes() for name, path in certificate_files(certs, id).items()}
    credentials = grpc.ssl_channel_credentials(files["ca"], files["key"], files["cert"])
    options = [("grpc.ssl_target_name_override", to), ("grpc.max_send_message_length", -1)]
    return grpc.secure_channel(federation.address(to), credentials, options, compression)


class Siege:
    """Ever more connections to `to` by the certificate of `id`, with as many streams on each as one may have.

    On each stream these messages are said, and nothing that comes back is let through.
    """

    def __init__(self, federation: SmallFederation, certs: Path, id: str, to: str) -> None:
        self._address, self._to, self._connections = federation.address(to), to, list[RawConnection]()
        files = certificate_files(certs, id)
        self._context = ssl.create_default_context(cafile=files["ca"])
        self._context.load_cert_chain(files["cert"], files["key"])
        self._context.set_alpn_protocols(["h2"])
        self._looking = threading.Lock()
        """The thread that opens them looks at them, too."""
        self.opened = 0
        """Connections so far."""

    @contextmanager
    def by(self, service: str, *messages: bytes) -> Iterator["Siege"]:
        done = threading.Event()
        thread = threading.Thread(target=self._open, args=(done, service, messages), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join(20)
            for connection in self._connections:
                connection.close()

    def _open(self, done: threading.Event, service: str, messages: tuple[bytes, ...]) -> None:
        while not done.wait(0.01):
            if self.held < CONNECTIONS:
                with suppress(OSError):  # there is no room
                    self._connections.append(self._connection(service, messages))
                    self.opened += 1

    def _connection(self, service: str, messages: tuple[bytes, ...]) -> RawConnection:
        connected = self._context.wrap_socket(connect(self._address), server_hostname=self._to)
        one = RawConnection(connected, {INITIAL_WINDOW: 0})
        one.hear(0.2)
        for _ in range(UnknownCallerLimits().streams):
            stream = one.call(f"/{SERVICE}/{service}")
            for message in messages:
                one.data(stream, prefix(len(message)) + message)
        return one

    @property
    def held(self) -> int:
        """Connections that the peer has not shut."""
        with self._looking:
            for one in [*self._connections]:
                one.hear(0)
                if one.closed:
                    one.close()
                    self._connections.remove(one)
            return len(self._connections)

    def is_outlived(self, made: SmallFederation) -> None:
        """Beside peer0, which peer2 besieges, peer1 comes back and the rounds go on; peer0 names peer2 alone."""
        until(lambda: self.opened > 130, 60, "it has tried to take all that there are")
        made.peers["peer1"].signal(signal.SIGKILL)
        made.peers["peer1"].wait()
        made.start("peer1")
        made.await_event("peer1", "resumed", seconds=60)
        last = made.events("peer0", "round")[-1]["round"]
        made.await_event("peer0", "round", round=last + 5, seconds=60)
        assert self.held < CONNECTIONS // 4, "its connections are shut"
        told = made.await_event("peer0", "refused", kind="connections")
        assert told["reason"] == "too many connections of one member"
        assert {event["caller"] for event in made.events("peer0", "refused")} == {"peer2"}
