"""The dashboard in a real Chromium: live updates, buttons, keyboard, a phone's width, light and dark."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import grpc
import pytest
from playwright.async_api import Page, expect

from browser.chromium import MISSING, chromium, chromium_path, overflow, watched_page
from elastane_proto.job_settings import JobSettings
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ring_pb2
from integration.dashboard_support import (
    NASTY,
    create_job,
    dashboard_master,
    parameter_servers,
    tell_blocks,
    train,
    train_pipeline,
)
from integration.master_support import Worker, master_process
from integration.security_support import entry, token_of
from integration.test_master_sessions import RING, SIGNATURE, get_job
from slow import slow

pytestmark = pytest.mark.skipif(chromium_path() is None, reason=MISSING)

PHONE = {"width": 360, "height": 740}


async def contrast(page: Page) -> float:
    """Of the text on the page's ground, as WCAG counts it."""
    return float(
        await page.evaluate(
            """() => {
              const light = (css) => css.match(/\\d+/g).slice(0, 3).map((part) => {
                const value = part / 255;
                return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
              }).reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
              const style = getComputedStyle(document.documentElement);
              const [one, other] = [light(style.color), light(style.backgroundColor)].sort((a, b) => b - a);
              return (one + 0.05) / (other + 0.05);
            }"""
        )
    )


