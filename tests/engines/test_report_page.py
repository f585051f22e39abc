"""A run's page in Chromium, at the width of a phone and of a desk, in light and dark: what a reader sees, and that
nothing leaves it. Its pictures stay in `report-pages` among the temporary files of the test, as pytest keeps them."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from headless import barriers, chromium
from real_peers import until
from report_pages import document, federate, say

from launcher.cli import main
from peer.text import number

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.timeout(600)
PATIENCE = 90_000
"""Milliseconds: a machine may be busy."""
WIDTHS = {"phone": 390, "desk": 1280}
A4 = 718
"""CSS pixels of its width between the margins of a browser."""
HOSTILE = "</script><img src=http://127.0.0.1:9/x onerror=document.title='broken'>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose peers say what nobody should."""
    made = federate(tmp_path_factory.mktemp("shown") / "run")
    say(
        made / "peer1",
        {"time": 1, "event": "refused", "caller": HOSTILE, "reason": HOSTILE},
        {"time": 2, "event": "failed", "message": HOSTILE},
    )
    assert main(["report", str(made)]) == 0
    return made


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federate(tmp_path_factory.mktemp("shown") / "other", {"name": "fedavg", "epochs": 1})


@pytest.fixture(scope="module")
def shorter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federate(tmp_path_factory.mktemp("shown") / "shorter", peers=3, rounds=2)


@pytest.fixture(scope="module")
def browser(run: Path, other: Path, shorter: Path) -> Iterator["Browser"]:
    """After the runs: it occupies this thread's event loop."""
    with chromium() as started:
        yield started


@pytest.fixture
def opened(browser: "Browser") -> Iterator[Any]:
    """opened(file, width, shade): the page, drawn; in the end it must have said and asked for nothing."""
    said: list[str] = []
    pages: list[Page] = []

    def heard(request: Any) -> None:
        if not request.url.startswith("file:"):
            said.append(f"asked for {request.url}")

    def opened(file: Path, width: int, shade: str = "light") -> "Page":
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=shade)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", heard)
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-drawn]")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert said == []


