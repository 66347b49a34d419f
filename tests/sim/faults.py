"""The supervisor, the agents, the operator's random actions and the faults of one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elastane_master.store.closed import TAKE
from elastane_master.store.fenced_scripts import ACQUIRE
from elastane_master.store.log import LogOptions
from sim import unlike
from sim.callers import Operator
from sim.checkers import KEYS, Checkers
from sim.closings import Closings
from sim.following import Link
from sim.group import Group
from sim.master_model import MasterModel
from sim.network import Network
from sim.policies import Policies
from sim.profiles import EVEN, GO_FORGOTTEN, Profile
from sim.store_model import LOST_SECONDS_MAX, PLACE, StoreServer
from sim.takeovers import CLOCK, LEASE, Takeovers, check_granted
from sim.worker_model import GroupKey, Script, WorkerModel
from sim.world import World

FENCE = KEYS.fence.encode()
CLOCK_ERRORS_SECONDS = (0.0, 0.0, 0.0, -3600.0, -5.0, 5.0, 3600.0)
OVER_GRACE_SECONDS = 10.0
FREEZES_SECONDS = (0.1, 1.0, 2.9, 3.5, 8.0)
AWAY_SECONDS_MAX = 10.0
STRANDED_SECONDS = (3.2, 5.0)
STEPS_BEFORE = (0, 1, 2, 3, 5, 8)
CUTS_SECONDS = (0.1, 1.0, 3.2, 6.0, 20.0)

OF_PROFILES = (
    "all but one worker killed",
    "one worker cut off and all others killed",
    "master and a worker restarted",
    "rival master",
    "reading master overtaken",
    GO_FORGOTTEN,
)
"""Faults that happen only in runs with a profile that asks for them."""

FAULTS = (
    "worker starts",
    "worker killed",
    "node silent",
    "all workers killed",
    "worker restarted",
    "spot notice",
    "drained",
    "worker frozen",
    "trainer hangs",
    "script raises",
    "connection reset",
    "all connections reset",
    "peers disconnected",
    "master killed",
    "master's host gone",
    "master stopped",
    "master frozen",
    "master's clock set",
    "second master",
    "master and workers killed",
    "store killed",
    "store killed at a write",
    "store lost writes",
    "store refuses",
    "store slow",
    "worker cut off",
    "master cut off",
    "master cut off from store",
    "calls lost and doubled",
    "workers misled",
    "scaled",
    "suspended",
    "resumed",
    "checkpoint asked for",
    "storage broken or mended",
    "checkpoint corrupted",
    *OF_PROFILES,
)
"""Names of all faults; `Cluster._choices` implements them."""


@dataclass
class Cluster:
    """Starts masters and workers, and injects faults until `faults_until`."""

    world: World
    network: Network
    server: StoreServer
    checkers: Checkers
    script: Script
    workers_min: int
    options: LogOptions
    faults_until: float
    faults_per_second: float
    policies: Policies
    takeovers: Takeovers | None = None
    closings: Closings | None = None
    profile: Profile = EVEN
    seed: int = 0
    groups: dict[GroupKey, Group] = field(default_factory=dict)
    links: dict[bytes, Link] = field(default_factory=dict)
    masters: list[MasterModel] = field(default_factory=list)
    workers: dict[str, WorkerModel] = field(default_factory=dict)
    buried: list[WorkerModel] = field(default_factory=list)
    started: int = 0
    injected: dict[str, int] = field(default_factory=dict)
    #: Set by `forgetting` in runs whose store may lose writes with all masters.
    forget_go: Callable[[], None] = lambda: None
    _healed_at: int = 0
    #: The process that has acquired a job last, and reads it.
    _reader: str = ""

    def __post_init__(self) -> None:
        if self.takeovers is not None:
            self.server.renamed = self._renamed
        self.server.scripted = self._scripted
        self.operator = Operator(self.world, self.network, self.checkers, self.serving, "operator")

    def begin(self, workers: int) -> None:
        """Start the workers within half a second, then begin with the faults."""
        for number in range(workers):
            self.world.after(self.world.rng.uniform(0.0, 0.5), lambda number=number: self.start(f"w{number}"))
        for seconds, spot, on_demand in self.policies.prices:
            prices = spot, on_demand
            self.world.after(seconds, lambda prices=prices: self._set_prices(*prices))
        self._plan_fault()
        self.world.after(1.0, self._agents)
        self.world.after(0.2, self._supervise)

    def _set_prices(self, spot: int, on_demand: int) -> None:
        if self.closings is None:  # else the job may be deleted by now
            self.operator.set_prices(spot, on_demand)

    def start_master(self) -> None:
        """Start a master process, whether or not another one runs."""
        offset = self.world.rng.choice(CLOCK_ERRORS_SECONDS) if self.calm_in > 0 else 0.0
        name = f"master-{len(self.masters)}"
        self.world.log(f"{name} starts, its clock is off by {offset:g} s")
        master = MasterModel(
            self.world,
            self.network,
            self.server,
            self.checkers,
            name,
            self.options,
            wall_offset_seconds=offset,
            takeovers=self.takeovers,
            closings=self.closings,
            address=f"host-{len(self.masters) if self.masters_alive else 0}:1",
        )
        master.is_calm = lambda: self.calm_in <= 0 or not self.workers
        master.takes_over = lambda: self._taken_over(master)
        self.masters.append(master)

    def _taken_over(self, leader: MasterModel) -> None:
        for master in self.masters:
            if master is not leader:
                master.follows_a_sync = False
        if leader.follows_a_sync and not self.profile.loses_takeovers:
            self.server.sync()  # a write of the dead master may have arrived since then
        self.follow_up("takeover")

    def _renamed(self, key: bytes, holder: bytes) -> None:
        # A store that lost a renewal of the lease may grant it to another master before the holder renews it
        # again. Then only the jobs' fencing tokens prevent writes of the old one.
        forgot = self.world.now - self.server.forgot_at < self.takeovers.lease_seconds
        if key == LEASE and not forgot:
            check_granted(self.world, self.masters_alive, holder)

    def _scripted(self, text: str, process: str, done: bool) -> None:
        if not done and text in (ACQUIRE, TAKE) and self.profile.loses_takeovers:
            self.server.sync()  # afterwards no older master's write can arrive
        if done and text == ACQUIRE and self.started:  # else the job is being created
            self._reader = process
            self.follow_up("acquired")

    def start(self, name: str) -> None:
        """Start a worker process, unless one of that name runs or the job is over."""
        running = self.workers.get(name)
        if self.is_over or (running is not None and running.is_alive):
            return
        self.started += 1
        if running is not None:
            self.buried.append(running)
        worker = WorkerModel(
            self.world,
            self.network,
            self.checkers,
            self.script,
            self.groups,
            self.links,
            self.serving,
            name,
            self.started,
            unlike.draw(self.seed, name, self.started),
        )
        self.workers[name] = worker
        worker.start()

    # ------------------------------------------------------------------ what there is

    @property
    def calm_in(self) -> float:
        return self.faults_until - self.world.now

    @property
    def alive(self) -> list[WorkerModel]:
        """Workers whose process runs, frozen or not."""
        return [worker for worker in self.workers.values() if worker.is_alive]

    @property
    def masters_alive(self) -> list[MasterModel]:
        return [master for master in self.masters if master.process.alive]

    def serving(self) -> list[MasterModel]:
        """Return the masters that a connection may reach. A dead host's silence is modelled as a cut link."""
        return [master for master in self.masters_alive if master.serving]

    @property
    def newest(self) -> MasterModel | None:
        serving = self.serving()
        leading = (master for master in reversed(serving) if master.host is not None)
        return next(leading, serving[-1]) if serving else None

    @property
    def phase(self) -> str:
        """Phase of the job as the newest master knows it; "" if none serves."""
        host = self.newest.host if self.newest is not None else None
        return host.machine.state.phase if host is not None else ""

    @property
    def _members(self) -> list[WorkerModel]:
        """Workers of the ring as the newest master knows it, leader first, whose process runs."""
        host = self.newest.host if self.newest is not None else None
        names = host.machine.state.ring.names() if host is not None else ()
        return [
            worker for name in names if (worker := self.workers.get(name)) is not None and worker.is_alive
        ]

    @property
    def is_over(self) -> bool:
        """True if the job has succeeded or was cancelled.

        A failed job is not over: it fails when random errors hit one step three times, and is then resumed.
        """
        return self.phase in ("succeeded", "cancelled")

    @property
    def is_settled(self) -> bool:
        """True if everything that the newest master decided is stored, and no other master took over."""
        host = self.newest.host if self.newest is not None else None
        return host is not None and host.log.failure is None and host.log.pending is None

    @property
    def store_is_whole(self) -> bool:
        """True if masters have rewritten what the store lost; until then only their memory holds it."""
        table = self.server.data.get(FENCE, {})
        return self.server.is_up and int(table.get(b"sequence", b"0")) >= self._healed_at

    # ------------------------------------------------------------------ supervisor and agents

    def _supervise(self) -> None:
        """Keep the wanted number of masters running."""
        if not self.masters_alive:
            self.world.after(self.world.rng.choice((0.02, 0.3, 2.0)), self._replace_master)
        elif self.takeovers is not None and len(self.masters_alive) < self.takeovers.masters:
            if self.store_is_whole:
                self.start_master()
            self.world.after(self.world.rng.choice((0.2, 1.0)), self._supervise)
        else:
            self.world.after(0.2, self._supervise)

    def _replace_master(self) -> None:
        if not self.masters_alive:
            # No process remembers what the previous master acknowledged, so it must be on the disk by now.
            self.server.sync()
            self.start_master()
            self.masters[-1].follows_a_sync = True
        self.world.after(0.2, self._supervise)

    def _agents(self) -> None:
        """Restart workers: few during the faults, enough of them afterwards."""
        calm = self.calm_in <= 0
        phase = self.phase
        for worker in self.alive:
            told_at = worker.told_to_end_at
            if told_at is not None and self.world.now - told_at > OVER_GRACE_SECONDS:
                worker.kill()  # its agent kills a worker that does not end when told to
        wanted = max(self.workers_min, 1) if calm else 1
        if calm and self.script.pipeline is not None:  # as many may be needed to hold the model
            wanted = self.script.ests
        if calm and phase in ("suspended", "failed", "max_wait_exceeded"):
            self.operator.resume()
        if calm and self.operator.scaled is not None:
            low, high = self.operator.scaled
            wanted = max(wanted, min(high, self.script.ests) if self.policies.fixed else low)
        wants_workers = phase not in (
            "suspended", "failed", "succeeded", "cancelled", "max_wait_exceeded", ""
        )  # fmt: skip
        if wants_workers and len(self.alive) < wanted and (calm or self.world.rng.random() < 0.3):
            at_once = wanted - len(self.alive) if calm and self.policies.max_wait_seconds else 1
            for _ in range(at_once):
                self.start(f"w{self.started}")
        # Continue even when the job is over: the store may lose its end, and workers are needed again.
        self.world.after(1.0, self._agents)

    # ------------------------------------------------------------------ faults

    def _plan_fault(self) -> None:
        self.world.after(self.world.rng.expovariate(self.faults_per_second), self._fault)

    def _fault(self) -> None:
        if self.calm_in <= 0 or self.is_over:
            self.world.storage_broken = False
            return
        names, actions, even = zip(*self._choices(), strict=True)
        weights = [self.profile.weight(name, weight) for name, weight in zip(names, even, strict=True)]
        place = self.world.rng.choices(range(len(names)), weights)[0]
        self._inject(names[place], actions[place])
        self._plan_fault()

    def _inject(self, name: str, action: Callable[[], object]) -> None:
        self.injected[name] = self.injected.get(name, 0) + 1
        action()

    def follow_up(self, event: str) -> None:
        """Let faults follow an event, as the run's profile says."""
        for follow_up in self.profile.follow_ups:
            if follow_up.event == event and self.calm_in > 0 and self.world.rng.random() < follow_up.share:
                seconds = self.world.rng.choice(follow_up.seconds)
                self.world.after(seconds, lambda name=follow_up.fault: self._inject_named(name))

    def _inject_named(self, fault: str) -> None:
        if self.calm_in > 0 and not self.is_over:
            action = next(action for name, action, _ in self._choices() if name == fault)
            self._inject(fault, action)

    def _choices(self) -> list[tuple[str, Callable[[], object], float]]:
        rng, worker, master, store = self.world.rng, self._worker, self._master, self.server
        down = rng.choice((0.02, 0.3, 2.0))
        freeze = rng.choice(FREEZES_SECONDS)
        lease = [(CLOCK, self._set_store_clock, 0.5)] if self.takeovers is not None else []
        return [
            *lease,
            ("worker starts", lambda: self.start(f"w{self.started}"), 4),
            ("worker killed", lambda: worker(lambda w: w.kill()), 3),
            ("node silent", lambda: worker(lambda w: w.kill(is_silent=True)), 1),
            ("all workers killed", lambda: [w.kill() for w in self.alive], 1),
            ("worker restarted", lambda: worker(self._restart), 2),
            ("spot notice", lambda: worker(lambda w: w.leave()), 2),
            ("drained", lambda: worker(lambda w: self.operator.drain(w.name)), 1),
            ("worker frozen", lambda: worker(lambda w: w.process.freeze(freeze)), 1.5),
            ("trainer hangs", lambda: worker(self._hang), 1),
            ("script raises", lambda: worker(self._raise), 1),
            ("connection reset", lambda: worker(lambda w: w.blip()), 2),
            ("all connections reset", lambda: [w.blip() for w in self.alive], 0.5),
            ("peers disconnected", self._disturb_group, 1),
            ("master killed", lambda: master(lambda m: m.kill()), 2),
            ("master's host gone", lambda: master(lambda m: m.kill(silent=True)), 0.5),
            ("master stopped", lambda: master(self._stop), 1),
            ("master frozen", lambda: master(lambda m: m.process.freeze(freeze)), 1),
            ("master's clock set", lambda: master(self._set_clock), 0.5),
            ("second master", self._second_master, 2),
            ("master and workers killed", self._crash_all, 1),
            ("store killed", lambda: store.crash(down), 1),
            ("store killed at a write", lambda: self._crash_store_at_write(down), 1.5),
            ("store lost writes", self._lose_writes, 0.7),
            ("store refuses", self._refuse, 0.7),
            ("store slow", self._slow, 0.7),
            ("worker cut off", lambda: worker(lambda w: self._cut(w.name, self._master_names)), 2),
            ("master cut off", lambda: master(lambda m: self._cut(m.name, list(self.workers))), 1),
            ("master cut off from store", lambda: master(lambda m: self._cut(m.name, [PLACE])), 1.5),
            ("calls lost and doubled", self._trouble_calls, 1),
            ("workers misled", self._mislead, 0.7),
            ("scaled", self._scale, 1),
            ("suspended", self.operator.suspend, 0.5),
            ("resumed", self.operator.resume, 1),
            ("checkpoint asked for", self.operator.checkpoint, 1),
            ("storage broken or mended", self._break_storage, 0.5),
            ("checkpoint corrupted", self._corrupt, 0.3),
            ("all but one worker killed", self._kill_all_but_one, 0),
            ("one worker cut off and all others killed", self._strand_one, 0),
            ("master and a worker restarted", self._restart_pair, 0),
            ("rival master", self._rival_master, 0),
            ("reading master overtaken", self._overtake_reading, 0),
            (GO_FORGOTTEN, self.forget_go, 0),
        ]  # fmt: skip

    def _worker(self, action: Callable[[WorkerModel], object]) -> None:
        if self.alive:
            action(self.world.rng.choice(self.alive))

    def _master(self, action: Callable[[MasterModel], object]) -> None:
        """Apply a fault to a random master, unless acknowledged writes are only in masters' memory."""
        if self.masters_alive and self.store_is_whole:
            action(self.world.rng.choice(self.masters_alive))

    def kill_leader(self) -> None:
        """Kill the master that serves now."""
        if self.newest is not None:
            self.newest.kill()

    def _second_master(self) -> None:
        """Start another master while the first runs, sometimes two at once, sometimes with a slow store."""
        if not self.store_is_whole:
            return
        self.start_master()
        if self.world.rng.random() < 0.4:
            self._slow()
            self.world.after(self.world.rng.uniform(0.0, 1.0), self._third_master)

    def _rival_master(self) -> None:
        """Start another master while the one that leads is cut off from the store, and does not know."""
        leader = self.newest
        if leader is None or not self.store_is_whole or len(self.masters_alive) > 2:
            return
        self.network.cut(leader.name, [PLACE], self.world.rng.choice(CUTS_SECONDS[1:4]))
        self.start_master()

    def _overtake_reading(self) -> None:
        """Stop a master while it reads a job; another one takes the job over and writes meanwhile."""
        reader = next((master for master in self.masters_alive if master.name == self._reader), None)
        if reader is None or not self.store_is_whole or len(self.masters_alive) > 4:
            return
        reader.process.freeze(self.world.rng.choice(FREEZES_SECONDS[1:4]))
        self.start_master()

    def _third_master(self) -> None:
        if self.store_is_whole and self.calm_in > 0:
            self.start_master()

    def _stop(self, master: MasterModel) -> None:
        """Send SIGTERM to a master, often while the store is slow, so that its last writes take long."""
        if self.world.rng.random() < 0.6:
            self._slow()
        master.stop()

    def _set_clock(self, master: MasterModel) -> None:
        """Make a running master's wall clock jump."""
        master.process.wall_offset_seconds = self.world.rng.choice(CLOCK_ERRORS_SECONDS)

    def _set_store_clock(self) -> None:
        """Set the store's clock back, so that a lease expires later than it should."""
        seconds = self.world.rng.choice((2.0, 3600.0))
        self.world.log(f"STORE's clock is set back by {seconds:g} s")
        self.server.clock_offset_seconds -= seconds

    @property
    def _master_names(self) -> list[str]:
        return [master.name for master in self.masters_alive]

    def _restart(self, worker: WorkerModel) -> None:
        """Kill a worker and restart it under its name, before or after the master notices its death."""
        worker.kill()
        self.world.after(self.world.rng.choice((0.0001, 0.5)), lambda: self.start(worker.name))

    def _hang(self, worker: WorkerModel) -> None:
        worker.hangs = True

    def _raise(self, worker: WorkerModel) -> None:
        worker.raises = True

    def _disturb_group(self) -> None:
        groups = [worker.group for worker in self.alive if worker.group is not None]
        if groups:
            self.world.rng.choice(groups).disturb()

    def _crash_all(self) -> None:
        """Kill the master and some workers at once."""
        self._master(lambda master: master.kill())
        for worker in self.alive:
            if self.world.rng.random() < 0.4:
                worker.kill()

    def _restart_pair(self) -> None:
        """Restart the master and one worker; another one stands still, and the next master awaits it.

        In a ring of three or more neither is the leader, which comes back between the two.
        """
        members = self._members
        self._master(lambda master: master.kill())
        if len(members) < 3:
            self._worker(self._restart)
            self._worker(lambda worker: worker.process.freeze(self.world.rng.choice(FREEZES_SECONDS[1:3])))
            return
        lost, away = self.world.rng.sample(members[1:], 2)
        away.process.freeze(FREEZES_SECONDS[2])
        members[0].process.freeze(FREEZES_SECONDS[1])
        lost.kill()
        self.start(lost.name)

    def _kill_all_but_one(self) -> None:
        """Kill all workers but one, which stands still until those in its place nearly have its step."""
        if not self.alive or any(worker.process.frozen for worker in self.alive):
            return
        holders = [worker for worker in self.alive if worker.protocol.holds_state]
        away = self.world.rng.choice(holders or self.alive)
        away.process.freeze(AWAY_SECONDS_MAX)
        self._replace_all_but(away)
        self._wake_at(away, away.protocol.applied_step - self.world.rng.choice(STEPS_BEFORE))

    def _strand_one(self) -> None:
        """Cut one worker off until it counts as dead; kill all others, and again when it has come back."""
        if not self.alive:
            return
        rng, away = self.world.rng, self.world.rng.choice(self.alive)
        seconds = rng.uniform(*STRANDED_SECONDS)
        self.network.cut(away.name, self._master_names, seconds)
        self._replace_all_but(away)
        self.world.after(seconds + rng.uniform(0.1, 0.5), lambda: self._replace_all_but(away))

    def _replace_all_but(self, away: WorkerModel) -> None:
        for worker in self.alive:
            if worker is not away:
                worker.kill()
        for _ in range(max(self.workers_min, 1)):
            self.start(f"w{self.started}")

    def _wake_at(self, away: WorkerModel, step: int) -> None:
        """Wake a worker when one of a newer ring has applied so many steps."""
        newer = [other for other in self.alive if other.protocol.generation > away.protocol.generation]
        if any(other.protocol.applied_step >= step for other in newer):
            away.process.wake()
        elif away.process.frozen and away.is_alive:
            self.world.after(0.02, lambda: self._wake_at(away, step))

    def _crash_store_at_write(self, down_seconds: float) -> None:
        self.server.crash_next = self.world.rng.choice(("before", "after"))
        self.server.down_seconds = down_seconds

    def _lose_writes(self) -> None:
        """Cut the power of the store's host while a live master has everything in its memory."""
        master = self.newest
        if master is None or master.host is None or self.masters_alive != [master] or master.process.frozen:
            return
        if master.host.stopping or not self.network.passes(master.name, PLACE):
            return
        # Writes that a previous master acknowledged within the last seconds are in no process's memory.
        is_old = master.follows_a_sync or self.world.now - master.leading_since > LOST_SECONDS_MAX
        if self.store_is_whole and is_old:
            self._healed_at = int(self.server.data[FENCE][b"sequence"]) + 1
            self.server.crash(self.world.rng.choice((0.02, 0.3)), lose=True)

    def forgot(self) -> None:
        """Reset the expectations after a loss of all masters and the store's newest acknowledged writes."""
        self._healed_at = 0
        known = self.checkers.forgotten(self.server)
        for key in [key for key in self.groups if key[0] > known]:
            del self.groups[key]
        self.operator.losses += 1
        if self.operator.scaled is not None:
            self.operator.scale(*self.operator.scaled)

    def _refuse(self) -> None:
        self.world.log("STORE refuses")
        self.server.refuses_until = self.world.now + self.world.rng.choice((0.1, 2.0))

    def _slow(self) -> None:
        self.world.log("STORE is slow")
        self.server.slow_until = self.world.now + self.world.rng.choice((1.0, 4.0))

    def _cut(self, one: str, others: list[str]) -> None:
        rng = self.world.rng
        to, back = rng.choice(((True, True), (True, False), (False, True)))
        self.network.cut(one, others, min(rng.choice(CUTS_SECONDS), max(self.calm_in, 0.1)), to=to, back=back)

    def _trouble_calls(self) -> None:
        self.world.log("NETWORK loses and doubles calls")
        self.network.troubled_until = min(self.world.now + 3.0, self.faults_until)

    def _mislead(self) -> None:
        """Reset all connections, while one of the masters' addresses leads to a master of another store."""
        self.world.log("NETWORK leads workers to a master of another store")
        self.network.misleads_until = min(self.world.now + 5.0, self.faults_until)
        for worker in self.alive:
            worker.blip()

    def _scale(self) -> None:
        low = self.world.rng.randint(1, max(1, self.script.ests // 2))
        high = self.world.rng.randint(low, self.script.ests)
        self.operator.scale(low, high)

    def _break_storage(self) -> None:
        self.world.storage_broken = not self.world.storage_broken

    def _corrupt(self) -> None:
        if self.world.checkpoints:
            self.world.rng.choice(self.world.checkpoints).corrupt = True