async def test_a_job_is_followed_steered_and_read_by_keyboard(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        chromium() as browser,
        watched_page(browser) as watched,
    ):
        page = watched.page
        await page.goto(base)
        await expect(page.get_by_text("No jobs that you may see")).to_be_visible()
        # Live: the job appears without anything being loaded again.
        await create_job(channel)
        await page.get_by_role("link", name="j", exact=True).click()
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.get_by_text("No worker is there")).to_be_visible()
        worker = Worker(channel, "a")
        await train(channel, worker)
        await expect(page.get_by_role("cell", name="hosts ESTs 0 to 1")).to_be_visible()
        await expect(page.locator("svg.timeline rect.h0")).to_have_count(1)
        await expect(page.locator("polyline.curve")).to_have_count(1)
        # Live after a kill: its stream breaks, the ring changes, and another takes over.
        await Worker(channel, "b").hello(RING, signature=SIGNATURE)
        worker.call.cancel()
        await expect(page.locator("tr[data-kind=worker_lost]")).to_be_visible()
        await expect(page.locator("svg.timeline .sign.death")).to_have_count(1)
        await expect(page.locator("#incidents .lost")).to_contain_text(re.compile(r"a lost \d+\.\d s ago"))
        # The times of steps are a table, and as each part it is reached by keyboard.
        await expect(page.locator("#steps tbody tr")).to_have_count(1)
        await expect(page.locator("#steps svg.bar")).to_be_visible()
        # On a wide window, what changes seldom is beside what happens.
        events, workers = [await page.locator(f"#{one}").bounding_box() for one in ("events", "workers")]
        assert events is not None and workers is not None
        assert workers["x"] > events["x"] + events["width"] and workers["y"] < events["y"]
        await expect(page.locator("#workers tbody tr")).to_have_count(1)
        # Under the pointer, and under the cursor of the arrow keys, is what happened then.
        readout = page.locator("#timeline .readout")
        await page.locator("svg.timeline rect.h0").first.hover()
        await expect(readout).to_contain_text("a: ESTs 0-1, generation 1")
        await page.locator("#timeline .pointed").focus()
        await page.keyboard.press("ArrowRight")
        await expect(page.locator("svg.timeline line.cursor")).to_have_count(1)
        # A curve's values by the pointer, and its axis by a form, without the page being loaded again.
        await page.locator("svg.values").hover(position={"x": 3, "y": 40})
        await expect(page.locator("#curves .readout")).to_have_text("step 0: 1")
        await page.get_by_label("logarithmic").check()
        await page.get_by_label("smoothed").select_option("0.9")
        await expect(page.locator("polyline.raw")).to_have_count(1)
        assert page.url.endswith("?scale=log&smooth=0.9")
        await page.get_by_label("logarithmic").uncheck()
        await page.get_by_label("smoothed").select_option("")
        await expect(page.locator("polyline.raw")).to_have_count(0)
        # A part of it by a link and by dragging; the page shows it without being loaded again.
        await page.evaluate("window.loaded = 'once'")
        await page.locator("#zoom-in").click()
        await expect(page.locator("#zoom-out")).to_be_visible()
        assert "span=" in page.url
        await page.locator("#zoom-all").click()
        await expect(page.locator("#zoom-out")).to_have_count(0)
        box = await page.locator("svg.timeline").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 30)
        await page.mouse.down()
        await page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 30)
        await expect(page.locator("svg.timeline rect.cursor")).to_have_count(1)
        await page.mouse.up()
        await expect(page.locator("#zoom-out")).to_be_visible()
        assert "began=" in page.url and await page.evaluate("window.loaded") == "once"
        await page.locator("#zoom-all").click()
        await expect(page.locator("#zoom-out")).to_have_count(0)
        # A search shows what matches while it is typed, and stays in the address.
        await page.get_by_label("Search").fill("LOST")
        await expect(page.locator("#events tbody tr")).to_have_count(2)
        assert page.url.endswith("?search=LOST")
        await page.get_by_label("Since").fill("yesterday")
        await expect(page.locator("#events .refused")).to_contain_text("'yesterday' is no number")
        await page.get_by_label("Since").fill("")
        await page.get_by_label("Search").fill("")
        await expect(page.locator("tr[data-kind=job_created]")).to_be_visible()
        assert page.url.endswith("/jobs/j")
        # A button that has the focus keeps it, though its part of the page was replaced.
        await page.locator("#drain-b").focus()
        await Worker(channel, "c").hello(RING, signature=SIGNATURE)
        await expect(page.locator("#drain-c")).to_be_visible()
        assert await page.evaluate("document.activeElement.id") == "drain-b"
        # What somebody types is kept as well, and what makes no sense any more is not offered.
        await page.get_by_label("to", exact=True).fill("1")
        stub = job_pb2_grpc.JobServiceStub(channel)
        await stub.Scale(job_pb2.JobServiceScaleRequest(name="j", workers_min=2, workers_max=2))
        await expect(page.get_by_label("Workers from")).to_have_value("2")
        await expect(page.get_by_label("to", exact=True)).to_have_value("1")
        # By keyboard alone: from section to section, to a button, and what it did is read out.
        await page.locator("h1").focus()
        await page.keyboard.press("j")
        assert await page.evaluate("document.activeElement.tagName") in ("H1", "H2")
        for _ in range(12):
            await page.keyboard.press("k")
        await page.keyboard.press("j")
        assert await page.evaluate("document.activeElement.id") == "actions-title"
        for _ in range(2):
            await page.keyboard.press("Tab")
            await page.keyboard.press("Control+A")
            await page.keyboard.type("1")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").and_(page.locator("#notice"))).to_contain_text(
            "Scaled to 1 to 1"
        )
        assert await page.evaluate("document.activeElement.id") == "notice"
        assert (await get_job(channel)).settings.workers_max == 1
        await page.get_by_role("button", name="Suspend").click()
        await expect(page.get_by_role("alert")).to_contain_text("would lose its training")
        await page.get_by_role("link", name="Cancel the job").click()
        await expect(page.get_by_role("heading", name="Cancel the job: j?")).to_be_visible()
        await page.get_by_role("button", name="Cancel the job").click()
        await expect(page.locator("#notice")).to_contain_text("The job is cancelled")
        assert (await get_job(channel)).phase == job_pb2.JOB_PHASE_CANCELLED
        await expect(page.locator("#live")).to_have_text("live")
        await page.keyboard.press("u")
        await page.wait_for_url(base + "/")
        await page.get_by_role("searchbox").fill("zz")
        await expect(page.get_by_text("None of 1 jobs is wanted")).to_be_visible()
        await page.get_by_role("searchbox").fill("")
        await page.get_by_label("State").select_option("over")
        await expect(page.get_by_role("row", name=re.compile("cancelled"))).to_be_visible()
        await page.get_by_role("link", name="Cost").click()
        await expect(page.locator("th[aria-sort=descending]")).to_have_text("Cost")
        assert page.url == base + "/?state=over&sort=cost"
        assert watched.faults == [] and watched.hosts == {base.removeprefix("http://")}


