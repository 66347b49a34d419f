"""Hardware that computes wrongly is found, named and left out, and the bits are those of a run without it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import patience
from compared_runs import compare_runs
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_cli.rehearse.results import Comparison
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.client import MasterClient
from elastane_common.exit_codes import CODE_UNDECIDED
from elastane_proto.v1 import job_pb2, ring_pb2
from integration.forked_cli import ForkedCommands
from slow import slow

ESTS, EVERY, WORKERS = 4, 4, 3
FROM_STEP = 5
SCRIPT = str(Path(__file__).parent / "gallery" / "conv.py")
BROKEN = str(Path(__file__).parent / "scripts" / "broken_hardware.py")
EPOCHS = ["--epochs", "5", "--data-workers", "1"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_stock_ddp(tmp_path_factory.mktemp("stock"), [SCRIPT, *EPOCHS], processes=ESTS)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[EmbeddedMaster]:
    started = EmbeddedMaster(tmp_path / "state")
    started.start()
    yield started
    started.stop()


def run(
    forked: ForkedCommands,
    master: EmbeddedMaster,
    folder: Path,
    faulty: str,
    *,
    workers: int = WORKERS,
    **settings: Any,
) -> tuple[int, str]:
    """One run of an agent, all of whose workers are in the first ring; its exit code and output.

    faulty: as in broken_hardware.py.
    """
    job = job_pb2.JobSettings(
        ests=ESTS, workers_min=workers, workers_max=workers, sentinel_steps=EVERY, audit_samples=True
    )
    job.join_window.FromMilliseconds(100)
    job.MergeFrom(job_pb2.JobSettings(**settings))
    command = ["run", "--job", "sums", "--master", master.address]
    with MasterClient(master.address, timeout_seconds=30.0) as client:
        client.create_job("sums", job)
        agent = forked.popen(
            *(*command, "--local-workers", str(workers), BROKEN, SCRIPT, *EPOCHS),
            environment={"ELASTANE_REPORT_DIR": str(folder / "reports"), "ELASTANE_TEST_FAULTY": faulty},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        next(now for now in client.watch_job("sums") if now.generation > 0)
        client.scale_job("sums", 1, workers)
    said, _ = patience.communicate(agent, 120)
    return agent.returncode, said


def look(master: EmbeddedMaster) -> tuple[job_pb2.Job, list[ring_pb2.Event], list[Any]]:
    with MasterClient(master.address, timeout_seconds=30.0) as client:
        return client.get_job("sums"), list(client.events("sums")), list(client.audit_log("sums"))


def compared(folder: Path, reference: Path, history: list[Any]) -> Comparison:
    return compare_runs(folder / "reports", reference, history, ests=ESTS)


def test_a_worker_whose_gradients_have_a_wrong_bit_is_evicted_and_the_bits_are_those_without_it(
    forked_commands: ForkedCommands, master: EmbeddedMaster, tmp_path: Path, reference: Path
) -> None:
    code, said = run(
        forked_commands,
        master,
        tmp_path,
        f"1:{FROM_STEP}:1000",
        checkpoint_url=str(tmp_path / "saved"),
        checkpoint_interval_steps=1,
        checkpoint_keep=1,
    )
    assert code == 0, said
    _, events, history = look(master)
    kinds = [event.kind for event in events]
    assert kinds.count("sentinel_difference") == kinds.count("sentinel_faulty") == 1, said
    found = next(event for event in events if event.kind == "sentinel_faulty")
    assert found.worker_id.endswith("-1")
    assert FROM_STEP <= int(found.facts["at_step"]) < FROM_STEP + EVERY * WORKERS
    comparison = compared(tmp_path, reference, history)
    assert comparison.equal, comparison


@slow
def test_a_wrong_bit_in_a_step_that_is_not_checked_is_not_found_and_of_two_nobody_can_say_who_is_faulty(
    forked_commands: ForkedCommands, master: EmbeddedMaster, tmp_path: Path
) -> None:
    # Epochs have four steps, the first of which leaves its check to the next: 5, 9 and so on are checked.
    code, said = run(forked_commands, master, tmp_path, "1:6:7:9:1000", workers=2)
    assert code == CODE_UNDECIDED, said
    job, events, _ = look(master)
    (paused,) = [event for event in events if event.kind == "sentinel_undecided"]
    assert paused.facts["at_step"] == "9", "what was wrong in step 6 alone was found?"
    assert (job.phase, job.reason) == (job_pb2.JOB_PHASE_SUSPENDED, paused.reason)
    assert "-0 and " in job.reason and "-1 have different gradients for EST" in job.reason
    assert "no third worker is there to decide which of them is right" in said
    assert not list((tmp_path / "reports").glob("*.json"))
