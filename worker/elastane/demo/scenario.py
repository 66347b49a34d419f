"""The demo's scenario: the faults with their steps, and the cost of each.

Every act waits for steps of the job, never for a time, so the scenario is the same on a slow machine.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from elastane.agent.cluster import LocalCluster
from elastane.client import MasterClient
from elastane.errors import ElastaneError
from elastane_proto.v1 import job_pb2, ring_pb2, shard_pb2

#: If joining workers are not in the ring at this share of the steps, training waits for them.
LATEST_JOIN = 0.6


@dataclass
class Fault:
    """One act of the scenario.

    after: steps since the previous act. act(cluster, total_steps): executes it and returns the time (Unix
    seconds). kills: the kind of process it kills. struck_at: time of execution, 0 before. step: the job's
    step at that time.
    """

    after: int
    text: str
    act: Callable[[LocalCluster, int], float]
    kills: Literal["", "worker", "master"] = ""
    struck_at: float = 0.0
    step: int = 0


def kill_worker(cluster: LocalCluster, total_steps: int) -> float:
    """SIGKILL a worker in the middle of the ring."""
    members = cluster.client.get_ring(cluster.job).members
    victim = cluster.workers[members[len(members) // 2].worker_id]
    struck_at = time.time()
    victim.signal(signal.SIGKILL)
    return struck_at


def add_two(cluster: LocalCluster, total_steps: int) -> float:
    """Add two workers; training continues while they start, but waits before they would come too late."""
    struck_at = time.time()
    names = {cluster.add_worker(), cluster.add_worker()}
    ring = len(cluster.client.get_ring(cluster.job).members) + len(names)

    def both_in(job: job_pb2.Job) -> bool:
        return names <= {w.worker_id for w in job.workers if w.state == job_pb2.WORKER_STATE_MEMBER}

    cluster.wait_for(lambda job: both_in(job) or job.step >= LATEST_JOIN * total_steps, what="the newcomers")
    if not both_in(cluster.get_job()):
        most = cluster.get_job().settings.workers_max
        cluster.client.scale_job(cluster.job, min(ring, most), most)
        cluster.wait_for(both_in, what="the newcomers in the ring")
        cluster.client.scale_job(cluster.job, 1, most)
    return struck_at


def drain_one(cluster: LocalCluster, total_steps: int) -> float:
    """Ask the ring's last worker to leave."""
    members = cluster.client.get_ring(cluster.job).members
    cluster.client.drain_worker(cluster.job, members[-1].worker_id)
    return time.time()


def kill_master(cluster: LocalCluster, total_steps: int) -> float:
    """SIGKILL the master and restart it."""
    struck_at = time.time()
    cluster.restart_master()
    return struck_at


def story() -> list[Fault]:
    """Return the acts in order."""
    return [
        Fault(25, "kill -9 a worker in the middle of a step", kill_worker, kills="worker"),
        Fault(10, "add two workers", add_two),
        Fault(15, "kill -9 another worker", kill_worker, kills="worker"),
        Fault(15, "drain a worker", drain_one),
        Fault(15, "kill -9 the master, start it again", kill_master, kills="master"),
        Fault(15, "kill -9 a third worker", kill_worker, kills="worker"),
    ]


@dataclass
class Recovery:
    """Cost of a kill: seconds from the signal to the next committed step."""

    text: str
    step: int
    seconds: float


@dataclass
class Play:
    """Runs the scenario on a started cluster. on_job, on_event: called from other threads."""

    cluster: LocalCluster
    total_steps: int
    on_job: Callable[[job_pb2.Job], None]
    on_event: Callable[[ring_pb2.Event], None]
    on_fault: Callable[[Fault], None]
    faults: list[Fault] = field(default_factory=story)

    def run(self) -> job_pb2.Job:
        """Run from the first worker to the end of the job. Raises ClusterError if it does not succeed."""
        cluster = self.cluster
        with self._events_followed():
            self._watch_until(1)
            for fault in self.faults:
                fault.step = self._watch_until(cluster.get_job().step + fault.after)
                self.on_fault(fault)
                fault.struck_at = fault.act(cluster, self.total_steps)
            self._watch_until(self.total_steps)
            return cluster.wait_for_end()

    def _watch_until(self, step: int) -> int:
        def reached(job: job_pb2.Job) -> bool:
            self.on_job(job)
            return job.step >= step

        return self.cluster.wait_for(reached, what=f"step {step}").step

    @contextmanager
    def _events_followed(self) -> Iterator[None]:
        """Tells of events in a thread that has ended when the block is left; then of the rest."""
        next_wanted = 0

        def follow() -> None:
            nonlocal next_wanted
            # A master that stays away is what the play itself fails of, with the workers' last lines.
            with suppress(ElastaneError):
                for event in follower.events(self.cluster.job, follow=True):
                    next_wanted = event.sequence + 1
                    self.on_event(event)

        with MasterClient(self.cluster.master.address, timeout_seconds=60.0) as follower:
            thread = threading.Thread(target=follow, name="elastane-demo-events", daemon=True)
            thread.start()
            try:
                yield
            finally:
                follower.close()
                thread.join()
        for event in self.cluster.client.events(self.cluster.job, since=next_wanted):
            self.on_event(event)


def recoveries(faults: Sequence[Fault], history: Sequence[shard_pb2.AuditEntry]) -> list[Recovery]:
    """Return for each kill the first commit after it, by the history's own times."""
    commits = sorted({(_seconds(entry), entry.step, entry.generation) for entry in history})
    found = []
    for fault in faults:
        if not fault.kills:
            continue
        before = max((generation for at, _, generation in commits if at <= fault.struck_at), default=0)
        # A commit in progress when a worker died is not a recovery: the first commit of the new ring is.
        least = before + 1 if fault.kills == "worker" else before
        for at, step, generation in commits:
            if at > fault.struck_at and generation >= least:
                found.append(Recovery(fault.text, step, at - fault.struck_at))
                break
    return found


def median_step_seconds(history: Sequence[shard_pb2.AuditEntry]) -> float:
    """Return the median time between two commits."""
    times = sorted({_seconds(entry) for entry in history})
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    return gaps[len(gaps) // 2] if gaps else 0.0


def _seconds(entry: shard_pb2.AuditEntry) -> float:
    return entry.committed.ToNanoseconds() / 1e9
