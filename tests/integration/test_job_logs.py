"""Output of a job's workers at the master: reported by agents, read by `elastane logs`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from markupsafe import escape
from typer.testing import CliRunner, Result

import patience
from elastane_cli.commands.main import build_app
from elastane_common.client import MasterClient
from elastane_common.errors import EXIT_REFUSED
from elastane_proto.history import events as history
from elastane_proto.history_wire import event_of
from elastane_proto.v1 import job_pb2, job_pb2_grpc, log_pb2, log_pb2_grpc
from integration.dashboard_support import NASTY, create_job, dashboard_master
from integration.master_support import reason_of, serving_master
from integration.test_agent import Run
from integration.test_master_sessions import job
from integration.test_metric_service import read


def stub(channel: grpc.aio.Channel) -> Any:
    return log_pb2_grpc.LogServiceStub(channel)


async def report(
    channel: grpc.aio.Channel, worker: str, first: int, *texts: str, ended: log_pb2.WorkerExit | None = None
) -> str:
    """Report lines as an agent does; return the master's memory."""
    told = log_pb2.WorkerOutput(worker_id=worker, first=first, exit=ended)
    told.lines.extend(log_pb2.LogLine(text=text) for text in texts)
    request = log_pb2.LogServiceReportRequest(job="j", agent="agent", workers=[told])
    return str((await stub(channel).Report(request)).memory)


async def output(channel: grpc.aio.Channel, worker: str = "", **fields: Any) -> list[str]:
    request = log_pb2.LogServiceReadRequest(job="j", worker_id=worker, **fields)
    return [line.text async for piece in stub(channel).Read(request) for line in piece.lines]


KILLED = log_pb2.WorkerExit(number=1, returncode=-9, how="ended by SIGKILL", out_of_memory="oom_kill rose")


async def test_lines_of_a_dead_worker_stay_and_its_last_words_are_in_the_history(tmp_path: Path) -> None:
    async with job(tmp_path) as (master, channel):
        await report(channel, "w0", 0, *map(str, range(20)))
        for _ in range(2):  # as repeated by an agent that got no answer
            await report(channel, "w1", 0, "one", "two\x1b[2J", ended=KILLED)
        assert await output(channel, "w1") == ["one", "two\x1b[2J"]
        assert await output(channel, "w0", lines=2) == ["18", "19"]
        assert sorted(await output(channel, lines=1)) == ["19", "two\x1b[2J"]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await output(channel, "w9")
        assert reason_of(refused.value)[1] == "NOT_FOUND"
        with MasterClient(master.address) as client:
            events = await asyncio.to_thread(lambda: list(client.events("j")))
        [died] = [event for event in map(event_of, events) if isinstance(event, history.WorkerExited)]
        assert died == history.WorkerExited("w1", "ended by SIGKILL", "oom_kill rose", "one\ntwo\ufffd[2J")
        assert "w1 killed, out of memory (oom_kill rose); its last words: one" in events[-1].reason


