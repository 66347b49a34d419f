"""The same bits by the training service: an elastic run, one like it under churn, and stock DDP."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from elastane_cli.rehearse.local_service import LocalService, RankKey, local_service
from integration.service_runs import WAIT_SECONDS, record_of, submit
from slow import slow

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "service"
EPOCHS = 4
HOLD_EPOCH = 2


def churn(service: LocalService, run_id: int) -> None:
    """Kill a worker, then the runner, while the run trains."""

    def workers() -> dict[str, int]:
        job = service.training.get(run_id).job
        return {one.worker_id: one.pid for one in service.client.get_job(job).workers} if job else {}

    def step() -> int:
        return service.client.get_job(service.training.get(run_id).job).step

    service.wait_for(lambda: len(workers()) == 2 and step() >= 1, "two workers", WAIT_SECONDS)
    (_, killed), *_ = sorted(workers().items())
    os.kill(killed, signal.SIGKILL)
    service.wait_for(
        lambda: killed not in workers().values() and len(workers()) == 2, "its successor", WAIT_SECONDS
    )
    ranks = service.ranks()
    service.kill("runner")
    service.wait_for(service.attends, "the next runner", WAIT_SECONDS)
    assert service.ranks() == ranks and RankKey(run_id, 0) in ranks


@slow
def test_an_elastic_run_and_one_like_it_under_churn_have_the_bits_of_stock_ddp(tmp_path: Path) -> None:
    code, go = tmp_path / "code", tmp_path / "go"
    shutil.copytree(SCRIPTS, code, ignore=shutil.ignore_patterns("__pycache__"))
    of_all = ["--model", "m", "--instances", "2", "--grace", "3"]
    with local_service(tmp_path / "service", slots=4) as service:
        elastic = [*of_all, "--seed", "7", code / "digits_elastic.py", "--epochs", EPOCHS]
        quiet = submit(service, *elastic)
        script = [code / "digits_ddp.py", "--epochs", EPOCHS]
        stock = submit(service, *of_all, "--framework", "pytorch", "--param", "SEED=7", *script)
        reference, first = record_of(service, stock), record_of(service, quiet)

        hold = ["--param", f"HOLD_UNTIL={go}", "--param", f"HOLD_EPOCH={HOLD_EPOCH}"]
        like = submit(service, "--like", quiet, *hold)
        churn(service, like)
        go.touch()
        second = record_of(service, like)
    assert first.weights_sha256 == second.weights_sha256 == reference.weights_sha256 != ""
    assert first.metrics == second.metrics and first.metrics.keys() == {"loss"}
    assert (second.seed, second.logical_workers, second.settings["determinism"]) == (
        7, 2, "DETERMINISM_LEVEL_D1",
    )  # fmt: skip
    assert second.code == first.code and second.attempts == 1
