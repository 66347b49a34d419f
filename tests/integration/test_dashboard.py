"""The dashboard over HTTP: what it shows to whom, what its buttons do, and what it does not let through."""

from __future__ import annotations

import asyncio
import html
import json
import re
import ssl
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from structlog.testing import capture_logs

import patience
from elastane_master.dashboard import facts, routes
from elastane_master.decisions.succession import Leader
from elastane_master.jobs.recent_notes import RecentNotes
from elastane_master.jobs.serving import not_leading
from elastane_master.security.settings import SecuritySettings
from elastane_planner import last_step
from elastane_proto.job_settings import JobSettings
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ring_pb2, ring_pb2_grpc
from integration.dashboard_support import (
    NASTY,
    create_job,
    dashboard_master,
    parameter_servers,
    tell_blocks,
    train,
    train_pipeline,
)
from integration.master_support import Worker, serving_master, store_down
from integration.security_support import Certificates, entry, standard_tokens, token_of
from integration.test_master_sessions import RING, SIGNATURE, duration, form_ring, get_job, report

STRICT = ("default-src 'none'", "script-src 'self'", "style-src 'self'", "form-action 'self'")


class Browser:
    """A session with cookies that sends what a browser does."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=aiohttp.ClientTimeout(20)
        )

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, **more: Any) -> tuple[int, str]:
        async with self._session.get(self.base + path, **more) as response:
            return response.status, unescape(await response.text())

    async def post(self, path: str, origin: str | None = "", **fields: str) -> tuple[int, str]:
        """A form. origin: empty: this site's; None: no such header."""
        headers = {} if origin is None else {"Origin": origin or self.base}
        async with self._session.post(self.base + path, data=fields, headers=headers) as response:
            return response.status, unescape(await response.text())

    async def log_in(self, name: str) -> None:
        status, page = await self.post("/login", token=token_of(name))
        assert status == 200 and "Log out" in page

    async def live(self, path: str) -> AsyncIterator[dict[str, str]]:
        """Events' data, as they come."""
        async with self._session.get(self.base + path) as response:
            assert response.status == 200 and response.content_type == "text/event-stream"
            name = ""
            async for line in response.content:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    yield {"event": name, **json.loads(text.removeprefix("data: "))}


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


async def until(events: AsyncIterator[dict[str, str]], part: str, words: str) -> dict[str, str]:
    """The first event in whose part the words are."""
    async with patience.within(20):
        async for event in events:
            if words in text_of(event.get(part, "")):
                return event
    raise AssertionError(f"the stream ended without {words!r}")


