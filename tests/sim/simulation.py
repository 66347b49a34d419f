"""One seeded run: a job under faults, then a calm phase in which it must finish with the fixed run's bits."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import structlog

import elastane_master.jobs.leading
import elastane_master.jobs.sessions
import elastane_master.jobs.succession_keeper
import elastane_master.servers.job_service
import elastane_master.servers.translate_shard
import elastane_master.store.log
from elastane_master.decisions.machine import JobMachine
from elastane_master.store.log import LogOptions
from elastane_proto.v1 import job_pb2
from sim import ahead, following, pipelines, scaling
from sim.callers import EPOCHS, JOB, TASKS, Caller, Registrar, TaskClient
from sim.checkers import KEYS, Checkers
from sim.closings import CLOSING, CLOSING_FAULT
from sim.closings import draw as draw_closings
from sim.epilogue import Epilogue
from sim.faults import Cluster
from sim.forgetting import Power
from sim.forgetting import draw as draw_cuts
from sim.forgetting import plan as plan_cuts
from sim.network import Network
from sim.policies import PolicyChecker
from sim.policies import draw as draw_policies
from sim.profiles import EVEN, Profile, choose
from sim.reference import FixedRuns
from sim.store_model import StoreServer
from sim.takeovers import CUT, OTHER_JOBS, Cut, Takeovers
from sim.takeovers import draw as draw_takeovers
from sim.unlike import hurried
from sim.worker_model import Script
from sim.world import SimulationError, World

FAULTS_SECONDS = 15.0
CALM_SECONDS = 600.0
EVENTS_MAX = 2_000_000
TRACE_LINES = 200
AHEAD, UNDONE = "step applied ahead", "step undone"


@dataclass
class Outcome:
    """Results of one run."""

    seed: int
    checkers: Checkers
    world: World
    injected: dict[str, int]


def simulate(seed: int, *, trace_lines: int | None = TRACE_LINES, profile: Profile | None = None) -> Outcome:
    """Run one seed. profile: in place of the seed's own.

    Raises SimulationError with the seed and the end of the trace (None: all of it).
    """
    rng = random.Random(seed)
    world = World(rng)
    targets: list[int] = []
    with _seeded(world), hurried(), pipelines.hurried(), scaling.hurried(world, targets):
        outcome = _Run(seed, rng, world, profile=profile or choose(seed)).outcome(trace_lines)
    if targets:
        outcome.injected[scaling.TARGETS] = len(targets)
    return outcome


def simulate_cuts(seed: int, cuts: tuple[Power, ...]) -> Outcome:
    """Run a job without dynamic tasks in which these power cuts are the only faults."""
    rng = random.Random(seed)
    world = World(rng)
    with _seeded(world), hurried():
        return _Run(seed, rng, world, cuts=cuts).outcome(TRACE_LINES)


def simulate_takeover(seed: int, cut: Cut) -> tuple[Outcome, Takeovers]:
    """Run a job in which the only faults are the leader's death, and the loss of the store at one call of the
    takeover that follows."""
    rng = random.Random(seed)
    world = World(rng)
    with _seeded(world), hurried():
        # The first takeover is that of the initial leader.
        takeovers = Takeovers(random.Random(seed), cuts=[Cut(0, False, 0.0), cut], deaths=(1.5,))
        return _Run(seed, rng, world, cuts=(), takeovers=takeovers).outcome(TRACE_LINES), takeovers


def stored_by(seed: int) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the stored snapshot and later batches of a run of this seed, in the middle of its faults."""
    rng = random.Random(seed)
    world = World(rng)
    with _seeded(world), hurried():
        run = _Run(seed, rng, world, LogOptions(snapshot_seconds=3.0))
        return run.stored_at(FAULTS_SECONDS * 0.6)


