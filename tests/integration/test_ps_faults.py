"""Parameter servers that are killed at the worst moments, or whose disk is full.

Each time what is DONE is in every slot, each task once, as the weights and the sets of names tell.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from integration.ps_runs import PsRun
from integration.test_ps_training import counted_once, with_master
from slow import further, slow

TASKS = 40
SCRIPT = ["--tasks", str(TASKS), "--busy-seconds", "0.05"]


def ends(run: PsRun) -> None:
    assert run.wait("w0") == 0
    counted_once(run, run.result("w0"), TASKS)


@pytest.mark.parametrize(
    "halts", [pytest.param("snapshot", marks=slow), pytest.param("move out", marks=further), "move in"]
)
async def test_a_death_in_the_middle_of_a_snapshot_or_a_move_costs_no_task(
    tmp_path: Path, halts: str
) -> None:
    def scenario(run: PsRun) -> None:
        run.create(ps_slots=8, snapshot=0.3)
        run.start_ps("ps-0", "" if halts == "move in" else halts)
        run.start_worker("w0")
        if halts != "snapshot":
            run.done_reaches(3)
            run.saved()
            run.start_ps("ps-1", halts if halts == "move in" else "")
        run.halted()
        killed = "ps-1" if halts == "move in" else "ps-0"
        run.kill_ps(killed)
        begun = set((run.folder / "checkpoints" / "slots").rglob(".*.tmp")) if halts == "snapshot" else set()
        if halts == "snapshot":
            assert begun
            run.start_ps("ps-1")
        ends(run)
        # What was begun is there, and was not taken for a snapshot.
        assert all(file.exists() for file in begun)
        lives = {place.life for place in run.until(lambda found: True).map.places}
        assert (lives == {0}) == (halts == "move in")

    await with_master(tmp_path, SCRIPT, scenario)


@further  # elastane chaos --ps has kill-two-ps
async def test_both_copies_of_slots_die_at_once(tmp_path: Path) -> None:
    def scenario(run: PsRun) -> None:
        run.create(ps_replicas=1, ps_slots=8, snapshot=0.3)
        for number in range(2):
            run.start_ps(f"ps-{number}")
        run.start_worker("w0")
        run.done_reaches(5)
        run.settled(2)
        run.saved()
        for ps_id in ("ps-0", "ps-1"):
            run.processes[ps_id].signal(signal.SIGKILL)
        run.start_ps("ps-2")
        run.start_ps("ps-3")
        ends(run)
        assert all(place.life for place in run.until(lambda found: True).map.places)

    await with_master(tmp_path, SCRIPT, scenario)


@slow
async def test_a_full_disk_stops_no_training_and_is_told(tmp_path: Path) -> None:
    def scenario(run: PsRun) -> None:
        run.create(ps_slots=8, snapshot=0.3)
        run.start_ps("ps-0", "full")
        run.start_worker("w0")
        run.done_reaches(3)
        run.saved()
        run.halt_file.touch()
        told = run.until(lambda found: bool(found.processes and found.processes[0].figures.unsaved_error))
        assert "No space left" in told.processes[0].figures.unsaved_error
        run.done_reaches(run.done() + 5)
        run.kill_ps("ps-0")  # what was done since the last snapshot is done again
        run.start_ps("ps-1", "full")
        run.done_reaches(TASKS)
        assert run.workers["w0"].status is None, "the end is not told before all is saved"
        run.halt_file.unlink()
        ends(run)
        assert run.until(lambda found: True).reopened

    await with_master(tmp_path, SCRIPT, scenario)
