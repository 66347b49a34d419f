"""A scheduling policy at work: running runs grow and shrink, with the bits of stock DDP, and a master that
is killed between decisions moves none of them. A scheduler that lies costs time, and no bit.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

from elastane_cli.rehearse.local_service import LocalService, local_service
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.artifacts import read_manifest
from elastane_common.client_errors import RequestRefusedError
from elastane_proto.v1 import training_pb2
from integration.service_runs import WAIT_SECONDS, record_of, submit
from slow import further

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "service"
LYING_MASTER = Path(__file__).parent / "lying_master"
LIES = {"failed", "too much", "nothing", "wrong lengths and speeds", "wrong c"}
EPOCHS = 4
OF_ALL = ("--model", "m", "--grace", "20")
SETTINGS = {"ELASTANE_SCHEDULING_POLICY": "maxmin", "ELASTANE_RESHAPE_SECONDS": "1"}


def slow_script(folder: Path) -> Path:
    """The elastic digits, with steps that last: time in which instances come and go.

    Once the file that UNTIL names is there, they last no longer.
    """
    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "digits_elastic.py").read_text()
    text = text.replace("import argparse\n", "import argparse\nimport os\nimport time\n")
    pause = '        if not os.path.exists(os.environ.get("UNTIL", "")):\n'
    pause += '            time.sleep(float(os.environ["STEP_SECONDS"]))\n'
    text = text.replace("        optimizer.step()\n", f"        optimizer.step()\n{pause}")
    script = folder / "digits_slow.py"
    script.write_text(text)
    return script


def stock(folder: Path, code: Path, ests: int) -> str:
    """The weights of the same training under stock DDP, outside the service; in it: test_service_bits."""
    script, url = code / "digits_ddp.py", str(folder / "stock-model")
    variables = {"SEED": "7", "MODEL_URL": url}
    run_stock_ddp(
        folder / "stock", [str(script), "--epochs", str(EPOCHS)], processes=ests, environment=variables
    )
    manifest = read_manifest(url)
    assert manifest is not None
    return manifest.content_hash


def training(service: LocalService, run_id: int) -> int:
    """Workers in the ring of a run's job."""
    job = service.training.get(run_id).job
    try:
        return len(service.client.get_ring(job).members) if job else 0
    except RequestRefusedError:  # it is being created
        return 0


def running(service: LocalService, run_id: int) -> int:
    """Instances of a run that run."""
    state = training_pb2.RankStatus.STATE_RUNNING
    return sum(rank.state == state for rank in service.training.get(run_id).ranks)


def wait_for_workers(service: LocalService, counts: dict[int, int]) -> None:
    service.wait_for(
        lambda: all(training(service, run) == count for run, count in counts.items()),
        f"workers of runs: {counts}",
        WAIT_SECONDS,
    )


@further  # test_service_bits has a run under churn, the service's simulation has the schedules
def test_two_runs_share_the_slots_as_they_come_and_go_with_the_bits_of_stock_ddp(tmp_path: Path) -> None:
    script, shared, go = slow_script(tmp_path / "code"), tmp_path / "shared", tmp_path / "go"
    with local_service(tmp_path / "service", slots=2, variables=SETTINGS) as service:
        elastic = ["--param", "STEP_SECONDS=1", "--param", f"UNTIL={shared}"]
        elastic += ["--instances", 2, "--seed", "7", script, "--epochs", EPOCHS]
        hold = ["--param", f"HOLD_UNTIL={go}", "--param", f"HOLD_EPOCH={EPOCHS - 1}"]
        first = submit(service, *OF_ALL, *hold, *elastic)
        wait_for_workers(service, {first: 2})
        second = submit(service, *OF_ALL, *elastic)
        wait_for_workers(service, {first: 1, second: 1})

        # A master that is killed leaves all where it is; its successor has the same targets.
        ranks, before = service.ranks(), service.training.get_scheduling(first).decisions
        service.kill("master")
        service.wait_for(service.attends, "the next master", WAIT_SECONDS)
        assert service.ranks() == ranks
        assert list(service.training.get_scheduling(first).decisions)[: len(before)] == list(before)

        shared.touch()
        of_second = record_of(service, second)
        service.wait_for(lambda: running(service, first) == 2, "its slots", WAIT_SECONDS)
        go.touch()
        of_first = record_of(service, first)
        told = service.training.get_scheduling(first)
    assert of_first.weights_sha256 == of_second.weights_sha256 == stock(tmp_path, script.parent, 2) != ""
    assert of_first.attempts == of_second.attempts == 1
    kinds = training_pb2.SchedulingDecision
    changes = [(one.kind, one.slots_after) for one in told.decisions if one.kind != kinds.KIND_DECLINED]
    assert changes[0] == changes[-1] == (kinds.KIND_GRANTED, 2)
    assert (kinds.KIND_TAKEN, 1) in changes
    assert told.policy == "maxmin" and all(f"run {first}" in one.reason for one in told.decisions)


def wait_for_changes(service: LocalService, runs: list[int]) -> None:
    """Wait until workers of these runs have come and gone, with a master killed in between."""

    def changed(joined: int, draining: int) -> bool:
        jobs = [service.training.get(run_id).job for run_id in runs]
        try:
            kinds = Counter(event.kind for job in jobs for event in service.client.events(job))
        except RequestRefusedError:  # one is being created
            return False
        return kinds["worker_joined"] >= joined and kinds["worker_draining"] >= draining

    service.wait_for(lambda: changed(3, 0), "the first workers", WAIT_SECONDS)
    service.kill("master")
    service.wait_for(service.attends, "the next master", WAIT_SECONDS)
    service.wait_for(lambda: changed(6, 2), "further workers, and some that leave", WAIT_SECONDS)


@further  # service_sim has every eighth seed with a policy that lies; bits: the test above
def test_a_scheduler_that_lies_costs_time_and_no_bit(tmp_path: Path) -> None:
    script, lies, go = slow_script(tmp_path / "code"), tmp_path / "lies", tmp_path / "go"
    variables = {
        "ELASTANE_SCHEDULING_POLICY": "foresight",
        "ELASTANE_RESHAPE_SECONDS": "0",
        "ELASTANE_STARVATION_SECONDS": "5",
        "PYTHONPATH": f"{LYING_MASTER}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".strip(os.pathsep),
        "LIES": str(lies),
    }
    with local_service(tmp_path / "service", slots=4, variables=variables) as service:
        steps = ["--param", "STEP_SECONDS=1", "--param", f"UNTIL={go}"]
        runs = [
            submit(service, *OF_ALL, *steps, "--instances", 4, "--seed", "7", script, "--epochs", EPOCHS)
            for _ in range(2)
        ]
        wait_for_changes(service, runs)
        service.wait_for(
            lambda: set(lies.read_text().splitlines()) == LIES, "every kind of lie", WAIT_SECONDS
        )
        go.touch()
        records = [record_of(service, run_id) for run_id in runs]
    assert {record.weights_sha256 for record in records} == {stock(tmp_path, script.parent, 4)} != {""}
