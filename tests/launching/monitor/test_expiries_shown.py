"""Certificates that expire within 30 days, as people see them: terminal, page, `status`, summary; else silence."""

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from launcher.commands.watch import next_expiry, status_cells
from launcher.dashboard.feed import LiveSnapshot
from launcher.headline import Headline
from launcher.monitor.federation import FederationView
from launcher.monitor.live_table import render
from launcher.monitor.polled_federation import PolledFederation
from launcher.reports.summary import expiring_certificates
from peer.network.operator_client import PeerStatus
from peer.network.wire.messages import StatusReply
from peer.telemetry.events import (
    SCHEMA,
    CertificateExpires,
    CertificatesChanged,
    Event,
    Started,
    StateChanged,
    read_event,
)

MATCHED = Headline(test="matched")
DAY_S = 86_400.0
IDS = ("a", "b", "c")


def started(id: str, expires: float | None) -> Started:
    about = {"schema": SCHEMA, "version": "1", "federation": "f", "protocol": "fibfl", "rounds": 3}
    return Started(**about, id=id, certificate_expires=expires)


def seen(days: dict[str, float | None]) -> FederationView:
    """Peers that train, with certificates that expire in so many days."""
    federation = FederationView(IDS, 3, MATCHED)
    for id, left in days.items():
        expires = None if left is None else time.time() + left * DAY_S
        federation.apply([(id, started(id, expires)), (id, StateChanged(state="training", round=1))])
    return federation


def shown(federation: FederationView) -> tuple[str, str]:
    """What the terminal has below its table, and the page above its ring."""
    screen = io.StringIO()
    console = Console(file=screen, width=120, height=24)
    console.print(render(federation, console))
    return screen.getvalue(), LiveSnapshot.from_federation(federation, IDS, time.time()).said


@pytest.mark.parametrize("days", [{}, dict.fromkeys(IDS), {"a": 31.0, "b": 400.0, "c": None}])
def test_nothing_is_shown_of_certificates_that_last(days: dict[str, float | None]) -> None:
    assert not [text for text in shown(seen(days)) if "certificate" in text]


def test_the_first_to_expire_is_shown_and_how_many_follow() -> None:
    terminal, page = shown(seen({"a": 20.01, "b": 6.01, "c": 300.0}))
    assert "the certificate of b expires on " in terminal
    assert ", in 6 days; that of 1 more peer within 30 days\n" in terminal.replace(" \n", "\n")
    assert "The certificate of b expires on " in page
    assert "The certificate of a expired on " in shown(seen({"a": -1.0}))[1]


def test_new_certificates_end_it() -> None:
    federation = seen({"a": 2.0})
    assert federation.expiring(time.time())
    federation.apply([("a", CertificatesChanged(sentence="the new certificates are not used"))])
    assert federation.expiring(time.time())
    federation.apply([("a", CertificatesChanged(sentence="new certificates", expires=time.time() + 300 * DAY_S))])
    assert not federation.expiring(time.time())


def test_a_warning_that_all_give_is_told_once() -> None:
    """Certificates that were made together expire together."""
    federation = seen({})
    soon, later = (time.time() + days * DAY_S for days in (6, 20))

    def warned(expires: float, days: int, *ids: str) -> list[str]:
        left = expires - time.time()
        news = [(id, CertificateExpires(file=f"{id}.pem", expires=expires, days=days, left=left)) for id in ids]
        return [line.partition(" expires")[0] for line in federation.apply(news)]

    assert warned(soon, 7, *IDS) == ["a: a.pem"]
    assert warned(soon, 7, "b") == []
    assert warned(later, 30, "b", "c") == ["b: b.pem"]
    assert warned(soon, 1, "c") == ["c: c.pem"]


def status(id: str, expires: float | None) -> PeerStatus:
    return PeerStatus.from_reply(StatusReply(id=id, state="training", round=1, rounds=3, certificate_expires=expires))


def test_peers_that_are_asked_show_the_same() -> None:
    asked = PolledFederation(IDS, 3, MATCHED)
    asked.record({"a": status("a", time.time() + 6 * DAY_S), "b": status("b", None)}, time.time())
    assert asked.expiring(time.time()).startswith("the certificate of a expires on ")


def test_status_has_the_first_date_always_and_each_when_it_comes_near() -> None:
    near, far = status("a", time.time() + 6.01 * DAY_S), status("b", time.time() + 300.01 * DAY_S)
    assert status_cells("a:1", "a", near)[-1].endswith(" UTC, in 6 days")
    assert status_cells("b:1", "b", far)[-1] == ""
    said = next_expiry({"b": far})
    assert said.startswith("The first certificate to expire is that of b: it expires on ")
    assert said.endswith(", in 300 days.")
    assert next_expiry({"a": near, "b": far}).startswith("The first certificate to expire is that of a:")
    assert next_expiry({"a": status("a", None)}) == ""


@pytest.mark.parametrize("expires", [float("nan"), float("inf"), -1.0, 0.0, 1e300])
def test_a_time_that_cannot_be_is_none(expires: float) -> None:
    assert status("a", expires).certificate_expires is None


def test_the_summary_has_those_that_expire_soon(tmp_path: Path) -> None:
    now = time.time()
    lives: dict[str, list[Event]] = {
        "a": [started("a", now + 5 * DAY_S)],
        "b": [started("b", now + 5 * DAY_S), CertificatesChanged(sentence="new", expires=now + 90 * DAY_S)],
        "c": [started("c", None)],
        "d": [],
    }
    for id, events in lives.items():
        (tmp_path / id).mkdir()
        lines = "".join(json.dumps({"time": now, **event.as_json()}) + "\n" for event in events)
        (tmp_path / id / "events.jsonl").write_text(lines)
    found = expiring_certificates({id: tmp_path / id for id in lives})
    assert found == {"a": pytest.approx(now + 5 * DAY_S)}


@pytest.mark.parametrize("date", [float("nan"), float("inf"), -1.0, 1e300])
def test_an_impossible_date_counts_as_none(date: float) -> None:
    """A member says it of itself, and may say anything."""
    assert PeerStatus.from_reply(StatusReply(id="a", certificate_expires=date)).certificate_expires is None
    told = {"time": 1.0, "event": "certificate_expires", "file": "a.pem", "expires": date, "days": 1, "left": 1.0}
    assert read_event(told) is None
