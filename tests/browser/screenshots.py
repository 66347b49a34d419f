"""Pictures of the dashboard and of `elastane top` for the docs: a job trains, loses a worker and goes on.

    make screenshots            into docs/images; ONLY=dashboard or ONLY=top for some

Everything is real: a master, an agent with workers of their own, and a SIGKILL for one of them, which the
open page must show without being loaded again; a second job has ended. `elastane top` runs on a
pseudo-terminal of 80 columns, and of 60 and 120 for the pictures that show these. Fails where the page says
something on its console.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from playwright.async_api import expect

from browser.chromium import MISSING, chromium, chromium_path, watched_page
from browser.terminal_picture import as_svg
from elastane_proto.v1 import job_pb2, job_pb2_grpc
from integration.master_support import SOURCES, master_process
from pseudo_terminal import Terminal

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WIDE = {"width": 1440, "height": 1250}
SHORT = {"width": 1440, "height": 420}
COMPARED = {"width": 1440, "height": 820}
FINISHED = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}
WAIT_MS = 90_000


async def main(folder: Path, only: str = "") -> None:
    """Writes dashboard-*.png and top-*.svg into `folder`. only: "dashboard" or "top" for one of these."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="elastane-screenshots-") as name:
        state = Path(name) / "state"
        state.mkdir(mode=0o700)
        options = ("--http", "127.0.0.1:0", "--http-port-file", str(state / "http"), "--log-level", "error")
        async with master_process(state, *options) as master:
            if only != "top":
                await train_to_end(master.address, state)
            await picture_all(master.address, state, folder, only)


async def picture_all(address: str, state: Path, folder: Path, only: str) -> None:
    """Writes the pictures of a job that trains."""
    async with agent(address, state):
        base = f"http://{(state / 'http').read_text().strip()}"
        async with grpc.aio.insecure_channel(address) as channel:
            stub = job_pb2_grpc.JobServiceStub(channel)
            nightly = job_pb2.JobSettings(ests=8, workers_min=2, workers_max=8)
            await stub.Create(job_pb2.JobServiceCreateRequest(name="nightly", settings=nightly))
            if only != "top":
                await pictures(base, stub, folder)
            else:
                await inject(stub)
        if only != "dashboard":
            await asyncio.to_thread(terminal_pictures, address, folder)


async def elastane_run(address: str, state: Path, job: str, epochs: int) -> asyncio.subprocess.Process:
    """Starts `elastane run` of the slow training."""
    sources = os.pathsep.join([*SOURCES, str(ROOT / "common"), str(ROOT / "worker")])
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from elastane_cli.commands.main import main; main()", "run",
        "--master", address, "--job", job, "--ests", "4",
        "--workers", "1:3", "--checkpoint", str(state / f"checkpoints-{job}"), "--spot-price", "0.9",
        "--on-demand-price", "3", str(HERE / "slow_training.py"), str(epochs),
        env={**os.environ, "PYTHONPATH": sources}, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


async def train_to_end(address: str, state: Path) -> None:
    """Trains job "short", which has ended when the pictures are taken."""
    process = await elastane_run(address, state, "short", 1)
    if code := await process.wait():
        raise SystemExit(f"elastane run ended with code {code}")


@contextlib.asynccontextmanager
async def agent(address: str, state: Path) -> AsyncIterator[None]:
    """`elastane run` of the slow training; interrupted at the end."""
    process = await elastane_run(address, state, "digits", 20)
    try:
        with contextlib.suppress(TimeoutError):
            code = await asyncio.wait_for(process.wait(), 3)
            raise SystemExit(f"elastane run ended with code {code}")
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.wait()


async def inject(stub: Any) -> None:
    """Kills one of three workers, and waits for the one that is started in its place."""
    async with asyncio.timeout(2 * WAIT_MS / 1000):
        while not any(
            job.name == "digits" for job in (await stub.List(job_pb2.JobServiceListRequest())).jobs
        ):
            await asyncio.sleep(0.2)  # its agent has yet to create it
        killed, generation = False, 0
        async for response in stub.Watch(job_pb2.JobServiceWatchRequest(name="digits"), wait_for_ready=True):
            job = response.job
            if sum(one.state == job_pb2.WORKER_STATE_MEMBER for one in job.workers) < 3:
                continue
            if not killed and job.step > 20:
                os.kill(job.workers[-1].pid, signal.SIGKILL)
                killed, generation = True, job.generation
            elif killed and job.generation > generation:
                return