async def test_a_reader_follows_until_the_job_is_over_and_all_have_ended(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        await report(channel, "w0", 0, "old", "new")
        request = log_pb2.LogServiceReadRequest(job="j", worker_id="w0", lines=1, follow=True)
        reader = stub(channel).Read(request)
        assert [line.text for line in (await read(reader)).lines] == ["new"]
        await report(channel, "w0", 5, "later")
        piece = await read(reader)
        assert ([line.text for line in piece.lines], piece.left_out) == (["later"], 3)
        token = {"w0": piece.token}
        await job_pb2_grpc.JobServiceStub(channel).Cancel(job_pb2.JobServiceCancelRequest(name="j"))
        ended = log_pb2.WorkerExit(number=1, how="done", expected=True)
        await report(channel, "w0", 6, "last", ended=ended)
        assert [line.text for line in (await read(reader)).lines] == ["last"]
        assert (await read(reader)).exit.how == "done"
        assert await patience.wait_for(reader.read(), 20) is grpc.aio.EOF
        assert await output(channel, "w0", after=token) == ["last"]


async def test_workers_that_an_ended_job_sent_away_are_no_news(tmp_path: Path) -> None:
    async with job(tmp_path) as (master, channel):
        refused = log_pb2.WorkerExit(number=1, returncode=EXIT_REFUSED, how="was refused")
        await report(channel, "w0", 0, "a", ended=refused)
        await job_pb2_grpc.JobServiceStub(channel).Cancel(job_pb2.JobServiceCancelRequest(name="j"))
        await report(channel, "w1", 0, "b", ended=refused)
        await report(channel, "w2", 0, "c", ended=KILLED)
        with MasterClient(master.address) as client:
            events = await asyncio.to_thread(lambda: list(client.events("j")))
        assert [event.worker_id for event in events if event.kind == "worker_exited"] == ["w0", "w2"]


async def test_a_master_that_was_restarted_tells_agents_that_it_has_no_lines(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        memory = await report(channel, "w0", 0, "a", "b")
        assert await report(channel, "w0", 2, "c") == memory
    async with serving_master(tmp_path) as (_, channel):
        assert await report(channel, "w0", 3, "d") != memory
        await report(channel, "w0", 1, "b", "c", "d")
        assert await output(channel, "w0", after={"w0": "agent:2"}) == ["d"]


async def test_the_page_shows_the_last_lines_of_a_worker_and_how_it_ended(tmp_path: Path) -> None:
    async with dashboard_master(tmp_path) as (_, channel, base), aiohttp.ClientSession() as browser:
        await create_job(channel)
        async with browser.get(f"{base}/jobs/j/output") as answer:
            assert "No agent has reported any output" in await answer.text()
        await report(channel, "w0", 0, "first")
        await report(channel, "w1", 0, *map(str, range(300)), NASTY, ended=KILLED)
        async with browser.get(f"{base}/jobs/j/output?worker=w1") as answer:
            page = await answer.text()
        assert "Last lines of w1" in page and escape(NASTY) in page and NASTY not in page
        assert ">101<" in page and ">100<" not in page
        assert "[ended by SIGKILL, out of memory (oom_kill rose)]" in page
        async with browser.get(f"{base}/jobs/j/output?worker=none") as answer:
            assert "Last lines of w0" in await answer.text()
        async with browser.get(f"{base}/jobs/j") as answer:
            assert "jobs/j/output?worker=w1" in await answer.text()
        async with browser.get(f"{base}/jobs/absent/output") as answer:
            assert answer.status == 404


@pytest.mark.parametrize(
    "told",
    [
        log_pb2.WorkerOutput(worker_id="w 0"),
        log_pb2.WorkerOutput(worker_id="w0", first=-1),
    ],
)
async def test_a_bad_report_changes_nothing(tmp_path: Path, told: log_pb2.WorkerOutput) -> None:
    async with job(tmp_path) as (_, channel):
        request = log_pb2.LogServiceReportRequest(job="j", agent="a", workers=[told])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub(channel).Report(request)
        assert reason_of(refused.value)[1] == "INVALID_ARGUMENT"
        assert await output(channel) == []


def elastane(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments))


def test_the_agent_reports_its_workers_and_the_command_shows_them(tmp_path: Path) -> None:
    script, gate = tmp_path / "script.py", tmp_path / "gate"
    os.mkfifo(gate)
    script.write_text(
        "import os, sys\n"
        f"gate, marker = {str(gate)!r}, {str(tmp_path / 'marker')!r}\n"
        "if os.path.exists(marker):\n"
        "    open(gate).read()\n"
        "open(marker, 'w').close()\n"
        "print('hello from', os.environ['ELASTANE_WORKER_ID'])\n"
        "print('\\x1b[2Jlast words', file=sys.stderr)\n"
        "open(gate).read()\n"
    )
    logs = tmp_path / "logs"
    run = Run("--ests", "1", "--max-restarts", "1", "--log-dir", str(logs), str(script))
    try:
        pid = run.until("worker_started")["pid"]
        run.until("output", line="\x1b[2Jlast words")
        port = run.of("job_created")[0]["message"].rpartition(" ")[2]
        os.kill(pid, signal.SIGKILL)
        with MasterClient(port) as client:
            for event in client.events("script", follow=True):
                if event.kind == "worker_exited":
                    break
            shown = elastane("logs", "--master", port, "--worker", "w0")
            assert shown.stdout == "hello from w0\n\x1b[2Jlast words\n", shown.stderr
            assert shown.stderr == "[w0: ended by SIGKILL]\n"
            assert elastane("logs", "--master", port, "--worker", "").exit_code == 2
            assert (
                "no output of worker 'w9'"
                in elastane("logs", "--master", port, "--worker", "w0", "--worker", "w9").stderr
            )
            as_json = elastane("logs", "script", "--master", port, "--json", "-n", "1").stdout.splitlines()
            assert [json.loads(line).get("line") for line in as_json] == ["\x1b[2Jlast words", None]
            assert event.reason == "w0 ended by SIGKILL; its last words: hello from w0\n\ufffd[2Jlast words"
            assert elastane("logs", "script", "--master", port, "--rank", "1").exit_code == 2
    finally:
        run.close()
    assert (logs / "w0.log").read_text() == "hello from w0\n\x1b[2Jlast words\n"


async def test_several_workers_are_shown_each_with_its_name(tmp_path: Path) -> None:
    async with job(tmp_path) as (master, channel):
        for worker in ("w0", "w1", "w2"):
            await report(channel, worker, 0, f"of {worker}", ended=KILLED)
        wanted = (
            "logs",
            "j",
            "--master",
            master.address,
            "--worker",
            "w2",
            "--worker",
            "w0",
            "--worker",
            "w2",
        )
        shown = await asyncio.to_thread(elastane, *wanted)
        assert sorted(shown.stdout.splitlines()) == ["[w0] of w0", "[w2] of w2"], shown.stderr
        await job_pb2_grpc.JobServiceStub(channel).Cancel(job_pb2.JobServiceCancelRequest(name="j"))
        followed = await asyncio.to_thread(elastane, *wanted, "--follow")
        assert sorted(followed.stdout.splitlines()) == ["[w0] of w0", "[w2] of w2"], followed.stderr


def test_with_a_full_disk_below_log_dir_the_training_goes_on_and_the_loss_is_told_once(
    tmp_path: Path,
) -> None:
    script, logs, gate = tmp_path / "script.py", tmp_path / "logs", tmp_path / "gate"
    os.mkfifo(gate)
    script.write_text(
        "import elastane, torch\n"
        "job = elastane.init(seed=1)\n"
        "model = torch.nn.Linear(1, 1)\n"
        "data = torch.utils.data.TensorDataset(torch.ones(8, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model, optimizer, loader = job.prepare(model, optimizer, torch.utils.data.DataLoader(data))\n"
        "for epoch in job.epochs(2):\n"
        "    for (x,) in loader:\n"
        "        print('a line that does not fit', flush=True)\n"
        "        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()\n"
        f"    epoch or open({str(gate)!r}).read()\n"
    )
    logs.mkdir()
    (logs / "w0.log").symlink_to("/dev/full")
    run = Run("--ests", "1", "--log-dir", str(logs), "--state-dir", str(tmp_path / "state"), str(script))
    try:
        run.until("log_files_incomplete")
        with MasterClient(run.of("job_created")[0]["message"].rpartition(" ")[2]) as client:
            for event in client.events("script", follow=True):
                if event.kind == "log_files_incomplete":
                    break
            assert event.reason.startswith(f"output of workers is missing in {logs} on ")
            gate.write_text("")
            for event in client.events("script", follow=True):
                if event.kind == "job_succeeded":
                    break
            kinds = [event.kind for event in client.events("script")]
            assert kinds.count("log_files_incomplete") == 1 and event.step == 16
        assert run.end() == 0
        [told] = run.of("log_files_incomplete")
        assert (
            told["kind"] == "warning" and "No space left on device; the training goes on" in told["message"]
        )
    finally:
        run.close()
