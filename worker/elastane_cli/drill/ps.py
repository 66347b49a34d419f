"""Measures the cost of a parameter server's death with the user's own script, without and with backups.

    a third of the tasks is DONE, every slot is saved, or copied ─▶ SIGKILL ─▶ train to the end ─▶ audit

Twice: with --ps-replicas 0, and 1.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from elastane_cli.drill.node import DrillFailed
from elastane_cli.rehearse.cluster import ClusterError
from elastane_cli.rehearse.ps_cluster import PsCluster
from elastane_cli.rehearse.watcher import Watcher
from elastane_proto.v1 import job_pb2, ps_pb2

#: Share of the tasks that are DONE before the fault.
_SHARE: Final = 3


@dataclass(frozen=True)
class PsDeath:
    """Cost of one death. done: tasks that were DONE; reopened: of these, done again.

    served_seconds: from SIGKILL until every slot is served again; task_seconds: until the first DONE task
    after that. tasks: DONE at the end. faults: found by the audit then.
    """

    replicas: int
    done: int
    reopened: int
    served_seconds: float
    task_seconds: float
    tasks: int
    faults: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        """Conditions that did not hold, as text."""
        again = self.replicas and self.reopened
        said = [f"{self.reopened} tasks were done again in spite of copies"] if again else []
        return [*said, *self.faults]


@dataclass(frozen=True, kw_only=True)
class PsDrill:
    """One call of `elastane drill --ps`. snapshot_seconds: between snapshots of a slot."""

    folder: Path
    script: Sequence[str]
    ps: int
    workers: int
    seed: str
    snapshot_seconds: int = 5
    timeout_seconds: float = 600.0
    watcher: Watcher = field(default_factory=Watcher)

    def run(self) -> list[PsDeath]:
        """Return the results without and with backups. Raises DrillFailed; leaves no process behind."""
        return [self._run(replicas) for replicas in (0, 1)]

    def _run(self, replicas: int) -> PsDeath:
        settings = job_pb2.JobSettings(workers_min=1, workers_max=self.workers, ps_replicas=replicas)
        settings.ps_snapshot.FromSeconds(self.snapshot_seconds)
        self.watcher.stage(f"{self.ps} parameter servers, {replicas} copies of each slot")
        cluster = PsCluster(
            self.folder / f"copies-{replicas}", settings, self.script, processes=self.workers, ps=self.ps
        )
        try:
            cluster.start()
            cluster.replenish()
            return self._kill(cluster, replicas)
        except ClusterError as error:
            raise DrillFailed(str(error.args[0]), hint=error.hint) from error
        finally:
            cluster.close()

    def _kill(self, cluster: PsCluster, replicas: int) -> PsDeath:
        def far_enough() -> bool:
            found = cluster.client.get_progress(cluster.job)
            total = sum(one.total * max(1, one.epochs) for one in found)
            return 0 < total <= _SHARE * cluster.commits() and _settled(cluster.slots(), replicas)

        cluster.until(
            lambda: far_enough() or cluster.is_complete, "the tasks before the fault", self.timeout_seconds
        )
        if cluster.is_complete:
            raise DrillFailed(
                "the tasks ended before every slot was saved", hint="let the script do more or longer tasks"
            )
        victim = random.Random(self.seed).choice(cluster.serving())
        before = cluster.slots()
        done = cluster.commits() - before.reopened
        self.watcher.stage(f"kill -9 {victim}: {done} tasks are DONE")
        at = time.monotonic()
        cluster.servers[victim].kill_group()
        cluster.servers[victim].wait()
        cluster.replenish()  # as its agent does
        cluster.until(
            lambda: cluster.slots().map.generation > before.map.generation, "the master", self.timeout_seconds
        )
        served = cluster.until(lambda: _served(cluster.slots()), "all slots", self.timeout_seconds)
        by_then = cluster.commits()
        task = cluster.until(
            lambda: cluster.commits() > by_then or cluster.is_complete,
            "a task",
            self.timeout_seconds,
        )
        audit = cluster.finish(self.timeout_seconds)
        return PsDeath(
            replicas,
            done,
            cluster.slots().reopened - before.reopened,
            served - at,
            task - at,
            audit.tasks,
            tuple(f"slot {slot.slot}: {fault}" for slot in audit.slots for fault in slot.faults),
        )


def _served(found: ps_pb2.GetSlotsResponse) -> bool:
    places = found.map.places
    return bool(places) and all(place.owner and not place.restoring for place in places)


def _settled(found: ps_pb2.GetSlotsResponse, replicas: int) -> bool:
    """True if every slot is served, and saved or backed up."""
    owners = {place.owner for place in found.map.places}
    if replicas:
        return _served(found) and all(place.backup for place in found.map.places) and len(owners) > 1
    return _served(found) and len(found.snapshots) == len(found.map.places) and len(owners) > 1