async def pictures(base: str, stub: Any, folder: Path) -> None:
    """Follows the job in a page, kills one of its workers, and takes pictures of what is seen."""
    async with chromium() as browser, watched_page(browser, viewport=WIDE) as watched:
        page = watched.page
        await page.goto(f"{base}/")
        await expect(page.get_by_role("link", name="digits")).to_be_visible(timeout=WAIT_MS)
        await page.get_by_role("link", name="digits").click()
        await expect(page.locator(".place.member")).to_have_count(3, timeout=WAIT_MS)
        await expect(page.locator("polyline.curve")).to_have_count(1, timeout=WAIT_MS)
        job = (await stub.Get(job_pb2.JobServiceGetRequest(name="digits"))).job
        os.kill(job.workers[-1].pid, signal.SIGKILL)
        await expect(page.locator("tr[data-kind=worker_lost]").first).to_be_visible(timeout=WAIT_MS)
        await expect(page.locator("svg.timeline .sign.replay").first).to_be_visible(timeout=WAIT_MS)
        await expect(page.locator(".place.member")).to_have_count(3, timeout=WAIT_MS)
        await page.get_by_role("button", name="Checkpoint now").click(timeout=WAIT_MS)
        await expect(page.locator("#notice")).to_contain_text("heckpoint", timeout=WAIT_MS)
        await asyncio.sleep(3)  # a picture of a job that has gone on for a while after it
        await page.goto(f"{base}/jobs/digits")
        await expect(page.locator("#incidents .lost")).to_contain_text("replaced after", timeout=WAIT_MS)
        await expect(page.locator("#live")).to_have_text("live")
        await page.locator("svg.timeline rect.h0").last.hover()
        await expect(page.locator("#timeline .readout")).to_contain_text("generation")
        await page.screenshot(path=folder / "dashboard-job.png")
        await page.set_viewport_size(SHORT)
        await page.goto(f"{base}/")
        await expect(page.locator("polyline.curve")).to_be_visible(timeout=WAIT_MS)
        await page.screenshot(path=folder / "dashboard-jobs.png")
        await page.set_viewport_size(COMPARED)
        for name in ("digits", "short"):
            await page.get_by_label(f"Compare {name}").check()
        await page.get_by_role("button", name="Compare two").click()
        await expect(page.get_by_role("heading", name="digits and short")).to_be_visible()
        await page.screenshot(path=folder / "dashboard-compare.png")
        await page.set_viewport_size(FINISHED)
        await page.goto(f"{base}/jobs/short")
        await expect(page.locator(".state .phase")).to_have_text("succeeded")
        await expect(page.locator("polyline.curve")).to_have_count(1)
        await expect(page.locator("#live")).to_have_text("live")
        await page.screenshot(path=folder / "dashboard-finished.png")
        faults = watched.faults
        for file, options in (
            ("dashboard-dark.png", {"viewport": WIDE, "color_scheme": "dark"}),
            ("dashboard-phone.png", {"viewport": PHONE, "device_scale_factor": 2}),
        ):
            async with watched_page(browser, **options) as other:
                await other.page.goto(f"{base}/jobs/digits")
                await expect(other.page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
                await other.page.screenshot(path=folder / file)
                faults += other.faults
    if faults:
        raise SystemExit("the browser's console: " + "; ".join(faults))


def terminal_pictures(address: str, folder: Path) -> None:
    """From the list of jobs down to the worker that was killed, by keys."""
    top = Terminal("top", "--master", address)

    def picture(name: str) -> None:
        top.settle()
        (folder / f"{name}.svg").write_text(as_svg(top.screen, "elastane top", name), encoding="utf-8")

    try:
        top.until("digits", "nightly", "running", "waiting")
        picture("top-jobs")
        top.press("\r")
        top.until("running: a ring of 3 trains", "member", "ms ")  # a worker's first figures
        picture("top-job")
        for columns, rows, name in ((60, 16, "top-narrow"), (120, 30, "top-wide"), (80, 24, "")):
            top.resize(columns, rows)
            top.until("q: leave", "member", *(["latest events", "reduce wait"] if columns == 120 else []))
            if name:
                picture(name)
        top.press("c")
        top.until("loss: ", "│")
        picture("top-curves")
        top.press("v")
        top.until("worker_lost")
        while "worker_lost" not in top.screen.display[top.selected_row() or 0]:
            top.press("k")
            top.settle()
        top.press("\r")
        top.until("in the ring, hosts EST", "worker_lost")
        picture("top-worker")
        top.press("q")
        if code := top.wait():
            raise SystemExit(f"elastane top ended with code {code}")
    finally:
        top.close()


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    if chromium_path() is None and given.get(2) != "top":
        raise SystemExit(MISSING)
    asyncio.run(main(Path(given.get(1, ROOT / "docs" / "images")), given.get(2, "")))
