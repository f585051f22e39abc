"""The documentation as a site: it is built without a warning, asks nothing of other machines, and can be searched."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from headless import barriers, chromium

build = pytest.importorskip("mkdocs.commands.build", reason="MkDocs is missing: pip install 'dfl[docs]'")
config = pytest.importorskip("mkdocs.config")

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parent.parent.parent
PATIENCE = 90_000
"""Milliseconds: a machine may be busy."""

OF_THE_THEME = ("ARIA dialog and alertdialog nodes", "Landmarks should have a unique role")
"""Beginnings of what only the theme could mend."""


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing, as the test knows what it asks for."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the site is served."""
    place = tmp_path_factory.mktemp("site")
    build.build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(place), strict=True))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(place))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_it_is_read_and_searched_without_a_network(site: str) -> None:
    asked: list[str] = []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{site}docs/tutorial.html")
        assert page.locator("h1").inner_text().startswith("Tutorial")
        assert page.locator("article img").evaluate_all("all => all.every(one => one.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, "nothing sticks out"
        for shade in ("light", "dark"):
            page.emulate_media(color_scheme=shade)
            assert [one for one in barriers(page) if not one.startswith(OF_THE_THEME)] == []
        page.goto(f"{site}index.html?q=decimal comma")
        page.wait_for_selector(".md-search-result__link[href*='data.html']", state="attached")
    assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []
