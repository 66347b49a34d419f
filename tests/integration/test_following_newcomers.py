"""A newcomer with a large model follows the ring before it joins: nothing is handed over, the bits stay."""

from __future__ import annotations

from pathlib import Path

from compared_runs import compare_runs
from elastane_cli.rehearse.cluster import local_cluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_proto.v1 import job_pb2
from slow import slow

SCRIPT = Path(__file__).parent / "scripts" / "train_matrix.py"
SIZE, BATCH, ESTS, EPOCHS = 240, 4, 3, 2
PER_EPOCH = SIZE // ESTS // BATCH
# Wide enough that following pays.
ARGUMENTS = [str(SCRIPT), "--width", "2048", "--epochs", str(EPOCHS), "--seed", "3"]
ARGUMENTS += ["--size", str(SIZE), "--batch-size", str(BATCH)]
HELD_STEP = 4


@slow
def test_a_newcomer_that_has_followed_takes_part_with_the_bits_of_stock_ddp(tmp_path: Path) -> None:
    """With clipping, schedules and BatchNorm, none of which is known to what is repeated."""
    settings = job_pb2.JobSettings(ests=ESTS, workers_min=2, workers_max=ESTS, audit_samples=True)
    with local_cluster(tmp_path / "elastic", settings, ARGUMENTS) as cluster:
        cluster.hold_in([HELD_STEP])
        for _ in range(2):
            cluster.add_worker()
        with cluster.held(HELD_STEP):
            name = cluster.add_worker()
            cluster.wait_for(lambda job: any(one.worker_id == name for one in job.workers), what=name)
        cluster.wait_for_success()
        history = list(cluster.client.audit_log(cluster.job))
        formed = [
            event.ring_formed for event in cluster.client.events(cluster.job) if event.kind == "ring_formed"
        ]
    assert [(ring.workers, ring.receivers) for ring in formed][-1] == (ESTS, 0)
    comparison = compare_runs(
        cluster.reports,
        run_stock_ddp(tmp_path / "stock", ARGUMENTS, processes=ESTS),
        history,
        ests=ESTS,
        dataset_size=SIZE,
        steps_per_epoch=PER_EPOCH,
    )
    assert comparison.audit.ok, comparison.audit.violations
    assert [row.name for row in comparison.rows if not row.equal] == []
