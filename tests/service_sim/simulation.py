"""One seed: a service with its users and runners under faults, then without, until every run has ended."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import effects, events, placement
from elastane_master.decisions.runs.events import AttemptKey
from elastane_master.decisions.runs.run import OVER
from elastane_master.decisions.runs.spec import CodeRef, RunSpec, resolved
from elastane_master.decisions.runs.state import ServiceSettings
from service_sim.checkers import Checkers, RunTruth
from service_sim.lying_policy import POLICY, TYPES, LyingPolicy
from service_sim.master_model import MasterModel
from service_sim.profiles import FAULTS, Profile, profile_of
from service_sim.runner_model import RunnerModel
from sim.world import BEGIN, SimulationError, World

SETTINGS = ServiceSettings(
    lease_seconds=20.0,
    prepare_seconds=15.0,
    starvation_seconds=60.0,
    retry_seconds=2.0,
    retry_seconds_max=16.0,
    relaunch_seconds_max=8.0,
    pause_seconds=10.0,
    pause_seconds_max=40.0,
    quiet_seconds=10.0,
    runner_keep_seconds=100.0,
)
FAULTY_SECONDS = 120.0
QUIET_SECONDS = 3000.0
AFTER_SECONDS = 15.0
"""After the last run has ended: all that was given up must be gone."""
EVENTS_MAX = 60_000
TRACE_LINES = 80
STRICT_EVERY = 4
"""Of so many seeds one compares the state before and after each event."""
STALE_SECONDS = 7.0
"""More than any grace period, and what messages take."""
BUSY_EVERY = 16
"""Of so many seeds one is of a service that is always busy."""
BUSY_SECONDS = 400.0
BUSY_RUN_SECONDS = 10.0
INJECTED = (*FAULTS, "old message", "job scales")
"""Every fault that there is."""


@dataclass
class Job:
    """A job of JobService. phase: "running" until it is over. needs: workers."""

    name: str
    run_id: int
    phase: Any = "running"
    done_seconds: float = 0.0


@dataclass
class Simulation:
    """A seed's world, put together. injected: faults that happened."""

    seed: int
    profile: Profile = field(init=False)
    world: World = field(init=False)
    checkers: Checkers = field(init=False)
    master: MasterModel = field(init=False)
    runners: dict[str, RunnerModel] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    injected: dict[str, int] = field(default_factory=dict)
    faulty: bool = True
    submissions: list[events.RunSubmitted] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    #: Runs whose record the master was asked to write.
    recorded: set[int] = field(default_factory=set)
    stale: dict[tuple[str, AttemptKey, int, int], float] = field(default_factory=dict)
    trace: list[tuple[float, tuple[object, ...]]] = field(default_factory=list)
    profiles: dict[int, tuple[float, float]] = field(default_factory=dict)
    policy: LyingPolicy | None = None

    def __post_init__(self) -> None:
        self.profile = profile_of(self.seed)
        self.world = World(random.Random(self.seed))
        self.checkers = Checkers(self.world, SETTINGS.lease_seconds)
        settings = SETTINGS
        if self.profile.lying_policy:
            self.policy = LyingPolicy(self.rng)
            settings = msgspec.structs.replace(
                settings, scheduling_policy=POLICY, reshape_seconds=self.rng.choice((0.0, 5.0))
            )
        self.master = MasterModel(self.world, self.checkers, settings, self.carry, on_kill=self.streams_lost)
        self.checkers.runners = self.runners
        self.master.strict = self.seed % STRICT_EVERY == 0

    @property
    def rng(self) -> random.Random:
        return self.world.rng

    def note(self, *what: object) -> None:
        """Add a line to the trace; it becomes text only if it is shown."""
        self.trace.append((self.world.now - BEGIN, what))

    def trace_text(self, lines: int | None) -> str:
        """The last lines of the trace; None: all."""
        shown = self.trace if lines is None else self.trace[-lines:]
        return "\n".join(f"{at:9.4f} {' '.join(map(str, what))}" for at, what in shown)

    # ------------------------------------------------------------------ the wire

    def carry(self, effect: effects.RunsEffect) -> None:
        """Carry out an effect."""
        match effect:
            case effects.SendToRunner(name, session, message):
                self.checkers.sent(name, message)
                self.checkers.takes_back(self.master.machine, message)
                self.world.after(self.delay(), lambda: self.to_runner(name, session, message))
            case effects.CreateElasticJob(run_id, job):
                self.world.after(0.01, lambda: self.create_job(run_id, job))
            case effects.CancelElasticJob(run_id, job):
                self.world.after(0.01, lambda: self.end_job(run_id, job, "cancelled"))
            case effects.WriteRecord(run_id):
                self.recorded.add(run_id)
                self.world.after(self.delay(), lambda: self.master.deliver(events.RecordWritten(run_id)))

    def delay(self) -> float:
        """Messages of one stream keep their order: all take equally long."""
        return 0.02

    def to_runner(self, name: str, session: str, message: effects.RunnerMessage) -> None:
        runner = self.runners[name]
        if runner.session == session and runner.running and self.master.up:
            self.note("->", name, message)
            runner.receive(message)

    def from_runner(self, runner: RunnerModel, event: Any) -> None:
        session = runner.session
        if not session or not runner.running:
            return
        epoch = self.master.epoch

        def arrive() -> None:
            if self.master.up and self.master.epoch == epoch and runner.session == session:
                self.note("<-", event)
                self.checkers.heard(runner.name)
                if isinstance(event, events.AttemptStopped):
                    self.checkers.unanswered.pop((runner.name, event.attempt), None)
                self.master.deliver(event)
                if self.faulty and self.rng.random() < 0.03:
                    self.inject("old message")
                    self.world.after(self.rng.uniform(0, 5), lambda: self.repeat(event))

        self.world.after(self.delay(), arrive)
        if isinstance(event, events.LaunchPrepared):
            self.lose_early(runner, event)

    def lose_early(self, runner: RunnerModel, event: events.LaunchPrepared) -> None:
        """An instance may be lost between its preparation and its start, while messages about it cross."""
        share = self.profile.lost_early
        if not share or not self.faulty or self.rng.random() >= share:
            return
        rank = self.rng.choice(event.endpoints).rank
        if (process := runner.processes.get((event.attempt, rank))) is not None:
            self.inject("process lost")
            self.world.after(self.rng.uniform(0.0, 0.06), lambda: runner.lose_process(process))

    def repeat(self, event: Any) -> None:
        """A message arrives twice, maybe after its stream has ended."""
        runner = self.runners[event.runner_id]
        if isinstance(event, events.RunnerJoined):
            return
        record = self.master.machine.state.runners.get(event.runner_id)
        present = record is not None and record.session == event.session  # as far as the master knows
        if isinstance(event, events.LaunchPrepared | events.LaunchFailed | events.AttemptStopped) and present:
            return  # of the present stream these are not repeated unasked
        if isinstance(event, events.RankChanged) and present:
            key = (event.report.attempt, event.report.status.rank)
            process = runner.processes.get(key)
            if process is None or process.state != event.report.status.state:
                return
        self.master.deliver(event)

    def connect(self, runner: RunnerModel) -> None:
        """A runner begins a stream, if it can."""
        if not (runner.running and runner.host_up) or runner.session:
            return
        if not self.master.up:
            self.world.after(1.0, lambda: self.connect(runner))
            return
        runner.send = lambda event: self.from_runner(runner, event)
        hello = runner.hello()
        self.note("<-", hello)
        self.checkers.heard(runner.name)
        self.checkers.stopping.clear()  # it is asked to stop again, and waited for
        self.master.deliver(hello)

    def disconnect(self, runner: RunnerModel, notice_seconds: float, back_seconds: float | None) -> None:
        """A stream ends; the master notices later, and the runner comes back, or not."""
        session = runner.session
        if not session:
            return
        runner.session = ""
        heard_at = self.master.clock
        self.world.after(
            notice_seconds,
            lambda: self.master.deliver(events.RunnerStreamLost(runner.name, session, heard_at)),
        )
        if back_seconds is not None:
            self.world.after(back_seconds, lambda: self.connect(runner))

    def streams_lost(self) -> None:
        """The master is gone: runners try again until there is one."""
        self.checkers.master_stopped()
        for runner in self.runners.values():
            if runner.session:
                runner.session = ""
                self.world.after(self.rng.uniform(0.5, 4.0), lambda one=runner: self.connect(one))
        self.world.after(self.rng.uniform(0.2, 15.0), self.master.start)
        self.world.after(16.0, self.report_jobs)

    def heartbeat(self) -> None:
        """Streams that last show that their runner lives."""
        if self.master.up:
            for runner in self.runners.values():
                if runner.session:
                    self.checkers.heard(runner.name)
        if self.master.up:
            self.checkers.noticed(self.master.machine)
            self.checkers.counted_once(self.master.machine)
        self.look_for_stale()
        self.world.after(2.0, self.heartbeat)

    def look_for_stale(self) -> None:
        """What was given up is stopped as soon as its runner is back."""
        runs, now = self.master.machine.state.runs, self.world.now
        stale: dict[tuple[str, AttemptKey, int, int], float] = {}
        for runner in self.runners.values():
            if not (self.master.up and runner.session) or runner.deaf or runner.lies:
                continue
            for process in runner.processes.values():
                run = runs.get(process.key.run_id)
                given_up = run is None or run.launch is None or run.launch.fence != process.key.fence
                if run is not None and not given_up:
                    record = run.ranks[process.rank]
                    given_up = record.runner_id != runner.name or not record.placed
                if process.lives and given_up:
                    place = (runner.name, process.key, process.rank, process.port)
                    since = stale[place] = self.stale.get(place, now)
                    if now - since > STALE_SECONDS:
                        self.world.fail("what is given up is stopped", f"{process} on {runner.name}")
        self.stale = stale

    # ------------------------------------------------------------------ elastic jobs

    def create_job(self, run_id: int, name: str) -> None:
        if name not in self.jobs:
            self.jobs[name] = Job(name, run_id)
            self.job_works(self.jobs[name])
        elif self.jobs[name].phase != "running":
            self.report_job(self.jobs[name])

    def job_works(self, job: Job) -> None:
        """A job goes on while it has workers."""
        if job.phase != "running":
            return
        if any(
            one.state == "running" and f"run-{one.key.run_id}-{one.key.attempt}" == job.name
            for runner in self.runners.values()
            for one in runner.processes.values()
        ):
            job.done_seconds += 1.0
        if job.done_seconds >= self.profiles[job.run_id][0]:
            self.end_job(job.run_id, job.name, "succeeded")
        else:
            self.world.after(1.0, lambda: self.job_works(job))

    def end_job(self, run_id: int, name: str, phase: Any) -> None:
        job = self.jobs.setdefault(name, Job(name, run_id))
        if job.phase == "running":
            job.phase = phase
        self.report_job(job)

    def report_job(self, job: Job) -> None:
        self.master.deliver(events.ElasticJobEnded(job.run_id, job.name, job.phase))
        for runner in self.runners.values():
            for one in list(runner.processes.values()):
                if one.state == "running" and f"run-{one.key.run_id}-{one.key.attempt}" == job.name:
                    self.world.after(self.rng.uniform(0.1, 2.0), lambda r=runner, p=one: r.exit(p, 0))

    def report_jobs(self) -> None:
        for job in self.jobs.values():
            if job.phase != "running":
                self.report_job(job)

    # ------------------------------------------------------------------ users

    def submit(self) -> None:
        """A user submits a run, and asks again if there is no answer."""
        rng = self.rng
        elastic = rng.random() < self.profile.elastic_share
        instances = rng.choice(self.profile.instances)
        least = rng.randint(1, instances) if elastic else 0
        spec = RunSpec(
            output_model_name="model",
            framework="elastane" if elastic else "plain",
            instances=instances,
            instances_min=least,
            parameter_servers=least // 2,
            slots_per_instance=rng.choice((1, 1, 1, 2)),
            code=CodeRef(installed=True),
            command=("train",),
            priority=rng.choice((0, 0, 0, 5, -5)),
            retries_max=rng.choice((0, 1, 3)),
            run_time_max_seconds=rng.choice((None, None, 60.0)),
            grace_seconds=rng.choice((0.5, 3.0, 5.0)),
            runner_labels={"gpu": "yes"} if rng.random() < 0.15 else {},
        )
        key = f"key-{len(self.submissions)}"
        event = events.RunSubmitted(
            spec,
            rng.choice(("ann", "bob")),
            request_id=key,
            client_key=key if rng.random() < 0.3 else "",
            data="preparing" if rng.random() < 0.15 else "ready",
        )
        self.submissions.append(event)
        self.send_submission(event)

    def send_submission(self, event: events.RunSubmitted) -> None:
        if not self.master.up:
            self.world.after(1.0, lambda: self.send_submission(event))
            return
        expected = self.master.machine.state.next_run_id
        demand = resolved(event.spec)
        if event.request_id not in self.ids:
            self.checkers.runs[expected] = RunTruth(
                expected, not demand.elastic, demand.instances, demand.retries_max
            )
            seconds = self.rng.choice(self.profile.seconds)
            self.profiles[expected] = (self.rng.uniform(*seconds), self.rng.random())
        result: Any = self.master.handle(event)
        if self.ids.setdefault(event.request_id, result.run_id) != result.run_id:
            self.world.fail("a repeated request takes effect once", f"{event.request_id}: {result}")
        self.note("run", result.run_id, event.spec.framework, demand)
        if event.data == "preparing" and result.created:
            verdict = self.rng.choice(("ready", "ready", "missing"))
            self.world.after(self.rng.uniform(1, 30), lambda: self.resolve(result.run_id, verdict))
        if not self.master.up or self.rng.random() < 0.1:  # the answer was lost
            self.world.after(self.rng.uniform(1.0, 5.0), lambda: self.send_submission(event))

    def resolve(self, run_id: int, verdict: Any) -> None:
        if not self.master.up:
            self.world.after(2.0, lambda: self.resolve(run_id, verdict))
            return
        self.master.deliver(events.DataResolved(run_id, verdict, reason=f"{verdict} data"))

    def ask(self) -> None:
        """A user cancels, retries, moves or deletes a run."""
        if not self.ids or not self.master.up:
            return
        run_id = self.rng.choice(sorted(self.ids.values()))
        run, truth = self.master.machine.state.runs.get(run_id), self.checkers.runs[run_id]
        if run is None:
            return
        kind = self.rng.choice(("cancel", "cancel", "retry", "priority", "delete"))
        over = run.state in OVER
        self.note("user", kind, run_id)
        try:
            match kind:
                case "cancel":
                    if not over:
                        truth.cancelled = True
                    self.master.handle(events.RunCancelRequested(run_id))
                case "retry":
                    truth.retry_pending = run.state in ("failed", "cancelled")
                    truth.retried += truth.retry_pending
                    self.master.handle(events.RunRetryRequested(run_id))
                    self.world.after(5.0, lambda: self.resolve(run_id, "ready"))
                case "priority":
                    self.master.handle(events.PriorityChanged(run_id, self.rng.choice((-9, 0, 9))))
                case "delete":
                    truth.deleted = truth.deleted or over
                    self.master.handle(events.RunDeleted(run_id))
        except Rejection as refusal:
            if kind == "cancel" or (kind in ("retry", "delete") and truth.seen in ("failed", "cancelled")):
                self.world.fail("users are served", f"{kind} {run_id}: {refusal}")

    # ------------------------------------------------------------------ scripts

    def script(self, key: AttemptKey, rank: int) -> tuple[float, int]:
        """How long an instance runs, and how it ends."""
        seconds, luck = self.profiles[key.run_id]
        if not self.checkers.runs[key.run_id].gang:
            if self.faulty and self.rng.random() < 0.1:
                return self.rng.uniform(0.5, seconds), self.rng.choice((137, 137, 1))
            return 1e6, 0  # its job ends it
        if luck < 0.2 and self.faulty and self.rng.random() < 0.5:
            return self.rng.uniform(0.0, seconds), self.rng.choice((1, 137, 137, 255))
        return seconds * self.rng.uniform(0.9, 1.1), 0

    # ------------------------------------------------------------------ faults

    def inject(self, fault: str) -> None:
        self.injected[fault] = self.injected.get(fault, 0) + 1
        self.note("FAULT", fault)

    def fault(self) -> None:
        """One random fault."""
        rng = self.rng
        fault = rng.choice(self.profile.faults)
        runner = self.runners[rng.choice(sorted(self.runners))]
        if not runner.host_up and fault not in ("master killed", "clock set back"):
            return
        self.inject(fault)
        lease = SETTINGS.lease_seconds
        match fault:
            case "stream lost":
                self.disconnect(runner, rng.uniform(0, 3), rng.uniform(0.5, lease - 1))
            case "runner silent":
                self.disconnect(runner, rng.uniform(0, lease), rng.uniform(lease - 5, 3 * lease))
            case "runner restarted":
                runner.running = False
                self.disconnect(runner, rng.uniform(0, 2), None)
                self.world.after(rng.uniform(0.5, 1.5 * lease), lambda: self.restart_runner(runner))
            case "host died":
                self.disconnect(runner, rng.uniform(0, lease), None)
                runner.die()
                self.world.after(rng.uniform(1, 3 * lease), lambda: self.new_host(runner))
            case "process lost":
                living = [one for one in runner.processes.values() if one.lives]
                if living:
                    runner.lose_process(rng.choice(living))
            case "runner lies":
                runner.lies = runner.lied = True
                self.world.after(rng.uniform(10, 60), lambda: self.cure(runner))
            case "runner deaf":
                runner.deaf = True
                self.world.after(rng.uniform(10, 60), lambda: self.cure(runner))
            case "runner leaves":
                runner.leaving = runner.said_leaving = True
                runner.send(events.RunnerLeft(runner.name, runner.session, "scaled down"))
                self.world.after(rng.uniform(20, 60), lambda: self.restart_runner(runner))
            case "master killed" if self.master.up:
                self.master.kill()
            case "master killed in a decision":
                if rng.random() < 0.5:
                    self.master.kill_at_event = self.master.events + rng.randint(1, 10)
                else:
                    self.master.kill_at_job = True
            case "job scales":
                running = [job for name, job in sorted(self.jobs.items()) if job.phase == "running"]
                if running:
                    job = rng.choice(running)
                    self.master.deliver(events.ElasticJobScaled(job.run_id, job.name, rng.randint(0, 6)))
            case "clock set back":
                seconds = rng.uniform(0, 10)
                self.master.clock_offset -= seconds
                self.checkers.set_back_seconds += seconds
                self.master.ticking = None
                if self.master.up:
                    self.master.wake()

    def restart_runner(self, runner: RunnerModel) -> None:
        """The runner's process is started again, and finds its instances."""
        if runner.host_up:
            runner.running, runner.leaving = True, False
            if runner.session:
                self.disconnect(runner, 0.5, 1.0)
            else:
                self.connect(runner)

    def new_host(self, runner: RunnerModel) -> None:
        runner.host_up = runner.running = True
        runner.leaving = False
        self.connect(runner)

    def cure(self, runner: RunnerModel) -> None:
        """A false runner is repaired: it is started again."""
        runner.lies = runner.deaf = False
        if runner.host_up and runner.running:
            if runner.session:
                self.disconnect(runner, 0.5, 1.0)
            else:
                self.connect(runner)

    def decide(self) -> None:
        """The scheduling policy decides, also when all else goes well."""
        if self.master.up and self.policy is not None:
            event = self.policy.decide(self.master.machine.state)
            self.note("policy", event)
            self.master.deliver(event)
        self.world.after(self.rng.uniform(0.5, 10.0), self.decide)

    # ------------------------------------------------------------------ the run

    def run(self) -> None:
        """Raises SimulationError if a property does not hold."""
        rng = self.rng
        for number in range(rng.randint(*self.profile.runners)):
            name = f"r{number}"
            labels = {"gpu": "yes"} if number == 0 else {}
            device_type = TYPES[number % 2] if self.policy is not None else ""
            runner = RunnerModel(
                name,
                rng.randint(*self.profile.slots),
                "process",
                self.world,
                self.checkers,
                self.script,
                labels,
                device_type,
            )
            self.runners[name] = runner
            self.world.after(rng.uniform(0, 3), lambda one=runner: self.connect(one))
        self.checkers.launch_failure_rate = rng.choice((0.0, 0.0, 0.05))
        for _ in range(rng.randint(3, 9)):
            self.world.after(rng.uniform(0, FAULTY_SECONDS * 0.7), self.submit)
        for _ in range(rng.randint(0, 6)):
            self.world.after(rng.uniform(0, FAULTY_SECONDS), self.ask)
        for _ in range(rng.choice((0, 1, 2, 4, 8))):
            self.world.after(rng.uniform(0, FAULTY_SECONDS), self.fault)
        if self.policy is not None:
            self.world.after(rng.uniform(0, 10), self.decide)
        self.heartbeat()
        self.world.run_until(lambda: False, BEGIN + FAULTY_SECONDS, EVENTS_MAX)
        self.end_faults()
        ended = self.world.run_until(self.all_over, BEGIN + QUIET_SECONDS, EVENTS_MAX)
        if self.world.failure is not None:
            raise self.world.failure
        if not ended:
            left = [run for run in self.master.machine.state.runs.values() if self.must_end(run)]
            self.world.fail("everybody's wait is bounded", f"{left[:1]}")
        self.world.run_until(lambda: False, self.world.now + AFTER_SECONDS, EVENTS_MAX)
        self.check_end()
        if self.world.failure is not None:
            raise self.world.failure

    def end_faults(self) -> None:
        """From now on all goes well."""
        self.faulty = False
        self.checkers.launch_failure_rate = 0.0
        self.master.kill_at_event, self.master.kill_at_job = -1, False
        for runner in self.runners.values():
            self.world.after(self.rng.uniform(0, 5), lambda one=runner: self.new_host(one))
            if runner.lies or runner.deaf or runner.leaving:
                self.world.after(6.0, lambda one=runner: self.cure(one))
                runner.leaving = False

    def must_end(self, run: Any) -> bool:
        """True for a run that goes on, or that the runners that there are can carry."""
        goes_on = run.launch is not None or not placement.obstacle(run, self.master.machine.state.runners)
        return run.state not in OVER and goes_on

    def all_over(self) -> bool:
        if not self.master.up or len(self.ids) < len(self.submissions):
            return False
        if self.world.now < BEGIN + FAULTY_SECONDS + 10 or not all(r.session for r in self.runners.values()):
            return False
        return not any(self.must_end(run) for run in self.master.machine.state.runs.values())

    def check_end(self) -> None:
        """Nothing of what users submitted is missing, and nothing is left behind."""
        machine = self.master.machine
        self.checkers.consistent(machine)
        if machine.state.records_due:
            self.world.fail("every end is recorded", f"runs {machine.state.records_due} have no record")
        for run in machine.state.runs.values():
            if run.state in OVER and not run.attempt and run.run_id not in self.recorded:
                self.world.fail(
                    "every end is recorded", f"run {run.run_id} never had a runner, and no record"
                )
        for runner in self.runners.values():
            current = {run.launch.fence for run in machine.state.runs.values() if run.launch}
            left = [one for one in runner.processes.values() if one.lives and one.key.fence not in current]
            record = machine.state.runners.get(runner.name)
            if left or (record is not None and record.slots_used):
                self.world.fail("what is given up is stopped", f"{runner.name}: {left}, {record}")
        if self.master.replay().snapshot() != machine.snapshot():
            self.world.fail("a replay has the same state", "at the end")
        for job in self.jobs.values():
            run = machine.state.runs.get(job.run_id)
            if job.phase == "running" and (run is None or run.state in OVER):
                self.world.fail("jobs end with their runs", job.name)
        for run_id in self.ids.values():
            run, truth = machine.state.runs.get(run_id), self.checkers.runs[run_id]
            if run is None and not truth.deleted:
                self.world.fail("nothing is lost", f"run {run_id}")
            if run is not None and truth.cancelled and run.state != "cancelled":
                self.world.fail("cancel ends cancelled", f"run {run_id} is {run.state}: {run.reason}")

    # ------------------------------------------------------------------ a service that is always busy

    def run_busy(self) -> None:
        """More small runs of high priority than there is room for; large ones of low priority get their turn.

        Raises SimulationError if one waits for longer than it takes to serve those that had waited before it,
        each with one of the others in between.
        """
        rng = self.rng
        slots = rng.randint(2, 4)
        runner = RunnerModel("r0", slots, "process", self.world, self.checkers, self.script)
        self.runners["r0"] = runner
        self.connect(runner)
        at = 0.0
        while at < BUSY_SECONDS:
            self.world.after(at, lambda: self.submit_busy(1, 5))
            at += rng.uniform(0.0, 2 * 0.8 * BUSY_RUN_SECONDS / slots)
        for _ in range(rng.randint(1, 2)):
            self.world.after(rng.uniform(20, 60), lambda: self.submit_busy(slots, -5))
        self.heartbeat()
        self.world.run_until(lambda: False, BEGIN + BUSY_SECONDS, EVENTS_MAX)
        if self.world.failure is not None:
            raise self.world.failure

    def submit_busy(self, instances: int, priority: int) -> None:
        spec = RunSpec(
            output_model_name="model",
            framework="plain",
            instances=instances,
            code=CodeRef(installed=True),
            command=("train",),
            priority=priority,
        )
        event = events.RunSubmitted(spec, self.rng.choice(("ann", "bob")))
        run_id = self.master.machine.state.next_run_id
        self.checkers.runs[run_id] = RunTruth(run_id, True, instances, 0)
        self.profiles[run_id] = (self.rng.uniform(0.5, 1.5) * BUSY_RUN_SECONDS, 1.0)
        before = len(self.master.machine.index.waiting)
        self.master.handle(event)
        if instances > 1:
            bound = SETTINGS.starvation_seconds + (before + 3) * 2 * (1.7 * BUSY_RUN_SECONDS)
            self.world.after(bound, lambda: self.check_started(run_id, bound))

    def check_started(self, run_id: int, bound: float) -> None:
        run = self.master.machine.state.runs[run_id]
        if run.attempt == 0:
            self.world.fail("everybody's wait is bounded", f"run {run_id} has waited for {bound:.0f} s")


@dataclass
class Outcome:
    """A seed that held."""

    simulation: Simulation
    checkers: Checkers
    injected: dict[str, int]


def simulate(seed: int, trace_lines: int | None = TRACE_LINES) -> Outcome:
    """Run one seed. Raises SimulationError with the last `trace_lines` of its trace; None: all of them."""
    simulation = Simulation(seed)
    try:
        if seed % BUSY_EVERY == BUSY_EVERY - 1:
            simulation.run_busy()
        else:
            simulation.run()
    except SimulationError as error:
        text = str(error).removeprefix(f"{error.checker}: ")
        shown = simulation.trace_text(trace_lines)
        raise SimulationError(error.checker, f"{text} (seed {seed})\n{shown}") from None
    return Outcome(simulation, simulation.checkers, simulation.injected)
