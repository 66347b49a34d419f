"""A real Chromium for the dashboard: the one of this machine, driven by playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MISSING = "no Chromium is on the path: apt-get install chromium, or name one in ELASTANE_TEST_CHROMIUM"


def chromium_path() -> str | None:
    """The Chromium to drive; None where there is none."""
    named = os.environ.get("ELASTANE_TEST_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser of its own, without anything on the screen."""
    async with async_playwright() as playwright:
        # Chromium's own sandbox does not start as root; it only sees pages of this machine.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await playwright.chromium.launch(executable_path=chromium_path(), args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


class Watched:
    """A page, and all that went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("requestfailed", lambda request: self._failed(request.url, str(request.failure)))
        page.on("request", lambda request: self._asked(request.url))
        self.hosts: set[str] = set()

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.faults.append(f"{kind}: {text}")

    def _failed(self, url: str, why: str) -> None:
        # What a page that is left was still reading is broken off by the browser itself.
        if "ERR_ABORTED" not in why:
            self.faults.append(f"{url}: {why}")

    def _asked(self, url: str) -> None:
        self.hosts.add(url.split("/")[2])


@contextlib.asynccontextmanager
async def watched_page(browser: Browser, **options: Any) -> AsyncIterator[Watched]:
    """A page in a context of its own: no cookies of others. options: of the context."""
    context = await browser.new_context(**options)
    context.set_default_timeout(20_000)
    try:
        yield Watched(await context.new_page())
    finally:
        await context.close()


async def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than the window."""
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    return int(await page.evaluate(wide))
