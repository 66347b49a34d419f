"""The worker's image: trains with the bits of stock DDP, drains on SIGTERM, and can be built upon."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from compared_runs import compare_runs
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.client import MasterClient
from elastane_proto.v1 import job_pb2
from images.conftest import RunningMaster
from images.engine import Container, Engine

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests/integration/scripts"
SIZE, BATCH, ESTS = 200, 5, 2
STEPS_PER_EPOCH = SIZE // ESTS // BATCH


def script_arguments(epochs: int) -> list[str]:
    return ["--epochs", str(epochs), "--size", str(SIZE), "--batch-size", str(BATCH), "--seed", "3"]


class Workers:
    """Containers of one job's workers, and the folders that they share."""

    def __init__(self, engine: Engine, image: str, master: RunningMaster, folder: Path) -> None:
        self._engine = engine
        self._image = image
        self.master = master
        self.job = folder.name
        self.reports, self.checkpoints = folder / "reports", folder / "checkpoints"
        for path in (self.reports, self.checkpoints):
            path.mkdir()
            path.chmod(0o777)  # the container's user is another

    def start(self, *, epochs: int, local_workers: int, busy_seconds: float = 0.0) -> Container:
        volumes = [f"{SCRIPTS}:/workspace:ro", f"{self.reports}:/reports", f"{self.checkpoints}:/checkpoints"]
        arguments = [part for volume in volumes for part in ("--volume", volume)]
        arguments += ["--env", f"ELASTANE_MASTER={self.master.address}", "--env", "ELASTANE_SPOT=none"]
        arguments += ["--env", "ELASTANE_REPORT_DIR=/reports"]
        options = [
            "--job", self.job, "--ests", str(ESTS), "--workers", "1:2", "--seed", "3",
            "--local-workers", str(local_workers), "--checkpoint", "/checkpoints",
        ]  # fmt: skip
        script = ["train_matrix.py", *script_arguments(epochs), "--busy-seconds", str(busy_seconds)]
        return self._engine.start(self._image, *options, *script, arguments=arguments)


@pytest.fixture
def workers(clean: Engine, worker_image: str, master: RunningMaster, tmp_path: Path) -> Workers:
    return Workers(clean, worker_image, master, tmp_path)


def check_bits(workers: Workers, client: MasterClient, folder: Path, epochs: int) -> None:
    stock = run_stock_ddp(
        folder / "stock", [str(SCRIPTS / "train_matrix.py"), *script_arguments(epochs)], processes=ESTS
    )
    comparison = compare_runs(
        workers.reports, stock, list(client.audit_log(workers.job)),
        ests=ESTS, dataset_size=SIZE, steps_per_epoch=STEPS_PER_EPOCH,
    )  # fmt: skip
    assert comparison.equal, comparison


def wait_for_step(client: MasterClient, name: str, step: int, container: Container) -> None:
    """Until the container's agent has made the job and so many steps are committed."""
    deadline = time.monotonic() + 120
    while name not in {job.name for job in client.list_jobs()}:
        assert container.state()["Running"], container.logs()
        assert time.monotonic() < deadline, container.logs()
        time.sleep(0.2)
    for job in client.watch_job(name):
        if job.step >= step:
            return
    pytest.fail(container.logs())


def test_it_trains_with_the_bits_of_stock_ddp(workers: Workers, tmp_path: Path) -> None:
    container = workers.start(epochs=1, local_workers=2)
    assert container.wait(180) == 0, container.logs()
    with MasterClient(workers.master.address, timeout_seconds=30.0) as master:
        assert master.get_job(workers.job).phase == job_pb2.JOB_PHASE_SUCCEEDED
        check_bits(workers, master, tmp_path, epochs=1)


def test_stopped_it_drains_and_another_container_goes_on(workers: Workers, tmp_path: Path) -> None:
    epochs = 2
    container = workers.start(epochs=epochs, local_workers=1, busy_seconds=0.1)
    with MasterClient(workers.master.address, timeout_seconds=120.0) as master:
        wait_for_step(master, workers.job, 3, container)
        code, seconds = container.stop()
        print(f"drained in {seconds:.1f} s with exit code {code}")
        assert code == 143, container.logs()
        stopped = master.get_job(workers.job)
        assert stopped.step >= 3
        assert any(workers.checkpoints.iterdir())
        events = {event.kind for event in master.events(workers.job)}
        assert {"worker_draining", "worker_left", "checkpoint_saved"} <= events
        assert not events & {"worker_lost", "worker_evicted"}
        if stopped.phase == job_pb2.JOB_PHASE_SUSPENDED:
            master.resume_job(workers.job)
        other = workers.start(epochs=epochs, local_workers=2)
        assert other.wait(180) == 0, other.logs()
        history = list(master.audit_log(workers.job))
        # Nothing that was committed was done again.
        assert len(history) == len({(entry.step, entry.virtual_rank) for entry in history})
        check_bits(workers, master, tmp_path, epochs)


def test_without_arguments_it_says_what_it_takes(clean: Engine, worker_image: str) -> None:
    container = clean.start(worker_image)
    assert container.wait() == 0
    assert "--ests" in container.logs()


def test_it_is_nobody_and_cannot_change_its_environment(clean: Engine, worker_image: str) -> None:
    code = "import os; print(os.getuid(), flush=True); open('/opt/elastane/x', 'w')"
    container = clean.start(worker_image, "-c", code, arguments=["--entrypoint", "python"])
    assert container.wait() == 1
    assert container.logs().startswith("10001\n")
    assert "Read-only file system" in container.logs()


def test_an_image_of_ones_own_is_built_as_the_page_says(
    clean: Engine, worker_image: str, master: RunningMaster, tmp_path: Path
) -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    found = re.search(r"^```dockerfile\n(.*?)^```", page, re.M | re.S)
    assert found is not None
    text, base = re.subn(r"^FROM \S+", f"FROM {worker_image}", found[1], count=1, flags=re.M)
    assert base == 1
    (tmp_path / "Dockerfile").write_text(text)
    (tmp_path / "train.py").write_text((ROOT / "examples/digits_cnn.py").read_text())
    tag = "localhost/elastane-test-own:latest"
    clean.build(tmp_path, tag)
    arguments = ["--env", f"ELASTANE_MASTER={master.address}", "--env", "ELASTANE_SPOT=none"]
    container = clean.start(
        tag,
        "--job",
        "own",
        "--ests",
        "2",
        "--workers",
        "1:1",
        "train.py",
        "--epochs",
        "1",
        arguments=arguments,
    )
    assert container.wait(180) == 0, container.logs()
    with MasterClient(master.address, timeout_seconds=30.0) as client:
        assert client.get_job("own").phase == job_pb2.JOB_PHASE_SUCCEEDED