@slow
async def test_a_pipeline_appears_on_an_open_page_and_its_step_is_drawn(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        chromium() as browser,
        watched_page(browser, viewport=PHONE) as watched,
    ):
        page = watched.page
        await create_job(channel)
        await page.goto(f"{base}/jobs/j")
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.locator("#stages")).to_have_count(0)
        worker = Worker(channel, "a")
        go = await train_pipeline(channel, worker)
        await expect(page.get_by_role("heading", name="Pipeline")).to_be_visible()
        await expect(page.get_by_role("heading", name="A step, as predicted")).to_be_visible()
        await tell_blocks(worker, go, 64)
        await expect(page.get_by_role("heading", name="Step 64, as measured")).to_be_visible()
        await expect(page.locator("svg.step rect.forward")).to_have_count(2)
        await expect(page.locator("svg.step rect.backward")).to_have_count(2)
        forward = page.locator("svg.step rect.forward").first
        colour = await forward.evaluate("one => getComputedStyle(one).fill")
        assert colour != await page.locator("svg.step rect.backward").first.evaluate(
            "one => getComputedStyle(one).fill"
        )
        box = await forward.bounding_box()
        assert box is not None and box["width"] > 20 and box["height"] > 10
        assert await overflow(page) == 0
        # Its heading is one of those that j and k visit.
        await page.locator("h1").focus()
        for _ in range(3):
            await page.keyboard.press("j")
        assert await page.evaluate("document.activeElement.id") == "stages-title"
        assert watched.faults == []


@slow
async def test_parameter_servers_appear_with_their_slots_at_any_width(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), chromium() as browser:
        cluster = await parameter_servers(channel)
        for options in ({}, {"color_scheme": "dark"}, {"java_script_enabled": False}):
            async with watched_page(browser, viewport=PHONE, **options) as watched:
                page = watched.page
                await page.goto(f"{base}/jobs/j")
                await expect(page.get_by_role("heading", name="Parameter servers")).to_be_visible()
                cells = page.locator("#slots .slots li")
                await expect(cells).to_have_count(8)
                box = await cells.first.bounding_box()
                assert box is not None and box["width"] >= 20 and box["height"] >= 20
                if "java_script_enabled" not in options:
                    ground = "one => getComputedStyle(one).backgroundColor"
                    of_first, of_second = (page.locator(f".slots .h{owner}").first for owner in range(2))
                    assert await of_first.evaluate(ground) != await of_second.evaluate(ground)
                    assert await overflow(page) == 0
                assert watched.faults == []
        async with watched_page(browser, viewport=PHONE) as watched:
            await watched.page.goto(f"{base}/jobs/j")
            await expect(watched.page.locator("#live")).to_have_text("live")
            for server in list(cluster.servers.values()):
                await server.die()
            await expect(watched.page.locator(".slots .none")).to_have_count(8)


@slow
async def test_phone_dark_and_without_javascript(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), chromium() as browser:
        await create_job(channel, "a-job-whose-name-is-as-long-as-those-of-pipelines-2026-11-22")
        await create_job(channel)
        worker = Worker(channel, "worker-with-a-very-long-name-in-a-namespace-0123456789.svc.cluster.local")
        await train(channel, worker)
        failing = Worker(channel, "b")
        await failing.hello(RING, signature=SIGNATURE)
        await failing.call.done_writing()
        for options in ({}, {"color_scheme": "dark"}, {"java_script_enabled": False}):
            async with watched_page(browser, viewport=PHONE, **options) as watched:
                for path in ("/", "/jobs/j", "/jobs/j/cancel"):
                    await watched.page.goto(base + path)
                    await expect(watched.page.locator("h1")).to_be_visible()
                    if "java_script_enabled" not in options:
                        assert await overflow(watched.page) == 0, f"{path} {options}"
                        assert await contrast(watched.page) > 7
                    assert watched.faults == []
                await watched.page.goto(base + "/jobs/j")
                await expect(watched.page.get_by_text("hosts ESTs 0 to 1")).to_be_visible()
                # The events are at most three screens down.
                top = await watched.page.locator("#events").evaluate("one => one.getBoundingClientRect().top")
                assert top < 3 * PHONE["height"]
        # Buttons work without scripts, too.
        async with watched_page(browser, java_script_enabled=False) as watched:
            await watched.page.goto(base + "/jobs/j")
            await watched.page.get_by_role("button", name="Scale").click()
            await expect(watched.page.locator("#notice")).to_contain_text("Scaled to 1 to 2 workers")


