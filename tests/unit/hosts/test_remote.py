"""What another host is told, and whether it can reach us."""

from __future__ import annotations

import socket
import subprocess

import pytest

from elastane_agent.hosts.remote import out_of_reach, remote_command, remote_variables, require_reach
from elastane_common.errors import RefusedError


def test_variables_for_another_host() -> None:
    environment = {
        "PATH": "/bin", "HF_HOME": "/cache", "ELASTANE_TLS_CA": "ca.pem", "ELASTANE_STORE_HOST": "10.0.0.1",
        "ELASTANE_PS_HOST": "10.0.0.1",
        "ELASTANE_NOTICE_FILE": "/tmp/x", "ELASTANE_JOB": "of the shell",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_HEADERS": "key=secret",
    }  # fmt: skip
    found = remote_variables(environment, {"ELASTANE_JOB": "j", "OMP_NUM_THREADS": "1"}, ["HF_HOME", "NONE"])
    assert found == {
        "HF_HOME": "/cache", "ELASTANE_TLS_CA": "ca.pem", "ELASTANE_JOB": "j", "OMP_NUM_THREADS": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["ELASTANE_TOKEN", "ELASTANE_WORKER_TOKEN"])
def test_a_token_never_becomes_an_argument(name: str) -> None:
    with pytest.raises(RefusedError, match=f"{name} would be seen.*{name}_FILE"):
        remote_variables({name: "secret"}, {}, [])


def test_a_folder_that_is_not_there_is_no_failure_of_the_script() -> None:
    words = remote_command("env HOST={host} sh -c {command}", "a", ["true"], {}, "/nowhere/at/all")
    assert subprocess.run(words, capture_output=True, check=False).returncode == 126


@pytest.mark.parametrize(
    ("master", "far"),
    [
        ("127.0.0.1:0", ["gpu1", "10.0.0.7"]),
        ("[::1]:50051,localhost:50052", ["gpu1", "10.0.0.7"]),
        ("10.0.0.5:50051", []),
        ("127.0.0.1:1,master.example:1", []),
    ],
)
def test_hosts_that_a_master_on_loopback_is_out_of_reach_for(master: str, far: list[str]) -> None:
    hosts = ["localhost", "gpu1", "127.0.0.3", "10.0.0.7", socket.gethostname()]
    assert out_of_reach(master, hosts) == far
    if far:
        with pytest.raises(RefusedError, match=r"gpu1, 10\.0\.0\.7 cannot reach.*--listen"):
            require_reach(master, hosts)
