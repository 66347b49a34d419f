"""A pool in miniature: its status, jobs with what they have acknowledged, pods, of which some terminate."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from elastane_operator.decisions.pool_jobs import PoolJob, PoolPod
from elastane_operator.decisions.pool_spec import DeviceType, PoolQueue, PoolSpec
from elastane_operator.decisions.pool_status import PoolStatus, Share, read_pool_status, write_pool_status
from elastane_operator.decisions.pools import look_at_pool

START = datetime(2026, 1, 1, tzinfo=UTC)


def pool_body(**spec: Any) -> dict[str, Any]:
    """An ElasticPool as the API server would give it."""
    whole: dict[str, Any] = {"types": [{"name": "a", "quota": 4}, {"name": "b", "quota": 4}]}
    return {"metadata": {"name": "shared", "generation": 1}, "spec": whole | spec}


def pool(
    a: int = 4, b: int = 0, queues: tuple[PoolQueue, ...] = (), processor: Any = "", **fields: Any
) -> PoolSpec:
    """A pool with two types; b 0: only one. processor: of both."""
    counts = {"a": a} | ({"b": b} if b else {})
    types = tuple(
        DeviceType(name, count, {"gpu": name}, processor=processor) for name, count in counts.items()
    )
    return PoolSpec(types, queues=queues, **fields)


def job(name: str, **fields: Any) -> PoolJob:
    """A job of 8 ESTs for 1 to 4 workers that has said its steps and was measured."""
    given: dict[str, Any] = {
        "ests": 8, "workers_max": 4, "steps": 1000, "est_seconds": 0.5, "created": START, "active": True,
    }  # fmt: skip
    return PoolJob(namespace="ml", name=name, uid=f"uid-{name}", **(given | fields))


@dataclass
class World:
    """What an API server would keep of a pool. Every method is one step of somebody."""

    spec: PoolSpec
    jobs: dict[str, PoolJob] = field(default_factory=dict)
    now: datetime = START
    status: dict[str, Any] = field(default_factory=dict)
    #: Pods that run, and pods that terminate, each as (job's uid, type).
    running: list[tuple[str, str]] = field(default_factory=list)
    leaving: list[tuple[str, str]] = field(default_factory=list)
    #: Shares that jobs have read and not acted upon yet.
    read: dict[str, Share] = field(default_factory=dict)

    def add(self, *jobs: PoolJob) -> None:
        self.jobs |= {each.name: each for each in jobs}

    def change(self, name: str, **fields: Any) -> None:
        self.jobs[name] = msgspec.structs.replace(self.jobs[name], **fields)

    def pods(self) -> list[PoolPod]:
        return [PoolPod(uid, kind) for uid, kind in self.running + self.leaving]

    def kept(self) -> PoolStatus:
        return read_pool_status({"status": copy.deepcopy(self.status)})

    def look(self, seconds: float = 0.0) -> PoolStatus:
        """One look of an operator, which has nothing but the status to remember by."""
        self.now += timedelta(seconds=seconds)
        after = look_at_pool(self.spec, self.kept(), list(self.jobs.values()), self.pods(), self.now)
        self.status = write_pool_status(after)
        return after

    def share(self, name: str) -> Share:
        found = self.kept().share_of(f"uid-{name}")
        assert found is not None
        return found

    def read_share(self, name: str) -> None:
        share = self.kept().share_of(self.jobs[name].uid)
        if share is not None:
            self.read[name] = share

    def act(self, name: str) -> None:
        """A job acts upon the share that it has read: it acknowledges, and then changes its pods."""
        share, found = self.read.pop(name, None), self.jobs[name]
        if share is None:
            return
        devices = share.granted if found.active else {}
        self.change(name, acknowledged=dict(devices), revision=share.revision)
        for kind in self.spec.names:
            mine = (found.uid, kind)
            while self.running.count(mine) > devices.get(kind, 0):
                self.running.remove(mine)
                self.leaving.append(mine)
            held = (self.running + self.leaving).count(mine)
            self.running += [mine] * max(0, devices.get(kind, 0) - held)

    def pod_ends(self, rng: random.Random) -> None:
        if self.leaving:
            self.leaving.pop(rng.randrange(len(self.leaving)))

    def settle(self) -> None:
        """Let everybody act until nothing changes."""
        for _ in range(20):
            before = (copy.deepcopy(self.status), dict(self.jobs), sorted(self.running), list(self.leaving))
            self.look()
            for name in self.jobs:
                self.read_share(name)
                self.act(name)
            self.leaving.clear()
            if before == (self.status, self.jobs, sorted(self.running), self.leaving):
                return
        raise AssertionError("the pool does not settle")

    def devices(self, name: str) -> dict[str, int]:
        """Pods of a job that run, by type."""
        kinds = [kind for uid, kind in self.running if uid == self.jobs[name].uid]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def used(self, kind: str) -> int:
        return sum(each == kind for _, each in self.running + self.leaving)