BEFORE_2023 = """
    delete URLSearchParams.prototype.size;
    delete HTMLFormElement.prototype.requestSubmit;
    delete Element.prototype.checkVisibility;
"""
"""What browsers have not had for long."""


async def events_with(page: Page, words: str, said: int) -> None:
    """Search the events, of which this many then remain."""
    await page.get_by_label("Search").fill(words)
    if await page.locator("#events .nojs").is_visible():
        await page.keyboard.press("Enter")
    await expect(page.locator("#events tbody tr")).to_have_count(said)
    await expect(page).to_have_url(re.compile(f"search={words}"))


async def test_in_a_browser_of_2022_the_page_is_live_and_asks_for_what_is_filtered(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        chromium() as browser,
        watched_page(browser) as watched,
    ):
        await create_job(channel)
        await train(channel, Worker(channel, "a"))
        await watched.page.add_init_script(BEFORE_2023)
        await watched.page.goto(f"{base}/jobs/j")
        await expect(watched.page.locator("#live")).to_have_text("live")
        await events_with(watched.page, "created", 1)
        assert watched.faults == []


@pytest.mark.parametrize("old", ["no event streams", "other syntax"])
async def test_in_a_browser_that_cannot_run_the_scripts_the_page_is_as_without_them(
    tmp_path: Path, old: str
) -> None:
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        chromium() as browser,
        watched_page(browser) as watched,
    ):
        await create_job(channel)
        worker = Worker(channel, "a")
        await train(channel, worker)
        page = watched.page
        if old == "no event streams":
            await page.add_init_script("delete globalThis.EventSource")
        else:  # a browser of before 2020 reads `?.` as this one reads what follows
            for script in ("dashboard", "pointer"):
                await page.route(f"**/{script}.js*", lambda route: route.fulfill(body="const a = b?.;"))
        await page.goto(f"{base}/jobs/j")
        await expect(page.get_by_text("hosts ESTs 0 to 1")).to_be_visible()
        await expect(page.locator("#live")).to_be_hidden()
        await events_with(page, "created", 1)
        await page.get_by_role("button", name="Scale").click()
        await expect(page.locator("#notice")).to_contain_text("Scaled to 1 to 2 workers")
        assert all("Unexpected token" in fault for fault in watched.faults), watched.faults
        assert (watched.faults == []) == (old == "no event streams")


async def test_times_and_colours_are_those_of_the_viewer(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        chromium() as browser,
        watched_page(browser, timezone_id="Asia/Tokyo", color_scheme="light") as watched,
    ):
        await create_job(channel)
        page = watched.page
        await page.goto(f"{base}/jobs/j")
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.locator("#zone")).to_have_text("Times are those of Asia/Tokyo.")
        shown = page.locator("tr[data-kind=job_created] time")
        local, utc = await shown.text_content(), await shown.get_attribute("title")
        assert local is not None and utc is not None
        minutes = [60 * int(one[:2]) + int(one[3:5]) for one in (local, utc.split()[1])]
        assert (minutes[0] - minutes[1]) % (24 * 60) == 9 * 60
        # Colours change where the page stands, and stay.
        light = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        await page.get_by_role("button", name="dark").click()
        changed = "before => getComputedStyle(document.documentElement).backgroundColor !== before"
        await page.wait_for_function(changed, arg=light)
        assert await contrast(page) > 7
        await page.goto(f"{base}/")
        await expect(page.get_by_role("button", name="dark")).to_have_attribute("aria-pressed", "true")
        assert await page.evaluate(changed, light)
        assert watched.faults == []


