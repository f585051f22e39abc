"""Makes the pictures in docs/images from a run of examples/demo.yaml: `make screenshots`. Needs Chromium."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from headless import chromium
from rich.console import Console

from launcher.cli import main
from launcher.headline import Headline
from launcher.monitor.federation import FederationView
from launcher.monitor.live_table import render
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.telemetry.events import RoundDone, read_event

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
DEMO = ROOT / "examples" / "demo.yaml"
WIDTHS = {"report": 1280, "report-phone": 390}
HEIGHT = 1000
SHOWN_ROUND = 6
"""The round at whose end, at the first peer, the live view is shown."""
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Web fonts, which a page without a network cannot load."""


def report(run: Path) -> None:
    """The page of a run, the top of it, at the width of a desk and of a phone."""
    with chromium() as browser:
        for name, width in WIDTHS.items():
            page = browser.new_page(viewport={"width": width, "height": HEIGHT})
            page.goto((run / "report.html").as_uri())
            page.wait_for_selector("body[data-drawn]")
            page.screenshot(path=IMAGES / f"{name}.png")


def live_view(run: Path, spec: Spec) -> None:
    """The table of a terminal in the middle of the run, from what its peers told until then."""
    heard = [(id, json.loads(line)) for id in spec.ids for line in (run / id / "events.jsonl").read_text().splitlines()]
    federation = FederationView(spec.ids, spec.rounds, Headline.from_spec(spec))
    for id, line in sorted(heard, key=lambda one: one[1]["time"]):
        event = read_event(line)
        if event:
            federation.apply([(id, event)])
        if isinstance(event, RoundDone) and event.round == SHOWN_ROUND:
            break
    console = Console(record=True, width=100, height=24, file=io.StringIO(), force_terminal=True)
    console.print(render(federation, console))
    drawn = console.export_svg(title=f"dfl-launch run {DEMO.relative_to(ROOT)}", unique_id="live")
    (IMAGES / "live.svg").write_text(FONTS.sub("", drawn), encoding="utf-8")


def live_page(place: Path) -> None:
    """The live page of a run with a peer chosen, and on a wall."""
    command = [sys.executable, "-u", "-m", "launcher.cli", "run", str(DEMO), "--dashboard", "--out", str(place)]
    with (
        subprocess.Popen([*command, "--set", "rounds=60"], stdout=subprocess.PIPE, text=True) as run,
        chromium() as browser,
    ):
        assert run.stdout
        address = next(line.split()[1] for line in run.stdout if line.startswith("dashboard: "))
        page = browser.new_page(viewport={"width": 1280, "height": HEIGHT})
        page.goto(address)
        page.locator("#circle g[data-peer=peer2] circle").click()
        page.locator("#closer pre", has_text=f"round {SHOWN_ROUND} done").wait_for()
        page.wait_for_selector("body[data-drawn]")
        page.screenshot(path=IMAGES / "live-page.png")
        page.set_viewport_size({"width": 1600, "height": 900})
        page.locator("#wall").click()
        page.wait_for_timeout(1000)  # what is wide is drawn anew
        page.screenshot(path=IMAGES / "wall.png")
        run.terminate()
        run.stdout.read()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with TemporaryDirectory() as place:
        run = Path(place) / "demo"
        if code := main(["run", str(DEMO), "--quiet", "--out", str(run), *sys.argv[1:]]):
            sys.exit(code)
        live_view(run, load_spec(DEMO))
        report(run)
        live_page(Path(place) / "live")
