"""A peer's events as figures, parsed by the official parser."""

import json
import re
import socket
import struct
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from peer.errors import InputError
from peer.network.neighbours import LinkState
from peer.network.transport.addresses import names_of
from peer.runtime.lifecycle import State
from peer.telemetry import metrics as exposition
from peer.telemetry.events import (
    SCHEMA,
    Awaited,
    BytesPassed,
    CallerRefused,
    CertificateExpires,
    CertificatesChanged,
    CheckpointDamaged,
    Conflict,
    Event,
    FineTuned,
    LinkChanged,
    RoundDone,
    RoundDurable,
    Shortage,
    Started,
    StateChanged,
    StoppedEarly,
    ViewDecided,
    Waiting,
)
from peer.telemetry.metrics import LINK_STATES, MAX_CONNECTIONS, STATES, Metrics

ROOT = Path(__file__).parent.parent.parent
STARTED = Started(
    schema=SCHEMA,
    version="0.1.0",
    id="peer0",
    federation="digits",
    protocol="fibfl",
    rounds=9,
    restarts=2,
    members=("peer0", "peer1", "peer2"),
    certificate_expires=2e9,
)
ROUND = RoundDone(
    time=1000.0,
    round=4,
    accuracy={"matched": 0.9, "paper": None},
    figures={"f1": 0.5},
    validation={"f1": 0.25},
    loss=0.125,
    test_loss=None,
    balanced=0.75,
    seconds={"train": 2.0, "communicate": 0.5},
    notes={"gamma": 0.5, "weights": [1.0, 2.0]},
)
LIFE: list[Event] = [
    STARTED,
    ViewDecided(number=1, members=("peer0", "peer1"), first=5, planned=False, entrants=(), reason="peer2 lost"),
    StateChanged(state="joining", round=-1),
    LinkChanged(neighbour="peer1", state="up"),
    LinkChanged(neighbour="peer2", state="down"),
    Waiting(cause="join", awaited=(Awaited("peer2", None, "refused"),), others=1, sentence="waiting"),
    StateChanged(state="training", round=4),
    ROUND,
    BytesPassed(round=4, sent={"peer1": 100}, received={"peer2": 40}),
    BytesPassed(round=5, sent={"peer1": 20, "peer2": 1}, received={}),
    CallerRefused(caller="x", kind="federation", reason="another seed"),
    CallerRefused(caller="a stranger", kind="stranger", reason='said "nothing"\n'),
    CallerRefused(caller="a stranger", kind="stranger", reason="too many calls"),
    Conflict(sender="peer1", round=3, step=1),
    CheckpointDamaged(round=2, reason="torn"),
    RoundDurable(round=3, time=1001.0),
    CertificatesChanged(sentence="the new certificates are not used"),
]


def samples(text: str) -> dict[str, float]:
    """By name and labels, as a query has them."""

    def all_of() -> Iterator[tuple[str, float]]:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                yield sample.name + (f"{{{labels}}}" if labels else ""), sample.value

    return dict(all_of())


def told(metrics: Metrics) -> dict[str, float]:
    return samples(generate_latest(metrics.registry).decode())


@pytest.fixture
def lived() -> Metrics:
    metrics = Metrics(Path())
    for event in LIFE:
        metrics.on_event(event)
    return metrics


