"""The dashboard's pages of runs: what they show to whom, what is live, and what their buttons do."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

import patience
from elastane_common import layout
from elastane_common.storage import Folder
from elastane_master.decisions.runs.allocation import Target
from elastane_master.decisions.runs.events import AllocationDecided
from elastane_proto.v1 import training_pb2
from integration.dashboard_support import NASTY, dashboard_master
from integration.scripted_runner import ScriptedRunner
from integration.security_support import entry, token_of
from integration.test_dashboard import Browser, text_of, until
from integration.test_training_service import get, stub, train
from integration.test_training_service import until as run_until

SHA256 = "a" * 64


@contextlib.asynccontextmanager
async def service(
    folder: Path, slots: int = 4
) -> AsyncIterator[tuple[grpc.aio.Channel, Browser, ScriptedRunner]]:
    """A master without tokens, a browser, and a runner."""
    async with (
        dashboard_master(folder) as (_, channel, base),
        Browser(base) as browser,
        ScriptedRunner(channel, slots=slots) as runner,
    ):
        yield channel, browser, runner


async def answer_log(runner: ScriptedRunner, data: bytes, offset: int = 0) -> training_pb2.RunnerReadLog:
    """Answer the next ReadLog with this output; the messages that end readers are left out."""
    while True:
        read = (await runner.next("read_log")).read_log
        if not (read.taken_bytes or read.end):
            break
    sent = training_pb2.TrainingServiceStreamLogsResponse(offset=offset, data=data)
    runner.send(log_chunk=training_pb2.RunnerLogChunk(reader=read.reader, chunk=sent, end=True))
    return read


async def page_of(browser: Browser, runner: ScriptedRunner, path: str, log: bytes = b"") -> str:
    """A run's page, for which the runner sends this output."""
    asked = asyncio.create_task(browser.get(path))
    await answer_log(runner, log)
    status, page = await asked
    assert status == 200
    return page


async def test_the_queue_what_runs_what_has_ended_and_the_runners(tmp_path: Path) -> None:
    async with service(tmp_path) as (channel, browser, runner):
        status, page = await browser.get("/runs")
        words = text_of(page)
        assert status == 200 and "No run that you may see waits" in words
        assert re.search(r"runner-1 here process attending 0 of 4", words)
        assert 'href="runs"' in (await browser.get("/"))[1], "the list of jobs leads here"
        await train(channel, instances=3)
        prepare = await runner.launch()
        await run_until(channel, 1, "RUNNING")
        await train(channel, instances=100, name="large")
        await train(channel, instances=2, priority=5)
        words = text_of((await browser.get("/runs"))[1])
        queue, running = words.index("Queue"), words.index("Running")
        # The one of higher priority is first, though it came later.
        assert queue < words.index("1 3 digits") < words.index("2 2 large") < running
        assert "needs 2 slots, 1 free" in words and "1st of 2" in words and "2nd of 2" in words
        assert running < words.index("1 digits anybody running") < words.index("Ended")
        assert "3 of 4 slots are used" in words and "3 of 4" in words
        for rank in range(3):
            runner.report(prepare.attempt, rank, "EXITED")
        await run_until(channel, 1, "SUCCEEDED")
        words = text_of((await browser.get("/runs"))[1])
        assert words.index("Ended") < words.index("1 digits anybody succeeded")


async def test_a_waiting_run_says_when_it_could_start_and_behind_whom(tmp_path: Path) -> None:
    async with service(tmp_path) as (channel, browser, runner):
        await train(channel, instances=4)
        await runner.launch()
        await run_until(channel, 1, "RUNNING")
        await train(channel, instances=2)
        waits = "needs 2 slots, 0 free, waits for run 1, whose end is unknown; 1st of 1"
        run = await get(channel, 2)
        assert run.reason == waits and not run.HasField("earliest_start")
        assert [(one.run_id, one.slots, one.HasField("until")) for one in run.holders] == [(1, 4, False)]
        page = (await browser.get("/runs"))[1]
        assert re.search(f"unknown 1 {re.escape(waits)}", text_of(page)) and 'href="runs/1">1</a>' in page
        words = text_of((await browser.get("/runs/2"))[1])
        assert "Earliest start unknown Behind run 1 (4 slots)" in words
        assert "No scheduling policy has decided about it" in words