async def test_a_job_without_javascript(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        status, page = await browser.get("/")
        assert status == 200 and "No jobs that you may see" in page and "serves requests" in page
        await create_job(channel)
        status, page = await browser.get("/")
        assert 'href="jobs/j"' in page and "waiting" in page
        status, page = await browser.get("/jobs/j")
        assert status == 200 and "No worker is there" in page and "Nothing is logged" in page
        worker = Worker(channel, "a")
        await train(channel, worker)
        await Worker(channel, "spare").hello(RING, signature=SIGNATURE)
        status, page = await browser.get("/jobs/j")
        words = text_of(page)
        assert "2 of 4 (50.0 %)" in words and "Epoch 1 of 1" in words and "ESTs on workers 2 on 1" in words
        assert "hosts ESTs 0 to 1" in words and "2 DOING" in words and "loss last 0.5" in words
        assert re.search(r"a 2 20-24 1 \d\.\d s", words), "who holds what, for how long"
        assert "epoch 1, batch 2" in words and "worker joined" in words
        assert "Prices an hour spot 0.90 USD, on demand 3.00 USD" in words
        assert "ESTs 0-1, generation 1" in page and '<polyline class="curve line0"' in page
        assert re.search(r'<rect class="h0"', page)
        # No script or style but the files; no page needs them to be read.
        assert set(re.findall(r"<script[^>]*>(.)", page)) == {"<"}
        assert "style=" not in page and "<style" not in page
        assert not re.search(r"https?://", page.replace("http://www.w3.org", ""))
        # A death is seen, and its step is told to be run again.
        worker.call.cancel()
        async with patience.within(20):
            while "worker lost" not in (page := (await browser.get("/jobs/j"))[1]):
                await asyncio.sleep(0.02)
        assert 'class="sign death"' in page


async def test_a_pipeline_shows_its_stages_and_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel)
        _, page = await browser.get("/jobs/j")
        assert 'id="stages"' not in page and 'data-part="stages"' in page
        worker = Worker(channel, "a")
        go = await train_pipeline(channel, worker)
        _, page = await browser.get("/jobs/j")
        words = text_of(page)
        assert "1 stage, 4 units. Predicted: 2.4 s a step, 0 % of it idle (bubble)" in words
        assert "0 slowest 0-3 a - kept 2.4 s" in words and "A step, as predicted" in words
        assert "Units 0 to 3 have one holder each: if a dies, the job goes back to the initial state" in words
        assert "Stage 0 is the slowest: units 0 to 3 take 2.4 s of a step on a" in words
        await tell_blocks(worker, go, 64)
        async with patience.within(20):
            while "Measured: 800 ms" not in (page := (await browser.get("/jobs/j"))[1]):
                await asyncio.sleep(0.02)
        words = text_of(page)
        assert "Measured: 800 ms from the first block of step 64 to the last, 25 % of it idle" in words
        assert len(re.findall(r'<rect class="forward"', page)) == 2
        assert "backward of micro-batch 1 on a, stage 0: 200 ms" in page
        # Commands are told the same.
        stub = ring_pb2_grpc.RingServiceStub(channel)
        request = ring_pb2.GetWorkerFiguresRequest(job="j", worker_ids=["a"])
        figures = (await stub.GetWorkerFigures(request)).figures["a"]
        assert figures.blocks_step == 64 and len(figures.block_seconds) == 8
        untold = "Steps are not measured block by block"
        assert untold not in words
        monkeypatch.setattr(last_step, "BLOCKS_TOLD_MAX", 3)
        assert untold in text_of((await browser.get("/jobs/j"))[1])


async def test_parameter_servers_are_shown_with_their_slots(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel, "other")
        _, page = await browser.get("/jobs/other")
        assert 'id="slots"' not in page and 'data-part="slots"' in page
        cluster = await parameter_servers(channel)
        _, page = await browser.get("/jobs/j")
        words = text_of(page)
        places = (await cluster.get()).map.places
        own = [slot for slot, place in enumerate(places) if place.owner == "ps-1"]
        assert "8 of 8 slots served" in words
        assert "Staleness: at most 3, 0 possible now; 1 task in flight" in words
        silent, told = f"0: ps-0 serving {8 - len(own)}", f"1: ps-1 serving {len(own)}"
        assert f"{silent} - - - -, - -" in words
        assert f"{told} {1000 * len(own):,} {len(own)}.0 MiB - 0, 1 lack up to 3 tasks" in words
        cells = re.findall(r'<li class="(h\d|none)" title="slot (\d): (ps-\d)">(\d)</li>', page)
        owners = [place.owner for place in places]
        assert cells == [(f"h{owner[-1]}", str(slot), owner, owner[-1]) for slot, owner in enumerate(owners)]
        await cluster.servers["ps-0"].die()
        async with patience.within(20):
            while "0: ps-0 lost" not in text_of((await browser.get("/jobs/j"))[1]):
                await asyncio.sleep(0.02)
        await cluster.until(lambda found: {place.owner for place in found.map.places} == {"ps-1"})
        await cluster.served()
        _, page = await browser.get("/jobs/j")
        assert re.findall(r'title="slot \d: (ps-\d)">', page) == ["ps-1"] * 8
        for server in list(cluster.servers.values()):
            await server.die()
        await cluster.until(lambda found: not any(place.owner for place in found.map.places))
        _, page = await browser.get("/jobs/j")
        assert "No task is leased: 8 of 8 slots wait for a parameter server" in text_of(page)
        assert page.count('<li class="none" title="slot ') == 8


