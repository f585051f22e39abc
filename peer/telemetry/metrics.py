"""`metrics: 9400`: what a peer's events come to as figures that Prometheus scrapes, in OpenMetrics."""

import importlib
from collections.abc import Collection, Mapping
from typing import Any, get_args

from peer.errors import InputError
from peer.telemetry.events import (
    BytesPassed,
    Cause,
    Conflict,
    Damaged,
    Event,
    FineTuned,
    LinkChanged,
    Refused,
    Report,
    RoundDone,
    Started,
    StateChanged,
    ViewDecided,
    Waiting,
)
from peer.telemetry.exposition import Exposition, UnclearError
from peer.telemetry.listener import Subscriber

STATES = ("joining", "ready", "training", "communicating", "evaluating", "serving", "done", "failed")
"""Those of peer.runtime.lifecycle, which is above this."""
LINK_STATES = ("joining", "up", "suspected", "down", "left")
Figures = Mapping[str, float | None]


class Metrics(Subscriber):
    """Counts from the start of the process, so that a peer that is started again begins at 0, as Prometheus expects.

    Every object has a registry of its own: one process may have many peers.
    """

    name = "metrics"

    def __init__(self) -> None:
        library = client()
        self.registry = library.CollectorRegistry()
        library.ProcessCollector(registry=self.registry)
        self._library = library
        self._server: Exposition | None = None
        self._make_all()

    def _make_all(self) -> None:
        """Every figure there is: docs/monitoring.md has the same list."""
        counter, gauge, enum = self._library.Counter, self._library.Gauge, self._library.Enum
        self._about = self._make(self._library.Info, "dfl", "Which peer this is, of which federation.")
        self._state = self._make(enum, "dfl_peer_state", "What the peer does.", states=STATES)
        self._link = self._make(
            enum, "dfl_link_state", "What is known of a neighbour.", ["neighbour"], states=LINK_STATES
        )
        self._round = self._make(gauge, "dfl_round", "The round that the peer is in.")
        self._planned = self._make(gauge, "dfl_planned_rounds", "Rounds of the run, if it does not end early.")
        self._rounds = self._make(counter, "dfl_rounds", "Rounds that this process has finished.")
        self._restarts = self._make(counter, "dfl_restarts", "How often the peer has been started again.")
        self._accuracy = self._make(gauge, "dfl_accuracy", "After the last evaluation.", ["test"], unit="ratio")
        self._figure = self._make(gauge, "dfl_figure", "Of the task, after the last evaluation.", ["figure", "samples"])
        self._loss = self._make(gauge, "dfl_loss", "Of the last round.", ["samples"])
        self._note = self._make(gauge, "dfl_note", "What the protocol noted in the last round.", ["note"])
        self._seconds = self._make(counter, "dfl_phase", "Time spent, by phase of a round.", ["phase"], unit="seconds")
        self._sent = self._make(counter, "dfl_sent", "Handed to gRPC.", ["neighbour"], unit="bytes")
        self._received = self._make(counter, "dfl_received", "Taken from gRPC.", ["neighbour"], unit="bytes")
        self._refusals = self._make(
            counter, "dfl_refusals", "Distinct causes for which callers were refused.", ["reason"]
        )
        self._conflicts = self._make(counter, "dfl_conflicts", "Messages that came with two contents.", ["neighbour"])
        self._damaged = self._make(counter, "dfl_damaged_checkpoints", "Checkpoints that could not be read.")
        self._awaited = self._make(gauge, "dfl_awaited_peers", "For how many others the peer waits.", ["cause"])
        self._here = self._make(
            gauge, "dfl_quorum_members", "Where too few are here to decide: how many are, and must be.", ["members"]
        )
        self._short_since = self._make(
            gauge,
            "dfl_quorum_wait_start",
            "Unix time since when they are too few; 0 where they are not.",
            unit="seconds",
        )
        self._view = self._make(gauge, "dfl_view_number", "The view in which the peer is.")
        self._members = self._make(gauge, "dfl_view_members", "How many belong to that view.")
        self._events = self._make(counter, "dfl_events", "Events of the peer, by name.", ["event"])
        for cause in get_args(Cause):
            self._awaited.labels(cause).set(0)

    def _make(self, kind: Any, name: str, what: str, labels: list[str] | None = None, **more: Any) -> Any:
        return kind(name, what, labels or [], registry=self.registry, **more)

    def listen(
        self, address: tuple[str, int], names: Collection[str] = (), report: Report = lambda _event: None
    ) -> None:
        """Answer at host and port from now on, in threads of their own, who calls by these names, or by any.

        InputError where that cannot be.
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
        except (TypeError, ValueError) as error:  # it compares the numbers of a version with what is none
            raise UnclearError from error
        if not kind.isprintable():  # it repeats the version
            raise UnclearError
        return kind, encoder(self.registry)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def hear(self, event: Event) -> None:
        self._events.labels(event.name).inc()
        match event:
            case Started():
                self._start(event)
            case StateChanged(state=state, round=round):
                self._state.state(state)
                self._round.set(max(0, round))
            case RoundDone():
                self._take_round(event)
            case BytesPassed(sent=sent, received=received):
                self._add(self._sent, sent)
                self._add(self._received, received)
            case FineTuned(accuracy=accuracy, figures=figures, validation=validation):
                self._judge(accuracy, figures, validation)
            case LinkChanged(neighbour=neighbour, state=state) if state in LINK_STATES:
                self._link.labels(neighbour).state(state)
            case Waiting(cause=cause, awaited=awaited, others=others):
                self._awaited.labels(cause).set(len(awaited) + others)
                if cause == "quorum":
                    self._set_quorum(event)
            case Refused(kind=kind):
                self._refusals.labels(kind).inc()
            case Conflict(sender=sender):
                self._conflicts.labels(sender).inc()
            case Damaged():
                self._damaged.inc()
            case ViewDecided(number=number, members=members):
                self._view.set(number)
                self._members.set(len(members))

    def _start(self, event: Started) -> None:
        about = {"peer": event.id, "federation": event.federation, "protocol": event.protocol, "version": event.version}
        self._about.info(about)
        self._restarts.inc(event.restarts)
        self._planned.set(event.rounds)
        self._view.set(event.view)
        self._members.set(len(event.members))

    def _set_quorum(self, event: Waiting) -> None:
        short = event.shortage
        self._here.labels("here").set(short.here if short else 0)
        self._here.labels("needed").set(short.needed if short else 0)
        self._short_since.set(event.time - short.seconds if short else 0)

    def _take_round(self, event: RoundDone) -> None:
        self._rounds.inc()
        self._add(self._seconds, event.seconds)
        self._set(self._loss, {"train": event.loss, "test": event.test_loss})
        self._set(self._note, event.single_notes)
        self._judge({**event.accuracy, "balanced": event.balanced}, event.figures, event.validation)

    def _judge(self, accuracy: Figures, figures: Figures, validation: Figures) -> None:
        self._set(self._accuracy, accuracy)
        for samples, found in (("test", figures), ("validation", validation)):
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
    try:
        return importlib.import_module("prometheus_client")
    except ImportError as error:
        raise InputError(
            f"`metrics` needs the package prometheus-client, which cannot be imported here ({error}); install it with: "
            "pip install -c constraints.txt 'dfl[metrics]'"
        ) from error
