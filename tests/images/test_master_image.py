"""The master's image: small, not root, nothing writable; serves, dies, comes back with its state, stops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from compared_runs import compare_runs
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.client import MasterClient
from elastane_proto.v1 import job_pb2
from images.conftest import RunningMaster, start_master
from images.engine import Engine, EngineError

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests/integration/scripts/train_matrix.py"
SIZE, BATCH, ESTS, EPOCHS = 200, 5, 2, 2
ARGUMENTS = ["--epochs", str(EPOCHS), "--size", str(SIZE), "--batch-size", str(BATCH)]
STEPS_PER_EPOCH = SIZE // ESTS // BATCH


def test_it_does_not_open_itself_to_the_world(clean: Engine, master_image: str) -> None:
    container = clean.start(master_image)
    assert container.wait() == 2
    assert "other machines can reach it, and there is no TLS" in container.logs()


def test_it_serves_health_reflection_and_progress(master: RunningMaster) -> None:
    with grpc.insecure_channel(master.address) as channel:
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        [reply] = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([asked]), timeout=10
        )
    services = {service.name for service in reply.list_services_response.service}
    assert {"elastane.v1.ShardService", "elastane.v1.JobService", "grpc.health.v1.Health"} <= services
    with MasterClient(master.address, timeout_seconds=30.0) as client:
        client.create_job("digits", job_pb2.JobSettings(ests=2, workers_min=1, workers_max=2))
        assert client.get_progress("digits") == []  # no worker has told of any data yet


def test_it_is_nobody_and_can_write_nowhere_but_in_its_state(master: RunningMaster) -> None:
    container = master.container
    assert container.execute("id", "-u").strip() == container.execute("id", "-g").strip() == "10001"
    with pytest.raises(EngineError, match="Read-only file system"):
        container.execute("touch", "/opt/elastane/x")
    container.execute("touch", "/var/lib/elastane/state/x", "/tmp/x")
    status = container.execute("cat", "/proc/1/status")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


def test_it_has_no_torch_and_no_installer(master: RunningMaster) -> None:
    container = master.container
    for module in ("torch", "numpy", "pip", "kubernetes"):
        with pytest.raises(EngineError, match=f"No module named '{module}'"):
            container.execute("python", "-c", f"import {module}")


def test_its_health_check_tells_a_master_that_serves(
    engine: Engine, master_image: str, master: RunningMaster
) -> None:
    config = engine.image(master_image)
    check = config.get("HealthCheck") or config.get("Healthcheck") or config["Config"]["Healthcheck"]
    kind, *command = check["Test"]
    assert kind == "CMD"
    container = master.container
    assert container.execute(*command).strip() == "serving"
    with pytest.raises(EngineError, match="does not answer"):
        container.execute(*command, "--master", "127.0.0.1:1")


def test_killed_and_started_again_it_has_its_state(clean: Engine, master_image: str) -> None:
    master = start_master(clean, master_image)
    settings = job_pb2.JobSettings(ests=3, workers_min=1, workers_max=3, seed=5)
    with MasterClient(master.address, timeout_seconds=60.0) as client:
        for name in ("one", "two"):
            client.create_job(name, settings)
        client.scale_job("one", 2, 3)
        before = [client.get_job(name) for name in ("one", "two")]
        master.container.kill()
        assert master.container.state()["ExitCode"] == 137
        master.container.start_again()
        master.wait_until_serving()
        after = [client.get_job(name) for name in ("one", "two")]
    assert [job.settings for job in after] == [job.settings for job in before]
    assert after[0].settings.workers_min == 2
    assert [job.phase for job in after] == [job.phase for job in before]


def test_it_stops_cleanly_on_sigterm(clean: Engine, master_image: str) -> None:
    container = start_master(clean, master_image).container
    code, seconds = container.stop()
    print(f"stopped in {seconds:.1f} s")
    assert code == 0, container.logs()
    assert seconds < 10


def test_workers_outside_train_with_the_bits_of_stock_ddp(master: RunningMaster, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    done = subprocess.run(
        [
            sys.executable, "-m", "elastane_cli", "run", "--master", master.address, "--job", "outside",
            "--ests", str(ESTS), "--workers", "1:2", "--seed", "3", str(SCRIPT), *ARGUMENTS, "--seed", "3",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ELASTANE_REPORT_DIR": str(reports)},
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    stock = run_stock_ddp(tmp_path / "stock", [str(SCRIPT), *ARGUMENTS, "--seed", "3"], processes=ESTS)
    with MasterClient(master.address, timeout_seconds=30.0) as client:
        history = list(client.audit_log("outside"))
        [progress] = client.get_progress("outside")
    assert progress.complete  # of the last epoch
    assert progress.done == ESTS * STEPS_PER_EPOCH
    comparison = compare_runs(
        reports, stock, history, ests=ESTS, dataset_size=SIZE, steps_per_epoch=STEPS_PER_EPOCH
    )
    assert comparison.equal, comparison
