"""The live page of real peers in Chromium: one of them is killed and comes back, and the page shows it; nothing leaves
the page but what its launcher answers."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from headless import barriers, chromium
from held import held
from real_peers import Build, until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.timeout(400)
PATIENCE = 150.0
"""Seconds: a machine may be busy."""
REMEMBER = """() => {
    window.seen = {};
    const note = () => document.querySelectorAll("#doing tr").forEach((row) => {
        const said = row.querySelector(".sign").textContent + " " + row.querySelector(".words").textContent;
        const all = (window.seen[row.dataset.peer] ??= []);
        if (all.at(-1) !== said) all.push(said);
    });
    const all = { subtree: true, childList: true, characterData: true };
    new MutationObserver(note).observe(document.getElementById("now"), all);
    note();
}"""
"""Keeps all that the page has said of each peer, so that nothing that is soon over is missed."""


@pytest.fixture
def opened() -> Iterator[Callable[[str], "Page"]]:
    """opened(url): the page, drawn. In the end it must have said nothing, and asked nobody else."""
    said: list[str] = []
    places: list[str] = []

    def heard(request: Any) -> None:
        if not any(request.url.startswith(place) for place in places):
            said.append(f"asked for {request.url}")

    with chromium() as browser:

        def opened(url: str) -> "Page":
            places.append(url.partition("#")[0])
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.set_default_timeout(1000 * PATIENCE)
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", heard)
            page.goto(url)
            page.wait_for_selector("body[data-drawn]")
            page.evaluate(REMEMBER)
            return page

        yield opened
    assert said == []


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """launched(*words): dfl-launch, whose words go to `said` in tmp_path; killed at the end if it still runs."""
    made: list[subprocess.Popen[bytes]] = []

    def launched(*words: object) -> subprocess.Popen[bytes]:
        with (tmp_path / "said").open("wb") as said:
            command = [sys.executable, "-u", "-m", "launcher.cli", *map(str, words)]
            made.append(subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT))
        return made[-1]

    yield launched
    for one in made:
        if one.poll() is None:
            one.kill()
            one.wait()
    print((tmp_path / "said").read_text())


def url(said: Path) -> str:
    found = until(lambda: re.search(r"^dashboard: (\S+)$", said.read_text(), re.MULTILINE), PATIENCE, "an address")
    return found[1]


def seen(page: "Page", peer: str) -> list[str]:
    words: list[str] = page.evaluate("(peer) => window.seen[peer] ?? []", peer)
    return words


def shows(page: "Page", what: str, looks: Callable[[], bool]) -> None:
    """Returns when it does; the page works on while this waits."""

    def look() -> bool:
        page.wait_for_timeout(50)
        return looks()

    until(look, PATIENCE, f"the page shows {what}")


LATE = """async () => {
    const real = fetch, soon = () => new Promise((done) => setTimeout(done));
    let bring;
    fetch = async () => ({ ok: true, json: () => new Promise((done) => (bring = done)) });
    choose("peer1");
    await soon();
    fetch = real;
    choose("peer0");
    bring({ machine: "of peer1", log: ["of peer1"] });
    await soon();
    return document.getElementById("closer").textContent;
}"""
"""Another peer is chosen while the answer about the first is being read; what is shown then."""


def chooses_a_peer(page: "Page") -> None:
    """By a click on the ring, and by keys; it is marked in the ring, the list and the curve, and its log is shown."""
    page.locator('#circle g[data-peer="peer2"] circle').click()
    shows(page, "its log", lambda: "round 1 done" in page.locator("#closer pre").inner_text())
    assert "memory: " in page.locator("#closer p").inner_text()
    assert page.locator(".chosen").count() == 2
    assert page.locator("#doing .chosen").get_attribute("data-peer") == "peer2"
    assert page.evaluate("views.get('accuracy').view.signal('chosen')") == "peer2"
    page.locator("#wall").focus()
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.peer ?? document.activeElement.className"))
    assert sorted(reached[:4]) == ["peer0", "peer1", "peer2", "peer3"], "and on to the list"
    assert "scroll" in reached[4]
    page.locator('#circle g[data-peer="peer0"]').focus()
    page.evaluate("arrange({ order, pairs: [], broken: [] })")
    assert page.evaluate("document.activeElement.dataset.peer") == "peer0", "also when a link breaks"
    held: list[Route] = []
    page.route("**/peers/peer0", lambda route: held.append(route))
    page.keyboard.press(" ")
    shows(page, "whom it asks", lambda: bool(held))
    assert page.evaluate("document.querySelector('#closer pre').textContent") == "", "nothing of another peer"
    page.unroute("**/peers/peer0")  # which lets go what is held
    shows(page, "its log", lambda: "round 1 done" in page.locator("#closer pre").inner_text())
    assert page.locator("#closer h2").inner_text().startswith("peer0: ")
    assert "of peer1" not in page.evaluate(LATE), "nor what another's answer still brings"
    page.locator('#doing tr[data-peer="peer0"]').click()
    assert page.locator(".chosen").count() == 0
    assert not page.locator("#closer").is_visible()


def fills_a_wall(page: "Page") -> None:
    """The ring, the curve, the tiles and how far all are, and nothing else; nothing beyond the screen."""
    page.locator("#wall").click()
    for width, height in ((1366, 768), (1920, 1080)):
        page.set_viewport_size({"width": width, "height": height})
        shows(page, "the wall", lambda: page.locator("#peers").is_hidden())
        page.wait_for_timeout(500)  # what is wide is drawn anew
        boxes = {
            part: page.locator(part).bounding_box() for part in ("#circle", "#accuracy svg", "#cards", "#progress")
        }
        cards = boxes["#cards"]
        for part, box in boxes.items():
            assert box, part
            assert cards
            assert part == "#cards" or box["y"] + box["height"] <= cards["y"], part
            assert box["x"] >= 0 <= box["y"], part
            assert (box["x"] + box["width"] <= width, box["y"] + box["height"] <= height) == (True, True), part
        assert page.locator("figure:visible").count() == 1
    page.evaluate("document.exitFullscreen()")  # as Esc does
    shows(page, "all again", lambda: page.locator("#peers").is_visible())


def listener(launcher: subprocess.Popen[bytes], port: int) -> psutil.Process:
    """The peer of that launcher that listens there."""
    for one in psutil.Process(launcher.pid).children(recursive=True):
        if any(at.status == psutil.CONN_LISTEN and at.laddr.port == port for at in one.net_connections("tcp")):
            return one
    raise AssertionError(f"nobody listens at {port}")


def test_a_peer_is_killed_and_comes_back(
    opened: Callable[[str], "Page"], launched: Callable[..., Any], ports: Callable[[int], list[int]], tmp_path: Path
) -> None:
    places = ports(4)
    ring = [{"id": f"peer{number}", "address": f"127.0.0.1:{port}"} for number, port in enumerate(places)]
    data = {"name": "digits", "limit": 400, "partition": {"kind": "dirichlet", "alpha": 0.5}}
    content = {"name": "live", "data": data, "ring": ring, **held(tmp_path / "gate")}
    (tmp_path / "federation.yaml").write_text(json.dumps(content))
    launcher = launched("run", tmp_path / "federation.yaml", "--out", tmp_path / "out", "--dashboard")
    page = opened(url(tmp_path / "said"))
    assert "#" not in page.url, "the token does not stay where it is seen"
    shows(page, "a round", lambda: int(page.evaluate("document.body.dataset.round ?? 0")) >= 2)
    assert page.locator("#circle g").count() == page.locator("#doing tr").count() == 4
    assert page.locator("#circle line").count() == 4
    assert barriers(page) == []
    chooses_a_peer(page)
    fills_a_wall(page)
    assert page.locator("#privacy").inner_text().count("Privacy is checked at the end of the run") == 1
    listener(launcher, places[1]).send_signal(signal.SIGKILL)
    row = page.locator('#doing tr[data-peer="peer1"]')
    shows(page, "the restart", lambda: row.locator("td").last.inner_text() == "1")
    shows(page, "what happened", lambda: "peer1 was killed by SIGKILL" in page.locator("#recent").inner_text())
    shows(page, "the peer at work again", lambda: row.locator(".words").inner_text() == "communicating")
    page.screenshot(path=tmp_path / "restarted.png", full_page=True)
    (tmp_path / "gate").touch()
    shows(page, "the end", lambda: page.locator("#live").inner_text() == "The run has finished.")
    assert launcher.wait(PATIENCE) == 0
    assert {one.split(" ", 1)[1] for id in ("peer0", "peer2", "peer3") for one in seen(page, id)[-1:]} == {"finished"}
    page.wait_for_selector("#privacy li.open")
    assert page.locator("#accuracy tbody tr").count() > 0, "the charts' numbers"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["privacy"]["definitions"] == {"3.1": None, "3.2": True, "3.3": True}, "own code has sent numbers"
    assert [page.locator(f"#privacy li.{how}").count() for how in ("kept", "open", "broken")] == [2, 1, 0]
    mean = page.locator('.card[data-key="mean"]').get_attribute("data-value")
    assert float(mean or "") == summary["mean_accuracy"]["matched"]
    rows = page.locator("#peers tr").all_inner_texts()[1:]
    assert [row.split("\t")[-1] for row in rows] == ["1", "2", "1", "1"], "starts"
    page.screenshot(path=tmp_path / "finished.png", full_page=True)


def test_peers_that_somebody_else_started(
    opened: Callable[[str], "Page"], launched: Callable[..., Any], federation: Build, tmp_path: Path
) -> None:
    made = federation(peers=3, **held(tmp_path / "gate"))
    launched("dashboard", made.directory / "federation.yaml")
    page = opened(url(tmp_path / "said"))
    shows(page, "that nobody answers", lambda: "? no answer" in seen(page, "peer0"))
    made.start()
    shows(page, "a round", lambda: int(page.evaluate("document.body.dataset.round ?? 0")) >= 2)
    made.peers["peer2"].signal(signal.SIGKILL)
    shows(page, "a peer that is gone", lambda: "? no answer" in seen(page, "peer2")[1:])
    made.start("peer2")
    shows(page, "that it is back", lambda: not any("not" in words for words in seen(page, "peer2")[-1:]))
    (tmp_path / "gate").touch()
    shows(page, "the end", lambda: page.locator("#live").inner_text().startswith("All peers have finished"))
    again = page.evaluate(
        """async () => {
            const next = { document: shown, figures }, works = draw;
            draw = () => Promise.reject("broken");
            const first = await renew(next).then(() => "drawn", (error) => error);
            draw = works;
            delete document.body.dataset.round;
            await renew(next);
            return [first, "round" in document.body.dataset];
        }"""
    )
    assert again == ["broken", True], "one that cannot be drawn spoils no later one"
