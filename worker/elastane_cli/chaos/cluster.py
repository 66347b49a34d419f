"""A job on this machine whose every part can be broken: workers, master, store, disks, clock, network.

    worker ── relay ──┐
    worker ── relay ──┼── master (its clock can be set) ── store server (on a small disk)
    worker ── relay ──┘        checkpoints (on another small disk)
       └ one of them in a network namespace of its own, where the machine allows it

Only `replenish` restarts workers that a fault has killed: they stay dead until then. Workers that exit to be
restarted (those of a pipeline whose job goes back) are restarted by `start_anew` while recovery is awaited.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastane.runtime.rehearsal import Rehearsal, give_order
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_cli.chaos.machine import FalseClock, MemoryCage, SmallDisk, has_ip
from elastane_cli.chaos.network import Namespace, NetworkError, Relay
from elastane_cli.chaos.store_server import StoreServer
from elastane_cli.chaos.watch import JobWatch, Seen
from elastane_cli.rehearse.cluster import OVER, LocalCluster
from elastane_common.errors import EXIT_START_ANEW
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_proto.v1 import job_pb2

STORE_DISK_MEBIBYTES = 64
CHECKPOINT_DISK_MEBIBYTES = 64
CAGE_MEBIBYTES = 96
WAIT_SECONDS = 60.0


class ChaosCluster(LocalCluster):
    """The job of one run. Start it from the main thread; `close` ends and unmounts everything.

    processes: workers that `replenish` maintains; those beyond the settings' workers_max stand by.
    pace_seconds: added to every mini-batch, so that a short script runs long enough for faults.
    with_namespace: put one worker behind a separate link, if the machine allows it.
    """

    def __init__(
        self,
        folder: Path,
        settings: job_pb2.JobSettings,
        script: Sequence[str],
        *,
        processes: int,
        pace_seconds: float = 0.0,
        environment: Mapping[str, str] | None = None,
        launch: Callable[..., ChildProcess] = ChildProcess,
        with_namespace: bool = True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._orders = folder / "orders"
        self._orders.mkdir()
        self.processes = processes
        self.pace_seconds = pace_seconds
        self._plain_launch = launch
        self.relays: dict[str, Relay] = {}
        self._far: set[str] = set()
        self._anew: set[str] = set()
        self.namespace: Namespace | None = None
        self.namespace_missing = "network namespaces need root, `ip` and /dev/net/tun"
        self.store_disk = SmallDisk(folder / "store", STORE_DISK_MEBIBYTES)
        self.checkpoint_disk = SmallDisk(folder / "checkpoints", CHECKPOINT_DISK_MEBIBYTES)
        self.clock = FalseClock(folder / "clock")
        self.cage = MemoryCage(f"elastane-chaos-{os.getpid()}-{secrets.token_hex(3)}", CAGE_MEBIBYTES)
        # On the small disk, but not in its root, so that the filler is outside the server's folder.
        self.store = StoreServer(self.store_disk.folder / "aof", folder / "store.log")
        settings.checkpoint_url = str(self.checkpoint_disk.folder)
        super().__init__(folder, settings, script, environment=environment, launch=self._launch_worker)
        self.master = EmbeddedMaster(
            folder / "state", arguments=["--store", self.store.url], environment=self.clock.environment
        )
        self.watch: JobWatch
        if with_namespace and has_ip():
            self._make_namespace()

    def start(self) -> None:
        """Start store, master and job, then the workers."""
        self.store.start()
        super().start()
        self.watch = JobWatch(self.master.address, self.job)
        self.watch.start()
        self.replenish()

    def close(self) -> None:
        if hasattr(self, "watch"):
            self.watch.close()
        super().close()
        self.store.stop()
        for relay in self.relays.values():
            relay.close()
        if self.namespace is not None:
            self.namespace.close()
        self.cage.close()
        self.store_disk.close()
        self.checkpoint_disk.close()

    @property
    def is_over(self) -> bool:
        """True if the job has ended."""
        return self.watch.latest.phase in OVER

    def until(
        self,
        condition: Callable[[Seen], bool],
        timeout_seconds: float = WAIT_SECONDS,
        unless: Callable[[], bool] = lambda: False,
    ) -> Seen | None:
        """Return the first later observation that meets `condition`.

        Returns None at the job's end or after the timeout.
        """
        started = time.monotonic()
        return self.watch.first(
            lambda seen: seen.at > started and condition(seen),
            timeout_seconds,
            lambda: self.is_over or unless(),
        )

    # ------------------------------------------------------------------ workers

    def replenish(self) -> list[str]:
        """Start workers until `processes` are running; return their ids. The first is put behind the link."""
        started = []
        while len(self.running) < self.processes:
            started.append(self.spawn(f"w{len(self.workers)}"))
        return started

    @property
    def asks_anew(self) -> list[str]:
        """Workers that exited in order to be restarted by their agent, and have not been yet."""
        anew = ExitStatus(EXIT_START_ANEW)
        return [name for name in self.workers if self.workers[name].status == anew and name not in self._anew]

    def start_anew(self) -> None:
        """Start a worker for each of `asks_anew`."""
        for name in self.asks_anew:
            self._anew.add(name)
            self.spawn(f"w{len(self.workers)}")

    def spawn(self, name: str) -> str:
        """Start or restart one worker."""
        relay = self.relays.get(name)
        environment: dict[str, str] = {}
        far = self.namespace is not None and not any(one in self._far for one in self.running)
        if relay is None:
            near = self.namespace.near if self.namespace is not None else "127.0.0.1"
            relay = self.relays[name] = Relay(self.master.address, near)
        if self.namespace is not None:
            (self._far.add if far else self._far.discard)(name)
            environment["ELASTANE_STORE_HOST"] = self.namespace.far if far else self.namespace.near
        orders = self._orders / name
        give_order(orders, self._usual_order())
        environment |= Rehearsal(orders=str(orders)).environment()
        environment["ELASTANE_MASTER"] = relay.address
        return self.add_worker(name, environment)

    def order(self, name: str, text: str) -> None:
        """Set the order of a worker's script (see `rehearsal`); empty: continue at the usual pace."""
        give_order(self._orders / name, text or self._usual_order())

    def hurry(self) -> None:
        """Remove the artificial pace, so that the run can finish."""
        self.pace_seconds = 0.0
        for name in self.workers:
            give_order(self._orders / name, "")

    def members(self) -> list[str]:
        """Return the workers of the ring whose processes are running."""
        running = set(self.running)
        return [name for name in self.watch.latest.members if name in running]

    def pick(self, rng: random.Random, *, far: bool | None = None) -> str:
        """Choose a member of the ring. far: only the one behind the link (True), or only others (False)."""
        members = [name for name in self.members() if far is None or (name in self._far) == far]
        return rng.choice(members or self.members() or self.running)

    def is_far(self, name: str) -> bool:
        """True if the worker runs behind the link."""
        return name in self._far

    # ------------------------------------------------------------------ internals

    def _usual_order(self) -> str:
        return f"slow {self.pace_seconds}" if self.pace_seconds else ""

    def _launch_worker(self, name: str, command: list[str], **options: Any) -> ChildProcess:
        if self.namespace is not None and name in self._far:
            return ChildProcess(name, self.namespace.command(command), **options)
        return self._plain_launch(name, command, **options)

    def _make_namespace(self) -> None:
        for _ in range(5):
            number = secrets.randbelow(10_000)
            try:
                self.namespace = Namespace(f"elastane-{os.getpid()}-{number}", number)
            except NetworkError as error:
                self.namespace_missing = str(error)
            else:
                self.namespace_missing = ""
                return
