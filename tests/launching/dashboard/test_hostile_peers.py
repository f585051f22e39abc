"""What one peer writes can neither stop the launcher nor its page."""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.dashboard import server
from launcher.dashboard.feed import Feed
from launcher.dashboard.server import opened
from launcher.headline import Headline
from launcher.monitor.federation import FederationView
from peer.network.transport.addresses import split
from peer.spec.loading import load_spec
from peer.telemetry.events import read_event

LINES = [
    {"event": "round", "time": 1, "round": 10**15, "accuracy": {"matched": 0.5}},
    {"event": "round", "time": 1, "round": 999_999, "accuracy": {"matched": 0.5}},
    {"event": "view", "time": 1, "number": 99, "members": ["peer9"], "first": 10**12},
    {"event": "view", "time": 1, "number": 99, "members": ["peer9"], "first": 3},
    {"event": "ring", "time": 1, "order": [], "cost_before": 1.0, "cost_after": 1.0},
    {"event": "ring", "time": 1, "order": ["peer0"] * 5, "cost_before": float("nan"), "cost_after": 1.0},
    {"event": "round", "time": 1, "round": 1, "loss": 0.5, "balanced": 1e308},
    {"event": "ring", "time": 1e11, "order": ["peer0"] * 1000 + ["peer1", "peer2"], "cost_before": 1, "cost_after": 1},
]


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    (tmp_path / "federation.yaml").write_text("protocol: fibfl\nrounds: 4\n")
    spec = load_spec(tmp_path / "federation.yaml", peers=3)
    return Feed(spec, FederationView(spec.ids, spec.rounds, Headline.from_spec(spec)), None)


@pytest.mark.parametrize("line", LINES)
async def test_a_line_of_a_peers_leaves_the_view_as_it_was(line: dict[str, object], feed: Feed) -> None:
    if event := read_event(line):
        feed.federation.update([("peer0", event)], time.time())
        feed.look(0.0)
    await feed.draw(0.0)
    assert feed.drawings == 1
    assert feed.federation.round == 0
    assert [peer.id for peer in feed.federation.present] == ["peer0", "peer1", "peer2"]
    assert feed.federation.peers["peer0"].figure(feed.federation.headline) is None
    feed.end("over")
    assert feed.ended == "over"


@pytest.mark.parametrize("loss", [1e308, -1e308, float("nan"), float("inf")])
async def test_a_loss_out_of_all_proportion_is_none(loss: float, feed: Feed) -> None:
    line = {"event": "round", "time": 1, "round": 1, "loss": loss, "test_loss": loss, "accuracy": {"matched": 0.5}}
    for id in feed.spec.ids:
        event = read_event(line)
        assert event
        feed.federation.update([(id, event)], time.time())
    feed.look(0.0)
    await feed.draw(0.0)
    assert (feed.drawings, feed.federation.round, feed.federation.mean_loss(1)) == (1, 1, None)
    [row] = json.loads(feed.written)["document"]["tables"]["rounds"]
    assert (row["mean"], row["train_loss"], row["test_loss"]) == (0.5, None, None)


async def test_who_says_nothing_keeps_no_connection(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(server, "vega_script", lambda: "")
    said: list[str] = []
    with opened("127.0.0.1:0") as dashboard:
        assert dashboard
        async with dashboard.showing(feed, said.append):
            reader, writer = await asyncio.open_connection(*split(dashboard.address))
            with suppress(ConnectionResetError):
                async with asyncio.timeout(30):
                    assert await reader.read() == b""
            writer.close()
    assert said == []
