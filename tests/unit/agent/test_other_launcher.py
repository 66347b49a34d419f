"""`elastane run` in the environment of torchrun or mpirun."""

from __future__ import annotations

import pytest

from elastane_agent.supervisor.other_launcher import OtherLauncherError, refuse_other_launcher, without_ranks


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_one_of_several_ranks_would_start_a_job_of_its_own(name: str) -> None:
    with pytest.raises(OtherLauncherError, match=f"{name} is 4") as error:
        refuse_other_launcher({"RANK": "1", name: "4"})
    assert "elastane run --ests 4" in error.value.hint


@pytest.mark.parametrize(
    "environment", [{}, {"WORLD_SIZE": "1", "RANK": "0"}, {"WORLD_SIZE": ""}, {"SLURM_NTASKS": "4"}]
)
def test_a_single_process_is_no_rank(environment: dict[str, str]) -> None:
    refuse_other_launcher(environment)


def test_workers_do_not_inherit_what_is_true_of_one_rank() -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x"}
    assert without_ranks({**torchrun, "HOME": "/root", "ELASTANE_LOG_LEVEL": "info"}) == {
        "HOME": "/root",
        "ELASTANE_LOG_LEVEL": "info",
    }