class _Run:
    def __init__(
        self,
        seed: int,
        rng: random.Random,
        world: World,
        options: LogOptions | None = None,
        cuts: tuple[Power, ...] | None = None,
        takeovers: Takeovers | None = None,
        profile: Profile = EVEN,
    ) -> None:
        self.seed, self.rng, self.world = seed, rng, world
        self.pipeline = pipelines.draw(seed) if cuts is None else None
        if self.pipeline is not None:
            profile = replace(profile, follow_ups=(*profile.follow_ups, *pipelines.FOLLOW_UPS))
        self.cuts = cuts
        script, self.settings = _draw(rng)
        self.script = replace(script, receive_seconds=profile.receive_seconds, pipeline=self.pipeline)
        if cuts is None and self.pipeline is None:
            drawn = following.draw(seed)
            self.script = replace(self.script, follows=bool(drawn), writes_outside=drawn == "differ")
            self.script.ahead = ahead.draw(seed)
        self.policies = draw_policies(seed)
        self.policies.apply(self.settings)
        if cuts is None:
            scaling.apply(scaling.draw(seed, fixed=self.policies.fixed), self.settings)
        if self.pipeline is not None:
            self.pipeline.apply(self.settings)
        if not profile.saves:
            self.settings.checkpoint_url, self.settings.checkpoint_interval_steps = "", 0
        self.takeovers = draw_takeovers(seed) if cuts is None else takeovers
        self.closings = draw_closings(seed) if cuts is None else None
        self.callers: tuple[Caller, ...] = ()
        fixed = FixedRuns(self.script.ests, self.script.steps, self.script.steps_per_epoch)
        self.checkers = Checkers(
            world, self.script.ests, self.script.steps, fixed, bool(self.settings.checkpoint_url)
        )
        network = Network(world)
        server = StoreServer(world, network)
        server.appended, server.lost = self.checkers.stored, self.checkers.store_lost
        server.fenced = self.checkers.fenced
        drawn = LogOptions(rng.choice((0.0, 0.2, 1.0, 3600.0)), rng.choice((1.0, 5.0)))
        self.cluster = Cluster(
            world,
            network,
            server,
            self.checkers,
            self.script,
            self.policies.needed(self.settings),
            options or drawn,
            world.now + FAULTS_SECONDS,
            rng.choice((0.3, 1.0, 4.0)) if cuts is None else 1e-9,
            self.policies,
            self.takeovers,
            profile=profile,
            seed=seed,
        )
        self.checkers.pipeline = self.pipeline
        self.checkers.return_grace_seconds = self.settings.return_grace.ToTimedelta().total_seconds()
        self.checkers.follow_up = self.cluster.follow_up
        self.checkers.workers = lambda: list(self.cluster.workers.values())
        self.clients = [
            TaskClient(world, network, self.checkers, self.cluster.serving, f"t{number}")
            for number in range(rng.choice((0, 0, 1, 3)) if cuts is None else 0)
        ]
        self.profile = profile
        self.planner = None
        if self.pipeline is not None:
            drawn_by = random.Random(f"stages {seed}")
            self.planner = pipelines.Planner(world, self.cluster.serving, self.pipeline, drawn_by)
        self.registrar = Registrar(world, network, self.checkers, self.cluster.serving, "registrar")

    def outcome(self, trace_lines: int | None) -> Outcome:
        try:
            self._run()
        except SimulationError as error:
            trace = self.world.trace if trace_lines is None else self.world.trace[-trace_lines:]
            text = str(error).removeprefix(f"{error.checker}: ")
            told = "\n".join([text, *trace, f"seed {self.seed}: {error}"])
            raise SimulationError(error.checker, told) from error
        finally:
            self._bury()
        injected = dict(self.cluster.injected)
        if self.planner is not None and self.planner.proposed:
            injected[pipelines.STAGES] = self.planner.proposed
        if self.takeovers is not None and self.takeovers.hit:
            injected[CUT] = len(self.takeovers.hit)
        if self.closings is not None:
            injected[CLOSING] = self.closings.jobs
            if self.closings.hit:
                injected[CLOSING_FAULT] = sum(self.closings.hit.values())
        for name, count in ((AHEAD, self.checkers.ahead), (UNDONE, self.checkers.undone)):
            if count:
                injected[name] = count
        return Outcome(self.seed, self.checkers, self.world, injected)

    def stored_at(self, seconds: float) -> tuple[bytes, tuple[bytes, ...]]:
        """Run for `seconds`; return the stored snapshot and the batches after it."""
        try:
            self._begin()
            self.world.run_until(lambda: False, self.world.now + seconds, EVENTS_MAX)
            data, log = self.cluster.server.data, self.cluster.server.entries(KEYS.log.encode())
            return data[KEYS.snapshot.encode()], tuple(payload for _, payload in log)
        finally:
            self._bury()

    def _begin(self) -> None:
        world, cluster = self.world, self.cluster
        cluster.start_master()
        for name in (JOB, *(OTHER_JOBS if self.takeovers is not None else ())):
            created = cluster.operator.process.spawn(cluster.operator.create(self.settings, name))
            if not world.run_until(created.done, world.now + 60.0, EVENTS_MAX):
                raise SimulationError("liveness", f"job {name} could not be created")
        cluster.server.sync()
        cluster.begin(self.rng.randint(1, self.script.ests + 1))
        for client in self.clients:
            client.start()
        if self.planner is not None:
            self.planner.start(cluster.faults_until)
        for seconds in self.takeovers.deaths if self.takeovers is not None else ():
            world.after(seconds, cluster.kill_leader)
        if self.profile.registers:
            self.registrar.start(cluster.faults_until)
        elif not self.clients:
            drawn = draw_cuts(self.seed, loses_all=self.profile.loses_all)
            plan_cuts(cluster, drawn if self.cuts is None else self.cuts)

    def _run(self) -> None:
        world, cluster = self.world, self.cluster
        self._begin()
        deadline = cluster.faults_until + CALM_SECONDS
        if not world.run_until(self._is_through, deadline, EVENTS_MAX):
            host = cluster.newest.host if cluster.newest is not None else None
            state = host.machine.state if host is not None else None
            why = f"{state.phase}: {state.reason}" if state is not None else "no master serves"
            clients = [client.name for client in self.clients if not client.is_through]
            raise SimulationError("liveness", f"the job did not finish: {why}; clients that wait: {clients}")
        world.run_until(lambda: cluster.is_settled, world.now + 60.0, EVENTS_MAX)
        looked = cluster.operator.process.spawn(cluster.operator.last_look())
        world.run_until(looked.done, world.now + 60.0, EVENTS_MAX)
        self.checkers.finished(cluster.server, EPOCHS * TASKS if self.clients else 0)
        if world.failure is not None:
            raise world.failure
        if self.closings is not None:
            epilogue = Epilogue(cluster, self.closings)
            self.callers = epilogue.callers
            epilogue.run(lambda done, seconds: world.run_until(done, world.now + seconds, EVENTS_MAX))

    def _is_through(self) -> bool:
        return (
            self.cluster.is_over
            and self.cluster.is_settled
            and self.cluster.network.troubled_until <= self.world.now
            and all(client.is_through for client in self.clients)
        )

    def _bury(self) -> None:
        """End all pending tasks in order, so that the garbage collector does not do so during another run."""
        cluster = self.cluster
        processes = [master.process for master in cluster.masters]
        processes += [worker.process for worker in (*cluster.buried, *cluster.workers.values())]
        callers = (cluster.operator, self.registrar, *self.clients, *self.callers)
        processes += [caller.process for caller in callers]
        for process in processes:
            process.alive = False
        for process in processes:
            process.bury()
        self.world.heap.clear()


