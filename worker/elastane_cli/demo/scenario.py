"""The demo's scenario: the faults with their steps, and the cost of each.

Every act waits for steps of the job, never for a time, so the scenario is the same on a slow machine.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from elastane_cli.rehearse.cluster import LocalCluster
from elastane_cli.rehearse.faults import ActiveFault, Fault, kill_master
from elastane_common.client import MasterClient
from elastane_common.errors import ElastaneError
from elastane_proto.v1 import job_pb2, ring_pb2, shard_pb2

#: If joining workers are not in the ring at this share of the steps, training waits for them.
LATEST_JOIN = 0.6


@contextmanager
def kill_worker(cluster: LocalCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """SIGKILL a worker in the middle of the ring."""
    members = cluster.client.get_ring(cluster.job).members
    victim = cluster.workers[members[len(members) // 2].worker_id]
    at = time.monotonic()
    victim.signal(signal.SIGKILL)
    yield ActiveFault(at, f"kill -9 {victim.name}", changes_ring=True)


@contextmanager
def add_two(cluster: LocalCluster, rng: random.Random, total_steps: int) -> Iterator[ActiveFault]:
    """Add two workers; training continues while they start, but waits before they would come too late."""
    at = time.monotonic()
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
    yield ActiveFault(at, f"add {', '.join(sorted(names))}")


@contextmanager
def drain_one(cluster: LocalCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """Ask the ring's last worker to leave."""
    worker = cluster.client.get_ring(cluster.job).members[-1].worker_id
    cluster.client.drain_worker(cluster.job, worker)
    yield ActiveFault(time.monotonic(), f"drain {worker}")


def story(total_steps: int) -> list[tuple[int, Fault[LocalCluster]]]:
    """Return the faults in order, each with the number of steps since the previous one."""
    return [
        (25, Fault("kill-worker", "kill -9 a worker in the middle of a step", kill_worker)),
        (10, Fault("add", "add two workers", partial(add_two, total_steps=total_steps))),
        (15, Fault("kill-worker", "kill -9 another worker", kill_worker)),
        (15, Fault("drain", "drain a worker", drain_one)),
        (15, Fault("kill-master", "kill -9 the master, start it again", kill_master)),
        (15, Fault("kill-worker", "kill -9 a third worker", kill_worker)),
    ]


@dataclass(frozen=True)
class InjectedFault:
    """A fault that was injected. at: Unix seconds."""

    fault: Fault[LocalCluster]
    active: ActiveFault
    at: float


@dataclass
class Recovery:
    """Cost of a kill: seconds from the signal to the next committed step."""

    text: str
    step: int
    seconds: float


@dataclass
class Play:
    """Runs the scenario on a started cluster. on_event: called from another thread; on_fault: before a fault.

    injected: the faults so far.
    """

    cluster: LocalCluster
    total_steps: int
    on_event: Callable[[ring_pb2.Event], None]
    on_fault: Callable[[Fault[LocalCluster], int], None]
    faults: Sequence[tuple[int, Fault[LocalCluster]]]
    injected: list[InjectedFault] = field(default_factory=list)

    def run(self) -> None:
        """Run from the first worker to the end of the job. Raises ClusterError if it does not succeed."""
        cluster, rng = self.cluster, random.Random(0)
        with self._events_followed():
            cluster.wait_for_step(1)
            for after, fault in self.faults:
                self.on_fault(fault, cluster.wait_for_step(cluster.get_job().step + after).step)
                with fault.act(cluster, rng) as active:
                    at = time.time() - (time.monotonic() - active.at)
                self.injected.append(InjectedFault(fault, active, at))
            cluster.wait_for_step(self.total_steps)
            cluster.wait_for_success()

    @contextmanager
    def _events_followed(self) -> Iterator[None]:
        """Report events from a thread during the block, then the remaining ones."""
        next_wanted = 0

        def follow() -> None:
            nonlocal next_wanted
            # If the master stays away, the play itself fails, with the workers' last lines.
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


def recoveries(injected: Sequence[InjectedFault], history: Sequence[shard_pb2.AuditEntry]) -> list[Recovery]:
    """Return for each kill the first commit after it, by the history's own times."""
    commits = sorted({(_seconds(entry), entry.step, entry.generation) for entry in history})
    found = []
    for one in injected:
        if not one.fault.name.startswith("kill"):
            continue
        before = max((generation for at, _, generation in commits if at <= one.at), default=0)
        # A commit in progress when a worker died is not a recovery: the first commit of the new ring is.
        least = before + 1 if one.active.changes_ring else before
        for at, step, generation in commits:
            if at > one.at and generation >= least:
                found.append(Recovery(one.fault.text, step, at - one.at))
                break
    return found


def median_step_seconds(history: Sequence[shard_pb2.AuditEntry]) -> float:
    """Return the median time between two commits."""
    times = sorted({_seconds(entry) for entry in history})
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    return gaps[len(gaps) // 2] if gaps else 0.0


def _seconds(entry: shard_pb2.AuditEntry) -> float:
    return entry.committed.ToNanoseconds() / 1e9
