"""`elastane runner` with a real master: runs from submission to their end, while runner and master are killed."""

from __future__ import annotations

import sys
from pathlib import Path

from integration.master_support import serving_master
from integration.runner_support import Service, running_runner

PRINTS = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['LR'])"


async def test_a_run_goes_from_submission_to_its_end_and_its_logs_are_stored(tmp_path: Path) -> None:
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner", "--slots", "2"),
    ):
        service = Service(channel)
        run_id = await service.train(sys.executable, "-c", PRINTS, instances=2, parameters={"LR": "0.1"})
        run = await service.until(run_id, "SUCCEEDED")
        assert [(rank.exit_code, rank.last_line) for rank in run.ranks] == [
            (0, "rank 0 of 2 0.1"),
            (0, "rank 1 of 2 0.1"),
        ]
        assert await service.log(run_id, 1) == b"rank 1 of 2 0.1\n"
