"""`metrics: 9400`: what a peer's events come to as figures that Prometheus scrapes, in OpenMetrics.

They are scraped over few connections at once, and over none for long, so that a peer's descriptors stay free; and no
web site's name leads there.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from io import BufferedReader
from pathlib import Path
from socket import AI_PASSIVE, SHUT_RDWR, SOCK_STREAM, getaddrinfo, socket
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from time import monotonic
from typing import Any, get_args
from urllib.parse import urlsplit

from peer.errors import InputError, optional
from peer.files import disk_usage
from peer.telemetry import events
from peer.telemetry.events import Event, Report
from peer.telemetry.remaining import Remaining
from peer.telemetry.telemetry import OwnFaults, Subscriber, ThrottledRefusals

MAX_CONNECTIONS = 16
"""Connections at once, with a thread each; further ones are closed unheard."""
CONNECTION_TIMEOUT_S = 10.0
"""Seconds that a connection may last: what Prometheus waits for an answer."""
MAX_REQUEST_BYTES = 1 << 16
"""Bytes of a request before its last line, which may have as many: the library would take 100 lines of so many."""
CUT_OFF_REPORTED_FROM = 100
"""Connections that break in the middle, before that is reported: a scraper may time out."""
PLAIN_TEXT = "text/plain; charset=utf-8"
Render = Callable[[str], tuple[str, bytes]]
"""What an `Accept` header asks for: the kind of it, and all the figures; UnclearError where that cannot be told."""


class UnclearError(Exception):
    """The request cannot be understood."""


class RequestLines(BufferedReader):
    """The lines of a request; HTTPException once they have too many bytes, which is answered."""

    left = MAX_REQUEST_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        if self.left <= 0:
            raise HTTPException("more than a request has")
        line = super().readline(size)
        self.left -= len(line)
        return line


class ScrapeRequest(BaseHTTPRequestHandler):
    """Answers every request without logging it; malformed ones are counted."""

    server: "Exposition"

    def setup(self) -> None:
        super().setup()
        self.rfile = RequestLines(self.rfile.detach())

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
        """Send an error as plain text. Also called for input that is not HTTP."""
        what = {421: "asked for by a name that is not this peer's"}.get(
            code, "asked for in a way that is not understood"
        )
        self.server.nuisances.add(f"`metrics`, {what}", "{}:{}".format(*self.client_address))
        self._answer(code, PLAIN_TEXT, f"{message or HTTPStatus(code).phrase}\n".encode())

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
        self.render, self.names, self.nuisances = render, names, ThrottledRefusals(report)
        self._since: dict[Any, float] = {}
        self._faults = OwnFaults("`metrics`")
        super().__init__((str(address[0]), at[1]), ScrapeRequest)
        Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return len(self._since) < MAX_CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        self._since[request] = monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._since.pop(request, None)

    def service_actions(self) -> None:
        """Called after each connection and twice a second: cuts off connections whose time is over."""
        for connection, since in list(self._since.items()):
            if monotonic() - since > CONNECTION_TIMEOUT_S:
                _cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called with what a request raised. The library would print a traceback of each."""
        error = sys.exception()
        if isinstance(error, OSError):
            self.nuisances.add("`metrics`, asked for and then cut off", first=CUT_OFF_REPORTED_FROM)
        elif error:
            self._faults.report(error)