def test_the_figures_of_a_life(lived: Metrics) -> None:
    found = told(lived)
    about = 'dfl_info{federation="digits",peer="peer0",protocol="fibfl",version="0.1.0"}'
    expected = {
        about: 1,
        "dfl_planned_rounds": 9,
        "dfl_restarts_total": 2,
        "dfl_round": 4,
        "dfl_rounds_total": 1,
        'dfl_peer_state{dfl_peer_state="training"}': 1,
        'dfl_peer_state{dfl_peer_state="joining"}': 0,
        'dfl_link_state{dfl_link_state="up",neighbour="peer1"}': 1,
        'dfl_link_state{dfl_link_state="down",neighbour="peer2"}': 1,
        'dfl_accuracy_ratio{test="matched"}': 0.9,
        'dfl_accuracy_ratio{test="balanced"}': 0.75,
        'dfl_figure{figure="f1",samples="test"}': 0.5,
        'dfl_figure{figure="f1",samples="validation"}': 0.25,
        'dfl_loss{samples="train"}': 0.125,
        'dfl_note{note="gamma"}': 0.5,
        'dfl_phase_seconds_total{phase="train"}': 2.0,
        'dfl_sent_bytes_total{neighbour="peer1"}': 120,
        'dfl_sent_bytes_total{neighbour="peer2"}': 1,
        'dfl_received_bytes_total{neighbour="peer2"}': 40,
        'dfl_refusals_total{reason="federation"}': 1,
        'dfl_refusals_total{reason="stranger"}': 2,
        'dfl_conflicts_total{neighbour="peer1"}': 1,
        "dfl_damaged_checkpoints_total": 1,
        "dfl_last_round_timestamp_seconds": 1000,
        "dfl_durable_round": 3,
        "dfl_durable_round_timestamp_seconds": 1001,
        "dfl_certificate_expiry_timestamp_seconds": 2e9,
        'dfl_awaited_peers{cause="join"}': 2,
        'dfl_awaited_peers{cause="stalled"}': 0,
        "dfl_view_number": 1,
        "dfl_view_members": 2,
        'dfl_events_total{event="traffic"}': 2,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not [name for name in found if "paper" in name or 'dfl_loss{samples="test"}' in name or "weights" in name]
    assert found["process_resident_memory_bytes"] > 0


def test_who_waits_for_a_quorum_tells_of_how_many_and_since_when(lived: Metrics) -> None:
    assert told(lived)['dfl_quorum_members{members="needed"}'] == 0
    short = Waiting.for_quorum(Shortage(2, 5, 3, seconds=60.0), tuple(Awaited(id, None, "gone") for id in "abc"))
    lived.on_event(replace(short, time=1000.0))
    names = [
        'dfl_awaited_peers{cause="quorum"}',
        'dfl_quorum_members{members="here"}',
        'dfl_quorum_members{members="needed"}',
        "dfl_quorum_wait_start_seconds",
    ]
    assert [told(lived)[name] for name in names] == [3, 2, 3, 940]
    lived.on_event(Waiting(cause="quorum", awaited=(), sentence="over", time=1060.0))
    assert [told(lived)[name] for name in names] == [0, 0, 0, 0]


def test_in_a_new_view_nothing_is_left_of_links_and_waits_of_the_last_one(lived: Metrics) -> None:
    """Nobody tells that they are over: who has been left out would stay down for ever."""
    lived.on_event(Waiting(cause="staleness", awaited=(Awaited("peer2", None, "silent"),), sentence="waiting"))
    lived.on_event(
        ViewDecided(number=2, members=("peer0", "peer1"), first=5, planned=False, entrants=(), reason="peer2 lost")
    )
    found = told(lived)
    assert not [name for name in found if name.startswith("dfl_link_state")]
    assert {value for name, value in found.items() if name.startswith("dfl_awaited_peers")} == {0}


def test_new_certificates_and_warnings_tell_until_when_they_are_valid(lived: Metrics) -> None:
    name = "dfl_certificate_expiry_timestamp_seconds"
    lived.on_event(CertificatesChanged(sentence="new certificates", expires=3e9))
    assert told(lived)[name] == 3e9
    lived.on_event(CertificateExpires(file="ca.pem", expires=1e9, days=0, left=-1.0))
    assert told(lived)[name] == 1e9


def test_when_the_run_will_be_over() -> None:
    metrics = Metrics(Path())
    metrics.on_event(next(event for event in LIFE if isinstance(event, Started)))
    expected = []
    for round, at in ((5, 1000.0), (6, 1010.0), (8, 1040.0), (9, 1045.0)):
        metrics.on_event(RoundDone(round=round, loss=None, time=at))
        expected.append(told(metrics)["dfl_expected_end_timestamp_seconds"])
    assert expected == [0, 1040, 1055, 1045], "nine rounds; they took 10, 15 and 15 s"


def test_where_all_end_early_the_run_is_over_then() -> None:
    """Otherwise an alert would take a peer that has ended well for one that is down."""
    metrics = Metrics(Path())
    metrics.on_event(STARTED)
    for event in (RoundDone(round=1, loss=None, time=1000.0), RoundDone(round=2, loss=None, time=1010.0)):
        metrics.on_event(event)
    metrics.on_event(StoppedEarly(round=3, best_round=1, figure="accuracy"))
    metrics.on_event(RoundDone(round=3, loss=None, time=1020.0))
    assert told(metrics)["dfl_expected_end_timestamp_seconds"] == 1020


def test_the_disk_is_that_on_which_the_directory_will_be(tmp_path: Path) -> None:
    found = told(Metrics(tmp_path / "not" / "there"))
    assert 0 < found["dfl_disk_free_bytes"] <= found["dfl_disk_size_bytes"]


def test_a_figure_that_is_not_known_now_stays(lived: Metrics) -> None:
    lived.on_event(RoundDone(round=5, loss=None))
    lived.on_event(FineTuned(accuracy={"matched": 0.95}, figures={}, balanced=0.85))
    found = told(lived)
    assert found['dfl_accuracy_ratio{test="matched"}'] == 0.95
    assert found['dfl_accuracy_ratio{test="balanced"}'] == 0.85, "of the same model"
    assert found['dfl_loss{samples="train"}'] == 0.125
    assert found["dfl_rounds_total"] == 2


def test_peers_of_one_process_have_figures_of_their_own() -> None:
    one, another = Metrics(Path()), Metrics(Path())
    one.on_event(ROUND)
    assert (told(one)["dfl_rounds_total"], told(another)["dfl_rounds_total"]) == (1, 0)


def test_all_states_are_known() -> None:
    assert get_args(State) == STATES
    assert get_args(LinkState) == LINK_STATES


@pytest.fixture
def here(ports: Callable[[int], list[int]]) -> tuple[str, int]:
    return "127.0.0.1", ports(1)[0]


def scrape(here: tuple[str, int]) -> tuple[str, str]:
    """The kind of what is answered, and its text."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{here[1]}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_it_answers_in_openmetrics_and_frees_its_port(lived: Metrics, here: tuple[str, int]) -> None:
    with (
        socket.create_server(here),
        pytest.raises(InputError, match=r"^cannot serve metrics at 127\.0\.0\.1:\d+: address already in use; stop"),
    ):
        Metrics(Path()).listen(here)
    lived.listen(here)
    kind, text = scrape(here)
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert samples(text)["dfl_round"] == 4
    lived.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(here, timeout=60)


def test_who_says_nothing_holds_few_connections(
    lived: Metrics, here: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "CONNECTION_TIMEOUT_S", 600.0)
    lived.listen(here)
    with ExitStack() as held:
        first, *_ = [held.enter_context(socket.create_connection(here, timeout=60)) for _ in range(MAX_CONNECTIONS)]
        one_more = held.enter_context(socket.create_connection(here, timeout=60))
        assert one_more.recv(1) == b""
        first.shutdown(socket.SHUT_WR)
        assert first.recv(1) == b""
    lived.close()


def test_nobody_holds_a_connection_for_long(
    lived: Metrics, here: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "CONNECTION_TIMEOUT_S", 0.1)
    lived.listen(here)
    with socket.create_connection(here, timeout=60) as held:
        held.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert held.recv(1) == b""
    monkeypatch.undo()
    assert scrape(here)[1].endswith("# EOF\n")
    lived.close()


def answered(here: tuple[str, int], request: bytes) -> bytes:
    """All that is said to it."""
    with socket.create_connection(here, timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def asking(*headers: str, host: str = "localhost") -> bytes:
    return "\r\n".join(("GET /metrics HTTP/1.1", f"Host: {host}", *headers, "", "")).encode()


def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> bool:
    """Whether nothing was written where a peer has its log."""
    return not capfd.readouterr().err and not caplog.records


VERSION = "Accept: application/openmetrics-text; version="
UNCLEAR = {
    "a version that is none": asking(f"{VERSION}x"),
    "a version of two lines": asking(f"{VERSION}1.0.0\r\n X-Another: header"),
    "one word": b"\xff\r\n\r\n",
    "no version": b"GET / HTTP/x\r\n\r\n",
    "four words": b"GET / / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("request_", UNCLEAR.values(), ids=UNCLEAR)
def test_what_cannot_be_understood_is_answered_and_seldom_told(
    lived: Metrics,
    here: tuple[str, int],
    request_: bytes,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The library's server wrote a traceback of each."""
    said: list[Event] = []
    lived.listen(here, report=said.append)
    for _ in range(15):
        assert answered(here, request_).startswith(b"HTTP/1.0 400 ")
    lived.close()
    reason = "`metrics`, asked for in a way that is not understood"
    assert [event.reason for event in said if isinstance(event, CallerRefused)] == [
        reason,
        f"{reason}, 10 times by now",
    ]
    assert quiet(capfd, caplog)


def test_a_request_has_few_bytes(lived: Metrics, here: tuple[str, int]) -> None:
    """Of the library's server, six megabytes, kept several times over; here the last line never comes."""
    lived.listen(here)
    line = b"X: " + b"x" * 995 + b"\r\n"
    lines = line * (exposition.MAX_REQUEST_BYTES // len(line) + 1)
    with socket.create_connection(here, timeout=60) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + lines)
        assert connection.recv(13) == b"HTTP/1.0 431 "
    lived.close()


def test_connections_that_are_reset_are_seldom_told(
    lived: Metrics, here: tuple[str, int], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    said: list[Event] = []
    lived.listen(here, report=said.append)
    while not said:
        with socket.create_connection(here, timeout=60) as connection:
            connection.sendall(b"GET /met")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        answered(here, asking())  # in its turn
    lived.close()
    (event,) = said
    assert str(event) == "refused a stranger: `metrics`, asked for and then cut off, 100 times by now"
    assert quiet(capfd, caplog)


def test_a_fault_of_the_peers_own_is_told_once(
    lived: Metrics, here: tuple[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise LookupError("no such figure")

    monkeypatch.setattr(lived.registry, "collect", fail)
    lived.listen(here)
    assert [answered(here, asking()) for _ in range(3)] == 3 * [b""]
    lived.close()
    (record,) = caplog.records
    assert record.exc_info
    assert str(record.exc_info[1]) == "no such figure"


def test_at_loopback_only_its_own_names_are_answered(lived: Metrics, here: tuple[str, int]) -> None:
    """A web site whose name has become 127.0.0.1 would read the figures by a browser on this machine."""
    said: list[Event] = []
    lived.listen(here, names_of("localhost:9400"), said.append)
    for host in ("localhost", "LOCALHOST:9400", f"127.0.0.1:{here[1]}", "[::1]:80"):
        assert answered(here, asking(host=host)).startswith(b"HTTP/1.0 200 ")
    for host in ("evil.example", "evil.example:9400", "127.0.0.1.evil.example", "[::1", "", "10.0.0.3"):
        assert answered(here, asking(host=host)).startswith(b"HTTP/1.0 421 ")
    assert answered(here, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 421 ")
    lived.close()
    assert [str(event).partition(": ")[2] for event in said] == [
        "`metrics`, asked for by a name that is not this peer's"
    ]


def test_where_others_can_reach_it_any_name_is_answered() -> None:
    assert names_of("127.0.0.2:9400") == {"localhost", "127.0.0.1", "::1", "127.0.0.2"}
    assert not names_of("0.0.0.0:9400")
    assert not names_of("10.0.0.3:9400")


def names(page: str) -> set[str]:
    """The figures of dfl and of the process that a text names."""
    return set(re.findall(r"\b(?:dfl|process)_[a-z_]+\b", page))


def test_the_dashboard_shows_what_there_is(lived: Metrics) -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dfl.json").read_text())
    shown = {target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())}
    there = {name.partition("{")[0] for name in told(lived)}
    assert len(shown) > 10
    assert set().union(*map(names, shown)) - there - {"dfl_peer_state", "dfl_link_state"} == set()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_the_alerts_rest_on_what_there_is(lived: Metrics) -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()
    there = {name.partition("{")[0] for name in told(lived)}
    assert len(names(rules)) > 8
    assert names(rules) - there == set()


def test_all_figures_are_documented(lived: Metrics) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    there = {name.partition("{")[0] for name in told(lived)}
    missing = {name for name in there if name.startswith("dfl_") and not name.endswith("_created")} - names(page)
    assert missing == set()
