"""Certificates that expire: told in time, told apart, and replaced while the peers run."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from authority import Holder, authority
from certified import secured
from cryptography.x509 import DNSName
from real_peers import Build, BuildWatched, SmallFederation, until

from launcher.certificates import make_certificates
from launcher.cli import main
from launcher.run_files import certificate_files
from peer.errors import NotNowError
from peer.network.transport import UNTRUSTED
from peer.network.transport.tls import CertificatePaths, TlsCredentials
from peer.process import NOT_NOW
from peer.spec.loading import load_spec
from peer.telemetry.events import CertificateExpires, Event, Report

SPEC = "{protocol: fedavg, ring: [{id: peer0, address: '127.0.0.1:7700'}, {id: peer1, address: '127.0.0.1:7701'}]}"
DAY_S = 86_400
SHORT_S = 5.0
"""Seconds for which certificates are valid that are to expire: some to be found, the rest to expire."""


def in_use(
    directory: Path, ca: Holder, cert: Holder, clock: Callable[[], float], report: Report = print
) -> TlsCredentials:
    (directory / "ca.pem").write_bytes(ca.shown)
    cert.write(directory, "peer0")
    paths = CertificatePaths("peer0", directory / "ca.pem", directory / "peer0.pem", directory / "peer0.key")
    return TlsCredentials(paths, {}, report, look=0.002, clock=clock)


async def test_each_threshold_is_told_once(tmp_path: Path) -> None:
    """By a clock of its own; each look is that of another view of the run."""
    ca, told = authority(), list[CertificateExpires]()
    cert, now = ca.issue(DNSName("peer0")), [0.0]
    used = in_use(tmp_path, ca, cert, lambda: now[0], told.append)  # type: ignore[arg-type]
    expires = used.bundle.expires.timestamp()

    async def days_told_at(*days: float) -> list[int]:
        told.clear()
        for left in days:
            now[0] = expires - left * DAY_S
            watching = asyncio.create_task(used.watch_expiry())
            await asyncio.sleep(0)
            watching.cancel()
        assert {(one.file, one.expires) for one in told} <= {(str(tmp_path / "peer0.pem"), expires)}
        assert all(one.left <= one.days * DAY_S for one in told)
        return [one.days for one in told]

    assert await days_told_at(400, 31) == []
    assert await days_told_at(30, 29, 8) == [30]
    assert await days_told_at(7, 2, 1, 0.5) == [7, 1]
    assert await days_told_at(0, -1, -100) == [0]


async def test_of_thresholds_that_have_passed_only_the_nearest_is_told(tmp_path: Path) -> None:
    ca, told = authority(), list[Event]()
    used = in_use(tmp_path, ca, ca.issue(DNSName("peer0")), time.time, told.append)
    watching = asyncio.create_task(used.watch_expiry())
    await asyncio.sleep(0)
    watching.cancel()
    assert [one.days for one in told if isinstance(one, CertificateExpires)] == [1]


async def test_who_holds_an_expired_certificate_says_so_first(tmp_path: Path) -> None:
    """Whatever the other end shows, or if it shows nothing."""
    ca = authority()
    used = in_use(tmp_path, ca, ca.issue(DNSName("peer0")), time.time)
    old = [replace(one, expires=datetime(2026, 1, 2, 3, 4, tzinfo=UTC)) for one in used.bundle.validities]
    bundle = replace(used.bundle, validities=(*old,))
    said = await bundle.compared(UNTRUSTED, "127.0.0.1:1", "peer1")
    assert said == (
        "this peer's own certificate is not valid now (peer0.pem: expired on 2026-01-02 03:04 UTC; make new ones)"
    )


def test_a_clock_that_is_behind_is_a_reason_to_try_later(tmp_path: Path) -> None:
    ca = authority()
    with pytest.raises(NotNowError, match=r"peer0\.pem: is valid from .* UTC only; set the clock, or make new ones$"):
        in_use(tmp_path, ca, ca.issue(DNSName("peer0"), begins=1), time.time)


def test_new_certificates_stand_a_clock_that_is_behind(tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text(SPEC)
    make_certificates(load_spec(tmp_path / "federation.yaml"), tmp_path / "certs", days=30)
    bundle = CertificatePaths("peer0", **certificate_files(tmp_path / "certs", "peer0")).read()
    now = datetime.now(UTC)
    assert not bundle.problem(now - timedelta(hours=23))
    assert bundle.problem(now - timedelta(hours=25)).startswith(f"{tmp_path / 'certs' / 'peer0.pem'}: is valid from")


def renew(run: SmallFederation, certs: Path, days: float) -> None:
    (new := run.directory / f"valid for {days} days").mkdir()
    make_certificates(run.spec, new, days)
    for file in new.iterdir():
        shutil.copyfile(file, certs / file.name)


def left(run: SmallFederation, id: str) -> list[float]:
    """The seconds that each warning of a peer gives."""
    return [event["left"] for event in run.events(id, "certificate_expires")]


def test_a_start_with_an_expired_certificate_may_succeed_later(federation: Build) -> None:
    """Nothing is created, and the exit code is one after which systemd tries again."""
    run = federation("fibfl", patience=600)
    certs = secured(run, days=0)
    run.start("peer0")
    assert run.wait() == {"peer0": NOT_NOW}
    assert "peer0.pem: expired on" in run.log("peer0")
    assert main(["run", str(run.directory / "federation.yaml"), "--certs", str(certs)]) == NOT_NOW
    assert not (run.directory / "peer0").exists()
    renew(run, certs, 10)
    run.start("peer0")
    run.await_event("peer0", "state", state="joining")


@pytest.mark.long
def test_a_run_outlives_its_certificates(watched: BuildWatched, capsys: pytest.CaptureFixture[str]) -> None:
    run, proxies = watched("fibfl", rounds=100_000, patience=600)
    certs = secured(run, days=20)
    for id, port in zip(run.ids, proxies.routes.values(), strict=True):
        tls = {name: str(path) for name, path in certificate_files(certs, id).items()}
        run.configure(id, tls=tls, listen=f"127.0.0.1:{port}")
    run.start()
    for id in run.ids:
        run.await_event(id, "round", round=1)
        assert [round(seconds / DAY_S) for seconds in left(run, id)] == [20], "once, at the start"
    spec = str(run.directory / "federation.yaml")
    assert main(["status", spec, "--certs", str(certs), "--json"]) == 0
    peers = json.loads(capsys.readouterr().out)["peers"]
    told = [run.events(id, "started")[0]["certificate_expires"] for id in run.ids]
    assert [one["certificate_expires"] for one in peers] == told

    renew(run, certs, SHORT_S / DAY_S)
    for id in run.ids:
        until(lambda id=id: len(left(run, id)) == 3, 30, f"{id} warns and then says that it has expired")  # type: ignore[misc]
        assert 0 < left(run, id)[1] < SHORT_S
        assert left(run, id)[2] <= 0
    proxies.cut()
    own = "this peer's own certificate is not valid now (peer0.pem: expired on"
    until(lambda: any(own in event["reason"] for event in run.events("peer0", "link")), 30, "it says why it is alone")

    renew(run, certs, 10)
    last = run.events("peer0", "round")[-1]["round"]
    run.await_event("peer0", "round", round=last + 5)
    assert round(left(run, "peer0")[-1] / DAY_S) == 10
    run.end()


async def test_files_that_are_not_valid_yet_are_told_once_and_taken_when_they_are(tmp_path: Path) -> None:
    """As where the clock of the machine that made them is ahead."""
    ca, told = authority(), asyncio.Queue[str]()
    used = in_use(tmp_path, ca, ca.issue(DNSName("peer0")), time.time, lambda event: told.put_nowait(str(event)))
    renewed = asyncio.Event()

    async def renew() -> None:
        renewed.set()

    watching = asyncio.create_task(used.watch(renew))
    ca.issue(DNSName("peer0"), begins=303 / DAY_S).write(tmp_path, "peer0")
    said = [await asyncio.wait_for(told.get(), 20)]
    await asyncio.wait_for(renewed.wait(), 20)
    while not said[-1].startswith("new certificates, valid until"):
        said.append(await asyncio.wait_for(told.get(), 20))
    assert sum("only; set the clock" in one for one in said) == 1, said
    watching.cancel()


async def test_files_that_are_wrong_once_they_are_valid_are_told_of_again(tmp_path: Path) -> None:
    told = asyncio.Queue[str]()
    ca = authority()
    used = in_use(tmp_path, ca, ca.issue(DNSName("peer0")), time.time, lambda event: told.put_nowait(str(event)))

    async def renew() -> None:
        raise AssertionError("they are another peer's")

    watching = asyncio.create_task(used.watch(renew))
    ca.issue(DNSName("peer1"), begins=302 / DAY_S).write(tmp_path, "peer0")
    said = ""
    while "made out to peer1, not to `peer0`" not in said:
        said = await asyncio.wait_for(told.get(), 20)
    watching.cancel()