def _draw(rng: random.Random) -> tuple[Script, job_pb2.JobSettings]:
    """Draw a script and settings, small enough for a run of milliseconds."""
    ests = rng.randint(1, 6)
    seconds = rng.choice((0.05, 0.2, 0.5)), rng.choice((0.2, 3.0))
    script = Script(ests, rng.randint(2, 12), rng.randint(1, 4), *seconds)
    workers_min = rng.choice((1, 1, min(2, ests)))
    checkpoint_url = rng.choice(("", "memory://x", "memory://x"))
    settings = job_pb2.JobSettings(
        ests=ests,
        workers_min=workers_min,
        workers_max=rng.choice((0, 0, rng.randint(workers_min, ests))),
        checkpoint_url=checkpoint_url,
        checkpoint_interval_steps=rng.choice((0, 1, 3)) if checkpoint_url else 0,
        audit_samples=True,
    )
    settings.lease_min.FromSeconds(rng.choice((2, 5)))
    settings.return_grace.FromSeconds(rng.choice((1, 4)))
    settings.idle_max.FromSeconds(60)
    return script, settings


@contextlib.contextmanager
def _seeded(world: World) -> Iterator[None]:
    """Replace modules' sources of time and randomness by the world's in the block; log nothing."""
    log, sessions = elastane_master.store.log, elastane_master.jobs.sessions
    timed = log, elastane_master.jobs.leading, elastane_master.jobs.succession_keeper
    services = elastane_master.servers.job_service, elastane_master.servers.translate_shard
    identifiers = SimpleNamespace(uuid4=lambda: uuid.UUID(int=world.rng.getrandbits(128)))
    configuration, state = structlog.get_config(), random.getstate()
    handle, looked_at = JobMachine.handle, PolicyChecker(world).wrap(JobMachine.handle)
    originals = [module.time for module in timed], sessions.uuid, [service.uuid for service in services]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    random.seed(world.rng.getrandbits(64))
    for module in timed:
        module.time = SimpleNamespace(monotonic=lambda: world.now)  # type: ignore[assignment]
    for module in (sessions, *services):
        module.uuid = identifiers  # type: ignore[attr-defined]
    JobMachine.handle = looked_at  # type: ignore[method-assign, assignment]
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        JobMachine.handle = handle  # type: ignore[method-assign]
        for module, original in zip(timed, originals[0], strict=True):
            module.time = original
        sessions.uuid = originals[1]
        for service, original in zip(services, originals[2], strict=True):
            service.uuid = original  # type: ignore[attr-defined]
        random.setstate(state)
        structlog.configure(**configuration)