async def test_decisions_of_the_policy_are_on_the_page_of_the_run(tmp_path: Path) -> None:
    async with (
        dashboard_master(tmp_path, scheduling_policy="foresight") as (master, channel, base),
        Browser(base) as browser,
        ScriptedRunner(channel, slots=4),
    ):
        await train(channel, framework=training_pb2.FRAMEWORK_ELASTANE, instances=4)
        server = master.runs.server
        wanted = (Target(1, {"cpu": 3}, "it gets 3 cpu"),)
        rejected = ("keep: +3 s", "grow: +5 s")
        revision = server.machine.state.revision
        await server.submit(AllocationDecided("foresight", revision, wanted, "shortest first", rejected))
        words = text_of((await browser.get("/runs/1"))[1])
        assert "foresight granted 0 to 3 it gets 3 cpu; shortest first" in words
        assert "rejected: keep: +3 s; grow: +5 s" in words


async def test_a_run_without_javascript(tmp_path: Path) -> None:
    async with service(tmp_path) as (channel, browser, runner):
        code = training_pb2.CodeRef(archive_sha256=SHA256)
        service_said = await stub(channel).GetService(training_pb2.TrainingServiceGetServiceRequest())
        Folder(service_said.artifact_url).write(layout.code_archive(SHA256), [b"zip"])
        await train(channel, instances=2, parameters={"LR": "0.1"}, code=code, command=["train.py"])
        prepare = await runner.launch()
        runner.report(prepare.attempt, 1, "RUNNING", last_line="halfway")
        running = await run_until(channel, 1, "RUNNING")
        async with patience.within(20):
            while running.ranks[1].last_line != "halfway":
                running = await get(channel, 1)
        page = await page_of(browser, runner, "/runs/1", b"epoch 1\n\x1b[31mloss 0.5\x1b[0m\n")
        words = text_of(page)
        assert "Run 1: digits" in words and "1 running here runner-1 - halfway" in words
        assert "epoch 1\nloss 0.5\n" in page and "LR 0.1" in words and f"archive {SHA256}" in words
        assert "queued" in words and words.index("running") < words.index("History")
        # No script or style but the files.
        assert re.findall(r"<script[^>]*>(.)", page) == ["<"] and "style=" not in page
        asked = asyncio.create_task(browser.get("/runs/1?rank=1"))
        assert (await answer_log(runner, b"of rank 1\n")).rank == 1
        page = (await asked)[1]
        assert "of rank 1" in page and "Log of rank 1" in page and 'data-live="1/live?rank=1"' in page
        for path in ("/runs/1?rank=x", "/runs/1?attempt=-1"):
            assert (await browser.get(path))[0] == 400
        for path in ("/runs/2", "/runs/x", "/runs/99999999999999", "/runs/2/live", "/runs/1/explode"):
            assert (await browser.get(path))[0] == 404


async def test_a_rank_that_failed_is_shown_with_its_exit_code_and_last_line(tmp_path: Path) -> None:
    async with service(tmp_path) as (channel, browser, runner):
        roles = {"framework": "FRAMEWORK_TENSORFLOW", "parameter_servers": 1}
        await train(channel, instances=3, **roles)
        prepare = await runner.launch()
        await run_until(channel, 1, "RUNNING")
        runner.report(prepare.attempt, 1, "EXITED", exit_code=3, last_line="it broke")
        await runner.next("stop")
        runner.stopped(prepare.attempt)
        await run_until(channel, 1, "FAILED")
        words = text_of((await browser.get("/runs/1"))[1])
        assert "1 exited here runner-1 3 it broke" in words and "0 lost here runner-1 -" in words
        assert "2 parameter server lost here" in words and words.count("parameter server") == 1
        assert "rank 1 ended with 3" in words and "There is no log to show: the log of rank 0" in words


async def test_artifacts_and_the_stored_log_of_a_run_that_is_over(tmp_path: Path) -> None:
    async with service(tmp_path) as (channel, browser, runner):
        run = await train(channel)
        prepare = await runner.launch()
        runner.report(prepare.attempt, 0, "EXITED")
        await run_until(channel, 1, "SUCCEEDED")
        log = b"first\n" + b"x" * 20_000 + b"\nlast line\n"
        Folder(run.artifact_url).write(layout.rank_log(1, 0), [log])
        words = text_of((await browser.get("/runs/1"))[1])
        assert "last line" in words and "first" not in words and "before this are not shown" in words
        assert layout.rank_log(1, 0) in words and "19.5 KiB" in words


