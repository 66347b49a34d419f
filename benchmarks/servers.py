"""Starts the servers that benchmarks measure (our master, DLRover's, a bare gRPC echo) and their clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from peers import peer_python

SCRIPTS = Path(__file__).parent / "peer_scripts"
START_SECONDS = 60.0


@dataclass
class Server:
    """A running server process."""

    address: str
    process: subprocess.Popen[bytes]
    folder: Path

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the server process alone, without its store."""
        return _cpu_seconds(psutil.Process(self.process.pid))

    def store_cpu_seconds(self) -> float:
        """Return the CPU seconds of the server's private store; 0.0 without one."""
        pid_file = self.folder / "state" / "store" / "server.pid"
        return _cpu_seconds(psutil.Process(int(pid_file.read_text()))) if pid_file.exists() else 0.0

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)


@contextlib.contextmanager
def elastane_master(*options: str, folder: Path | None = None, fsync: str = "everysec") -> Iterator[Server]:
    """Start our master with a private store. options: of its command line; fsync: of the store's log."""
    with tempfile.TemporaryDirectory() as name:
        folder = folder or Path(name)
        port_file = folder / "port"
        port_file.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "elastane_master",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "warning",
        ]
        command += ["--state-dir", str(folder / "state"), "--port-file", str(port_file), *options]
        process = subprocess.Popen(command, env={**os.environ, "ELASTANE_STORE_FSYNC": fsync})
        try:
            yield Server(_address_in(port_file, process), process, folder)
        finally:
            _stop(process)


@contextlib.contextmanager
def dlrover_master() -> Iterator[Server]:
    """Start DLRover's local master as its command does, logging to a file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name, (Path(name) / "log").open("wb") as log:
        command = [peer_python("dlrover"), "-m", "dlrover.python.master.main", "--platform", "local"]
        command += ["--job_name", "bench", "--node_num", "1", "--port", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_for_port(port, process)
            yield Server(f"127.0.0.1:{port}", process, Path(name))
        finally:
            _stop(process)


@contextlib.contextmanager
def echo_server(answer_bytes: int) -> Iterator[Server]:
    """Start a bare grpc.aio server that answers every message with `answer_bytes` bytes."""
    with tempfile.TemporaryDirectory() as name:
        port_file = Path(name) / "port"
        process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / "echo_server.py"), str(port_file), str(answer_bytes)]
        )
        try:
            yield Server(_address_in(port_file, process), process, Path(name))
        finally:
            _stop(process)


def run_clients(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Start the clients, let them begin together when all are ready, and return the JSON that they print."""
    quiet = {**os.environ, "GRPC_VERBOSITY": "ERROR"}
    clients = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet)
        for command in commands
    ]
    try:
        for client in clients:
            assert client.stdout is not None
            while (line := client.stdout.readline()).strip() != "ready":
                if not line:
                    raise RuntimeError(f"a client ended with {client.wait()}")
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        outputs = [client.communicate()[0] for client in clients]
    finally:
        for client in clients:
            if client.poll() is None:
                client.kill()
                client.wait()
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _address_in(port_file: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while not (port_file.exists() and port_file.read_text()):
        _check(process, deadline)
    return port_file.read_text().strip()


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        _check(process, deadline)


def _check(process: subprocess.Popen[bytes], deadline: float) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    if time.monotonic() > deadline:
        raise TimeoutError(f"{process.args!r} did not start within {START_SECONDS} s")
    time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
