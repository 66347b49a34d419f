"""One seeded run: a job whose tasks push to slots, under faults, then a calm phase in which it must end.

The master is the product's, unmodified, with its store, streams and takeovers (`sim`); parameter servers and
workers are models around the product's pure code.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from elastane_master.decisions.machine import JobMachine
from elastane_master.store.log import LogOptions
from elastane_proto.v1 import job_pb2, ps_pb2, shard_pb2
from sim.callers import Operator
from sim.faults import CLOCK_ERRORS_SECONDS
from sim.master_model import MasterModel
from sim.network import Ended, Network
from sim.simulation import _seeded
from sim.store_model import PLACE, StoreServer
from sim.world import SimulationError, World
from slot_sim.checkers import DATASET, JOB, OTHER, SlotCheckers
from slot_sim.disk import Disk
from slot_sim.ps_model import PsModel
from slot_sim.pusher_model import PusherModel
from slot_sim.wire import Wire

FAULTS_SECONDS = 12.0
CALM_SECONDS = 300.0
EVENTS_MAX = 600_000
TRACE_LINES = 150
LOOK_SECONDS = 0.05
FREEZES_SECONDS = (0.1, 0.7, 2.5, 6.0)
CUTS_SECONDS = (0.1, 0.6, 2.0, 6.0)
DOWN_SECONDS = (0.02, 0.3, 2.0)
#: Weight of a plan's favourite fault, beside that of all others.
FAVOURITE = 10

FAULTS = (
    "server killed",
    "server killed and its backup",
    "all servers killed",
    "server restarted",
    "server joins",
    "server drained",
    "server told to leave",
    "server frozen",
    "server's session reset",
    "server cut off from the master",
    "server cut off from workers",
    "servers cut off from each other",
    "server cut off from others and killed",
    "network split",
    "owner lost while its copy is on the way",
    "new owner cut off and old one killed",
    "owner and workers cut off from the master",
    "push lost for a backup whose slot moves",
    "owner killed where a copy arrives",
    "owner killed where tasks are closed",
    "owner killed where a second lease is pushed",
    "slot saved where a push is applied",
    "worker killed",
    "worker frozen",
    "worker cut off",
    "worker joins",
    "snapshots damaged",
    "disk slow",
    "slot saved",
    "checkpoint asked for",
    "workers frozen while a checkpoint waits",
    "master killed",
    "master frozen",
    "master's clock set",
    "second master",
    "store killed",
    "store lost writes",
    "store lost a move whose target is killed",
    "calls lost and doubled",
)
"""Names of all faults; `_Run._choices` implements them."""
FAVOURED = {
    "owner lost while its copy is on the way": 1,
    "new owner cut off and old one killed": 2,
    "owner and workers cut off from the master": 2,
    "push lost for a backup whose slot moves": 2,
    "owner killed where a copy arrives": 1,
    "owner killed where tasks are closed": 1,
    "owner killed where a second lease is pushed": 1,
    "store lost a move whose target is killed": 1,
    "workers frozen while a checkpoint waits": 1,
}
"""Faults that a plan may favour, with the copies of a slot that they need."""


@dataclass(frozen=True)
class Plan:
    """What a run is like. gentle: with backups; one process at a time is lost, and only where all has one.

    alone: one worker with one task at a time. attempts: until a task is FAILED. lossy: the store may lose
    writes. leaves: workers leave one data set for another, with leased tasks. sparse, slow: as of
    `PusherModel`. together: before all faults, all servers leave in order. favourite: one of `FAVOURED`
    that is drawn more often; "": none is.
    """

    slots: int
    limit: int | None
    copies: int
    servers: int
    workers: int
    ahead: int
    tasks: int
    epochs: int
    attempts: int
    errs: float
    gentle: bool
    lossy: bool
    leaves: bool
    sparse: bool
    slow: float
    together: bool
    favourite: str

    @property
    def alone(self) -> bool:
        return self.workers == 1 and self.ahead == 1 and not self.leaves


@dataclass
class Outcome:
    """Results of one run."""

    seed: int
    plan: Plan
    checkers: SlotCheckers
    world: World
    injected: dict[str, int] = field(default_factory=dict)
    reopened: int = 0
    lives: int = 0
    left: int = 0


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"slots {seed}")
    copies = rng.choice((1, 1, 2))
    workers = rng.choice((1, 2, 3))
    gentle = copies == 2 and rng.random() < 0.6
    plan = Plan(
        slots=rng.choice((2, 3, 5)),
        limit=rng.choice((0, 1, 3, None)),
        copies=copies,
        servers=rng.choice((2, 3)),
        workers=workers,
        ahead=rng.choice((1, 1, 2)),
        tasks=rng.choice((8, 14)),
        epochs=rng.choice((1, 2, 3)),
        attempts=1000 if workers == 1 else rng.choice((2, 1000)),
        errs=0.0 if workers == 1 else rng.choice((0.0, 0.1, 0.3)),
        gentle=gentle,
        lossy=not gentle and rng.random() < 0.2,
        leaves=rng.random() < 0.3,
        sparse=rng.random() < 0.5,
        slow=rng.choice((0.0, 0.0, 0.1)),
        together=rng.random() < 0.15,
        favourite="",
    )
    can = [
        name for name, least in FAVOURED.items() if copies >= least and (plan.lossy or "store" not in name)
    ]
    return plan if gentle or rng.random() < 0.5 else dataclasses.replace(plan, favourite=rng.choice(can))


def simulate(seed: int, *, trace_lines: int | None = TRACE_LINES) -> Outcome:
    """Run one seed. Raises SimulationError with the seed and the end of the trace (None: all of it)."""
    rng = random.Random(seed)
    world = World(rng)
    with _seeded(world):
        return _Run(seed, rng, world, draw(seed)).outcome(trace_lines)


class _Run:
    def __init__(self, seed: int, rng: random.Random, world: World, plan: Plan) -> None:
        self.seed, self.rng, self.world, self.plan = seed, rng, world, plan
        self.network = Network(world)
        self.wire = Wire(world, self.network)
        self.disk = Disk(world)
        self.checkers = SlotCheckers(world, plan.limit, plan.copies, self.disk, plan.lossy)
        self.checkers.machine, self.checkers.now = self._machine, self._now
        self.checkers.servers = lambda: list(self.peers.values())
        self.server = StoreServer(world, self.network)
        self.options = LogOptions(rng.choice((0.0, 0.2, 3600.0)), rng.choice((1.0, 5.0)))
        self.masters: list[MasterModel] = []
        self.peers: dict[str, PsModel] = {}
        self.all_servers: list[PsModel] = []
        self.workers: dict[str, PusherModel] = {}
        self.all_workers: list[PusherModel] = []
        self.injected: dict[str, int] = {}
        self.until = float("inf")
        #: By moment, a fault that happens when it comes.
        self.armed: dict[str, Callable[[PsModel, int], None]] = {}
        self.checkers.moment = self._at_moment
        #: No other fault until then.
        self.undisturbed_until = 0.0
        #: Nobody starts servers.
        self.shrinking = False
        self.rate = rng.choice((0.5, 1.5, 4.0))
        self.operator = Operator(world, self.network, self.checkers, self._serving, "operator")  # type: ignore[arg-type]
        self._numbers = iter(range(10**6))

    def outcome(self, trace_lines: int | None) -> Outcome:
        try:
            self._run()
        except SimulationError as error:
            trace = self.world.trace if trace_lines is None else self.world.trace[-trace_lines:]
            text = str(error).removeprefix(f"{error.checker}: ")
            told = "\n".join([text, *trace, f"seed {self.seed}: {self.plan}", f"seed {self.seed}: {error}"])
            raise SimulationError(error.checker, told) from error
        finally:
            machine = self._machine()
            self._bury()
        outcome = Outcome(self.seed, self.plan, self.checkers, self.world, self.injected)
        if machine is not None and machine.state.slots.map is not None:
            outcome.reopened = sum(queue.reopened for queue in machine.queues.dynamic.values())
            outcome.lives = len(self.checkers.went_back)
            outcome.left = len(machine.state.slots.left_parts)
        return outcome

    def _run(self) -> None:
        world = self.world
        self._start_master()
        created = self.operator.process.spawn(self.operator.create(self._settings()))
        if not world.run_until(created.done, world.now + 60.0, EVENTS_MAX):
            raise SimulationError("settles", "the job could not be created")
        self.server.sync()
        for _ in range(self.plan.servers):
            self._start_server()
        for number in range(self.plan.workers):
            world.after(self.rng.uniform(0.0, 0.5), lambda number=number: self._start_worker(f"w{number}"))
        world.after(LOOK_SECONDS, self._look)
        if self.plan.together:
            self._leave_together()
        self.until = world.now + FAULTS_SECONDS
        self._plan_fault()
        world.after(0.2, self._supervise)
        world.after(0.5, self._keep)
        if not world.run_until(self._is_through, self.until + CALM_SECONDS, EVENTS_MAX):
            raise SimulationError("settles", f"it does not end: {self._why()}")
        world.run_until(lambda: False, world.now + 3.0, 20_000)
        if not world.run_until(self._is_through, world.now + 60.0, EVENTS_MAX):
            raise SimulationError("settles", f"it does not stay: {self._why()}")
        self.checkers.finished(
            self.plan.tasks,
            self.plan.epochs,
            # Tasks that were begun go on beside those of the other data set.
            alone=self.plan.alone and not self.plan.leaves,
            gentle=self.plan.gentle,
        )
        self._shrink()
        if world.failure is not None:
            raise world.failure

    def _settings(self) -> job_pb2.JobSettings:
        settings = job_pb2.JobSettings(
            ests=1,
            checkpoint_url="memory://slots",
            ps_slots=self.plan.slots,
            ps_replicas=self.plan.copies - 1,
        )
        if self.plan.limit is not None:
            settings.ps_staleness = self.plan.limit
        settings.ps_return.FromMilliseconds(self.rng.choice((200, 1000)))
        settings.return_grace.FromSeconds(2)
        settings.heartbeat_timeout.FromSeconds(3)
        return settings

    def _leave_together(self) -> None:
        """All servers are told to leave while slots move: nothing of what is DONE is lost."""
        world = self.world
        world.run_until(lambda: self.checkers.applied_count > self.plan.slots, world.now + 10.0, EVENTS_MAX)
        if self.rng.random() < 0.5:
            self.disk.slow_until = world.now + 6.0
        self.armed["copy begins"] = lambda server, slot: None
        self._start_server()
        world.run_until(lambda: not self.armed, world.now + 3.0, EVENTS_MAX)
        self.armed.clear()
        self._all_leave(self._servers)
        self.checkers.went_back.clear()
        for _ in range(self.plan.servers):
            self._start_server()

    def _shrink(self) -> None:
        """In the end, all servers but one are told to leave, and then this one."""
        self.shrinking = True
        *others, last = self.rng.sample(self._servers, len(self._servers))
        self._all_leave(others)
        self._all_leave([last])

    def _all_leave(self, servers: list[PsModel]) -> None:
        for server in servers:
            self.world.after(self.rng.uniform(0.0, 0.3), server.leave)

        def gone() -> bool:
            machine = self._machine()
            known = machine.state.slots.processes if machine is not None else {}
            return not any(server.is_alive or server.name in known for server in servers)

        if not self.world.run_until(gone, self.world.now + 30.0, EVENTS_MAX):
            names = [server.name for server in servers if server.is_alive]
            raise SimulationError("settles", f"{names} were told to leave, and stay: {self._why()}")
        if not self._servers and (machine := self._machine()) is not None:
            self.checkers.all_saved(machine, "all servers have left in order")

    def _bury(self) -> None:
        processes = [one.process for one in (*self.masters, *self.all_servers, *self.all_workers)]
        processes.append(self.operator.process)
        for process in processes:
            process.alive = False
        for process in processes:
            process.bury()
        self.world.heap.clear()

    # ------------------------------------------------------------------ what there is

    def _serving(self) -> list[MasterModel]:
        return [master for master in self.masters if master.process.alive and master.serving]

    def _machine(self) -> JobMachine | None:
        for master in reversed(self._serving()):
            if (host := master.host) is not None:
                return host.machine
        return None

    def _now(self) -> float:
        """The newest master's time, by which leases end."""
        hosts = [master.host for master in self._serving() if master.host is not None]
        return hosts[-1].clock() if hosts else self.world.now

    @property
    def _servers(self) -> list[PsModel]:
        return [server for server in self.peers.values() if server.is_alive]

    @property
    def _workers(self) -> list[PusherModel]:
        return [worker for worker in self.workers.values() if worker.process.alive]

    def _is_through(self) -> bool:
        machine = self._machine()
        if machine is None or self.world.now < self.until:
            return False
        book = machine.state.slots
        if not self._all_finished(machine) or book.map is None or book.closings:
            return False
        staying = set(book.staying())
        alive = {server.name for server in self._servers}
        places = book.map.places
        return (
            staying == alive == set(book.processes)
            and all(place.served and not place.begun for place in places)
            and not book.map.wishes(staying, self.plan.copies, 1)
            and all(server.map.generation == book.map.generation for server in self._servers)
        )

    def _why(self) -> str:
        machine = self._machine()
        if machine is None:
            return "no master serves"
        from elastane_master.decisions.slots import leasing

        book, queue = machine.state.slots, machine.queues.dynamic.get(DATASET)
        states = queue.progress(self.world.now) if queue is not None else None
        there = [(server.name, server.map.generation) for server in self._servers]
        return f"{leasing.waits(book)}; {states}; {book.finishing}; {book.map}; {there}; {book.processes}"

    # ------------------------------------------------------------------ processes

    def _start_master(self) -> None:
        name = f"master-{len(self.masters)}"
        offset = self.rng.choice(CLOCK_ERRORS_SECONDS)
        self.world.log(f"{name} starts, its clock is off by {offset:g} s")
        master = MasterModel(
            self.world,
            self.network,
            self.server,
            self.checkers,  # type: ignore[arg-type]
            name,
            self.options,
            wall_offset_seconds=offset,
        )
        self.masters.append(master)

    def _supervise(self) -> None:
        if not any(master.process.alive for master in self.masters):
            self.server.sync()
            self._start_master()
        self.world.after(self.rng.choice((0.1, 0.5)), self._supervise)

    def _start_server(self, name: str = "") -> None:
        number = next(self._numbers)
        server = PsModel(
            self.world,
            self.network,
            self.wire,
            self.checkers,
            self.disk,
            self._serving,
            self.peers,
            name or f"ps-{number}",
            number,
            self.plan.limit,
        )
        self.all_servers.append(server)
        server.start()

    def _reopened(self) -> bool:
        """True if the data set goes on after workers were told of its end: what was saved is lost."""
        machine = self._machine()
        return machine is not None and not self._all_finished(machine)

    def _all_finished(self, machine: JobMachine) -> bool:
        datasets = {DATASET, OTHER} if self.plan.leaves else {DATASET}
        return datasets <= machine.state.slots.finished.keys()

    def _start_worker(self, name: str) -> None:
        running = self.workers.get(name)
        if running is not None and (not self._reopened() if running.is_through else running.process.alive):
            return
        settings = shard_pb2.DatasetSettings(
            task_size=1, epochs=self.plan.epochs, max_attempts=self.plan.attempts, pushes=True
        )
        settings.range.size = self.plan.tasks
        settings.lease.FromSeconds(3)
        model = ps_pb2.SlotModel(slots=self.plan.slots)
        model.tensors.add(name="w", shape=[1], dtype="float32", rule=ps_pb2.DENSE_RULE_SGD)
        worker = PusherModel(
            self.world,
            self.network,
            self.checkers,  # type: ignore[arg-type]
            self._serving,
            name,
            wire=self.wire,
            peers=self.peers,
            settings=settings,
            model=model,
            ahead=self.plan.ahead,
            errs=self.plan.errs,
            leaves=self.plan.leaves,
            sparse=self.plan.sparse,
            slow=self.plan.slow,
        )
        # Request ids of a restarted worker are others.
        worker.number = 1000 * next(self._numbers)
        self.workers[name] = worker
        self.all_workers.append(worker)
        worker.start()

    def _keep(self) -> None:
        """Agents: workers are restarted, and parameter servers as far as they are too few."""
        calm = self.world.now >= self.until
        for name in [f"w{number}" for number in range(self.plan.workers)]:
            if calm or self.rng.random() < 0.3:
                self._start_worker(name)
        few = len(self._servers) < (self.plan.servers if calm else 1)
        if self.shrinking:
            return
        if few and (calm or self.rng.random() < 0.5):
            self._start_server()
        if calm or self.rng.random() < 0.5:
            for server in self._servers:
                server.process.call_soon(server.save_some)
        self.world.after(0.5, self._keep)

    def _look(self) -> None:
        self.checkers.look()
        self.world.after(LOOK_SECONDS, self._look)

    # ------------------------------------------------------------------ faults

    def _plan_fault(self) -> None:
        self.world.after(self.rng.expovariate(self.rate), self._fault)

    def _fault(self) -> None:
        if self.world.now >= self.until:
            return
        if self.world.now < self.undisturbed_until:
            self._plan_fault()
            return
        names, actions, weights = zip(*self._choices(), strict=True)
        weights = [
            weight * (FAVOURITE if name == self.plan.favourite else 1)
            for name, weight in zip(names, weights, strict=True)
        ]
        place = self.rng.choices(range(len(names)), weights)[0]
        if actions[place]() is not False:
            self.injected[names[place]] = self.injected.get(names[place], 0) + 1
        self._plan_fault()

    def _may_lose(self) -> bool:
        """With a gentle plan, a process is lost only where everything has a backup that is known."""
        if not self.plan.gentle:
            return True
        machine = self._machine()
        if machine is None or machine.state.slots.map is None:
            return False
        book = machine.state.slots
        assert book.map is not None
        alive = {server.name for server in self._servers if not server.draining}
        whole = all(place.served and place.backup and not place.begun for place in book.map.places)
        told = all(server.map.generation == book.map.generation for server in self._servers)
        return whole and told and len(alive) > 2 and set(book.staying()) == alive

    def _server(self, act: Callable[[PsModel], object], *, loses: bool = False) -> object:
        servers = self._servers
        if not servers or (loses and not self._may_lose()):
            return False
        return act(self.rng.choice(servers))

    def _worker(self, act: Callable[[PusherModel], object]) -> object:
        workers = self._workers
        return act(self.rng.choice(workers)) if workers else False

    def _master(self, act: Callable[[MasterModel], object]) -> object:
        masters = self._serving()
        return act(self.rng.choice(masters)) if masters else False

    def _harsh(self, act: Callable[[], object]) -> object:
        return False if self.plan.gentle else act()

    def _choices(self) -> list[tuple[str, Callable[[], object], float]]:
        rng, server, worker, master = self.rng, self._server, self._worker, self._master
        cut, freeze = rng.choice(CUTS_SECONDS), rng.choice(FREEZES_SECONDS)
        masters = [one.name for one in self.masters if one.process.alive]
        servers = [one.name for one in self._servers]
        workers = [one.name for one in self._workers]
        return [
            ("server killed", lambda: server(lambda s: s.kill(), loses=True), 3),
            ("server killed and its backup", lambda: self._harsh(self._kill_two), 1),
            ("all servers killed", lambda: self._harsh(lambda: [s.kill() for s in self._servers]), 0.5),
            ("server restarted", lambda: server(self._restart, loses=True), 2),
            ("server joins", lambda: self._start_server() if len(servers) < 5 else False, 3),
            ("server drained", lambda: server(self._drain_by_operator), 1),
            ("server told to leave", lambda: server(lambda s: s.leave(), loses=True), 1),
            ("server frozen", lambda: self._harsh(lambda: server(lambda s: s.process.freeze(freeze))), 2),
            ("server's session reset", lambda: self._harsh(lambda: server(lambda s: s.blip())), 2),
            (
                "server cut off from the master",
                lambda: self._harsh(lambda: server(lambda s: self.network.cut(s.name, masters, cut))),
                3,
            ),
            (
                "server cut off from workers",
                lambda: server(lambda s: self.network.cut(s.name, workers, cut)),
                1,
            ),
            (
                "servers cut off from each other",
                lambda: server(lambda s: self.network.cut(s.name, [o for o in servers if o != s.name], cut)),
                2,
            ),
            ("server cut off from others and killed", lambda: server(self._cut_and_kill, loses=True), 2),
            ("network split", lambda: self._harsh(self._split), 2),
            ("owner lost while its copy is on the way", lambda: self._harsh(self._late_copy), 1),
            ("new owner cut off and old one killed", lambda: self._harsh(self._late_news), 1),
            ("owner and workers cut off from the master", lambda: self._harsh(self._old_owner), 0.5),
            ("push lost for a backup whose slot moves", lambda: self._harsh(self._move_without_backup), 1),
            ("owner killed where a copy arrives", lambda: self._harsh(self._kill_at_copy), 1),
            ("owner killed where tasks are closed", lambda: self._harsh(self._kill_at_close), 1),
            ("owner killed where a second lease is pushed", lambda: self._harsh(self._kill_at_push), 1),
            ("slot saved where a push is applied", self._save_at_push, 1),
            ("worker killed", lambda: worker(lambda w: w.kill()), 3),
            ("worker frozen", lambda: worker(lambda w: w.process.freeze(freeze)), 3),
            ("worker cut off", lambda: worker(lambda w: self.network.cut(w.name, masters + servers, cut)), 1),
            ("worker joins", self._add_worker, 0.5),
            ("snapshots damaged", lambda: self._harsh(self._damage), 1),
            ("disk slow", lambda: setattr(self.disk, "slow_until", self.world.now + 2.0), 0.5),
            ("slot saved", lambda: server(lambda s: s.process.call_soon(s.save_some)), 4),
            ("checkpoint asked for", lambda: self._checkpoint(in_flight=rng.random() < 0.5), 1),
            ("workers frozen while a checkpoint waits", self._checkpoint_without_workers, 0.5),
            ("master killed", lambda: master(lambda m: m.kill()), 1),
            ("master frozen", lambda: self._harsh(lambda: master(lambda m: m.process.freeze(freeze))), 0.5),
            ("master's clock set", lambda: master(self._set_clock), 0.5),
            ("second master", lambda: self._harsh(self._start_master), 0.5),
            ("store killed", lambda: self.server.crash(rng.choice(DOWN_SECONDS)), 0.5),
            ("store lost writes", self._lose_writes, 1),
            ("store lost a move whose target is killed", self._lose_move, 1),
            ("calls lost and doubled", self._trouble, 1),
        ]

    def _kill_two(self) -> object:
        machine = self._machine()
        if machine is None or machine.state.slots.map is None:
            return False
        place = self.rng.choice(machine.state.slots.map.places)
        for server in self._servers:
            if server.name in (place.owner, place.backup):
                server.kill()
        return None

    def _add_worker(self) -> object:
        return False if self.plan.alone else self._start_worker(f"x{next(self._numbers)}")

    def _cut_and_kill(self, server: PsModel) -> None:
        """What it applied last reaches nobody."""
        self.network.cut(server.name, self._other_servers(server.name), 1.0)
        seconds = self.rng.uniform(0.05, 0.9)
        self.world.after(seconds, lambda: server.kill() if self._may_lose() else None)

    # ------------------------------------------------------------------ faults aimed at a moment

    def _at_moment(self, moment: str, server: PsModel, slot: int) -> None:
        if (fault := self.armed.pop(moment, None)) is not None:
            self.world.log(f"MOMENT {moment}: {server.name}, slot {slot}")
            fault(server, slot)

    def _split(self) -> None:
        """One server and most workers are on one side; a server joins on the other."""
        if not self._servers:
            return
        apart = self.rng.choice(self._servers)
        near = [one.name for one in self._workers if self.rng.random() < 0.8]
        masters = [one.name for one in self.masters if one.process.alive]
        far = [one.name for one in (*self._servers, *self._workers) if one.name not in (apart.name, *near)]
        seconds = self.rng.choice((2.0, 6.0))
        for name in (apart.name, *near):
            self.network.cut(name, far + masters, seconds)
        if len(self._servers) < 5 and self.rng.random() < 0.5:
            self.world.after(self.rng.uniform(0.0, seconds), self._start_server)

    def _late_copy(self) -> None:
        """An owner dies with a copy on the way, which arrives when others have gone on without it."""

        def strike(server: PsModel, slot: int) -> None:
            place, seconds = server.map.places[slot], self.rng.uniform(0.4, 2.0)
            self.network.cut(server.name, self._other_servers(server.name), seconds)
            self.world.after(0.01, server.kill)
            if self.rng.random() < 0.5:
                self.armed["slot read"] = self._cut_off_masters
            elif (peer := self.peers.get(place.target or place.joining)) is not None:
                # Whoever owns the slot by then, and has `peer` as its backup.
                self.world.after(seconds + 0.05, lambda: self._kill_owner(peer, slot))

        self.armed["copy ends"] = strike

    def _late_news(self) -> None:
        """That a copy is complete reaches the master when it has begun another to the same process."""

        def strike(server: PsModel, slot: int) -> None:
            place = server.map.places[slot]
            if place.target != server.name or place.backup in ("", server.name):
                # It is the owner who tells of a backup; and another owner is to follow at once.
                self.armed["copy taken"] = strike
                return
            self._cut_off_masters(server, slot, 0.6)
            # The other copy is not complete when the news of the first arrives.
            self.disk.slow_until = self.world.now + 0.5
            self.undisturbed_until = self.world.now + 1.5
            self.world.after(0.01, lambda: self._kill_owner(server, slot))

        self.armed["copy taken"] = strike

    def _old_owner(self) -> object:
        """An owner that nobody can tell so owns a slot no more, which its backup has given to another and
        backs up again. Then workers that know of nothing push to the old one."""
        backed_up = [server for server in self._servers if server.owned and not server.draining]
        if self.plan.copies < 2 or not backed_up or not self._workers:
            return False
        masters = [one.name for one in self.masters if one.process.alive]
        for process in (self.rng.choice(backed_up).process, *(worker.process for worker in self._workers)):
            self.network.cut(process.name, masters, 9.0)
        for worker in self._workers:
            worker.process.freeze(self.rng.uniform(4.5, 6.5))
        for _ in range(2):
            self.world.after(self.rng.uniform(1.0, 3.5), self._start_server)
        self.undisturbed_until = self.world.now + 7.0
        return None

    def _move_without_backup(self) -> object:
        """A push does not reach the backup of a slot that moves from an owner that leaves; then the new one
        dies."""
        if self.plan.copies < 2:
            return False

        def strike(server: PsModel, slot: int) -> None:
            place = server.map.places[slot]
            if not place.target or place.backup in ("", place.target):
                self.armed["push applied"] = strike
                return
            self.network.cut(place.backup, self._other_servers(place.backup), 2.0)
            server.leave()
            if (target := self.peers.get(place.target)) is not None:
                self.world.after(self.rng.uniform(0.4, 1.5), target.kill)

        self.armed["push applied"] = strike
        return None

    def _lose_move(self) -> object:
        """The store forgets who owns a slot, and the one that does is lost; who owned it returns."""
        if not self.plan.lossy:
            return False

        def strike(server: PsModel, slot: int) -> None:
            def lose() -> None:
                self._lose_writes()
                server.kill()

            self.world.after(self.rng.uniform(0.05, 0.3), lose)

        self.armed["copy taken"] = strike
        return None

    def _other_servers(self, name: str) -> list[str]:
        return [server.name for server in self._servers if server.name != name]

    def _kill_at_copy(self) -> None:
        self.armed["copy taken"] = lambda server, slot: self.world.after(
            self.rng.choice((0.0, 0.05)), lambda: self._kill_owner(server, slot)
        )

    def _kill_at_close(self) -> None:
        self.armed["tasks closed"] = lambda server, slot: self.world.after(0.03, server.kill)

    def _kill_at_push(self) -> None:
        self.armed["push of a second lease applied"] = lambda server, slot: self.world.after(
            self.rng.choice((0.05, 0.3)), server.kill
        )

    def _save_at_push(self) -> None:
        self.armed["push applied"] = lambda server, slot: server.process.call_soon(server.save_some)  # type: ignore[assignment]

    def _cut_off_masters(self, server: PsModel, slot: int, seconds: float = 0.0) -> None:
        masters = [one.name for one in self.masters if one.process.alive]
        self.network.cut(server.name, masters, seconds or self.rng.choice((0.6, 2.0)))

    def _kill_owner(self, server: PsModel, slot: int) -> None:
        """The owner of a slot by another process's map."""
        places = server.map.places
        if slot < len(places) and (owner := self.peers.get(places[slot].owner)) is not None:
            owner.kill()

    def _restart(self, server: PsModel) -> None:
        server.kill()
        self.world.after(self.rng.choice(DOWN_SECONDS), lambda: self._start_server(server.name))

    def _drain_by_operator(self, server: PsModel) -> object:
        if len(self._servers) < 3 or not self._may_lose():
            return False

        async def ask() -> None:
            request = ps_pb2.DrainPsRequest(job=JOB, ps_id=server.name, request_id=self.operator.request_id())
            try:
                await self.operator.ask("SlotService/DrainPs", request, may_be_wrong=True)
            except Ended as ended:
                self.world.log(f"OPERATOR is refused: {ended}")

        self.operator.process.spawn(ask())
        return None

    def _damage(self) -> object:
        if not self.disk.images:
            return False
        self.world.log("DISK loses snapshots")
        self.disk.damage(self.rng.choice(sorted(self.disk.images)))
        return None

    def _checkpoint_without_workers(self) -> None:
        """A checkpoint waits for tasks until their leases have ended; their workers push them while slots are
        saved."""
        for worker in self._workers:
            worker.process.freeze(self.rng.uniform(3.2, 5.0))
        self.disk.slow_until = self.undisturbed_until = self.world.now + 6.0
        self._checkpoint(in_flight=False)

    def _checkpoint(self, *, in_flight: bool) -> None:
        async def ask() -> None:
            request = ps_pb2.CheckpointSlotsRequest(
                job=JOB, in_flight=in_flight, request_id=self.operator.request_id()
            )
            try:
                await self.operator.ask("SlotService/CheckpointSlots", request, 5.0, may_be_wrong=True)
            except Ended as ended:
                self.world.log(f"OPERATOR is refused: {ended}")

        self.operator.process.spawn(ask())

    def _set_clock(self, master: MasterModel) -> None:
        master.process.wall_offset_seconds = self.rng.choice(CLOCK_ERRORS_SECONDS)

    def _lose_writes(self) -> object:
        if not self.plan.lossy:
            return False
        self.server.crash(self.rng.choice(DOWN_SECONDS), lose=True)
        for master in self._serving():
            master.kill()
        return None

    def _trouble(self) -> None:
        self.network.troubled_until = self.world.now + 2.0


__all__ = ["FAULTS", "PLACE", "Outcome", "Plan", "draw", "simulate"]
