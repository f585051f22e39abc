"""Where figures are scraped: few connections at once, and none for long, so that a peer's descriptors stay free."""

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import AI_PASSIVE, SHUT_RDWR, SOCK_STREAM, getaddrinfo, socket
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from peer.telemetry.events import Report
from peer.telemetry.nuisances import Faults, Nuisances

CONNECTIONS = 16
"""At once, a thread each: those beyond are closed unheard."""
PATIENCE = 10.0
"""Seconds that a connection may last: what Prometheus waits for an answer."""
CUT_OFF = 100
"""Connections that break in the middle, before that is told: whoever scrapes may lose patience."""
PLAIN = "text/plain; charset=utf-8"
Render = Callable[[str], tuple[str, bytes]]
"""What an `Accept` header asks for: the kind of it, and all the figures; UnclearError where that cannot be told."""


class UnclearError(Exception):
    """It cannot be understood what is asked for."""


class Request(BaseHTTPRequestHandler):
    """Whatever is asked for is answered, and is no news; what cannot be understood is counted."""

    server: "Exposition"

    def do_GET(self) -> None:
        if self.server.names and called_by(self.headers.get("Host", "")) not in self.server.names:
            self.send_error(421, "The figures are not at that name: ask for them at the address in `metrics`.")
            return
        try:
            kind, text = self.server.render(self.headers.get("Accept", ""))
        except UnclearError:
            self.send_error(400, "No kind of answer that there is can be made out in `Accept`.")
            return
        self._answer(200, kind, text)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Also called for what is no request at all."""
        what = {421: "asked for by a name that is not this peer's"}.get(
            code, "asked for in a way that is not understood"
        )
        self.server.nuisances.add(f"`metrics`, {what}", "{}:{}".format(*self.client_address))
        self._answer(code, PLAIN, f"{message or HTTPStatus(code).phrase}\n".encode())

    def _answer(self, code: int, kind: str, text: bytes) -> None:
        self.request_version = self.protocol_version  # an answer begins with its code, whatever the question was
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Exposition(ThreadingMixIn, TCPServer):
    """Answers at host and port, in threads of its own, from the beginning until `close`. OSError where it cannot.

    names: by which it may be called, so that no web site's name leads here; empty: any.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, at: tuple[str, int], render: Render, names: Collection[str], report: Report) -> None:
        self.address_family, *_, address = getaddrinfo(*at, type=SOCK_STREAM, flags=AI_PASSIVE)[0]
        self.render, self.names, self.nuisances = render, names, Nuisances(report)
        self._since: dict[Any, float] = {}
        self._faults = Faults("`metrics`")
        super().__init__((str(address[0]), at[1]), Request)
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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What a request has raised. The library would write a traceback of each."""
        error = sys.exception()
        if isinstance(error, OSError):
            self.nuisances.add("`metrics`, asked for and then cut off", first=CUT_OFF)
        elif error:
            self._faults.tell(error)


def called_by(host: str) -> str | None:
    """The name alone in a `Host` header; None where there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _cut(connection: socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(SHUT_RDWR)
