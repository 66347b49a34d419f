"""The Redis of the StatefulSet, by the manifest's own command: for the masters alone, ends when told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from deployment.processes import ROOT, RedisOfTheManifest
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common.client import MasterClient
from elastane_proto.v1 import job_pb2
from store_versions import version_of

PASSWORD = "24-letters-of-a-password"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisOfTheManifest]:
    secret = tmp_path / "secrets/elastane-redis"
    secret.mkdir(parents=True)
    (secret / "password").write_text(PASSWORD)
    started = RedisOfTheManifest(tmp_path / "redis", tmp_path / "secrets")
    yield started
    started.kill()


def test_it_is_for_the_masters_user_alone(server: RedisOfTheManifest) -> None:
    for user, password in ((None, None), (None, PASSWORD), ("default", PASSWORD), ("elastane", "guessed")):
        with pytest.raises((redis.AuthenticationError, redis.ResponseError)):
            server.connect(user, password).ping()
    with pytest.raises(NoPermissionError):
        server.connect("elastane", PASSWORD).config_get("dir")
    assert PASSWORD not in Path(f"/proc/{server.process.pid}/cmdline").read_text()
    assert server.configuration.stat().st_mode & 0o077 == 0


def test_a_master_keeps_a_job_in_it_over_sigterm(server: RedisOfTheManifest, tmp_path: Path) -> None:
    if version_of(server.connect("elastane", PASSWORD)) < (7, 2):
        pytest.skip("Redis 7.0 does not replay its log where the default user is disabled (docs/deploy.md)")
    arguments = ["--store", f"redis://elastane@127.0.0.1:{server.port}/0"]
    arguments += ["--store-password-file", str(tmp_path / "secrets/elastane-redis/password")]
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
    assert any(server.data.rglob("*.aof"))


def test_its_rights_are_those_of_the_page() -> None:
    [line] = re.findall(
        r"ACL SETUSER elastane reset on >PASSWORD (.*)", (ROOT / "docs/security.md").read_text()
    )
    manifest = (ROOT / "deploy/kubernetes/overlays/redis/redis.yaml").read_text()
    assert f'user elastane on >$password {line}"' in manifest
