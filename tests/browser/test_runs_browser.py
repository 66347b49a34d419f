"""The pages of runs in a real Chromium: a live queue, ranks and log of a run, its buttons, a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from browser.chromium import MISSING, chromium, chromium_path, overflow, watched_page
from browser.test_dashboard_browser import PHONE, contrast
from elastane_common import layout
from elastane_common.storage import Folder
from integration.dashboard_support import NASTY, dashboard_master
from integration.scripted_runner import ScriptedRunner
from integration.test_training_service import train, until
from slow import slow

pytestmark = pytest.mark.skipif(chromium_path() is None, reason=MISSING)


async def test_a_run_is_followed_from_the_queue_to_its_model(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        chromium() as browser,
        watched_page(browser) as watched,
        ScriptedRunner(channel, slots=2) as runner,
    ):
        page = watched.page
        await page.goto(base + "/runs")
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.get_by_text("No run that you may see waits")).to_be_visible()
        # Live: what is submitted appears, and what waits says for what.
        first = await train(channel, instances=2, name="first")
        prepare = await runner.launch()
        waiting = await train(channel, instances=2, name="second", priority=3)
        await expect(page.locator("#running")).to_contain_text("first")
        await expect(page.locator("#waiting tbody tr")).to_have_count(1)
        await expect(page.locator("#waiting")).to_contain_text("needs 2 slots, 0 free, waits for run 1")
        await expect(page.locator("#runners")).to_contain_text("runner-1")
        # One run: its ranks, and what its log says, escaped.
        await page.get_by_role("link", name="1 first").click()
        await expect(page.locator("#ranks tbody tr")).to_have_count(2)
        runner.report(prepare.attempt, 1, "RUNNING", last_line=f"loss 0.5 {NASTY}")
        await expect(page.locator("#ranks")).to_contain_text(f"loss 0.5 {NASTY}")
        run_url = first.artifact_url
        Folder(run_url).write(layout.rank_log(1, 0), [f"epoch 1\n{NASTY}\n".encode()])
        for rank in (0, 1):
            runner.report(prepare.attempt, rank, "EXITED")
        await until(channel, 1, "SUCCEEDED")
        await expect(page.locator("[data-part=summary]")).to_contain_text("succeeded")
        await page.reload()
        await expect(page.locator("#log-text")).to_contain_text(NASTY)
        # The run that waited has the slots now; a button cancels it, once that is confirmed.
        await page.goto(f"{base}/runs/{waiting.run_id}")
        await page.locator("#act-cancel").click()
        await expect(page.get_by_role("heading", name=f"Cancel the run {waiting.run_id}")).to_be_visible()
        await page.get_by_role("link", name="Keep it").click()
        await page.locator("#act-cancel").click()
        await page.get_by_role("button", name="Cancel the run").click()
        await expect(page.locator("#notice")).to_be_visible()
        assert watched.faults == [] and watched.hosts == {base.removeprefix("http://")}


async def test_priority_is_changed_where_the_run_waits(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        ScriptedRunner(channel, slots=1),
        chromium() as browser,
        watched_page(browser) as watched,
    ):
        page = watched.page
        for name in ("low", "high"):
            await train(channel, instances=9, name=name)
        await page.goto(base + "/runs")
        await expect(page.locator("#waiting tbody tr").first).to_contain_text("1 low")
        await page.get_by_role("link", name="2 high").click()
        await page.locator("#priority").fill("7")
        await page.locator("#act-priority").click()
        await expect(page.get_by_role("status").and_(page.locator("#notice"))).to_be_visible()
        await page.goto(base + "/runs")
        await expect(page.locator("#waiting tbody tr").first).to_contain_text("2 high")
        assert watched.faults == []


@slow
async def test_runs_on_a_phone_in_the_dark_and_without_javascript(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        ScriptedRunner(channel, runner_id="runner-with-a-very-long-name.svc.cluster.local") as runner,
        chromium() as browser,
    ):
        await train(channel, name="a-run-whose-name-is-as-long-as-those-of-pipelines-2026-11-22")
        prepare = await runner.launch()
        runner.report(prepare.attempt, 0, "RUNNING", last_line="x" * 400)
        await train(channel, instances=99, name="waits")
        for options in ({}, {"color_scheme": "dark"}, {"java_script_enabled": False}):
            async with watched_page(browser, viewport=PHONE, **options) as watched:
                for path in ("/runs", "/runs/1", "/runs/2", "/runs/1/cancel"):
                    await watched.page.goto(base + path)
                    await expect(watched.page.locator("h1")).to_be_visible()
                    if "java_script_enabled" not in options:
                        assert await overflow(watched.page) == 0, f"{path} {options}"
                        assert await contrast(watched.page) > 7
                    assert watched.faults == []
        # Buttons work without scripts, too.
        async with watched_page(browser, java_script_enabled=False) as watched:
            await watched.page.goto(base + "/runs/2/cancel")
            await watched.page.get_by_role("button", name="Cancel").click()
            await expect(watched.page.locator("#notice")).to_be_visible()
        await until(channel, 2, "CANCELLED")
