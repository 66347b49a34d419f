"""The agents, the operator and the faults of one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elastane_master.decisions import events
from elastane_master.decisions.state import OVER
from sim.master_model import MasterModel
from sim.network import Group
from sim.worker_model import Script, WorkerModel
from sim.world import World


@dataclass
class Cluster:
    """Starts workers, and makes things go wrong until `faults_until`."""

    world: World
    master: MasterModel
    script: Script
    faults_until: float
    faults_per_second: float
    groups: dict[int, Group] = field(default_factory=dict)
    workers: dict[str, WorkerModel] = field(default_factory=dict)
    started: int = 0
    requests: int = 0

    def begin(self, workers: int) -> None:
        """The first workers come within half a second, then the faults begin."""
        for number in range(workers):
            self.world.after(self.world.rng.uniform(0.0, 0.5), lambda number=number: self.start(f"w{number}"))
        self._plan_fault()
        self.world.after(1.0, self._agents)

    def start(self, name: str) -> None:
        """Starts a process, unless one of that name runs or the job is over."""
        running = self.workers.get(name)
        if self.master.machine.state.phase in OVER or (running is not None and running.is_alive):
            return
        self.started += 1
        worker = WorkerModel(self.world, self.master, self.script, self.groups, name, self.started)
        self.workers[name] = worker
        worker.start()

    @property
    def alive(self) -> list[WorkerModel]:
        """Processes that run, frozen or not."""
        return [worker for worker in self.workers.values() if worker.is_alive]

    @property
    def is_over(self) -> bool:
        """A job that failed, because random errors hit one step three times, is resumed by its operator."""
        return self.master.machine.state.phase in ("succeeded", "cancelled")

    def usable_holders(self) -> list[str]:
        """Attending processes whose weights the job could go on from, as far as the master can know."""
        state = self.master.machine.state
        saved_step = max((saved.step for saved in self.world.checkpoints if not saved.corrupt), default=-1)
        return [
            worker.name
            for worker in self.alive
            if (record := state.workers.get(worker.name)) is not None
            and worker.stream is not None
            and record.session == worker.stream.session
            and worker.holds_state
            and worker.said_bye is None
            and not record.drain_sent
            and worker.name not in state.fenced_claims
            and (
                state.contexts.has(worker.applied)
                or worker.is_in_newest_ring(self.master.checkers.go_generation)
            )
            and worker.applied > saved_step
            # The one EST of such a job cannot be shared for a hand-over, and nothing can be saved.
            and not (record.draining and state.settings.ests == 1 and not state.settings.checkpoint_url)
        ]

    # ------------------------------------------------------------------ agents

    def _agents(self) -> None:
        """Keeps workers coming: few while there are faults, enough of them afterwards."""
        calm = self.world.now >= self.faults_until
        state = self.master.machine.state
        wanted = max(state.settings.workers_min, 1) if calm else 1
        if calm and state.phase in ("suspended", "failed"):
            self._request(events.ResumeRequested(self._request_id()))
        wants_workers = not self.is_over and state.phase not in ("suspended", "failed") and self.master.is_up
        if wants_workers and len(self.alive) < wanted and (calm or self.world.rng.random() < 0.3):
            self.start(f"w{self.started}")
        if not self.is_over:
            self.world.after(1.0, self._agents)

    # ------------------------------------------------------------------ faults

    def _plan_fault(self) -> None:
        self.world.after(self.world.rng.expovariate(self.faults_per_second), self._fault)

    def _fault(self) -> None:
        if self.world.now >= self.faults_until or self.is_over:
            self.world.storage_broken = False
            return
        rng, pick = self.world.rng, self._pick
        choices: list[tuple[float, Callable[[], None]]] = [
            (4, lambda: self.start(f"w{self.started}")),
            (3, lambda: pick(lambda worker: worker.kill())),
            (1, lambda: pick(lambda worker: worker.kill(is_silent=True))),
            (1, lambda: [worker.kill() for worker in self.alive] and None),
            (2, lambda: pick(self._restart)),
            (2, lambda: pick(lambda worker: worker.leave())),
            (1, lambda: pick(self._drain)),
            (1.5, lambda: pick(lambda worker: worker.freeze(rng.choice((0.1, 1.0, 2.9, 3.5, 8.0))))),
            (1, lambda: pick(lambda worker: worker.hang())),
            (1, lambda: pick(lambda worker: worker.fail())),
            (2, lambda: pick(lambda worker: worker.blip())),
            (0.5, lambda: [worker.blip() for worker in self.alive] and None),
            (2, lambda: self.master.crash(rng.choice((0.02, 0.3, 2.0)))),
            (1, self._crash_all),
            (1, self._scale),
            (0.5, lambda: self._request(events.SuspendRequested(self._request_id()))),
            (1, lambda: self._request(events.ResumeRequested(self._request_id()))),
            (1, lambda: self._request(events.CheckpointRequested(self._request_id()))),
            (0.5, self._break_storage),
            (0.3, self._corrupt),
        ]  # fmt: skip
        rng.choices([action for _, action in choices], [weight for weight, _ in choices])[0]()
        self._plan_fault()

    def _pick(self, action: Callable[[WorkerModel], None]) -> None:
        if self.alive:
            action(self.world.rng.choice(self.alive))

    def _restart(self, worker: WorkerModel) -> None:
        """The agent starts a worker anew under its name, before or after the master sees the death."""
        worker.kill()
        self.world.after(self.world.rng.choice((0.0001, 0.5)), lambda: self.start(worker.name))

    def _crash_all(self) -> None:
        """Master and some workers at once."""
        self.master.crash(0.3)
        for worker in self.alive:
            if self.world.rng.random() < 0.4:
                worker.kill()

    def _scale(self) -> None:
        low = self.world.rng.randint(1, max(1, self.script.ests // 2))
        high = self.world.rng.randint(low, self.script.ests + 1)
        self._request(events.ScaleRequested(self._request_id(), low, high))

    def _drain(self, worker: WorkerModel) -> None:
        self._request(events.DrainRequested(self._request_id(), worker.name))

    def _break_storage(self) -> None:
        self.world.storage_broken = not self.world.storage_broken

    def _corrupt(self) -> None:
        if self.world.checkpoints:
            self.world.rng.choice(self.world.checkpoints).corrupt = True

    def _request(self, event: events.Event) -> None:
        self.world.log(f"OPERATOR {event!r}")
        self.master.event(event)

    def _request_id(self) -> str:
        self.requests += 1
        return f"request-{self.requests}"
