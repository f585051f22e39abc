"""Where figures are scraped: few connections at once, and none for long, so that a peer's descriptors stay free."""

from contextlib import suppress
from socket import AI_PASSIVE, SHUT_RDWR, SOCK_STREAM, getaddrinfo, socket
from socketserver import ThreadingMixIn
from threading import Thread
from time import monotonic
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

CONNECTIONS = 16
"""At once, a thread each: those beyond are closed unheard."""
PATIENCE = 10.0
"""Seconds that a connection may last: what Prometheus waits for an answer."""


class Silent(WSGIRequestHandler):
    """Who scrapes is no news."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Exposition(ThreadingMixIn, WSGIServer):
    """Answers at host and port, in threads of its own, from the beginning until `close`. OSError where it cannot."""

    daemon_threads = True

    def __init__(self, host: str, port: int, application: WSGIApplication) -> None:
        self.address_family, *_, address = getaddrinfo(host, port, type=SOCK_STREAM, flags=AI_PASSIVE)[0]
        self._since: dict[Any, float] = {}
        super().__init__((str(address[0]), port), Silent)
        self.set_app(application)
        Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return len(self._since) < CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        self._since[request] = monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._since.pop(request, None)

    def service_actions(self) -> None:
        """Called after each connection, and twice a second: whose time is over is cut off, and its thread ends."""
        for connection, since in list(self._since.items()):
            if monotonic() - since > PATIENCE:
                _cut(connection)


def _cut(connection: socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(SHUT_RDWR)