@pytest.mark.parametrize("shade", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_shows_the_summary(run: Path, opened: Any, width: str, shade: str, tmp_path: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    page = opened(run / "report.html", WIDTHS[width], shade)
    pictures = tmp_path / "report-pages"
    pictures.mkdir()
    page.screenshot(path=pictures / f"{width}-{shade}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") == WIDTHS[width], "nothing sticks out"
    assert barriers(page) == []
    shown = {
        "mean": summary["mean_accuracy"]["matched"],
        "worst": summary["worst_accuracy"],
        "gini": summary["gini"],
    }
    for key, value in shown.items():
        card = page.locator(f'.card[data-key="{key}"]')
        assert card.locator("b").text_content() == number(value)
        assert float(card.get_attribute("data-value") or "") == value
    rows = page.locator("#peers tr").all_inner_texts()[1:]
    assert [row.split("\t")[:3] for row in rows] == [
        [peer["id"], str(peer["samples"]), number(peer["accuracy"]["matched"])] for peer in summary["per_peer"]
    ]
    assert page.locator("#privacy li.kept").count() == 3
    assert page.locator("figure svg").count() == page.locator("figure").count() == 8
    sizes = page.locator("#traffic .mark-text.role-mark text").all_text_contents()
    assert len(sizes) >= 8
    assert all(re.fullmatch(r"[\d.]+ [kM]?B", size) for size in sizes), "with their unit"
    for id in ("ring-before", "ring-after"):
        assert {*page.locator(f"#{id} svg text").all_text_contents()} >= {peer["id"] for peer in summary["per_peer"]}


def test_what_peers_say_does_nothing(run: Path, opened: Any) -> None:
    page = opened(run / "report.html", 1280)
    page.locator("#timeline summary").click()
    assert page.locator("#timeline td", has_text="onerror=").count() >= 2
    assert page.title() == "small"
    assert page.locator("img").count() == 0


def test_each_chart_is_described_and_its_numbers_are_a_table(run: Path, opened: Any) -> None:
    made = document(run / "report.html")
    page = opened(run / "report.html", 1280)
    described = [one.get_attribute("aria-label") for one in page.locator("[role=graphics-document]").all()]
    titles = page.locator("figure h2").all_text_contents()
    assert len({*described}) == 8
    assert all(words.startswith(f"{title}. ") for words, title in zip(described, titles, strict=True))
    for figure in page.locator("figure").all():
        assert not figure.locator("table").first.is_visible()
        figure.locator("summary").focus()
        page.keyboard.press("Enter")
        assert figure.locator("table").first.is_visible()
    rows = page.locator("#accuracy tbody tr").all_inner_texts()
    told = {(row["peer"], str(row["round"]), f"{row['value']:.4f}") for row in made["tables"]["peer_rounds"]}
    means = {
        (str(row["round"]), *(f"{row[name]:.4f}" for name in ("mean", "worst", "best")))
        for row in made["tables"]["rounds"]
    }
    assert {tuple(row.split("\t")) for row in rows} == told | means
    moments = page.locator("#timeline tbody tr").count()
    assert moments == len({tuple(map(str, row.values())) for row in made["tables"]["moments"]})


def test_each_chart_is_a_file_for_whoever_wants_it(run: Path, opened: Any, tmp_path: Path) -> None:
    made, page = document(run / "report.html"), opened(run / "report.html", 1280, "dark")
    page.locator("#accuracy summary").click()
    for kind in ("PNG", "SVG", "CSV"):
        with page.expect_download() as began:
            page.get_by_role("button", name=f"Matched accuracy per round as {kind}").click()
        assert began.value.suggested_filename == f"accuracy.{kind.lower()}"
        began.value.save_as(tmp_path / kind)
    assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "SVG").read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "light-dark" not in drawn
    with (tmp_path / "CSV").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [float(row["mean"]) for row in rows] == [row["mean"] for row in made["tables"]["rounds"]]
    page.locator("#timeline summary").click()
    with page.expect_download() as began:
        page.get_by_role("button", name="What happened when as CSV").click()
    assert not re.search(r'(^|,)"[=+@-]', Path(began.value.path()).read_text(), re.MULTILINE), "a formula"


def test_a_peer_is_marked_by_a_click_and_the_wheel_zooms(run: Path, opened: Any) -> None:
    page = opened(run / "report.html", 1280)
    page.locator("#time svg path[aria-roledescription='bar'], #time svg .mark-rect path").first.click()
    assert page.evaluate("views.get('accuracy').view.signal('chosen')").startswith("peer")
    extent = "() => views.get('accuracy').view.scale('x').domain()"
    whole, box = page.evaluate(extent), page.locator("#accuracy svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -300)
    assert page.evaluate(extent) == whole, "the wheel alone scrolls"
    page.locator("#accuracy svg").scroll_into_view_if_needed()
    box = page.locator("#accuracy svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.keyboard.down("Shift")
    page.mouse.wheel(0, -300)
    first, last = whole
    until(lambda: page.evaluate(extent)[1] - page.evaluate(extent)[0] < last - first, 60, "a part")
    page.mouse.wheel(0, 3000)
    until(lambda: page.evaluate(extent) == whole, 60, "all, and no more")


def test_tables_say_what_they_are_and_are_reached_by_keys(run: Path, opened: Any) -> None:
    page = opened(run / "report.html", 390)
    tables = page.locator("table").count()
    assert tables > 8
    assert page.locator("table > caption:not(:empty)").count() == tables
    assert page.locator("thead th").count() == page.locator("thead th[scope=col]").count()
    assert page.locator("tbody tr").count() == page.locator("tbody th[scope=row]").count()
    assert page.locator(".scroll[tabindex='0'][role=region][aria-label] > table").count() == tables


@pytest.mark.parametrize("width", WIDTHS)
def test_on_paper_nothing_is_cut_off_or_folded(run: Path, opened: Any, width: str) -> None:
    page = opened(run / "report.html", WIDTHS[width], "dark")
    page.emulate_media(media="print", color_scheme="light")  # as Chromium prints
    page.evaluate(f"document.documentElement.style.width = '{A4}px'")  # it draws nothing anew for paper
    right = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("figure")].map((one) => [one.id, Object.fromEntries(
            [...one.querySelectorAll("svg text")].map((text) => [text.textContent, text.getBoundingClientRect().right]),
        )]))"""
    )
    assert len(right) == 8
    assert all(edge <= A4 for texts in right.values() for edge in texts.values())
    assert "3" in right["accuracy"], "the last round"
    assert all("peer3" in right[name] for name in ("time", "traffic", "timeline", "ring-after")), "the last peer"
    assert page.evaluate("[...document.querySelectorAll('td')].every((cell) => cell.checkVisibility())")
    assert page.evaluate("getComputedStyle(document.querySelector('#time svg text')).fill") == "rgb(91, 101, 115)"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_it_forbids_itself_the_network(run: Path, opened: Any, browser: "Browser") -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto((run / "report.html").as_uri())
    page.wait_for_selector("body[data-drawn]")
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'came', () => 'refused')") == "refused"
    assert any("Content Security Policy" in line for line in refused)
    page.close()


def test_it_draws_itself_again_from_another_document(run: Path, opened: Any) -> None:
    page = opened(run / "report.html", 390)
    page.evaluate(
        """async () => {
            const next = structuredClone(shown);
            next.runs[0].cards[0].shown = "0.1234";
            next.tables.rounds = next.tables.rounds.slice(0, 1);
            await draw(next);
        }"""
    )
    assert page.locator('.card[data-key="mean"] b').text_content() == "0.1234"
    assert page.locator("figure svg").count() == 8


def test_a_figure_that_cannot_be_drawn_spoils_no_later_one(run: Path, opened: Any) -> None:
    page = opened(run / "report.html", 390)
    outcomes = page.evaluate(
        """async () => {
            const named = (title) => figures.map((one) => ({ ...one, chart: { ...one.chart, title } }));
            const works = vegaEmbed;
            window.vegaEmbed = () => Promise.reject("broken");
            const first = await draw(shown, named("first")).then(() => "drawn", (error) => error);
            window.vegaEmbed = works;
            return [first, await draw(shown, named("second")).then(() => "drawn", (error) => error)];
        }"""
    )
    assert outcomes == ["broken", "drawn"]
    assert page.locator("figure svg", has_text="second").count() == 8


def test_runs_stand_beside_each_other(run: Path, other: Path, opened: Any, tmp_path: Path) -> None:
    out = tmp_path / "both.html"
    assert main(["report", str(run), str(other), "--out", str(out)]) == 0
    page = opened(out, 390)
    summaries = [json.loads((place / "summary.json").read_text()) for place in (run, other)]
    best = max(one["mean_accuracy"]["matched"] for one in summaries)
    assert number(best) in page.locator("#runs td.best").all_text_contents()
    assert "differ in protocol.name (fibfl++, fedavg)" in page.locator("#head").inner_text()
    assert page.locator("#runs tr").count() == 3
    assert barriers(page) == []
    assert page.locator("figure svg").count() == 4


@pytest.mark.parametrize("shade", ["light", "dark"])
def test_a_study_keeps_nobody_out(shade: str, browser: "Browser", tmp_path: Path) -> None:
    base = {"rounds": 1, "peers": 2, "data": {"name": "digits", "limit": 100}}
    grid = {"protocol": ["fedavg", "solo"], "seed": [1, 2]}
    (tmp_path / "study.yaml").write_text(json.dumps({"name": "small", "base": base, "grid": grid}))
    command = [
        sys.executable,
        "-m",
        "launcher.cli",
        "study",
        str(tmp_path / "study.yaml"),
        "--out",
        str(tmp_path / "out"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    page = browser.new_page(color_scheme=shade)
    page.set_default_timeout(PATIENCE)
    page.goto((tmp_path / "out" / "study.html").as_uri())
    assert page.get_by_role("table", name="What won").locator("tbody tr").count() == 2
    assert barriers(page) == []
    page.close()


def test_no_run_is_marked_as_better_than_a_longer_one_of_more_peers(
    run: Path, shorter: Path, opened: Any, tmp_path: Path
) -> None:
    assert main(["report", str(run), str(shorter), "--out", str(tmp_path / "both.html")]) == 0
    page = opened(tmp_path / "both.html", 390)
    said = page.locator("#head").inner_text()
    assert "rounds (3, 2)" in said
    assert "peers (4, 3)" in said
    assert "none is marked as the best" in said
    assert page.locator("#runs td.best").count() == 0