async def test_what_scripts_and_workers_write_is_text(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel)
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        await worker.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FAILED, message=NASTY))
        await worker.ended()
        async with aiohttp.ClientSession() as session, session.get(f"{base}/jobs/j") as response:
            page = await response.text()
            headers = response.headers
        assert "alert" in page and "<script>alert" not in page and NASTY in unescape(page)
        assert all(words in headers["Content-Security-Policy"] for words in STRICT)
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
        status, page = await browser.get("/jobs/%3Cscript%3Ealert")
        assert status in (400, 404) and "<script>alert" not in (page.replace(unescape(page), ""))


async def test_assets_are_there_and_nothing_else_is(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, _, base), aiohttp.ClientSession() as session:
        async with session.get(f"{base}/") as response:
            page = await response.text()
        found = re.findall(r'"(assets/[^"]+)"', page)
        assert found[1] == "assets/theme.css" and len(found) == 4
        for asset in found:
            async with session.get(f"{base}/{asset}") as response:
                kept = "no-cache" if asset == "assets/theme.css" else "max-age"
                assert response.status == 200 and kept in response.headers["Cache-Control"]
                assert response.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/assets/absent.js", "/assets/..%2froutes.py", "/jobs", "/jobs/j/absent/more"):
            async with session.get(base + path) as response:
                assert response.status == 404


# ---------------------------------------------------------------- live


