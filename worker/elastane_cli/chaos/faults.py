"""Faults of processes: workers, master, store; mostly by signals."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from elastane_cli.chaos.cluster import WAIT_SECONDS, ChaosCluster
from elastane_cli.rehearse.faults import ActiveFault, Fault, kill_master

#: Longer than the heartbeat timeout of the chaos job, 3 s.
SILENT_SECONDS = 4.5


# ---------------------------------------------------------------------- workers


@contextmanager
def kill_worker(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    victim = c.pick(rng)
    at = time.monotonic()
    c.workers[victim].signal(signal.SIGKILL)
    yield ActiveFault(at, f"kill -9 {victim}", changes_ring=True, expects=("worker_lost",))


@contextmanager
def oom_worker(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    victim, before = c.pick(rng), c.cage.kills
    c.cage.put_in(c.workers[victim].pid)
    at = time.monotonic()
    c.order(victim, "eat")

    def killed() -> str:
        return "" if c.cage.kills > before else f"the kernel did not kill {victim} for its memory"

    yield ActiveFault(
        at, f"{victim} outgrows its cgroup", changes_ring=True, expects=("worker_lost",), check=killed
    )


@contextmanager
def stop_worker(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    victim = c.workers[c.pick(rng)]
    at = time.monotonic()
    victim.signal(signal.SIGSTOP)
    try:
        yield ActiveFault(
            at,
            f"SIGSTOP {victim.name}",
            changes_ring=True,
            hold_seconds=SILENT_SECONDS,
            expects=("worker_lost",),
        )
    finally:
        victim.signal(signal.SIGCONT)


@contextmanager
def stuck_trainer(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    victim = c.pick(rng)
    at = time.monotonic()
    c.order(victim, "hang")
    try:
        yield ActiveFault(at, f"the script of {victim} hangs", changes_ring=True, hold_seconds=None)
    finally:
        c.order(victim, "")


@contextmanager
def slow_worker(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    victim = c.pick(rng)
    at = time.monotonic()
    c.order(victim, "slow 0.5")
    try:
        yield ActiveFault(at, f"{victim} computes 0.5 s longer for each mini-batch", hold_seconds=3.0)
    finally:
        c.order(victim, "")


@contextmanager
def spot_notice(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    victim = c.workers[c.pick(rng)]
    at = time.monotonic()
    victim.signal(signal.SIGTERM)

    def left_well() -> str:
        status = victim.wait(WAIT_SECONDS)
        return "" if status is not None and status.returncode == 0 else f"{victim.name}: {status}"

    yield ActiveFault(at, f"SIGTERM {victim.name}", expects=("worker_draining",), check=left_well)


@contextmanager
def term_storm(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """SIGTERM all workers, then all but one of their successors, twice each: the second one ends them."""
    at = time.monotonic()
    for wave in range(2):
        victims = [c.workers[name] for name in (c.running if wave == 0 else c.members()[:-1])]
        for victim in victims:
            victim.signal(signal.SIGTERM)
        if wave:
            for victim in victims:
                victim.signal(signal.SIGTERM)
        for victim in victims:
            victim.wait(WAIT_SECONDS)
        newcomers = set(c.replenish())
        c.until(lambda seen: newcomers <= set(seen.members))  # noqa: B023
    yield ActiveFault(at, "SIGTERM to all, and again", expects=("worker_draining",), may_rewind=True)


@contextmanager
def kill_all(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    at = time.monotonic()
    kill_workers(c)
    newcomers = frozenset(c.replenish())
    yield ActiveFault(
        at, "kill -9 every worker", changes_ring=True, newcomers=newcomers, may_rewind=True,
        expects=("worker_lost",),
    )  # fmt: skip


@contextmanager
def flapping_worker(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """Kill one worker whenever it is in the ring, until the master quarantines it."""
    victim = c.pick(rng)
    at = time.monotonic()
    deaths, before = 0, _quarantines(c, victim)

    def held_back() -> bool:
        return _quarantines(c, victim) > before

    while deaths < 6 and not held_back() and not c.is_over:
        if c.workers[victim].status is None:
            c.workers[victim].signal(signal.SIGKILL)
            c.workers[victim].wait(WAIT_SECONDS)
            deaths += 1
        c.spawn(victim)
        c.until(lambda seen: victim in seen.members, unless=held_back)
    yield ActiveFault(at, f"{victim} died {deaths} times", expects=("worker_lost", "worker_quarantined"))


# ---------------------------------------------------------------------- master and store


@contextmanager
def upgrade_master(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    at = time.monotonic()
    c.master.stop()
    c.master.start()
    yield ActiveFault(at, "SIGTERM the master, start it", expects=("master_recovered",))


@contextmanager
def stop_master(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    at = time.monotonic()
    os.kill(c.master.pid, signal.SIGSTOP)
    try:
        yield ActiveFault(at, "SIGSTOP the master", hold_seconds=SILENT_SECONDS)
    finally:
        os.kill(c.master.pid, signal.SIGCONT)


@contextmanager
def kill_store(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    at = time.monotonic()
    c.store.kill()
    c.store.start()
    yield ActiveFault(at, "kill -9 the store, start it")


@contextmanager
def stop_store(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    at = time.monotonic()
    c.store.signal(signal.SIGSTOP)
    try:
        yield ActiveFault(at, "SIGSTOP the store", hold_seconds=SILENT_SECONDS)
    finally:
        c.store.signal(signal.SIGCONT)


@contextmanager
def kill_both(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    at = time.monotonic()
    c.store.kill()
    c.master.sigkill()
    c.master.wait()
    c.store.start()
    c.master.start()
    yield ActiveFault(at, "kill -9 master and store, start them", expects=("master_recovered",))


def kill_workers(c: ChaosCluster) -> None:
    """SIGKILL all running workers, and wait for their ends."""
    names = c.running
    for name in names:
        c.workers[name].signal(signal.SIGKILL)
    for name in names:
        c.workers[name].wait(WAIT_SECONDS)


def _quarantines(c: ChaosCluster, worker: str) -> int:
    """Return how often the master has quarantined the worker so far."""
    events = c.client.events(c.job)
    return sum(event.kind == "worker_quarantined" and event.worker_id == worker for event in events)


PROCESS_FAULTS: tuple[Fault[ChaosCluster], ...] = (
    Fault("kill-worker", "a worker gets SIGKILL", kill_worker),
    Fault("oom-worker", "a worker outgrows its memory cgroup", oom_worker, lambda c: c.cage.missing),
    Fault(
        "stop-worker", "a worker is stopped for longer than the heartbeat timeout, then wakes", stop_worker
    ),
    Fault("stuck-trainer", "a worker's script hangs while its heartbeats go on", stuck_trainer),
    Fault("slow-worker", "a worker computes very slowly", slow_worker),
    Fault("spot-notice", "a worker gets SIGTERM", spot_notice),
    Fault("term-storm", "all workers get SIGTERM at once, and those who follow them again", term_storm),
    Fault("kill-all", "every worker gets SIGKILL", kill_all),
    Fault("flapping-worker", "a worker dies again and again", flapping_worker),
    Fault("kill-master", "the master gets SIGKILL and is started again", kill_master),
    Fault("upgrade-master", "the master gets SIGTERM and is started again", upgrade_master),
    Fault("stop-master", "the master is stopped for a while", stop_master),
    Fault("kill-store", "the store gets SIGKILL and is started again", kill_store),
    Fault("stop-store", "the store is stopped for a while", stop_store),
    Fault("kill-both", "master and store get SIGKILL and are started again", kill_both),
)
