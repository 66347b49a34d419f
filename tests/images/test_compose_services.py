"""The services of deploy/compose.yaml, one by one on this host's network, as any engine can run them.

Names of services become loopback addresses; Redis is this machine's, with the file's arguments. What
is left to compose itself is tests/deployment/test_compose_file.py's.
"""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployment.processes import free_port
from deployment.test_compose_file import DEPLOY, read
from elastane_common.client import MasterClient
from elastane_master.store.embedded import find_server_binary
from elastane_proto.v1 import job_pb2
from images.conftest import RunningMaster
from images.engine import Engine

SERVICES: dict[str, Any] = read("compose.yaml")["services"]
#: A small part of the example's text.
ARGUMENTS = ["--epochs", "1", "--characters", "20000", "--layers", "1"]


@pytest.fixture
def store_port(tmp_path: Path) -> Iterator[int]:
    port = free_port()
    folder = tmp_path / "redis"
    folder.mkdir()
    server, *arguments = SERVICES["redis"]["command"]
    assert server == "redis-server"
    own = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    process = subprocess.Popen([find_server_binary(), *arguments, *own], stdout=subprocess.DEVNULL)
    yield port
    process.terminate()
    assert process.wait(30) == 0
    assert any(folder.rglob("*.aof"))


def start_service(
    engine: Engine, name: str, image: str, variables: dict[str, str], mounts: dict[str, Path], *further: str
) -> Any:
    """A service's container: its command and variables, with other addresses and folders."""
    service = SERVICES[name]
    given = {**service["environment"], **variables}
    arguments = [part for key, value in given.items() for part in ("--env", f"{key}={value}")]
    for volume in service.get("volumes", ()):
        source, inside, *mode = volume.split(":")
        arguments += ["--volume", ":".join([str(mounts[source]), inside, *mode])]
    return engine.start(image, *map(str, service.get("command", ())), *further, arguments=arguments)


def test_they_train_together(
    clean: Engine, master_image: str, worker_image: str, store_port: int, tmp_path: Path
) -> None:
    port, http_port = free_port(), free_port()
    addresses = {
        "ELASTANE_LISTEN": f"127.0.0.1:{port}",
        "ELASTANE_STORE": SERVICES["master"]["environment"]["ELASTANE_STORE"].replace(
            "redis:6379", f"127.0.0.1:{store_port}"
        ),
        "ELASTANE_ADVERTISE": f"127.0.0.1:{port}",
        "ELASTANE_HTTP": f"127.0.0.1:{http_port}",
        "ELASTANE_MASTER": f"127.0.0.1:{port}",
    }
    master = RunningMaster(start_service(clean, "master", master_image, addresses, {}), port)
    master.wait_until_serving()
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    checkpoints.chmod(0o777)  # a volume of the engine's takes over the owner of the image's folder
    mounts = {"../examples": (DEPLOY / "../examples").resolve(), "checkpoints": checkpoints}
    here = {"ELASTANE_MASTER": master.address, "ELASTANE_SPOT": "none"}
    count = SERVICES["worker"]["deploy"]["replicas"]
    workers = [start_service(clean, "worker", worker_image, here, mounts, *ARGUMENTS) for _ in range(count)]
    for worker in workers:
        assert worker.wait(240) == 0, worker.logs()
    with MasterClient(master.address, timeout_seconds=30.0) as client:
        [job] = client.list_jobs()
        assert job.phase == job_pb2.JOB_PHASE_SUCCEEDED, job.reason
        joined = {event.worker_id for event in client.events(job.name) if event.kind == "worker_joined"}
    assert joined
    assert "done" in master.container.execute("elastane", "progress")
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=20) as answer:
        assert b"elastane_master_leader" in answer.read()
    code, _ = master.container.stop()
    assert code == 0
