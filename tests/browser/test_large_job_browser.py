"""A job of 500 workers with 10,000 events, on a wide screen and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from browser.chromium import MISSING, chromium, chromium_path, overflow, watched_page
from browser.test_dashboard_browser import PHONE
from integration.dashboard_support import dashboard_master, large_ring, many_events, tell_resources
from slow import slow

pytestmark = pytest.mark.skipif(chromium_path() is None, reason=MISSING)

WIDE = {"width": 1280, "height": 800}
BYTES_MAX = 450_000
"""Of the page and of one that follows it; 305,000 were measured."""
ELEMENTS_MAX = 6_000
SCREENS_MAX = 12
"""Of the whole page on a wide screen, nothing unfolded; the 50 workers of a page are seven of them."""
EVENTS_FROM_TOP_MAX = 3
"""Screens of a phone before the events."""


async def shown(page: Page, selector: str) -> int:
    """Return how many of the elements are not in something that is folded."""
    count = "found => found.filter(one => one.checkVisibility()).length"
    return int(await page.locator(selector).evaluate_all(count))


@slow
async def test_a_page_of_500_workers_and_10_000_events_is_folded_and_paged(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path, log_level="error") as (master, channel, base),
        large_ring(master.address, 500) as workers,
        chromium() as browser,
    ):
        server = master.jobs.get("j")
        members = server.machine.state.ring.members  # in the order in which they joined
        tell_resources(server, [worker.worker_id for worker in workers])
        await many_events(channel, 10_000)
        assert server.recent_notes[-1].sequence > 10_000
        for window in (WIDE, PHONE):
            async with watched_page(browser, viewport=window) as watched:
                page = watched.page
                answer = await page.goto(f"{base}/jobs/j")
                assert answer is not None and len(await answer.body()) < BYTES_MAX
                await expect(page.locator("#live")).to_have_text("live")
                assert await overflow(page) == 0
                assert await page.evaluate("document.querySelectorAll('*').length") < ELEMENTS_MAX
                events = await page.locator("#events").evaluate("one => one.getBoundingClientRect().top")
                height = await page.evaluate("document.documentElement.scrollHeight")
                if window is PHONE:
                    assert events < EVENTS_FROM_TOP_MAX * PHONE["height"]
                else:
                    assert height < SCREENS_MAX * WIDE["height"]
                assert await shown(page, "#events tbody tr") == 25
                assert await shown(page, "#workers tbody tr") == 50
                assert await shown(page, "#resources tbody tr") == 8
                assert await shown(page, "#resources p a") == 8
                await expect(page.locator("#workers")).to_contain_text("500 member")
                await page.locator("#more-resources summary").click()
                assert await shown(page, "#resources tbody tr") == 50
                await page.locator("#page-next").click()
                await expect(page.locator("#workers")).to_contain_text("page 2 of 10")
                await expect(page.locator("#workers tbody th").first).to_have_text(members[50].worker)
                await page.get_by_label("Search").fill("visitor-4990 ")
                await expect(page.locator("#events tbody tr")).to_have_count(2)
                assert watched.faults == []
