"""What follows the training in a part of the runs: finished jobs and faults of their own (see `closings`)."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastane_master.store import closed
from elastane_master.store.fenced_scripts import ACQUIRE
from elastane_master.store.keys import JOBS_KEY, JobKeys
from elastane_proto.v1 import job_pb2
from sim.callers import JOB
from sim.keepers import Keeper, Latecomer, Visitor
from sim.store_model import PLACE
from sim.world import SimulationError

if TYPE_CHECKING:
    from sim.closings import Closings
    from sim.faults import Cluster
    from sim.master_model import MasterModel

FAULTS_SECONDS = 12.0
CALM_SECONDS = 120.0
OVER = job_pb2.JOB_PHASE_SUCCEEDED, job_pb2.JOB_PHASE_CANCELLED
SCRIPTS = {
    ACQUIRE: ("ACQUIRE", 0.15),
    closed.CLOSE: ("CLOSE", 0.1),
    closed.TAKE: ("TAKE", 0.1),
    closed.CHECK: ("CHECK", 0.1),
    closed.DELETE: ("DELETE", 0.4),
}
"""By their text: the name of each, and how often a fault is injected, before it is run and after."""


class Epilogue:
    """The part of a run that follows the training."""

    def __init__(self, cluster: Cluster, closings: Closings) -> None:
        self.cluster, self.closings, self.rng = cluster, closings, closings.rng
        self.faults_until = -math.inf
        deletes = [self.rng.random() < 0.5 for _ in range(closings.jobs)]
        names = [(JOB, False, False), *((f"over-{n}", True, gone) for n, gone in enumerate(deletes))]
        self.keepers = [
            Keeper(
                cluster.world,
                cluster.network,
                cluster.checkers,
                cluster.serving,
                f"keeper-of-{name}",
                job=name,
                made=made,
                deletes=gone,
                newest=closings.newest,
                finished=self._finished,
            )
            for name, made, gone in names
        ]
        self.visitor = Visitor(cluster.world, cluster.network, cluster.checkers, cluster.serving, "visitor")
        self.latecomer = Latecomer(
            cluster.world, cluster.network, cluster.checkers, cluster.serving, "latecomer"
        )
        self.callers = (*self.keepers, self.visitor, self.latecomer)
        cluster.closings = closings
        cluster.server.scripted = self._scripted

    def _finished(self) -> int:
        return sum(keeper.is_over for keeper in self.keepers)

    def _staying(self) -> list[str]:
        """Return the jobs that are over and that nobody deletes."""
        if math.isfinite(self.closings.newest):
            return []
        return [keeper.job for keeper in self.keepers if keeper.shown is not None and not keeper.deletes]

    def run(self, run_until: Callable[[Callable[[], bool], float], bool]) -> None:
        """run_until: the world's, for so many seconds."""
        cluster, world = self.cluster, self.cluster.world
        if not cluster.store_is_whole:
            cluster.operator.set_prices(1, 1)  # a write, at which the master finds what the store has lost
            run_until(lambda: cluster.store_is_whole and cluster.is_settled, CALM_SECONDS)
        cluster.faults_until = world.now
        run_until(lambda: cluster.operator.is_idle, CALM_SECONDS)
        for worker in cluster.alive:
            worker.kill()  # the training is over; whoever still knocks may find its job deleted, rightly
        self._restart_masters()
        self._together("make", [keeper.make() for keeper in self.keepers], run_until)
        self.faults_until = world.now + FAULTS_SECONDS
        self._plan()
        lives = [keeper.live(random.Random(self.rng.random())) for keeper in self.keepers]
        self.visitor.process.spawn(self.visitor.visit([keeper.job for keeper in self.keepers]))
        if cluster.profile.latecomers:
            self.latecomer.process.spawn(self.latecomer.come(self._staying))
        self._together("be looked after", lives, run_until)
        run_until(lambda: world.now >= self.faults_until, FAULTS_SECONDS)
        self.visitor.process.kill()
        self.latecomer.leave()
        self._restart_masters()  # what was told now stands in the store alone
        self._together("be listed", [self._last_look()], run_until)
        self._together("be read", [keeper.read() for keeper in self.keepers], run_until)
        if world.failure is not None:
            raise world.failure

    def _restart_masters(self) -> None:
        self.cluster.server.sync()
        for master in self.cluster.masters_alive:
            master.kill()

    def _together(self, what: str, work: list[Any], run_until: Callable[..., bool]) -> None:
        tasks = [keeper.process.spawn(one) for keeper, one in zip(self.keepers, work, strict=False)]
        if not run_until(lambda: all(task.done() for task in tasks), CALM_SECONDS):
            waits = [keeper.job for keeper, task in zip(self.keepers, tasks, strict=False) if not task.done()]
            raise SimulationError("liveness", f"finished jobs could not {what}: {waits}")

    async def _last_look(self) -> None:
        world, server, first = self.cluster.world, self.cluster.server, self.keepers[0]
        closed_for = 0
        while closed_for < 2:  # once more: what is kept no longer goes after that
            await asyncio.sleep(4 * self.closings.close_seconds)
            response = await first.asked("JobService/List", job_pb2.JobServiceListRequest())
            is_closed = all(job.HasField("closed") for job in response.jobs if job.phase in OVER)
            closed_for = closed_for + 1 if is_closed else 0
        listed = {job.name: job for job in response.jobs}
        kept = 0
        for keeper in self.keepers:
            if keeper.job in listed:
                kept += 1
                keeper.compare(listed[keeper.job])
                continue
            keeper.missing("List")
            keys = JobKeys.of(keeper.job)
            left = [
                key
                for key in (keys.log, keys.snapshot, keys.history, keys.events)
                if key.encode() in server.data
            ]
            if left or keeper.job.encode() in server.data.get(JOBS_KEY.encode(), ()):
                world.fail(
                    "not resurrected", f"job {keeper.job} is gone, and {left or JOBS_KEY} still has it"
                )
        deleted = sum(keeper.deletes for keeper in self.keepers)
        wanted = min(self.closings.newest, len(self.keepers))
        if kept > wanted or kept < wanted - deleted:
            world.fail(
                "not lost", f"{kept} finished jobs are kept of {len(self.keepers)}; {wanted} are to be"
            )

    # ------------------------------------------------------------------ faults

    def _plan(self) -> None:
        self.cluster.world.after(self.rng.expovariate(1.0), self._fault)

    def _fault(self) -> None:
        world = self.cluster.world
        if world.now >= self.faults_until:
            return
        masters = self.cluster.masters_alive
        inject = self.rng.choice((*self._faults(), self._stop, self._refuse, self._slow, self._trouble))
        inject(self.rng.choice(masters) if masters else None)
        self._plan()

    def _faults(self) -> list[Callable[[MasterModel | None], None]]:
        faults = [self._kill, self._crash, self._cut]
        if self.cluster.takeovers is not None:
            faults += [self._freeze, self._second]
        return faults

    def _kill(self, master: MasterModel | None) -> None:
        if master is not None:
            master.kill()

    def _stop(self, master: MasterModel | None) -> None:
        if master is not None:
            master.stop()

    def _freeze(self, master: MasterModel | None) -> None:
        if master is not None:
            master.process.freeze(self.rng.choice((0.5, 2.0, 5.0)))

    def _second(self, master: MasterModel | None) -> None:
        if len(self.cluster.masters_alive) < 3:
            self.cluster.start_master()

    def _crash(self, master: MasterModel | None) -> None:
        self.cluster.server.crash(self.rng.choice((0.02, 0.3, 2.0)))

    def _cut(self, master: MasterModel | None) -> None:
        if master is not None:
            self.cluster.network.cut(master.name, [PLACE], self.rng.choice((0.3, 1.5, 4.0)))

    def _refuse(self, master: MasterModel | None) -> None:
        self.cluster.world.log("STORE refuses")
        self.cluster.server.refuses_until = self.cluster.world.now + self.rng.choice((0.1, 2.0))

    def _slow(self, master: MasterModel | None) -> None:
        self.cluster.world.log("STORE is slow")
        self.cluster.server.slow_until = self.cluster.world.now + self.rng.choice((1.0, 3.0))

    def _trouble(self, master: MasterModel | None) -> None:
        self.cluster.world.log("NETWORK loses and doubles calls")
        self.cluster.network.troubled_until = self.cluster.world.now + 2.0

    def _scripted(self, text: str, name: str, done: bool) -> None:
        """The store is about to run a script for the process of this name, or has run it."""
        script, share = SCRIPTS.get(text, ("", 0.0))
        if not script or self.cluster.world.now >= self.faults_until:
            return
        if self.rng.random() >= share:
            return
        masters = [master for master in self.cluster.masters_alive if master.name == name]
        if not masters:
            return
        self.cluster.world.log(f"{'after' if done else 'before'} {script} of {name}:")
        self.closings.hit[script] = self.closings.hit.get(script, 0) + 1
        self.rng.choice(self._faults())(masters[0])
