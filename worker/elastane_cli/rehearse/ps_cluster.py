"""A job with parameter servers on this machine, with full control of every process."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from elastane.runtime.rehearsal import Rehearsal, give_order
from elastane_cli.rehearse.cluster import ClusterError, LocalCluster
from elastane_cli.slot_audit import SlotsAudit
from elastane_cli.slot_reading import audit_job
from elastane_common.processes.child import ChildProcess
from elastane_proto.v1 import job_pb2, ps_pb2

PS_COMMAND: Final = (sys.executable, "-m", "elastane_ps")
_LOOK_SECONDS: Final = 0.05
_AUDIT_SECONDS: Final = 60.0


class PsCluster(LocalCluster):
    """Workers that lease tasks, and parameter servers. Start it from the main thread.

    processes, ps: numbers of workers and of parameter servers that `replenish` maintains. pace_seconds: added
    to every task before its gradients and after its push. ps_command: command of a parameter server.
    """

    def __init__(
        self,
        folder: Path,
        settings: job_pb2.JobSettings,
        script: Sequence[str],
        *,
        processes: int,
        ps: int,
        pace_seconds: float = 0.0,
        ps_command: Sequence[str] = PS_COMMAND,
        **options: Any,
    ) -> None:
        settings.ests, settings.checkpoint_url = 1, str(folder / "checkpoints")
        super().__init__(folder, settings, script, **options)
        self.processes, self.ps = processes, ps
        self._ps_command = ps_command
        self._orders = folder / "orders"
        self._orders.mkdir(parents=True, exist_ok=True)
        self._pace_seconds = pace_seconds
        self.servers: dict[str, ChildProcess] = {}
        #: Drained parameter servers: they are replaced under a new name.
        self.drained: set[str] = set()
        self._judged: set[ChildProcess] = set()

    def close(self) -> None:
        for server in self.servers.values():
            server.kill_group()
        super().close()
        for server in self.servers.values():
            server.wait()

    # ------------------------------------------------------------------ processes

    def replenish(self) -> None:
        """Start workers and parameter servers until all are running; the latter keep their names."""
        while len(self.running) < self.processes:
            self._start_worker()
        for number in range(self.ps + len(self.drained)):
            name = f"ps-{number}"
            server = self.servers.get(name)
            if name not in self.drained and (server is None or server.status is not None):
                self._start_ps(name)

    def mishaps(self) -> list[str]:
        """Return the processes that have ended by themselves with an error, each once."""
        found = []
        for name, process in [*self.workers.items(), *self.servers.items()]:
            status = process.status
            if status is None or process in self._judged:
                continue
            self._judged.add(process)
            if status.returncode not in (0, -signal.SIGKILL):
                found.append(f"{name} ended by itself: {status.error or status}")
        return found

    def hurry(self) -> None:
        """Remove the artificial pace, so that the run can finish."""
        self._pace_seconds = 0.0
        for name in self.workers:
            give_order(self._orders / name, "")

    def working(self) -> list[str]:
        """Return running workers that hold a task."""
        held = {task.worker_id for one in self.client.get_progress(self.job) for task in one.holders}
        return [name for name in self.running if name in held]

    def serving(self) -> list[str]:
        """Return running parameter servers that have slots."""
        found = self.slots().processes
        able = {one.ps_id for one in found if one.state == "serving" and one.slots}
        return [name for name, server in self.servers.items() if server.status is None and name in able]

    def pick(self, rng: random.Random, candidates: Callable[[], list[str]]) -> str:
        """Choose one of them, once there is one. Raises ClusterError after a minute."""
        deadline = time.monotonic() + 60.0
        while not (found := candidates()):
            if time.monotonic() > deadline:
                raise ClusterError(f"no {candidates.__name__} process came back\n{self.last_lines()}")
            self.replenish()
            time.sleep(_LOOK_SECONDS)
        return rng.choice(found)

    # ------------------------------------------------------------------ the master's view

    def slots(self) -> ps_pb2.GetSlotsResponse:
        """Return the master's view of the slots."""
        return self.client.get_slots(self.job)

    def commits(self) -> int:
        """Return how often tasks have become DONE so far, including repetitions."""
        found = self.client.get_progress(self.job)
        unfinished = sum(one.todo + one.doing + one.failed for one in found)  # also of earlier epochs
        return sum((one.epoch + 1) * one.total + one.reopened for one in found) - unfinished

    @property
    def is_complete(self) -> bool:
        """True once all tasks of the job are over."""
        found = self.client.get_progress(self.job)
        return bool(found) and all(one.complete for one in found)

    def until(self, condition: Callable[[], bool], what: str, timeout_seconds: float) -> float:
        """Wait for a condition and return time.monotonic() then; what: for the error.

        Raises ClusterError after the timeout, or if a worker has failed by itself.
        """
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {timeout_seconds:g} s for {what}\n{self.last_lines()}")
            time.sleep(_LOOK_SECONDS)
        return time.monotonic()

    def finish(self, timeout_seconds: float) -> SlotsAudit:
        """Let the tasks end, and read every slot. Raises ClusterError, SlotAuditError."""
        self.hurry()
        self.replenish()
        self.until(lambda: self.is_complete, "the end of all tasks", timeout_seconds)
        return audit_job(self.client, self.job, _AUDIT_SECONDS)

    # ------------------------------------------------------------------ internals

    def last_lines(self, count: int = 15) -> str:
        parts = [super().last_lines(count)]
        for name, server in self.servers.items():
            lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
            parts.append(f"--- {name} ({server.status or 'running'})\n" + "\n".join(lines[-count:]))
        return "\n".join(parts)

    def _start_worker(self) -> None:
        name = f"w{len(self.workers)}"
        give_order(self._orders / name, f"slow {self._pace_seconds}" if self._pace_seconds else "")
        self.add_worker(name, Rehearsal(orders=str(self._orders / name)).environment())

    def _start_ps(self, name: str) -> None:
        server = ChildProcess(
            name,
            list(self._ps_command),
            environment=self._environment(name) | {"ELASTANE_PS_ID": name, "OMP_NUM_THREADS": "1"},
            log=self.folder / f"{name}.log",
        )
        server.start()
        self.servers[name] = server
