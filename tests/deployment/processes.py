"""Containers of the manifests as processes of this machine: other folders and ports, else the same."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from deployment.kustomize import Resource, containers, render
from elastane_master.store.embedded import find_server_binary
from patience import Patience, wait

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 20.0
_POLL_SECONDS = 0.02


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class _Process:
    """One process; its output goes to this one's stderr."""

    process: subprocess.Popen[bytes]

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return wait(self.process.wait, 20)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _pod(kind: str, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The container of a resource of the overlay "redis", and which secret is mounted where."""
    resources = render(ROOT / "deploy/kubernetes/overlays/redis")
    [resource] = [r for r in resources if r["kind"] == kind and r["metadata"]["name"] == name]
    [container] = containers(resource)
    return container, _mounted_secrets(resource, container)


def _mounted_secrets(resource: Resource, container: dict[str, Any]) -> dict[str, str]:
    volumes = {volume["name"]: volume for volume in resource["spec"]["template"]["spec"]["volumes"]}
    return {
        mount["mountPath"]: volumes[mount["name"]]["secret"]["secretName"]
        for mount in container["volumeMounts"]
        if "secret" in volumes.get(mount["name"], {})
    }


class RedisOfTheManifest(_Process):
    """The StatefulSet's container. secrets: a folder with a folder for each."""

    def __init__(self, folder: Path, secrets: Path) -> None:
        container, mounted = _pod("StatefulSet", "elastane-redis")
        [script] = container["args"]
        for name in ("data", "run"):
            (folder / name).mkdir(parents=True)
        self.port = free_port()
        replaced = {
            "/run/redis": f"{folder}/run",
            "dir /data": f"dir {folder}/data",
            'echo "appendonly yes"': f'echo "port {self.port}"; echo "bind 127.0.0.1"; echo "appendonly yes"',
            "exec redis-server": f"exec {find_server_binary()}",
        }
        for inside, outside in [
            *replaced.items(),
            *((p, f"{secrets}/{name}") for p, name in mounted.items()),
        ]:
            assert inside in script
            script = script.replace(inside, outside)
        self.configuration = folder / "run/redis.conf"
        self.data = folder / "data"
        self._password = (secrets / "elastane-redis/password").read_text()
        self._command = [shutil.which("sh") or "sh", *container["command"][1:], script]
        self.start()

    def start(self) -> None:
        """Returns when it answers."""
        self.process = subprocess.Popen(self._command, stdout=sys.stderr)
        limit = Patience(START_SECONDS_MAX)
        while True:
            try:
                assert self.connect("elastane", self._password).ping()
                return
            except (redis.ConnectionError, redis.BusyLoadingError):
                assert self.process.poll() is None
                assert limit.left()
                time.sleep(_POLL_SECONDS)

    def connect(self, user: str | None, password: str | None) -> redis.Redis:
        return redis.Redis(port=self.port, username=user, password=password, retry=Retry(NoBackoff(), 0))


class MasterOfTheManifest(_Process):
    """The Deployment's container on that store, at ports of its own; `variables` is what its pod has."""

    def __init__(self, folder: Path, secrets: Path, store: RedisOfTheManifest) -> None:
        container, mounted = _pod("Deployment", "elastane-master")
        self.address, self.http_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
        image = dict(re.findall(r"(ELASTANE_\w+)=(\S+)", (ROOT / "Dockerfile").read_text()))
        given = image | {entry["name"]: entry.get("value", "") for entry in container["env"]}
        self.variables: dict[str, str] = {}
        for name, value in given.items():
            for path, secret in mounted.items():
                if value.startswith(f"{path}/"):
                    value = f"{secrets}/{secret}/{value.removeprefix(f'{path}/')}"
            self.variables[name] = value
        self.variables |= {
            "ELASTANE_LISTEN": self.address,
            "ELASTANE_ADVERTISE": self.address,
            "ELASTANE_HTTP": self.http_address,
            "ELASTANE_STORE": given["ELASTANE_STORE"].replace(
                "elastane-redis:6379", f"127.0.0.1:{store.port}"
            ),
            "ELASTANE_STATE_DIR": str(folder / "state"),
        }
        port_file = folder / "address"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "elastane_master", "--port-file", str(port_file)],
            env=clean | self.variables | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        limit = Patience(START_SECONDS_MAX)
        while not (port_file.exists() and port_file.read_text()):
            assert self.process.poll() is None
            assert limit.left()
            time.sleep(_POLL_SECONDS)
