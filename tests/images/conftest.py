"""The images, built once; tests are skipped unless requested."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from images.engine import Container, Engine

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("ELASTANE_TEST_IMAGES") == "1":
        return
    asked = pytest.mark.skip(reason="builds and runs container images: make test-images")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(asked)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    started = Engine()
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def clean() -> Iterator[Engine]:
    """An engine for one test; its containers are removed at the end."""
    started = Engine()
    try:
        yield started
    finally:
        started.close()


def build(engine: Engine, name: str, context: Path, *arguments: str) -> str:
    """The tag of an image: the one that ELASTANE_TEST_<NAME>_IMAGE names, else it is built."""
    if named := os.environ.get(f"ELASTANE_TEST_{name.upper()}_IMAGE"):
        print(f"\nimage {name}: {int(engine.image(named)['Size']) / 1e6:.0f} MB, as it is")
        return named
    tag = f"localhost/elastane-test-{name}:latest"
    if index := os.environ.get("TORCH_INDEX_URL"):
        arguments += ("--build-arg", f"TORCH_INDEX_URL={index}")
    seconds = engine.build(context, tag, *arguments)
    size = int(engine.image(tag)["Size"])
    print(f"\nimage {name}: {size / 1e6:.0f} MB, built in {seconds:.0f} s")
    return tag


@pytest.fixture(scope="session")
def master_image(engine: Engine) -> str:
    return build(engine, "master", ROOT, "--target", "master")


@pytest.fixture(scope="session")
def worker_image(engine: Engine) -> str:
    return build(engine, "worker", ROOT, "--target", "worker")


@pytest.fixture(scope="session")
def operator_image(engine: Engine) -> str:
    return build(engine, "operator", ROOT, "--target", "operator")


class RunningMaster:
    """A master in a container, on a loopback port of the host."""

    def __init__(self, container: Container, port: int) -> None:
        self.container = container
        self.address = f"127.0.0.1:{port}"

    def wait_until_serving(self) -> None:
        """Until it leads; fails with its log."""
        deadline = time.monotonic() + START_SECONDS_MAX
        with grpc.insecure_channel(self.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while time.monotonic() < deadline:
                try:
                    reply = health.Check(health_pb2.HealthCheckRequest(), timeout=2, wait_for_ready=True)
                except grpc.RpcError:
                    if not self.container.state()["Running"]:
                        break
                else:
                    if reply.status == health_pb2.HealthCheckResponse.SERVING:
                        return
        pytest.fail(f"the master does not serve:\n{self.container.logs()}")


def start_master(engine: Engine, image: str) -> RunningMaster:
    """A master with a private store, serving; the engine removes it when it is closed."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    settings = {
        "ELASTANE_LISTEN": f"127.0.0.1:{port}",
        "ELASTANE_MASTER": f"127.0.0.1:{port}",  # for the health check
    }
    arguments = [part for name, value in settings.items() for part in ("--env", f"{name}={value}")]
    master = RunningMaster(engine.start(image, arguments=arguments), port)
    master.wait_until_serving()
    return master


@pytest.fixture(scope="session")
def master(engine: Engine, master_image: str) -> RunningMaster:
    """One that is shared by tests that leave it as it is."""
    return start_master(engine, master_image)
