"""Chromium without a screen, for pages; a test that imports this is skipped where a part of it is missing."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is missing: pip install -c constraints.txt 'dfl[browser]'"
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
