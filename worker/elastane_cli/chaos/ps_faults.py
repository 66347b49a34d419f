"""The faults of `elastane chaos --ps`: workers, parameter servers, master and store, all by real signals."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_cli.chaos.faults import SILENT_SECONDS
from elastane_cli.chaos.store_server import StoreServer
from elastane_cli.rehearse.faults import ActiveFault, Fault, kill_master
from elastane_cli.rehearse.ps_cluster import PsCluster
from elastane_common.processes.child import ChildProcess
from elastane_proto.v1 import job_pb2

_LEAVE_SECONDS: Final = 60.0


class PsChaosCluster(PsCluster):
    """A `PsCluster` with a separate store server that can be killed."""

    def __init__(
        self, folder: Path, settings: job_pb2.JobSettings, script: list[str], **options: Any
    ) -> None:
        super().__init__(folder, settings, script, **options)
        self.store = StoreServer(folder / "store", folder / "store.log")
        self.master = EmbeddedMaster(folder / "state", arguments=["--store", self.store.url])

    def start(self) -> None:
        self.store.start()
        super().start()

    def close(self) -> None:
        super().close()
        self.store.stop()


@contextmanager
def kill_worker(c: PsChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    yield _killed(c.workers, [c.pick(rng, c.working)])


@contextmanager
def kill_ps(c: PsChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    yield _killed(c.servers, [c.pick(rng, c.serving)])


@contextmanager
def kill_two_ps(c: PsChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    first = c.pick(rng, c.serving)
    others = [name for name in c.serving() if name != first]
    yield _killed(c.servers, [first, *rng.sample(others, min(1, len(others)))])


@contextmanager
def kill_every_ps(c: PsChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    yield _killed(c.servers, [name for name, server in c.servers.items() if server.status is None])


@contextmanager
def stop_worker(c: PsChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    with _stopped(c.workers[c.pick(rng, c.working)]) as active:
        yield active


@contextmanager
def stop_ps(c: PsChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    with _stopped(c.servers[c.pick(rng, c.serving)]) as active:
        yield active


@contextmanager
def drain_ps(c: PsChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    victim = c.pick(rng, c.serving)
    at = time.monotonic()
    c.drained.add(victim)
    c.replenish()  # another one joins first, so that its slots can move there
    c.client.drain_ps(c.job, victim, reason="chaos")

    def left() -> str:
        status = c.servers[victim].wait(_LEAVE_SECONDS)
        return (
            "" if status is not None and status.returncode == 0 else f"{victim}: {status or 'has not left'}"
        )

    yield ActiveFault(at, f"drain {victim}", check=left)


@contextmanager
def restart_master(c: PsChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    with kill_master(c, rng) as active:
        yield active


@contextmanager
def kill_store(c: PsChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    at = time.monotonic()
    c.store.kill()
    c.store.start()
    yield ActiveFault(at, "kill -9 the store, start it")


def _killed(processes: Mapping[str, ChildProcess], names: list[str]) -> ActiveFault:
    at = time.monotonic()
    for name in names:
        processes[name].signal(signal.SIGKILL)
    for name in names:
        processes[name].wait()
    return ActiveFault(at, f"kill -9 {', '.join(names)}")


@contextmanager
def _stopped(victim: ChildProcess) -> Iterator[ActiveFault]:
    at = time.monotonic()
    victim.signal(signal.SIGSTOP)
    try:
        yield ActiveFault(at, f"SIGSTOP {victim.name}", hold_seconds=SILENT_SECONDS)
    finally:
        victim.signal(signal.SIGCONT)


PS_FAULTS: Final[Mapping[str, Fault[PsChaosCluster]]] = {
    fault.name: fault
    for fault in (
        Fault("kill-worker", "a worker gets SIGKILL", kill_worker),
        Fault("kill-ps", "a parameter server gets SIGKILL", kill_ps),
        Fault("kill-two-ps", "two parameter servers get SIGKILL: owner and copy of slots", kill_two_ps),
        Fault("kill-every-ps", "all parameter servers get SIGKILL", kill_every_ps),
        Fault(
            "stop-worker", "a worker is stopped for longer than its session lives, then wakes", stop_worker
        ),
        Fault(
            "stop-ps", "a parameter server is stopped for longer than its session lives, then wakes", stop_ps
        ),
        Fault("drain-ps", "a parameter server is drained, another one comes", drain_ps),
        Fault("kill-master", "the master gets SIGKILL and is started again", restart_master),
        Fault("kill-store", "the store gets SIGKILL and is started again", kill_store),
    )
}