async def test_what_scripts_and_users_write_is_text(tmp_path: Path) -> None:
    async with service(tmp_path) as (channel, browser, runner):
        await train(channel, parameters={"NOTE": NASTY})
        prepare = await runner.launch()
        await run_until(channel, 1, "RUNNING")
        asked = asyncio.create_task(_raw(browser, "/runs/1"))
        await answer_log(runner, NASTY.encode() + b"\n\xff\x1b]0;title\x07\x08")
        page = await asked
        assert page.count("&lt;script&gt;alert") == 2 and "<script>alert" not in page
        assert "\x1b" not in page and "\x08" not in page and "title" not in text_of(page).split("Log of")[1]
        runner.report(prepare.attempt, 0, "EXITED", exit_code=1, last_line=NASTY)


async def _raw(browser: Browser, path: str) -> str:
    async with browser._session.get(browser.base + path) as response:
        return await response.text()


async def test_a_run_and_its_log_are_live(tmp_path: Path) -> None:
    async with service(tmp_path) as (channel, browser, runner):
        lists = browser.live("/runs/live")
        await until(lists, "waiting", "No run that you may see waits")
        await train(channel)
        prepare = await runner.launch()
        await until(lists, "running", "1 digits")
        await lists.aclose()
        await run_until(channel, 1, "RUNNING")
        written = [b"one\n"]

        async def keep_answering() -> None:
            while True:
                await answer_log(runner, b"".join(written))

        answering = asyncio.create_task(keep_answering())
        events = browser.live("/runs/1/live")
        first = await until(events, "log", "one")
        assert {"summary", "actions", "ranks", "artifacts", "lineage", "decisions", "history"} < set(first)
        written.append(b"two\n")
        seen = await until(events, "log", "one two")
        assert "lineage" not in seen, "only what changed is sent"
        answering.cancel()
        runner.report(prepare.attempt, 0, "EXITED", last_line="done")
        await until(events, "summary", "succeeded")
        await events.aclose()


async def test_buttons_do_what_they_say_and_show_it(tmp_path: Path) -> None:
    async with service(tmp_path, slots=0) as (channel, browser, _):
        await train(channel)
        _, page = await browser.post("/runs/1/priority", priority="7")
        assert "The priority of run 1 is 7." in text_of(page)
        assert (await get(channel, 1)).priority == 7
        for wrong in ("many", "1001", "-1001", "", "٣"):
            _, page = await browser.post("/runs/1/priority", priority=wrong)
            assert "is not a priority" in page and (await get(channel, 1)).priority == 7
        assert (await browser.get("/runs/1/priority"))[0] == 404, "a link does nothing"
        _, page = await browser.post("/runs/1/cancel")
        assert "was not confirmed" in page
        _, page = await browser.get("/runs/1/cancel")
        assert 'name="confirmed" value="yes"' in page and "processes are stopped" in page
        _, page = await browser.post("/runs/1/retry")
        assert 'role="alert"' in page, "what is refused is shown with its reason"
        _, page = await browser.post("/runs/1/cancel", confirmed="yes")
        assert "Run 1 is cancelled" in text_of(page)
        assert (await get(channel, 1)).state == training_pb2.RUN_STATE_CANCELLED
        assert ">Retry<" in page and "act-cancel" not in page
        _, page = await browser.post("/runs/1/retry")
        assert "Run 1 is queued" in text_of(page)
        for origin in ("https://evil.example", None):
            status, _ = await browser.post("/runs/1/cancel", origin, confirmed="yes")
            assert status == 403 or origin is None
        assert (await browser.post("/runs/2/cancel", confirmed="yes"))[0] == 404


