"""The Redis of the StatefulSet, by the manifest's own command: for the masters alone, ends when told."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from deployment.kustomize import containers, render
from elastane.agent.master_process import EmbeddedMaster
from elastane.client import MasterClient
from elastane_master.store.embedded import find_server_binary
from elastane_proto.v1 import job_pb2

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "24-letters-of-a-password"
START_SECONDS_MAX = 20.0


class Server:
    """The container's process, with its folders in `folder`."""

    def __init__(self, folder: Path) -> None:
        [stateful] = [
            r for r in render(ROOT / "deploy/kubernetes/overlays/redis") if r["kind"] == "StatefulSet"
        ]
        [container] = containers(stateful)
        [script] = container["args"]
        for name in ("data", "run", "secrets"):
            (folder / name).mkdir()
        (folder / "secrets/password").write_text(PASSWORD)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        for inside, outside in {
            "/secrets": f"{folder}/secrets",
            "/run/redis": f"{folder}/run",
            "dir /data": f"dir {folder}/data",
            'echo "appendonly yes"': f'echo "port {self.port}"; echo "bind 127.0.0.1"; echo "appendonly yes"',
            "exec redis-server": f"exec {find_server_binary()}",
        }.items():
            assert inside in script
            script = script.replace(inside, outside)
        self.configuration = folder / "run/redis.conf"
        self.folder = folder
        self._command = [shutil.which("sh") or "sh", *container["command"][1:], script]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=sys.stderr)
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                assert self.connect("elastane", PASSWORD).ping()
                return
            except (redis.ConnectionError, redis.BusyLoadingError):
                assert self.process.poll() is None
                time.sleep(0.02)
        pytest.fail("it did not come up")

    def connect(self, user: str | None, password: str | None) -> redis.Redis:
        once = Retry(NoBackoff(), 0)
        return redis.Redis(port=self.port, username=user, password=password, retry=once)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()


def test_it_is_for_the_masters_user_alone(server: Server) -> None:
    for user, password in ((None, None), (None, PASSWORD), ("default", PASSWORD), ("elastane", "guessed")):
        with pytest.raises((redis.AuthenticationError, redis.ResponseError)):
            server.connect(user, password).ping()
    with pytest.raises(NoPermissionError):
        server.connect("elastane", PASSWORD).config_get("dir")
    assert PASSWORD not in " ".join(Path(f"/proc/{server.process.pid}/cmdline").read_text().split("\0"))
    assert server.configuration.stat().st_mode & 0o077 == 0


def test_a_master_keeps_a_job_in_it_over_sigterm(server: Server, tmp_path: Path) -> None:
    arguments = ["--store", f"redis://elastane@127.0.0.1:{server.port}/0"]
    arguments += ["--store-password-file", str(tmp_path / "secrets/password")]
    master = EmbeddedMaster(tmp_path / "master", arguments=arguments)
    master.start()
    try:
        with MasterClient(master.address, timeout_seconds=30.0) as client:
            client.create_job("kept", job_pb2.JobSettings(ests=2, workers_min=1, workers_max=2))
            # The shell has become the server: a pod's SIGTERM reaches it, and it writes its log to the end.
            assert server.stop() == 0
            master.stop()
            server.start()
            master.start()
            assert client.get_job("kept").settings.ests == 2
    finally:
        master.stop()
    assert any((tmp_path / "data").rglob("*.aof"))


def test_its_rights_are_those_of_the_page() -> None:
    [line] = re.findall(
        r"ACL SETUSER elastane reset on >PASSWORD (.*)", (ROOT / "docs/security.md").read_text()
    )
    manifest = (ROOT / "deploy/kubernetes/overlays/redis/redis.yaml").read_text()
    assert f'user elastane on >$password {line}"' in manifest