def called_by(host: str) -> str | None:
    """The name alone in a `Host` header; None where there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _cut(connection: socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(SHUT_RDWR)


STATES = ("joining", "ready", "training", "communicating", "evaluating", "serving", "done", "failed")
"""The states of peer.runtime.lifecycle, which this layer cannot import."""
LINK_STATES = ("joining", "up", "suspected", "down", "left")
Figures = Mapping[str, float | None]


class Metrics(Subscriber):
    """Counts from the start of the process, so that a peer that is started again begins at 0, as Prometheus expects.

    Every object has a registry of its own: one process may have many peers.
    """

    name = "metrics"

    def __init__(self, directory: Path) -> None:
        """directory: the peer's, which may not be there yet."""
        library = client()
        self.registry = library.CollectorRegistry()
        library.ProcessCollector(registry=self.registry)
        self._library = library
        self._server: Exposition | None = None
        self._remaining, self._last_round = Remaining(), 0
        self._make_all()
        self._free.set_function(lambda: disk_usage(directory).free)
        self._size.set_function(lambda: disk_usage(directory).total)

    def _make_all(self) -> None:
        """Every figure there is: docs/monitoring.md has the same list."""
        kinds = (self._library.Counter, self._library.Gauge, self._library.Enum)
        counter, gauge, enum = (partial(kind, registry=self.registry) for kind in kinds)
        moment = partial(gauge, unit="seconds")
        self._about = self._library.Info("dfl", "Which peer this is, of which federation.", registry=self.registry)
        self._state = enum("dfl_peer_state", "What the peer does.", states=STATES)
        self._link = enum("dfl_link_state", "What is known of a neighbour.", ["neighbour"], states=LINK_STATES)
        self._round = gauge("dfl_round", "The round that the peer is in.")
        self._planned = gauge("dfl_planned_rounds", "Rounds of the run, if it does not end early.")
        self._rounds = counter("dfl_rounds", "Rounds that this process has finished.")
        self._finished = moment("dfl_last_round_timestamp", "Unix time of the last round's end; 0 before.")
        self._end = moment("dfl_expected_end_timestamp", "Unix time of the last round's end, estimated; 0 before.")
        self._durable = gauge("dfl_durable_round", "The last round that is safely on the peer's disk.")
        self._durable_since = moment("dfl_durable_round_timestamp", "Unix time at which that was said; 0 before.")
        self._free = gauge("dfl_disk_free", "Room on the disk of the peer's directory.", unit="bytes")
        self._size = gauge("dfl_disk_size", "Size of the disk of the peer's directory.", unit="bytes")
        expires = "Unix time at which the peer's certificate or its CA's expires; 0 without any."
        self._expiry = moment("dfl_certificate_expiry_timestamp", expires)
        self._restarts = counter("dfl_restarts", "How often the peer has been started again.")
        self._accuracy = gauge("dfl_accuracy", "After the last evaluation.", ["test"], unit="ratio")
        self._figure = gauge("dfl_figure", "Of the task, after the last evaluation.", ["figure", "samples"])
        self._loss = gauge("dfl_loss", "Of the last round.", ["samples"])
        self._note = gauge("dfl_note", "What the protocol noted in the last round.", ["note"])
        self._seconds = counter("dfl_phase", "Time spent, by phase of a round.", ["phase"], unit="seconds")
        self._sent = counter("dfl_sent", "Handed to gRPC.", ["neighbour"], unit="bytes")
        self._received = counter("dfl_received", "Taken from gRPC.", ["neighbour"], unit="bytes")
        self._refusals = counter("dfl_refusals", "Distinct causes for which callers were refused.", ["reason"])
        self._conflicts = counter("dfl_conflicts", "Messages that came with two contents.", ["neighbour"])
        self._damaged = counter("dfl_damaged_checkpoints", "Checkpoints that could not be read.")
        self._awaited = gauge("dfl_awaited_peers", "For how many others the peer waits.", ["cause"])
        short = "Where too few are here to decide: how many are, and must be."
        self._here = gauge("dfl_quorum_members", short, ["members"])
        since = "Unix time since when they are too few; 0 where they are not."
        self._short_since = moment("dfl_quorum_wait_start", since)
        self._view = gauge("dfl_view_number", "The view in which the peer is.")
        self._members = gauge("dfl_view_members", "How many belong to that view.")
        self._events = counter("dfl_events", "Events of the peer, by name.", ["event"])
        for cause in get_args(events.Cause):
            self._awaited.labels(cause).set(0)
        for members in ("here", "needed"):
            self._here.labels(members).set(0)

    def listen(
        self, address: tuple[str, int], names: Collection[str] = (), report: Report = lambda _event: None
    ) -> None:
        """Answer requests for these names, or for any, at host and port from now on, in threads of their own.

        Raises InputError if the address cannot be used.
        """
        host, port = address
        try:
            self._server = Exposition(address, self._rendered, names, report)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise InputError(
                f"cannot serve metrics at {host}:{port}: {why}; stop what uses it or give another `metrics`"
            ) from None

    def _rendered(self, accept: str) -> tuple[str, bytes]:
        try:
            encoder, kind = self._library.exposition.choose_encoder(accept)
        except (TypeError, ValueError) as error:  # it compares a version's numbers with something that is not a number
            raise UnclearError from error
        if not kind.isprintable():  # it repeats the version
            raise UnclearError
        return kind, encoder(self.registry)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def on_event(self, event: Event) -> None:
        self._events.labels(event.name).inc()
        match event:
            case events.Started():
                self._start(event)
            case events.StateChanged(state=state, round=round):
                self._state.state(state)
                self._round.set(max(0, round))
            case events.RoundDone():
                self._take_round(event)
            case events.BytesPassed(sent=sent, received=received):
                self._add(self._sent, sent)
                self._add(self._received, received)
            case events.FineTuned():
                self._judge(event)
            case events.LinkChanged(neighbour=neighbour, state=state) if state in LINK_STATES:
                self._link.labels(neighbour).state(state)
            case events.Waiting(cause=cause, awaited=awaited, others=others):
                self._awaited.labels(cause).set(len(awaited) + others)
                if cause == "quorum":
                    self._set_quorum(event)
            case events.CallerRefused(kind=kind):
                self._refusals.labels(kind).inc()
            case events.Conflict(sender=sender):
                self._conflicts.labels(sender).inc()
            case events.CheckpointDamaged():
                self._damaged.inc()
            case events.RoundDurable(round=round):
                self._durable.set(round)
                self._durable_since.set(event.time)
            case events.CertificatesChanged(expires=expires) | events.CertificateExpires(expires=expires) if expires:
                self._expiry.set(expires)
            case events.ViewDecided(number=number, members=members):
                self._view.set(number)
                self._members.set(len(members))
                self._link.clear()  # links are made anew in each view, and no wait of the last one is told as over
                for cause in get_args(events.Cause):
                    self._awaited.labels(cause).set(0)
            case events.StoppedEarly(round=round):
                self._last_round = round

    def _start(self, event: events.Started) -> None:
        about = {"peer": event.id, "federation": event.federation, "protocol": event.protocol, "version": event.version}
        self._about.info(about)
        self._restarts.inc(event.restarts)
        self._planned.set(event.rounds)
        self._last_round = event.rounds
        self._view.set(event.view)
        self._members.set(len(event.members))
        self._expiry.set(event.certificate_expires or 0)

    def _set_quorum(self, event: events.Waiting) -> None:
        short = event.shortage
        self._here.labels("here").set(short.here if short else 0)
        self._here.labels("needed").set(short.needed if short else 0)
        self._short_since.set(event.time - short.seconds if short else 0)

    def _take_round(self, event: events.RoundDone) -> None:
        self._rounds.inc()
        self._finished.set(event.time)
        self._remaining.see(event.round, event.time)
        left = self._remaining.seconds(self._last_round, event.time)
        if left or event.round == self._last_round:
            self._end.set(event.time + (left or 0.0))
        self._add(self._seconds, event.seconds)
        self._set(self._loss, {"train": event.loss, "test": event.test_loss})
        self._set(self._note, event.single_notes)
        self._judge(event)

    def _judge(self, event: events.RoundDone | events.FineTuned) -> None:
        self._set(self._accuracy, {**event.accuracy, "balanced": event.balanced})
        for samples, found in (("test", event.figures), ("validation", event.validation)):
            self._set(self._figure, found, samples)

    @staticmethod
    def _add(counter: Any, amounts: Mapping[str, float]) -> None:
        for label, amount in amounts.items():
            counter.labels(label).inc(amount)

    @staticmethod
    def _set(gauge: Any, values: Figures, *labels: str) -> None:
        """What is not known now stays as it was."""
        for label, value in values.items():
            if value is not None:
                gauge.labels(label, *labels).set(value)


def client() -> Any:
    """Prometheus' own library; InputError when it is not installed."""
    return optional("prometheus_client", "`metrics`", "the package prometheus-client", "metrics")
