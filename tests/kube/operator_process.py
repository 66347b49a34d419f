"""The operator as it is run: a process of its own, which can be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from integration.master_support import ROOT
from kube.api import Api, kubeconfig
from kube.gateway import Gateway

SOURCES = [str(ROOT / name) for name in ("proto", "shard_service", "worker", "deploy")]
#: What the operator is told beside where its API is. Who leads is a scenario of its own; elsewhere a lease
#: would only have to run out each time an operator is killed.
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

    account: as whom the operator speaks; empty: as the tests do. rights: what the operator may, where the API
    does not know it. crash, start: shell commands that SIGKILL its server and bring it back, where the tests
    may do that.
    """

    name: str
    api: Api
    node: str
    is_real: bool
    version: tuple[int, int] = (0, 0)
    account: str = ""
    rights: Callable[..., bool] | None = None
    crash: str = ""
    start: str = ""


class OperatorProcess:
    """One operator behind its own gateway. `start` after `kill` is a restart of its pod."""

    def __init__(self, gateway: Gateway, folder: Path, settings: Mapping[str, str]) -> None:
        self.gateway, self.folder, self.settings = gateway, folder, SETTINGS | dict(settings)
        self.process: asyncio.subprocess.Process | None = None
        self.log_path = folder / "operator.log"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Starts it, unless it runs. It is not waited for: what it does is."""
        if self.is_running:
            return
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES), "PYTHONUNBUFFERED": "1"}
        environment |= self.settings | {"KUBECONFIG": str(kubeconfig(self.folder, self.gateway.url))}
        with self.log_path.open("ab") as log:
            log.write(b"---- started\n")
            log.flush()
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "elastane_operator",
                env=environment,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """SIGKILL, at once."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    async def ended(self) -> int:
        """Waits for its end; its exit code."""
        assert self.process is not None
        async with asyncio.timeout(STOP_SECONDS):
            return await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self.process is not None
        self.process.terminate()
        return await self.ended()

    def said(self) -> str:
        """The end of its log."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_LINES:])


@contextlib.asynccontextmanager
async def operator_process(cluster: Cluster, folder: Path, **settings: str) -> AsyncIterator[OperatorProcess]:
    """An operator that is not started yet; gone afterwards. settings: its variables."""
    folder.mkdir(parents=True, exist_ok=True)
    async with Gateway(cluster.api.connection, cluster.account, cluster.rights).serve() as gateway:
        operator = OperatorProcess(gateway, folder, settings)
        try:
            yield operator
        finally:
            if operator.is_running:
                operator.kill()
                await operator.ended()
