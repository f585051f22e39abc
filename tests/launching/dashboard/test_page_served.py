"""The live page over real sockets: who is let in, what a browser is told, and that nobody makes the run wait."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.cli import main
from launcher.dashboard import feed as feed_room
from launcher.dashboard import server
from launcher.dashboard.feed import Feed
from launcher.dashboard.server import Dashboard, opened, read_address, taken
from launcher.headline import Headline
from launcher.monitor.federation import FederationView
from launcher.run_files import RunFiles
from peer.errors import FailedError, InputError
from peer.network.operator_client import PeerStatus, StatusAnswer, StatusClient
from peer.network.transport.addresses import split
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.telemetry.events import LinkChanged, RoundDone, StateChanged, ViewDecided


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    (tmp_path / "fed.yaml").write_text("name: small\nrounds: 3\nprotocol: fibfl\ndata: digits\n")
    return load_spec(tmp_path / "fed.yaml", peers=3)


@pytest.fixture
def view(spec: Spec) -> FederationView:
    return FederationView(spec.ids, spec.rounds, Headline.from_spec(spec))


@pytest.fixture
def feed(spec: Spec, view: FederationView) -> Feed:
    return Feed(spec, view, None)


Serves = Callable[..., Any]


@pytest.fixture
def serves(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> Serves:
    monkeypatch.setattr(server, "vega_script", lambda: "window.vegaEmbed = null;")

    @asynccontextmanager
    async def serves(address: str = "127.0.0.1:0") -> AsyncIterator[tuple[Dashboard, httpx.AsyncClient]]:
        with opened(address) as made:
            assert made
            said: list[str] = []
            async with made.showing(feed, said.append), httpx.AsyncClient(timeout=20) as client:
                yield made, client
            assert said == []

    return serves


def bare(made: Dashboard) -> str:
    return f"http://127.0.0.1:{split(made.address)[1]}/"


async def told(lines: AsyncIterator[str]) -> tuple[str, Any]:
    """The next event: its name and what it says."""
    name = (await anext(lines)).removeprefix("event: ")
    data = json.loads((await anext(lines)).removeprefix("data: "))
    assert await anext(lines) == ""
    return name, data


async def told_of(lines: AsyncIterator[str], name: str) -> Any:
    while True:
        one, data = await told(lines)
        if one == name:
            return data


def bearer(made: Dashboard) -> dict[str, str]:
    return {"Authorization": f"Bearer {made.token}"}


async def test_only_the_token_lets_in(serves: Serves) -> None:
    async with serves() as (made, client):
        for path in ("events", f"events?token={made.token}", "elsewhere"):
            assert (await client.get(bare(made) + path)).status_code == 403
        for wrong in (b"", b"Bearer", b"Bearer wrong", "Bearer é".encode(), made.token[:-1].encode()):
            answer = await client.get(f"{bare(made)}events", headers={b"authorization": wrong})
            assert answer.status_code == 403
        answer = await client.get(made.url)
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
        assert (await client.get(f"{bare(made)}elsewhere", headers=bearer(made))).status_code == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await client.request(method, bare(made))).status_code == 405


async def test_no_host_and_no_path_passes_for_the_page(serves: Serves) -> None:
    async with serves() as (made, client):
        for host in ("localhost", "localhost/?", "localhost/#", "localhost/\\?"):
            for path in ("events", "peers/peer0", "%09", "%0A"):
                answer = await client.get(bare(made) + path, headers={"Host": host})
                assert answer.status_code in (403, 421), (host, path)


async def test_without_the_token_nothing_of_the_run_is_told(serves: Serves, spec: Spec) -> None:
    """The page itself is for everybody; browsers keep to themselves what stands behind the `#` of its address."""
    async with serves() as (made, client):
        assert made.url == f"{bare(made)}#{made.token}"
        page = (await client.get(bare(made))).text
    assert not any(word in page for word in (made.token, spec.name, spec.protocol.name, *spec.ids))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "[", "127.0.0.1.evil.example"])
async def test_no_other_name_leads_to_loopback(serves: Serves, host: str) -> None:
    async with serves() as (made, client):
        assert (await client.get(made.url, headers={"Host": host})).status_code in (400, 421)


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:9"])
async def test_a_tunnel_may_have_another_port(serves: Serves, host: str) -> None:
    async with serves() as (made, client):
        assert (await client.get(made.url, headers={"Host": host})).status_code == 200


async def test_beyond_loopback_any_name_of_the_machine_does(serves: Serves) -> None:
    async with serves("0.0.0.0:0") as (made, client):
        elsewhere = {"Host": "node17:8080"}
        assert (await client.get(bare(made), headers=elsewhere)).status_code == 200
        assert (await client.get(f"{bare(made)}events", headers=elsewhere)).status_code == 403


async def test_a_browser_is_told_all_and_then_what_changes(serves: Serves, view: FederationView) -> None:
    async with serves() as (made, client), client.stream("GET", f"{bare(made)}events", headers=bearer(made)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        first = await told_of(lines, "now")
        assert first["order"] == ["peer0", "peer1", "peer2"]
        assert first["rounds"] == [0, 3]
        assert {one["words"] for one in first["peers"]} == {"starting"}
        view.update([("peer1", StateChanged(state="training", round=1, time=1.0))], 1.0)
        second = await told_of(lines, "now")
        assert [(one["peer"], one["sign"], one["words"]) for one in second["peers"]] == [("peer1", "▲", "training")]
        assert "order" not in second
        view.update([("peer0", LinkChanged(neighbour="peer1", state="down", time=2.0))], 2.0)
        third = await told_of(lines, "now")
        assert third["broken"] == [["peer0", "peer1"]]
        assert third["peers"][0]["words"] == "suspected by peer0"


async def test_a_peer_that_is_chosen_is_looked_at_closer(
    serves: Serves, spec: Spec, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(tmp_path)
    files.out("peer1").mkdir()
    files.log("peer1").write_text("".join(f"line {number}\x1b[2J\n" for number in range(50)))
    monkeypatch.setattr(feed, "_files", files)
    resources = dict.fromkeys(("gpu_memory_bytes", "free_gpu_memory_bytes"), 0) | {"gpu": ""}
    resources |= {"cpus": 8, "free_cpus": 2.5, "load": 1.0, "memory_bytes": 16_000_000_000, "free_memory_bytes": 10**9}

    async def ask_all(_self: StatusClient, ids: list[str]) -> dict[str, StatusAnswer]:
        well = PeerStatus("peer1", "training", 1, 3, None, 0, 0, (), resources)
        return {id: well if id == "peer1" else "connection refused" for id in ids}

    monkeypatch.setattr(StatusClient, "ask_all", ask_all)
    async with serves() as (made, client):
        assert (await client.get(f"{bare(made)}peers/peer1")).status_code == 403
        assert (await client.get(f"{bare(made)}peers/..%2Fpeer1", headers=bearer(made))).status_code == 404
        assert (await client.get(f"{bare(made)}peers/other", headers=bearer(made))).status_code == 404
        closer = (await client.get(f"{bare(made)}peers/peer1", headers=bearer(made))).json()
        assert closer["machine"] == "CPU: 2.5 of 8 cores free (load 1.0), memory: 1.0 GB of 16.0 GB free"
        assert len(closer["log"]) == feed_room.LOG_LINES
        assert closer["log"][-1].startswith("line 49")
        assert "\x1b" not in closer["log"][-1]
        silent = (await client.get(f"{bare(made)}peers/peer0", headers=bearer(made))).json()
        assert silent == {"machine": "connection refused", "log": ["No log of this peer is on this machine."]}


async def test_a_document_follows_what_peers_tell(serves: Serves, view: FederationView, spec: Spec) -> None:
    async with serves() as (made, client), client.stream("GET", f"{bare(made)}events", headers=bearer(made)) as answer:
        lines = answer.aiter_lines()
        await told_of(lines, "now")
        rounds = [(id, RoundDone(round=1, loss=0.5, accuracy={"matched": 0.25}, time=3.0)) for id in spec.ids]
        view.update(rounds, 3.0)
        while not (rows := (document := (await told_of(lines, "document"))["document"])["tables"]["rounds"]):
            pass
        notes = {card["key"]: card["note"] for card in document["runs"][0]["cards"]}
        assert notes["worst"] == f"{spec.ids[0]}, after round 1"
        assert [(row["round"], row["mean"]) for row in rows] == [(1, 0.25)]


async def test_the_end_is_told_last(serves: Serves, feed: Feed) -> None:
    async with httpx.AsyncClient(timeout=20) as other:
        async with serves() as (made, _):
            stream = other.stream("GET", f"{bare(made)}events", headers=bearer(made))
            answer = await stream.__aenter__()
            lines = answer.aiter_lines()
            await told_of(lines, "now")
            feed.end("The run has finished.")
            assert await told_of(lines, "ended") == {"said": "The run has finished."}
            assert [line async for line in lines] == []
            await stream.__aexit__(None, None, None)
        with pytest.raises(httpx.ConnectError):
            await other.get(bare(made))


async def test_a_browser_that_takes_nothing_makes_nobody_wait(
    serves: Serves, feed: Feed, view: FederationView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(feed_room, "as_json", lambda document: json.dumps("x" * 8_000_000))
    async with serves() as (made, client):
        stuck = [socket.create_connection(split(made.address)) for _ in range(5)]
        for one in stuck:
            head = f"Host: localhost\r\nAuthorization: Bearer {made.token}"
            one.sendall(f"GET /events HTTP/1.1\r\n{head}\r\n\r\n".encode())
            one.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(one, 1) == b"H", "and nothing of what follows"
        async with client.stream("GET", f"{bare(made)}events", headers=bearer(made)) as answer:
            lines = answer.aiter_lines()
            await told_of(lines, "now")
            view.update([("peer1", StateChanged(state="training", round=1, time=1.0))], 1.0)
            assert (await told_of(lines, "now"))["peers"][0]["words"] == "training"
    for one in stuck:
        one.close()


async def test_what_goes_wrong_with_the_page_ends_the_page_alone(
    feed: Feed, view: FederationView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "vega_script", lambda: "")
    said: list[str] = []

    def broken(clock: float) -> None:
        raise RuntimeError("no more")

    def say(text: str) -> None:
        said.append(text)
        raise BrokenPipeError("nobody listens")

    monkeypatch.setattr(feed, "look", broken)
    with opened("127.0.0.1:0") as made:
        assert made
        async with made.showing(feed, say):
            await feed.following.wait()
            view.update([("peer1", StateChanged(state="training", round=1, time=1.0))], 1.0)
    assert said == [feed.ended] == ["the dashboard has failed, and the run goes on: RuntimeError: no more"]


async def test_nothing_is_drawn_while_nobody_watches(serves: Serves, feed: Feed, view: FederationView) -> None:
    async with serves():
        view.update([("peer1", StateChanged(state="training", round=1, time=1.0))], 1.0)
        while feed.now.peers.get("peer1", {}).get("words") != "training":
            await feed.following.wait()
        assert feed.drawings == 0


def test_who_is_lost_is_shown_so(feed: Feed, view: FederationView) -> None:
    decided = ViewDecided(
        number=1, members=("peer0", "peer2"), first=2, planned=False, entrants=(), reason="silence", time=5.0
    )
    view.update([("peer0", decided)], 5.0)
    feed.look(5.0)
    lost = feed.now.peers["peer1"]
    assert (lost["sign"], lost["tone"]) == ("✗", "bad")
    assert lost["words"] == "excluded; the others continue without it"
    assert "view 1" in feed.now.said


def test_how_far_all_are_and_who_is_in_trouble(feed: Feed, view: FederationView) -> None:
    feed.look(0.0)
    assert feed.now.said == "0 of 3 peers have joined; the others are loading PyTorch and their data."
    view.update([("peer1", StateChanged(state="ready", round=0, time=1.0))], 1.0)
    feed.look(1.0)
    assert feed.now.said.startswith("1 of 3 peers have joined")
    rounds = [(id, RoundDone(round=1, loss=0.5, accuracy={"matched": 0.25}, time=3.0)) for id in view.peers]
    view.update([*((id, StateChanged(state="training", round=1, time=2.0)) for id in view.peers), *rounds], 3.0)
    feed.look(3.0)
    assert (feed.now.said, feed.now.title) == ("1 of 3 rounds completed, 3 peers.", "1/3")
    before = feed.now
    down = LinkChanged(neighbour="peer1", state="down", reason="silence", time=4.0)
    view.update([("peer0", down), ("peer2", down)], 4.0)
    feed.look(4.0)
    assert feed.now.title == "1/3 · ? peer1"
    assert feed.now.since(before)["recent"] == tuple(
        f"link {id} - peer1 is down (silence)" for id in ("peer0", "peer2")
    )


async def test_documents_are_rare(feed: Feed, view: FederationView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_room, "SHARE", 0)
    for clock, drawings in ((10.0, 1), (11.0, 1), (12.5, 2), (20.0, 3)):
        view.update([("peer1", StateChanged(state="training", round=int(clock), time=clock))], clock)
        feed.look(clock)
        await feed.draw(clock)
        assert feed.drawings == drawings
    await feed.draw(30.0)
    assert feed.drawings == 3, "nothing is new"


async def test_nothing_goes_on_behind_it(serves: Serves, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CLOSE_TIMEOUT_S", 0)
    async with serves() as (made, client):
        assert (await client.get(made.url)).status_code == 200
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_document_that_cannot_be_made_leaves_the_one_before(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await feed.draw(1.0)
    before = feed.written

    def impossible(*_: object) -> None:
        raise FailedError("a number out of all proportion")

    with monkeypatch.context() as patched:
        patched.setattr(feed_room, "SHARE", 0)
        patched.setattr(feed_room, "document_of", impossible)
        feed._drawn_to = -1
        await feed.draw(1e6)
    assert (feed.written, feed.drawings) == (before, 1)
    assert feed.now.said.endswith("Charts are out of date: a number out of all proportion")
    feed._drawn_to = -1
    await feed.draw(2e6)
    assert feed.drawings == 2
    assert "out of date" not in feed.now.said


async def test_without_the_token_no_connection_is_kept(
    serves: Serves, view: FederationView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNTRUSTED_TIMEOUT_S", 2)
    async with serves() as (made, client), client.stream("GET", f"{bare(made)}events", headers=bearer(made)) as answer:
        lines = answer.aiter_lines()
        await told_of(lines, "now")
        reader, writer = await asyncio.open_connection(*split(made.address))
        writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        with suppress(ConnectionError):
            assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n"
            writer.write(b"x")  # and never the rest
            async with asyncio.timeout(60):
                await reader.read()
        writer.close()
        view.update([("peer1", StateChanged(state="training", round=1, time=1.0))], 1.0)
        assert (await told_of(lines, "now"))["peers"][0]["words"] == "training"


@pytest.mark.parametrize(
    ("text", "read"),
    [(None, "127.0.0.1:0"), ("8080", "127.0.0.1:8080"), ("0.0.0.0:80", "0.0.0.0:80"), ("[::1]:80", "[::1]:80")],
)
def test_addresses(text: str | None, read: str) -> None:
    assert read_address(text) == read


@pytest.mark.parametrize("text", ["", "fed.yaml", ":", "a:b", "127.0.0.1", "x:99999", "http://x:1", "::1:80"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(InputError, match=r"--at .*: give HOST:PORT"):
        read_address(text)


def test_a_port_in_use_is_wrong_input_before_anything_is_made(
    spec: Spec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with taken("127.0.0.1:0") as listening:
        at = f"127.0.0.1:{listening.getsockname()[1]}"
        out = tmp_path / "out"
        run = ["run", str(tmp_path / "fed.yaml"), "--peers", "3", "--out", str(out), "--at", at]
        assert main(run) == 2
        assert f"--at {at} says where the live page is; add --dashboard" in capsys.readouterr().err
        assert main([*run, "--dashboard"]) == 2
        assert f"--at {at}: Address already in use" in capsys.readouterr().err
        assert main(["dashboard", str(tmp_path / "fed.yaml"), "--peers", "3", "--at", at]) == 2
        assert f"--at {at}: Address already in use" in capsys.readouterr().err
        assert main([*run, "--dashboard", "--quiet"]) == 2
        assert "--quiet would hide" in capsys.readouterr().err
    assert not out.exists()


def test_a_missing_package_is_said_before_anything_is_made(
    spec: Spec, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    run = ["run", "--dashboard", str(tmp_path / "fed.yaml"), "--peers", "3", "--out", str(tmp_path / "out")]
    assert main(run) == 2
    assert "the dashboard: it needs starlette and uvicorn; install them with" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_two_scripts_of_the_page_take_no_name_from_each_other() -> None:
    def names(package: str, script: str) -> set[str]:
        text = files(package).joinpath(script).read_text("utf-8")
        return set(re.findall(r"^(?:async )?(?:function|const|let) (\w+)", text, re.MULTILINE))

    assert len(names("launcher.page", "page.js")) > 10
    assert names("launcher.page", "page.js").isdisjoint(names("launcher.dashboard", "live.js"))
