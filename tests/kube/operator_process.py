"""The operator in a separate process, which can be killed, stopped and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import patience
from integration.forkserver import ForkServer
from integration.master_support import ROOT
from kube.api import Api, kubeconfig
from kube.gateway import Gateway

TESTS = str(ROOT / "tests")
FORK_SCRIPT = Path(__file__).with_name("operator_fork.py")
SOURCES = [str(ROOT / name) for name in ("common", "proto", "shard_service", "scheduler", "worker", "deploy")]
#: Default settings of the operator. Leader election is off except in its own scenario, because the lease
#: would have to expire each time an operator is killed.
SETTINGS = {
    "ELASTANE_OPERATOR_LOOK_SECONDS": "0.3",
    "ELASTANE_OPERATOR_MASTER_TIMEOUT_SECONDS": "2",
    "ELASTANE_OPERATOR_LEADER_ELECTION": "false",
}
STOP_SECONDS = 15.0
LOG_LINES = 40


@dataclass
class Cluster:
    """An API under test.

    operators: server that forks operators. account: user that the operator acts as; empty: the tests' own.
    rights: checks the operator's access rights if the API does not. crash, start: shell commands that SIGKILL
    the API server and restart it, if the tests may do that.
    """

    name: str
    api: Api
    node: str
    operators: ForkServer
    is_real: bool
    version: tuple[int, int] = (0, 0)
    account: str = ""
    rights: Callable[..., bool] | None = None
    crash: str = ""
    start: str = ""


class OperatorProcess:
    """One operator behind its gateway. `start` after `kill` emulates a restart of its pod."""

    def __init__(
        self, gateway: Gateway, folder: Path, server: ForkServer, settings: Mapping[str, str]
    ) -> None:
        self.gateway, self.folder, self.settings = gateway, folder, SETTINGS | dict(settings)
        self.log_path = folder / "operator.log"
        self._server = server
        self._pid: int | None = None

    @property
    def is_running(self) -> bool:
        if self._pid is None:
            return False
        descriptor = os.pidfd_open(self._pid)
        try:
            return not select.select([descriptor], [], [], 0)[0]
        finally:
            os.close(descriptor)

    @property
    def has_process(self) -> bool:
        """True if there is a process for which `ended` has not been awaited."""
        return self._pid is not None

    def start(self) -> None:
        """Start it, unless it runs. Does not wait for it to be ready: tests wait for its effects."""
        if self.is_running:
            return
        if self._pid is not None:
            code, self._pid = self._server.reap(self._pid), None
            with self.log_path.open("a") as log:
                log.write(f"---- it had ended by itself with exit code {code}\n")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
        environment |= self.settings | {"KUBECONFIG": str(kubeconfig(self.folder, self.gateway.url))}
        request = {
            "environment": environment,
            "directory": str(self.folder),
            "death_signal": int(signal.SIGKILL),
        }
        with self.log_path.open("ab") as log:
            log.write(b"---- started\n")
            log.flush()
            self._pid = self._server.fork(request, [log.fileno(), log.fileno()])

    def kill(self) -> None:
        """SIGKILL the process."""
        self._signal(signal.SIGKILL)

    async def ended(self) -> int:
        """Wait for its end; return its exit code."""
        assert self._pid is not None
        pid, self._pid = self._pid, None
        descriptor, over = os.pidfd_open(pid), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, over.set)
        try:
            async with patience.within(STOP_SECONDS):
                await over.wait()
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"it did not end within {STOP_SECONDS} s\n{self.said()}") from None
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._server.reap(pid)

    async def stop(self) -> int:
        """SIGTERM the process; return its exit code."""
        self._signal(signal.SIGTERM)
        return await self.ended()

    def _signal(self, number: signal.Signals) -> None:
        # `ended` reaps the process; until then the kernel cannot reuse its id.
        assert self._pid is not None
        os.kill(self._pid, number)

    def said(self) -> str:
        """Return the end of its log."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_LINES:])


@contextlib.contextmanager
def operator_server() -> Iterator[ForkServer]:
    """Run a server that forks operators from a process that has imported their modules.

    That saves seconds of CPU time for each of dozens of restarts.
    """
    server = ForkServer({**os.environ, "PYTHONPATH": os.pathsep.join([*SOURCES, TESTS])}, str(FORK_SCRIPT))
    try:
        yield server
    finally:
        server.close()


@contextlib.asynccontextmanager
async def operator_process(cluster: Cluster, folder: Path, **settings: str) -> AsyncIterator[OperatorProcess]:
    """Yield an operator that is not started yet; stop it afterwards. settings: its environment variables."""
    folder.mkdir(parents=True, exist_ok=True)
    async with Gateway(cluster.api.connection, cluster.account, cluster.rights).serve() as gateway:
        operator = OperatorProcess(gateway, folder, cluster.operators, settings)
        try:
            yield operator
        finally:
            if operator.has_process:
                operator.kill()
                await operator.ended()
