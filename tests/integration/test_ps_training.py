"""A script with prepare_ps at a real master, with parameter servers and workers as processes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastane_common.client import MasterClient
from elastane_proto.v1 import job_pb2
from elastane_shards.settings import DEFAULTS
from integration.master_support import serving_master
from integration.ps_runs import PsRun, plain, ps_run
from slow import further, slow, slow_except


async def with_master(folder: Path, script: list[str], scenario: Callable[[PsRun], None]) -> None:
    async with serving_master(folder / "state") as (master, _):

        def run() -> None:
            with ps_run(master.address, folder, script) as found:
                scenario(found)

        await asyncio.to_thread(run)


def counted_once(run: PsRun, result: dict[str, Any], tasks: int, epochs: int = 1, *, passes: int = 1) -> None:
    """Every gradient is in the weights once, and every slot has every name. passes: data sets."""
    assert result["dense"] == [-float(tasks * epochs * passes)]
    assert result["wrong_rows"] == [] and result["columns"] == 1
    names = {(epoch, task) for epoch in range(epochs) for task in range(tasks)}
    assert all(applied == names for applied in run.applied())


@pytest.mark.parametrize("ps", slow_except([1, 3], 3, further=[1]))
async def test_one_worker_has_the_bits_of_plain_mode(tmp_path: Path, ps: int) -> None:
    script = ["--model", "deep", "--tasks", "12"]

    def scenario(run: PsRun) -> None:
        run.create()
        for number in range(ps):
            run.start_ps(f"ps-{number}")
        run.start_worker("w0")
        assert run.wait("w0") == 0
        assert run.result("w0")["digest"] == plain(run.folder, script)["digest"]

    await with_master(tmp_path, script, scenario)


@further  # test_ps_replay has it, with deaths
async def test_bfloat16_between_them_has_the_same_bits_at_any_number_of_servers(tmp_path: Path) -> None:
    script = ["--model", "deep", "--tasks", "10"]
    digests = []

    def scenario(run: PsRun) -> None:
        run.create(ps_slots=5, ps_wire=job_pb2.PS_WIRE_BFLOAT16)
        for number in range(len(digests) * 2 + 1):
            run.start_ps(f"ps-{number}")
        run.start_worker("w0")
        assert run.wait("w0") == 0
        digests.append(run.result("w0")["digest"])

    for folder in (tmp_path / "one", tmp_path / "three"):
        folder.mkdir()
        await with_master(folder, script, scenario)
    assert digests[0] == digests[1]
    # Not by chance: values are rounded.
    assert digests[0] != plain(tmp_path, script)["digest"]


@pytest.mark.parametrize("copies", slow_except([1, 2], 1))
async def test_every_gradient_counts_once_while_servers_and_workers_are_killed(
    tmp_path: Path, copies: int
) -> None:
    tasks, epochs = 60, 2
    script = ["--tasks", str(tasks), "--epochs", str(epochs), "--busy-seconds", "0.15", "--ahead"]

    def scenario(run: PsRun) -> None:
        run.create(ps_replicas=copies - 1, ps_slots=16, ps_staleness=7, workers_max=4)
        for number in range(2):
            run.start_ps(f"ps-{number}")
        for number in range(2):
            run.start_worker(f"w{number}")
        run.done_reaches(5)
        run.settled(copies)
        run.saved()
        run.kill_ps("ps-0")
        run.start_ps("ps-2")
        run.done_reaches(25)
        run.kill_worker("w0")
        run.start_worker("w2")
        run.settled(copies)
        run.kill_ps("ps-1")
        run.start_ps("ps-3")
        run.done_reaches(70)
        run.settled(copies)
        run.processes["ps-2"].signal(signal.SIGTERM)
        assert [run.wait(name) for name in ("w1", "w2")] == [0, 0]
        counted_once(run, run.result("w1"), tasks, epochs)
        counted_once(run, run.result("w2"), tasks, epochs)
        found = run.until(lambda found: True)
        assert not found.gate.outstanding and not found.gate.returned and not found.left
        if copies == 2:
            assert not any(place.life for place in found.map.places)

    await with_master(tmp_path, script, scenario)


async def test_a_gradient_that_is_not_finite_fails_the_attempt_and_nothing_of_it_is_applied(
    tmp_path: Path,
) -> None:
    script = ["--tasks", "6", "--not-finite", "3"]

    def scenario(run: PsRun) -> None:
        run.create(ps_slots=4)
        run.start_ps("ps-0")
        run.start_worker("w0")
        assert run.wait("w0") == 82
        assert all(applied == {(0, task) for task in range(6) if task != 3} for applied in run.applied())

    await with_master(tmp_path, script, scenario)


@slow
async def test_a_gradient_that_is_not_finite_is_skipped_where_the_job_says_so(tmp_path: Path) -> None:
    script = ["--tasks", "6", "--not-finite", "3", "--skip", "4"]

    def scenario(run: PsRun) -> None:
        run.create(ps_slots=4, ps_nonfinite=job_pb2.PS_NONFINITE_SKIP)
        run.start_ps("ps-0")
        run.start_worker("w0")
        assert run.wait("w0") == 0
        assert run.result("w0")["dense"] == [-4.0]
        assert all(applied == {(0, task) for task in range(6)} for applied in run.applied())

    await with_master(tmp_path, script, scenario)


@slow
async def test_a_gradient_that_is_not_finite_ends_the_job_where_it_says_so(tmp_path: Path) -> None:
    script = ["--tasks", "6", "--not-finite", "3"]

    def scenario(run: PsRun) -> None:
        run.create(ps_slots=4, ps_nonfinite=job_pb2.PS_NONFINITE_FAIL)
        run.start_ps("ps-0")
        run.start_worker("w0")
        assert run.wait("w0") == 82
        with MasterClient(run.address) as client:
            job = client.get_job("job")
        assert job.phase == job_pb2.JOB_PHASE_FAILED and "'dense'" in job.reason

    await with_master(tmp_path, script, scenario)


async def test_a_worker_that_waits_for_a_server_leaves_when_the_job_is_over(tmp_path: Path) -> None:
    script = ["--tasks", "6", "--busy-seconds", "1"]

    def scenario(run: PsRun) -> None:
        run.create(ps_slots=4)
        run.start_ps("ps-0")
        run.start_worker("w0")
        run.until(lambda found: bool(found.gate.outstanding))
        run.kill_ps("ps-0")
        run.until(lambda found: not found.processes)
        began = time.monotonic()
        with MasterClient(run.address) as client:
            client.cancel_job("job")
        assert run.wait("w0") == 0
        # Not only when it would have given the servers up.
        assert time.monotonic() - began < DEFAULTS.lease_seconds

    await with_master(tmp_path, script, scenario)


@slow
async def test_tasks_are_pulled_and_pushed_while_others_run(tmp_path: Path) -> None:
    script = ["--tasks", "60", "--prefetch", "3", "--busy-seconds", "0.01", "--ahead"]

    def scenario(run: PsRun) -> None:
        run.create(ps_slots=16, ps_staleness=5, workers_max=2)
        for number in range(2):
            run.start_ps(f"ps-{number}")
            run.start_worker(f"w{number}")
        assert [run.wait(name) for name in ("w0", "w1")] == [0, 0]
        for name in ("w0", "w1"):
            result = run.result(name)
            counted_once(run, result, 60)
            assert all(applied and staleness <= 5 for *_, applied, staleness in result["tasks"])

    await with_master(tmp_path, script, scenario)


@pytest.mark.parametrize(("staleness", "prefetch"), [(0, 0), pytest.param(3, 3, marks=further)])
async def test_a_script_that_leaves_a_data_set_with_leased_tasks_goes_on_with_another(
    tmp_path: Path, staleness: int, prefetch: int
) -> None:
    script = ["--tasks", "12", "--prefetch", str(prefetch), "--leave-at", "5"]

    def scenario(run: PsRun) -> None:
        run.create(ps_slots=4, ps_staleness=staleness)
        run.start_ps("ps-0")
        run.start_worker("w0")
        assert run.wait("w0") == 0
        counted_once(run, run.result("w0"), 12, 1, passes=2)

    began = time.monotonic()
    await with_master(tmp_path, script, scenario)
    assert time.monotonic() - began < DEFAULTS.lease_seconds


@further  # unit/slots/test_machine_clusters has it with the master's decisions
async def test_a_data_set_whose_workers_are_gone_does_not_hold_another_up(tmp_path: Path) -> None:
    def scenario(run: PsRun) -> None:
        run.create(ps_slots=4, ps_staleness=0, workers_max=2)
        run.start_ps("ps-0")
        run.script = ["--tasks", "2", "--busy-seconds", "100"]
        run.start_worker("w0")
        run.until(lambda found: bool(found.gate.outstanding) and all(run.applied()))
        run.script = ["--tasks", "6", "--dataset", "views"]
        run.start_worker("w1")
        run.kill_worker("w0")
        assert run.wait("w1") == 0
        assert all(len(applied) == 6 for applied in run.applied("views"))
        found = run.until(lambda found: not found.gate.returned)
        assert {place.fence for place in found.map.places} == {1}
        run.script = ["--tasks", "2"]
        run.start_worker("w2")
        assert run.wait("w2") == 0
        assert all(len(applied) == 2 for applied in run.applied())

    await with_master(tmp_path, [], scenario)