async def test_tokens_in_a_browser(tmp_path: Path) -> None:
    tokens = entry("ops", ["operator"], ["*"]) + entry("look", ["reader"], ["*"])
    async with (
        dashboard_master(tmp_path, tokens) as (master, _, base),
        chromium() as browser,
        watched_page(browser) as watched,
    ):
        await master.jobs.create("j", JobSettings(ests=1))
        page = watched.page
        await page.goto(base + "/jobs/j")
        await page.get_by_label("Token").fill(token_of("look"))
        await page.keyboard.press("Enter")
        await page.wait_for_url(base + "/jobs/j")
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.get_by_role("button", name="Suspend")).to_have_count(0)
        assert await page.evaluate("document.cookie") == "", "no script reads the token"
        # The token is taken away: the page that stands open says so.
        (tmp_path / "tokens.toml").write_text(entry("ops", ["operator"], ["*"]))
        master.refresh_security()
        await expect(page.locator("#live")).to_contain_text("does not know the token")
        await page.reload()
        await page.get_by_label("Token").fill(token_of("ops"))
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("button", name="Suspend").click()
        await expect(page.locator("#notice")).to_contain_text("The job is suspended")
        # A page of another site cannot press it: neither the cookie nor the form gets through.
        other = await asyncio.start_server(_evil(base), "127.0.0.1", 0)
        async with other:
            port = other.sockets[0].getsockname()[1]
            await page.goto(f"http://localhost:{port}/")
            await page.get_by_role("button").click()
            await page.wait_for_url(base + "/**")
        await page.goto(base + "/jobs/j")
        await expect(page.locator("main")).to_contain_text("suspended")
        # Only the refused pages themselves are told of on the console.
        assert all("401" in fault or "403" in fault for fault in watched.faults), watched.faults


def _evil(base: str) -> object:
    form = f'<form method="post" action="{base}/jobs/j/resume"><button>Win</button></form>'.encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(form)}\r\n\r\n"
        writer.write(head.encode() + form)
        await writer.drain()
        writer.close()

    return serve


async def test_what_workers_write_stays_text_in_a_live_page(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        chromium() as browser,
        watched_page(browser) as watched,
    ):
        await create_job(channel)
        await watched.page.goto(base + "/jobs/j")
        await expect(watched.page.locator("#live")).to_have_text("live")
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        bye = ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FAILED, message=NASTY + "<img src=x onerror=alert(1)>")
        await worker.send(bye=bye)
        await expect(watched.page.locator("tr[data-kind=worker_lost]")).to_contain_text("<script>alert('x')")
        assert await watched.page.locator("main img, main script").count() == 0
        assert watched.faults == []


async def test_an_open_page_goes_on_when_the_master_is_back(tmp_path: Path) -> None:
    file = tmp_path / "http"
    async with (
        master_process(tmp_path / "state", "--http", "127.0.0.1:0", "--http-port-file", str(file)) as master,
        grpc.aio.insecure_channel(master.address) as channel,
        chromium() as browser,
        watched_page(browser) as watched,
    ):
        await create_job(channel)
        page, address = watched.page, file.read_text().strip()
        await page.goto(f"http://{address}/jobs/j")
        await expect(page.locator("#live")).to_have_text("live")
        await master.kill()
        await expect(page.locator("#live")).to_contain_text("not live")
        master.arguments = ("--http", address)
        await master.start()
        await expect(page.locator("#live")).to_have_text("live")
        # What happens under the new one is seen, in the page as it stood open.
        stub = job_pb2_grpc.JobServiceStub(channel)
        wanted = job_pb2.JobServiceScaleRequest(name="j", workers_min=1, workers_max=1)
        await stub.Scale(wanted, wait_for_ready=True)
        await expect(page.get_by_label("to", exact=True)).to_have_value("1")


async def test_a_page_in_the_background_leaves_its_connection_to_others(tmp_path: Path) -> None:
    """A browser has six to a host: a seventh tab with a live page would load for ever."""
    async with (
        dashboard_master(tmp_path) as (_, channel, base),
        chromium() as browser,
        watched_page(browser) as watched,
    ):
        await create_job(channel)
        page = watched.page
        for tab in [page, *[await page.context.new_page() for _ in range(6)]]:
            await tab.goto(f"{base}/jobs/j")
            await expect(tab.locator("#live")).to_have_text("live")
            await turn(tab, hidden=True)
            await expect(tab.locator("#live")).to_have_text("not live: in the background")
        stub = job_pb2_grpc.JobServiceStub(channel)
        await stub.Scale(job_pb2.JobServiceScaleRequest(name="j", workers_min=1, workers_max=1))
        await turn(page, hidden=False)
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.get_by_label("to", exact=True)).to_have_value("1")
        assert watched.faults == []


async def turn(page: Page, *, hidden: bool) -> None:
    """As when another tab comes before this one, or it comes back."""
    value = "true" if hidden else "false"
    await page.evaluate(
        f"Object.defineProperty(document, 'hidden', {{value: {value}, configurable: true}});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