@pytest.mark.parametrize("page", ["/runs", "/runs/1"])
async def test_nobody_sees_a_page_without_a_token(tmp_path: Path, page: str) -> None:
    async with (
        dashboard_master(tmp_path, entry("ann", ["submitter"], [])) as (_, _, base),
        Browser(base) as nobody,
    ):
        status, shown = await nobody.get(page)
        assert status == 401 and 'type="password"' in shown
        assert (await nobody.get(f"{page}/live"))[0] == 401
        assert (await nobody.post("/runs/1/cancel", confirmed="yes"))[0] == 401


async def test_a_token_shows_and_changes_runs_of_its_owners_only(tmp_path: Path) -> None:
    tokens = "".join(
        (
            entry("ann", ["submitter"], []),
            entry("bob", ["submitter"], []),
            entry("reader", ["reader"], ["*"], owners=["ann"]),
            entry("worker", ["worker"], ["*"]),
            entry("runner", ["runner"], [], owners=["*"]),
            entry("root", ["operator"], ["*"], owners=["*"]),
        )
    )
    async with dashboard_master(tmp_path, tokens) as (master, channel, base):

        def metadata(name: str) -> list[tuple[str, str]]:
            return [("authorization", f"Bearer {token_of(name)}")]

        for name in ("ann", "bob"):
            spec = training_pb2.RunSpec(
                output_model_name="m", framework="FRAMEWORK_PLAIN", name=f"of-{name}", command=["x"]
            )
            spec.code.installed = True
            request = training_pb2.TrainingServiceTrainRequest(spec=spec)
            await stub(channel).Train(request, metadata=metadata(name))
        async with Browser(base) as worker:
            assert (await worker.post("/login", token=token_of("worker")))[0] == 403
        async with Browser(base) as ann:
            await ann.log_in("ann")  # who may not see jobs comes to the page of runs
            page = (await ann.get("/runs"))[1]
            assert "of-ann" in page and "of-bob" not in page
            assert (await ann.get("/"))[0] == 403
            assert ">Set priority<" in (await ann.get("/runs/1"))[1]
            for path in ("/runs/2", "/runs/2/live", "/runs/2/cancel"):
                assert (await ann.get(path))[0] == 404
            assert (await ann.post("/runs/2/cancel", confirmed="yes"))[0] == 404
            assert master.runs.server.machine.state.runs[2].state == "queued"
            shown = await anext(ann.live("/runs/live"))
            assert "of-ann" in shown["waiting"] and "of-bob" not in shown["waiting"]
            events = ann.live("/runs/1/live")
            await anext(events)
            (tmp_path / "tokens.toml").write_text(tokens.replace(entry("ann", ["submitter"], []), ""))
            master.refresh_security()
            assert (await until(events, "text", "does not know the token"))["event"] == "refused"
        async with Browser(base) as reader:
            await reader.log_in("reader")
            page = (await reader.get("/runs/1"))[1]
            assert "of-ann" in page and "<button id=" not in page and "act-cancel" not in page
            _, page = await reader.post("/runs/1/cancel", confirmed="yes")
            assert "this needs the role" in page
            assert (await reader.get("/runs/2"))[0] == 404
        async with Browser(base) as root:
            await root.log_in("root")
            page = (await root.get("/runs"))[1]
            assert "of-ann" in page and "of-bob" in page
            _, page = await root.post("/runs/2/cancel", confirmed="yes")
            assert "Run 2 is cancelled" in text_of(page)


async def test_a_scrape_tells_what_became_of_runs_and_launches(tmp_path: Path) -> None:
    async with service(tmp_path) as (channel, browser, runner):
        await train(channel)
        prepare = (await runner.next("prepare")).prepare
        failed = training_pb2.RunnerLaunchFailed(attempt=prepare.attempt, reason="no disk", permanent=True)
        runner.send(launch_failed=failed)
        await run_until(channel, 1, "FAILED")
        await train(channel, instances=2)
        await runner.next("forget")
        await runner.launch()
        await run_until(channel, 2, "RUNNING")
        scraped = (await browser.get("/metrics"))[1]
        for line in (
            "elastane_run_launches_failed_total 1.0",
            'elastane_runs_ended_total{state="failed"} 1.0',
            'elastane_runs_ended_total{state="succeeded"} 0.0',
            'elastane_runs{state="running"} 1.0',
            "elastane_run_slots_used 2.0",
            'elastane_runners{state="attending"} 1.0',
        ):
            assert f"\n{line}\n" in scraped
