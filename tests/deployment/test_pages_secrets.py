"""docs/deploy.md's Kubernetes commands, with a kubectl that keeps the secrets: all parts work with them.

Redis and a master are started as their pods are, and asked as the example's pods and a dashboard would.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import patience
from deployment.processes import ROOT, MasterOfTheManifest, RedisOfTheManifest
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_proto.v1 import job_pb2

#: Keeps each secret as a folder with a file for each key; says nothing to anything else.
KUBECTL = """#!/bin/bash
set -e
if [ "$1 $3 $4 $5" != "-n create secret generic" ]; then exit 0; fi
folder=$KEPT/$2/$6; mkdir -p "$folder"
for argument in "${@:7}"; do
  file=${argument#--from-file=}; key=${file%%=*}
  cp "${file#*=}" "$folder/$key"
done
"""
SETTINGS = job_pb2.JobSettings(ests=2, workers_min=1, workers_max=2)

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the page makes its certificates with openssl"
)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders NAMESPACE/SECRET/KEY."""
    folder = tmp_path_factory.mktemp("page")
    commands = folder / "bin"
    commands.mkdir()
    (commands / "kubectl").write_text(KUBECTL)
    (commands / "elastane").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m elastane_cli "$@"\n')
    for command in commands.iterdir():
        command.chmod(0o755)
    page = (ROOT / "docs/deploy.md").read_text().partition("\n## Kubernetes\n")[2]
    first, second = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)[:2]
    done = patience.run(
        ["bash", "-e", "-c", first + second],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "KEPT": str(folder / "kept"),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in (
        "ca.key",
        "master.key",
        "redis.password",
        "operator.token",
        "training.token",
        "worker.token",
    ):
        assert (folder / name).stat().st_mode & 0o077 == 0, f"others can read {name}"
    return folder / "kept"


@pytest.fixture(scope="module")
def master(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MasterOfTheManifest]:
    folder = tmp_path_factory.mktemp("pods")
    store = RedisOfTheManifest(folder / "redis", secrets / "elastane")
    try:
        started = MasterOfTheManifest(folder, secrets / "elastane", store)
        yield started
        assert started.stop() == 0
    finally:
        store.kill()


@pytest.fixture
def caller(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process of the namespace for jobs: it knows the CA, and the master by the example's address."""
    job = yaml.safe_load((ROOT / "deploy/kubernetes/example/job.yaml").read_text())["spec"]
    for name in list(os.environ):
        if name.startswith("ELASTANE_T"):
            monkeypatch.delenv(name)
    monkeypatch.setenv(
        "ELASTANE_TLS_CA", str(secrets / "training" / job["master"]["tlsSecret"]["name"] / "ca.crt")
    )
    monkeypatch.setenv("ELASTANE_TLS_SERVER_NAME", job["master"]["address"].partition(":")[0])
    return monkeypatch


def test_your_own_token_sees_every_job(
    master: MasterOfTheManifest, caller: pytest.MonkeyPatch, secrets: Path
) -> None:
    caller.setenv("ELASTANE_TOKEN_FILE", str(secrets.parent / "operator.token"))
    with MasterClient(master.address, timeout_seconds=20.0) as client:
        job, made = client.create_job("other.digits", SETTINGS)
        assert (job.name, made) == ("other.digits", True)


def test_the_operators_token_makes_a_job_and_the_workers_does_not(
    master: MasterOfTheManifest, caller: pytest.MonkeyPatch, secrets: Path
) -> None:
    tokens = secrets / "training/training-tokens"
    caller.setenv("ELASTANE_TOKEN_FILE", str(tokens / "operator"))
    with MasterClient(master.address, timeout_seconds=20.0) as client:
        client.create_job("training.digits", SETTINGS)
        with pytest.raises(RequestRefusedError, match="not for job"):
            client.create_job("other.digits", SETTINGS)
    caller.setenv("ELASTANE_TOKEN_FILE", str(tokens / "worker"))
    with MasterClient(master.address, timeout_seconds=20.0) as client:
        assert client.get_job("training.digits").settings.ests == 2
        with pytest.raises(RequestRefusedError, match=r"role"):
            client.create_job("training.another", SETTINGS)


def test_nobody_is_let_in_without_a_token(master: MasterOfTheManifest, caller: pytest.MonkeyPatch) -> None:
    with (
        MasterClient(master.address, timeout_seconds=20.0) as client,
        pytest.raises(RequestRefusedError, match="requires a token"),
    ):
        client.get_job("digits")


def test_a_command_in_the_pod_finds_its_master_healthy(master: MasterOfTheManifest) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
    done = patience.run(
        [sys.executable, "-m", "elastane_cli", "health", "--master", master.address],
        env=clean | master.variables | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "serving"), done.stderr


def test_the_kubelet_and_prometheus_are_answered(master: MasterOfTheManifest, secrets: Path) -> None:
    def get(path: str, token: str = "") -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"https://{master.http_address}{path}", headers=headers)
        context = ssl.create_default_context(cafile=str(secrets / "elastane/elastane-tls/ca.crt"))
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert get("/healthz") == get("/readyz") == 200
    assert get("/metrics") == 401
    token = (secrets / "elastane/elastane-metrics/token").read_text().strip()
    assert get("/metrics", token) == 200