async def test_a_kill_is_seen_live(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (master, channel, base), Browser(base) as browser:
        await create_job(channel)
        worker = Worker(channel, "a")
        await train(channel, worker)
        events = browser.live("/jobs/j/live")
        first = await until(events, "workers", "hosts ESTs 0 to 1")
        assert set(first) > {"summary", "timeline", "queues", "curves", "cost", "contexts", "events"}
        worker.call.cancel()
        seen = await until(events, "events", "worker lost")
        assert "curves" not in seen, "only what changed is sent"
        host = master.jobs.get("j")
        assert host.watchers == 1
        await events.aclose()
        async with patience.within(20):
            while host.watchers:
                await asyncio.sleep(0.01)


async def test_a_death_has_its_cost_and_steps_their_times(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel)
        first, second = Worker(channel, "a"), Worker(channel, "b")
        await train(channel, first, steps=3)
        await second.hello(RING, signature=SIGNATURE)
        first.call.cancel()
        go = await form_ring(second)
        assert "ring formed again" in (page := (await browser.get("/jobs/j"))[1]) and "cost <b>" not in page
        await second.send(step_report=report(go, go.resume_step))
        await second.receive("prepared")
        applied = go.resume_step + 1
        await second.send(heartbeat=ring_pb2.Heartbeat(generation=go.generation, applied_step=applied))
        async with patience.within(20):
            while "cost <b>" not in (page := (await browser.get("/jobs/j"))[1]):
                await asyncio.sleep(0.05)
        assert re.search(r"<b>a</b> lost [\d.]+ s ago, cost <b>[\d.]+ m?s</b>, ring formed again", page)
        assert re.search(r"2 steps, [\d.]+ m?s on average; 50 % at most", page)


async def test_the_list_of_jobs_is_live(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        events = browser.live("/live")
        await until(events, "jobs", "No jobs")
        await create_job(channel, "later")
        await until(events, "jobs", "later")
        await events.aclose()


async def test_a_master_that_stops_does_not_wait_for_those_who_look(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (master, channel, base), Browser(base) as browser:
        await create_job(channel)
        streams = [browser.live("/live"), browser.live("/jobs/j/live")]
        for events in streams:
            await anext(events)
        async with patience.within(5):
            await master.stop()
        for events in streams:
            await patience.wait_for(_drained(events), 10)


async def _drained(events: AsyncIterator[Any]) -> None:
    try:
        async for _ in events:
            pass
    except aiohttp.ClientError:
        pass


# ---------------------------------------------------------------- actions


async def test_buttons_do_what_they_say_and_show_it(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel)
        worker = Worker(channel, "a")
        await train(channel, worker)
        status, page = await browser.post("/jobs/j/scale", workers_min="1", workers_max="1")
        assert status == 200 and "Scaled to 1 to 1 workers" in page
        job = await get_job(channel)
        assert (job.settings.workers_min, job.settings.workers_max) == (1, 1)
        # What the master refuses is shown with its reason, and what cannot be asked is not asked.
        _, page = await browser.post("/jobs/j/scale", workers_min="3", workers_max="2")
        assert 'role="alert"' in page and "workers" in page
        _, page = await browser.post("/jobs/j/scale", workers_min="two", workers_max="2")
        assert "'two' is not a number of workers" in text_of(page)
        _, page = await browser.post("/jobs/j/suspend")
        assert "the job has no checkpoint_url" in page.lower() and "would lose its training" in page
        _, page = await browser.post("/jobs/j/checkpoint")
        assert "the job has no checkpoint_url" in page.lower()
        _, page = await browser.post("/jobs/j/drain", worker="nobody")
        assert "The job has no worker 'nobody'." in text_of(page)
        _, page = await browser.post("/jobs/j/drain", worker="a")
        assert "a leaves at the next step boundary." in text_of(page)
        assert [one.state for one in (await get_job(channel)).workers] == [job_pb2.WORKER_STATE_DRAINING]
        # Cancelling is asked again.
        _, page = await browser.post("/jobs/j/cancel")
        assert "was not confirmed" in page and (await get_job(channel)).phase == job_pb2.JOB_PHASE_RUNNING
        status, page = await browser.get("/jobs/j/cancel")
        assert status == 200 and "ends at once" in page and 'name="confirmed" value="yes"' in page
        assert "Samples a second" in (await browser.get("/jobs/j"))[1]
        assert (await get_job(channel)).phase == job_pb2.JOB_PHASE_RUNNING
        _, page = await browser.post("/jobs/j/cancel", confirmed="yes")
        assert "The job is cancelled: cancelled by an operator." in text_of(page)
        assert (await get_job(channel)).phase == job_pb2.JOB_PHASE_CANCELLED
        assert "<button" not in page.partition("<main")[2], "what would only be refused is not offered"
        assert "Samples a second" not in page, "a rate of 0 is no news of a job that has ended"
        assert (await browser.post("/jobs/j/explode"))[1].count("there is no action 'explode'") == 0
        assert (await browser.post("/jobs/absent/suspend"))[0] == 404
        assert (await browser.get("/jobs/absent/live"))[0] == 404


async def test_resume_of_a_job_that_was_suspended(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel)
        _, page = await browser.post("/jobs/j/suspend")
        assert "The job is suspended: suspended on request." in text_of(page) and ">Resume<" in page
        _, page = await browser.post("/jobs/j/resume")
        assert "The job is waiting" in text_of(page)


# ---------------------------------------------------------------- who may


async def test_tokens_decide_what_is_seen_and_done(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path, "".join(standard_tokens())) as (master, channel, base):
        stub = job_pb2_grpc.JobServiceStub(channel)
        root = [("authorization", f"Bearer {token_of('root')}")]
        for name in ("mine", "yours"):
            wanted = job_pb2.JobSettings(ests=1)
            await stub.Create(job_pb2.JobServiceCreateRequest(name=name, settings=wanted), metadata=root)
        async with Browser(base) as nobody:
            for path in ("/", "/jobs/mine", "/jobs/absent", "/jobs/mine/cancel"):
                status, page = await nobody.get(path)
                assert status == 401 and 'type="password"' in page and "mine<" not in page
            assert (await nobody.get("/jobs/mine/live"))[0] == 401
            assert (await nobody.get("/metrics"))[0] == 401
            status, page = await nobody.post("/jobs/mine/suspend")
            assert status == 401
            status, page = await nobody.post("/login", token="wrong-token-0123456789")
            assert status == 401 and "This master does not know the token." in text_of(page)
            status, page = await nobody.post("/login", token=token_of("worker"))
            assert status == 403 and "may not call" in page
        async with Browser(base) as reader:
            async with reader._session.post(
                base + "/login", data={"token": token_of("reader")}, allow_redirects=False
            ) as response:
                cookie = response.headers["Set-Cookie"]
                assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
                assert token_of("reader") not in cookie
            status, page = await reader.get("/")
            assert "mine" in text_of(page) and "yours" not in text_of(page)
            status, page = await reader.get("/metrics")  # the link at the foot of each page
            assert status == 200 and 'job_name="mine"' in page and 'job_name="yours"' not in page
            status, page = await reader.get("/jobs/mine")
            assert status == 200 and "Actions" not in page and ">Drain<" not in page
            status, page = await reader.get("/jobs/yours")
            assert status == 403 and "is not for job 'yours'" in page
            assert (await reader.get("/jobs/yours/live"))[0] == 403
            status, page = await reader.get("/compare?job=mine&job=yours")
            assert status == 403 and "is not for job 'yours'" in page
            _, page = await reader.post("/jobs/mine/suspend")
            assert "this needs the role operator" in page
            assert (await stub.Get(job_pb2.JobServiceGetRequest(name="mine"), metadata=root)).job.phase == 1
            # Revoked: the page is ended where it stands, and the next one is not there.
            events = reader.live("/jobs/mine/live")
            await anext(events)
            (tmp_path / "tokens.toml").write_text(entry("root", ["operator"], ["*"]))
            master.refresh_security()
            refused = await until(events, "text", "does not know the token")
            assert refused["event"] == "refused"
            assert (await reader.get("/jobs/mine"))[0] == 401
        async with Browser(base) as operator:
            await operator.log_in("root")
            # With other rights than before: open pages show what those allow.
            jobs, job = operator.live("/live"), operator.live("/jobs/mine/live")
            assert "yours" in (await anext(jobs))["jobs"] and ">Suspend<" in (await anext(job))["actions"]
            (tmp_path / "tokens.toml").write_text(entry("root", ["reader"], ["mine"]))
            master.refresh_security()
            shown = (await anext(jobs))["jobs"]
            assert "mine" in shown and "yours" not in shown
            async with patience.within(20):
                while ">Suspend<" in (await anext(job)).get("actions", ">Suspend<"):
                    pass
            (tmp_path / "tokens.toml").write_text(entry("root", ["operator"], ["*"]))
            master.refresh_security()
            _, page = await operator.post("/jobs/mine/suspend")
            assert "The job is suspended" in text_of(page)
            status, page = await operator.post("/logout")
            assert status == 200 and 'type="password"' in page
            assert (await operator.get("/jobs/mine"))[0] == 401
            # A bearer token does as well, without any cookie.
            headers = {"Authorization": f"Bearer {token_of('root')}"}
            assert (await operator.get("/jobs/mine", headers=headers))[0] == 200


async def test_forms_of_other_sites_are_not_taken(tmp_path: Path) -> None:
    tokens = entry("root", ["operator"], ["*"])
    async with dashboard_master(tmp_path, tokens) as (_, channel, base), Browser(base) as browser:
        root = [("authorization", f"Bearer {token_of('root')}")]
        stub = job_pb2_grpc.JobServiceStub(channel)
        wanted = job_pb2.JobSettings(ests=1)
        await stub.Create(job_pb2.JobServiceCreateRequest(name="j", settings=wanted), metadata=root)
        await browser.log_in("root")
        for origin in ("https://evil.example", "null", base.replace("http", "ftp"), base + "1", None):
            _, page = await browser.post("/jobs/j/suspend", origin)
            assert "did not come from a page of this dashboard" in page
            assert (await browser.post("/logout", origin))[0] == 403
        for site in ("cross-site", "same-site"):
            sent = {"Sec-Fetch-Site": site, "Origin": base}
            async with browser._session.post(base + "/jobs/j/suspend", headers=sent) as response:
                assert "did not come from" in await response.text()
        assert (await stub.Get(job_pb2.JobServiceGetRequest(name="j"), metadata=root)).job.phase == 1
        assert (await browser.get("/jobs/j/suspend"))[0] == 404, "a link does nothing"


async def test_without_tokens_only_names_that_lead_here(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel)
        for host, status in (("evil.example", 403), ("localhost", 200), ("10.0.0.7", 200), ("[::1]", 200)):
            assert (await browser.get("/jobs/j", headers={"Host": f"{host}:80"}))[0] == status
            sent = {"Host": f"{host}:80", "Origin": f"http://{host}:80"}
            async with browser._session.post(f"{base}/jobs/j/suspend", headers=sent) as response:
                assert (response.status == 403) == (status == 403)
            assert (await browser.get("/", headers={"Host": host}))[0] == status


async def test_actions_pass_the_gate_its_quotas_and_its_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    structlog.reset_defaults()  # a master of another test in this process has said where lines go
    tokens = entry("root", ["operator"], ["*"], requests_per_second=8.0)
    async with dashboard_master(tmp_path, tokens) as (master, _, base), Browser(base) as browser:
        await master.jobs.create("j", JobSettings(ests=1))
        await browser.log_in("root")
        _, page = await browser.post("/jobs/j/suspend")
        assert "The job is suspended" in text_of(page)
        assert master.measures.rpcs.method("JobService.Suspend", streaming=False).by_code["OK"].count == 1
        said = next(line for line in capsys.readouterr().out.splitlines() if "operator asks" in line)
        assert "caller=root" in said and "job=j" in said and "peer=http:127.0.0.1" in said
        # One quota for looking and acting, over HTTP and gRPC. Slow requests would fill it again.
        quotas, now = master.gate._quotas, asyncio.get_running_loop().time()
        take = quotas.take_request
        monkeypatch.setattr(quotas, "take_request", lambda caller, _: take(caller, now))
        refused = [await browser.get("/") for _ in range(12)]
        assert any(status == 429 and "requests a second" in page for status, page in refused)
        assert master.gate.refusals["rate_limited"] >= 1


async def test_two_jobs_side_by_side(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel)
        await create_job(channel, "other", max_wait=duration(99))
        worker = Worker(channel, "a")
        await train(channel, worker)
        _, page = await browser.get("/")
        assert re.findall(r'name="job" value="(\w+)"', page) == ["j", "other"] and "Compare two" in page
        status, page = await browser.get("/compare?job=j&job=other&scale=log")
        words = text_of(page)
        assert status == 200 and "step 2 of 4 0" in words and "max wait seconds 0.0 99.0" in words
        assert "ESTs on workers 2 on 1 2 on 0" in words and "spot price" not in words, "that is the same"
        assert 'data-values="0 1;1 0.5"' in page and '<input type="hidden" name="job" value="other">' in page
        assert 'name="scale" value="log" checked' in page
        for query in ("", "?job=j", "?job=j&job=j", "?job=j&job=other&job=x"):
            status, page = await browser.get(f"/compare{query}")
            assert status == 400 and "choose two jobs" in page
        assert (await browser.get("/compare?job=j&job=nowhere"))[0] == 404


async def test_colours_are_kept_by_the_browser(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel)
        _, auto = await browser.get("/assets/theme.css")
        assert "color-scheme: light" in auto and "@media (prefers-color-scheme: dark)" in auto
        _, page = await browser.post("/theme", theme="dark")
        assert "<h1" in page
        _, dark = await browser.get("/assets/theme.css")
        assert "color-scheme: dark" in dark and "light" not in dark
        # Back to the page where the button is, if that is one of this site.
        for referer, place in (
            (f"{base}/jobs/j?kind=x", f"{base}/jobs/j?kind=x"),
            ("http://evil.example/", "./"),
        ):
            sent = {"Origin": base, "Referer": referer}
            async with browser._session.post(
                f"{base}/theme", data={"theme": "light"}, headers=sent, allow_redirects=False
            ) as response:
                assert (response.status, response.headers["Location"]) == (303, place)
        assert (await browser.post("/theme", theme="<b>"))[0] == 400
        assert (await browser.post("/theme", "http://evil.example", theme="dark"))[0] == 403
        _, light = await browser.get("/assets/theme.css")
        assert "color-scheme: light" in light and "@media" not in light


async def test_forms_are_small_and_come_in_time(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), Browser(base) as browser:
        await create_job(channel)
        status, page = await browser.post("/jobs/j/drain", worker="x" * 100_000)
        assert status in (200, 413) and "A form of" in page
        sent = {"Origin": base}
        async with browser._session.post(
            f"{base}/jobs/j/drain", json={"worker": "a"}, headers=sent
        ) as response:
            assert "Expected a form" in await response.text()
        assert (await browser.post("/jobs/j"))[0] == 405


async def test_what_anybody_can_send_is_no_fault_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors are always logged: whoever could cause them without a token could fill the master's disk."""
    form = b"Content-Type: application/x-www-form-urlencoded\r\n"
    begin = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + form
    with capture_logs() as lines:
        async with dashboard_master(tmp_path, "".join(standard_tokens())) as (_, _, base):
            host, port = base.removeprefix("http://").split(":")
            for status, request in (
                (b" 403 ", begin + b"Origin: http://[\r\nContent-Length: 7\r\n\r\ntoken=a"),
                (b" 401 ", begin + b"Content-Encoding: gzip\r\nContent-Length: 7\r\n\r\ntoken=a"),
                (b"", begin + b"Content-Length: 700\r\n\r\ntoken=a"),
            ):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(request)
                if not status:
                    writer.write_eof()  # it breaks off
                assert status in (await reader.read()).split(b"\r\n")[0]
                writer.close()
    assert [line for line in lines if line["log_level"] in ("error", "critical")] == []
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


async def test_with_client_certificates(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    options = {**certificates.master_options(), "token_file": tmp_path / "tokens.toml"}
    options["token_file"].write_text(entry("root", ["operator"], ["*"]))
    settings = {"http": "127.0.0.1:0", "http_port_file": tmp_path / "http"}
    async with serving_master(tmp_path, **settings, security=SecuritySettings(**options)):
        base = f"https://{(tmp_path / 'http').read_text().strip()}"
        tls = ssl.create_default_context(cafile=str(certificates.ca))
        sent = {"Authorization": f"Bearer {token_of('root')}"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(base, ssl=tls, headers=sent) as response,
        ):
            assert response.status == 401 and "client certificate" in await response.text()
        tls.load_cert_chain(certificates.client_cert, certificates.client_key)
        async with aiohttp.ClientSession() as session:
            async with session.post(
                f"{base}/login", data={"token": token_of("root")}, ssl=tls, allow_redirects=False
            ) as response:
                cookie = response.headers["Set-Cookie"]
                assert (
                    cookie.startswith("__Host-elastane_token=") and "Secure" in cookie and "Path=/" in cookie
                )
            async with session.get(base, ssl=tls, headers={"Cookie": cookie.split(";")[0]}) as response:
                assert response.status == 200


async def test_with_client_certificates_and_no_tokens_any_name_of_the_certificate_does(
    tmp_path: Path,
) -> None:
    certificates = Certificates(tmp_path / "certificates")
    settings = {"http": "127.0.0.1:0", "http_port_file": tmp_path / "http"}
    async with serving_master(
        tmp_path, **settings, security=SecuritySettings(**certificates.master_options())
    ):
        base = f"https://{(tmp_path / 'http').read_text().strip()}"
        tls = ssl.create_default_context(cafile=str(certificates.ca))
        tls.load_cert_chain(certificates.client_cert, certificates.client_key)
        sent = {"Host": "master.example.org"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(base, ssl=tls, headers=sent) as response,
        ):
            assert response.status == 200 and "No jobs that you may see" in await response.text()


# ---------------------------------------------------------------- when not all is well


async def test_a_store_that_is_away_leaves_out_what_only_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "STORE_SECONDS", 0.2)
    monkeypatch.setattr(routes, "ACTION_SECONDS", 0.2)
    async with dashboard_master(tmp_path) as (master, channel, base), Browser(base) as browser:
        await create_job(channel)
        async with store_down(master):
            _, page = await browser.post("/jobs/j/suspend")
            assert "There was no answer within 0.2 s." in text_of(page)
            status, page = await browser.get("/jobs/j")
            assert status == 200 and "what is shown may not be stored yet: the store d" in page
        async with patience.within(20):
            while "may not be" in page or "job suspended" not in text_of(page):
                _, page = await browser.get("/jobs/j")


async def test_a_master_that_stands_by_says_who_leads(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (master, channel, base), Browser(base) as browser:
        await create_job(channel)
        events = browser.live("/jobs/j/live")
        await anext(events)
        leader = Leader(address="10.0.0.9:50051", master="other:1")
        master.jobs.pause(not_leading(leader))
        await patience.wait_for(_drained(events), 10)
        for path in ("/", "/jobs/j", "/jobs/j/live"):
            status, page = await browser.get(path)
            assert status == 503 and "10.0.0.9:50051 leads" in page
        _, page = await browser.post("/jobs/j/suspend")
        assert "10.0.0.9:50051 leads" in page


async def test_events_that_are_no_longer_in_memory_come_from_the_store(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (master, channel, base), Browser(base) as browser:
        await create_job(channel)
        host = master.jobs.get("j")
        kept, host.recent_notes = host.recent_notes, RecentNotes(2)
        host.recent_notes.extend(kept)
        for workers in (1, 2, 1, 2):
            wanted = job_pb2.JobServiceScaleRequest(name="j", workers_min=1, workers_max=workers)
            await job_pb2_grpc.JobServiceStub(channel).Scale(wanted)
        assert len(host.recent_notes) == 2
        _, page = await browser.get("/jobs/j")
        numbers = [int(number) for number in re.findall(r'data-sequence="(\d+)"', page)]
        assert numbers == list(range(max(numbers), 0, -1)) and "job created" in page
        status, page = await browser.get("/jobs/j?kind=ring_change&since=3")
        found = re.findall(r'data-sequence="(\d+)" data-kind="(\w+)"', page)
        assert found == [(str(number), "ring_change") for number in numbers if number >= 3]
        assert 'value="ring_change"' in page
        [followed] = re.findall(r'data-live="([^"]*)"', page)
        assert html.unescape(followed) == "j/live?kind=ring_change&since=3"
        status, page = await browser.get("/jobs/j?since=yesterday")
        assert status == 400 and "yesterday" in page
        events = browser.live("/jobs/j/live?kind=worker")
        assert "None of them is wanted." in (await anext(events))["events"]
        await events.aclose()
        _, page = await browser.get("/jobs/j?search=CREATED&routine=each")
        assert re.findall(r'data-kind="(\w+)"', page) == ["job_created"] and 'value="CREATED"' in page


async def test_live_pages_leave_room_for_others(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path, http_connections_max=6) as (_, channel, base),
        Browser(base) as browser,
    ):
        await create_job(channel)
        streams = [browser.live(path) for path in ("/live", "/jobs/j/live", "/jobs/j/live")]
        for events in streams:
            await anext(events)
        status, text = await browser.get("/jobs/j/live")
        assert status == 503 and "ELASTANE_HTTP_CONNECTIONS_MAX" in text
        assert (await browser.get("/jobs/j"))[0] == 200
        for events in streams:
            await events.aclose()
