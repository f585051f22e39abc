"""Chromium without a screen, for pages; a test that imports this is skipped where a part of it is missing."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is missing: pip install -c constraints.txt 'dfl[browser]'"
)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe is missing: pip install -c constraints.txt 'dfl[browser]'"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if not CHROMIUM:
    pytest.skip("Chromium is missing: Debian has it in the package chromium", allow_module_level=True)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A browser that requests nothing but what it is told to open."""
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


def barriers(page: "Page") -> list[str]:
    """What axe finds in a page that keeps people out who see little, or use a keyboard or a screen reader."""
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['help']}: {node['html'][:200]}" for one in found for node in one["nodes"]]
