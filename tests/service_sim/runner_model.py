"""A runner and its processes, as they really are: what the master hears may be late, lost or false.

Instances outlive their runner's process; only the death of the host ends them. A runner that returns reports
what it has, repeats what it is asked to repeat, and never starts an instance twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elastane_master.decisions.runs import effects, events
from elastane_master.decisions.runs.events import AttemptKey, Endpoint, RankReport, RankStatus
from sim.world import World


@dataclass
class Process:
    """One instance. state: as reported. slots: that it takes while it lives."""

    key: AttemptKey
    rank: int
    instances: int
    slots: int
    state: Any = "prepared"
    exit_code: int = 0
    started_at: float = 0.0
    stopping: bool = False
    port: int = 0

    @property
    def lives(self) -> bool:
        return self.state not in ("exited", "lost")


@dataclass
class RunnerModel:
    """A runner on its host.

    session: of its stream; "" without one. lies: it starts nothing; lied: it did so. deaf: it stops nothing.
    said_leaving: so, and has not begun a new stream since.
    """

    name: str
    slots: int
    kind: Any
    world: World
    watch: Any
    script: Callable[[AttemptKey, int], tuple[float, int]]
    labels: dict[str, str] = field(default_factory=dict)
    device_type: str = ""
    session: str = ""
    sessions: int = 0
    host_up: bool = True
    running: bool = True
    lies: bool = False
    leaving: bool = False
    deaf: bool = False
    lied: bool = False
    said_leaving: bool = False
    connected_at: float = 0.0
    processes: dict[tuple[AttemptKey, int], Process] = field(default_factory=dict)
    ports: int = 5000
    send: Callable[[events.RunsEvent], None] = lambda event: None

    # ------------------------------------------------------------------ its stream

    def hello(self) -> events.RunnerJoined:
        """Begin a new stream."""
        self.sessions += 1
        self.session = f"{self.name}-{self.sessions}"
        self.connected_at = self.world.now
        self.said_leaving = False
        ranks = tuple(
            RankReport(one.key, self.status(one))
            for one in self.processes.values()
            if not (self.lies and one.state == "prepared")
        )
        return events.RunnerJoined(
            self.name,
            self.session,
            self.name,
            self.kind,
            self.slots,
            self.labels,
            ranks=ranks,
            device_type=self.device_type,
        )

    @staticmethod
    def status(process: Process) -> RankStatus:
        return RankStatus(process.rank, process.state, exit_code=process.exit_code)

    def receive(self, message: effects.RunnerMessage) -> None:
        """Carry out what the master asks."""
        match message:
            case effects.Prepare():
                self._prepare(message)
            case effects.Start():
                self._start(message)
            case effects.Stop():
                self._stop(message)
            case effects.Forget(attempt):
                for place in [place for place, one in self.processes.items() if one.key == attempt]:
                    if not self.processes[place].lives:
                        del self.processes[place]

    def _prepare(self, message: effects.Prepare) -> None:
        if self.lies:
            return
        key = message.attempt
        fails = self.world.rng.random() < self.watch.launch_failure_rate
        if fails and not any(one.lives and one.key == key for one in self.processes.values()):
            for rank in message.ranks:
                self.processes.pop((key, rank), None)
            permanent = self.world.rng.random() < 0.05
            self.send(events.LaunchFailed(self.name, self.session, key, "disk full", permanent))
            return
        endpoints = []
        for rank in message.ranks:
            old = self.processes.get((key, rank))
            if old is None or not old.lives:
                slots = message.spec.slots_per_instance or 1
                self.ports += 1
                old = Process(key, rank, message.instances, slots, port=self.ports)
                self.processes[key, rank] = old
                self.watch.prepared(self, old)
            endpoints.append(Endpoint(rank, self.name, old.port))
        self.send(events.LaunchPrepared(self.name, self.session, key, tuple(endpoints)))

    def _start(self, message: effects.Start) -> None:
        if self.lies:
            return
        asked = {one.rank for one in message.endpoints}
        for (key, rank), process in list(self.processes.items()):
            if key != message.attempt or rank not in asked:
                continue
            if process.state == "prepared" and not process.stopping:
                self.watch.starts(self, process, message)
                process.state, process.started_at = "running", self.world.now
                seconds, exit_code = self.script(process.key, process.rank)
                self.world.after(seconds, lambda one=process, code=exit_code: self.exit(one, code))
            self.report(process)

    def _stop(self, message: effects.Stop) -> None:
        if self.deaf:
            return
        mine = [
            one
            for one in self.processes.values()
            if one.key == message.attempt and (message.rank is None or one.rank == message.rank)
        ]
        silent = not any(one.lives for one in mine)
        for process in mine:
            if process.lives and not process.stopping:
                process.stopping = True
                if process.state == "running":
                    delay = self.world.rng.uniform(0.0, 1.2) * message.grace_seconds
                    delay = min(delay, message.grace_seconds)
                    code = 143 if delay < message.grace_seconds else 137
                    self.world.after(delay, lambda one=process, code=code: self.exit(one, code))
                else:
                    self.exit(process, 143)
        if message.rank is not None and silent:
            gone = RankStatus(message.rank, "exited", exit_code=143)
            self.send(events.RankChanged(self.name, self.session, RankReport(message.attempt, gone)))
        self._confirm(message.attempt)

    def _confirm(self, key: AttemptKey) -> None:
        """Say that nothing of a launch runs here, once that is so."""
        if not any(one.lives for one in self.processes.values() if one.key == key):
            self.send(events.AttemptStopped(self.name, self.session, key))

    def report(self, process: Process) -> None:
        self.send(events.RankChanged(self.name, self.session, RankReport(process.key, self.status(process))))

    # ------------------------------------------------------------------ its processes

    def exit(self, process: Process, exit_code: int) -> None:
        """A process ends; the runner notices as soon as it runs."""
        if not process.lives or self.processes.get((process.key, process.rank)) is not process:
            return
        process.state, process.exit_code = "exited", exit_code
        self.watch.exited(self, process)
        if self.running and self.session:
            self.report(process)
            if process.stopping:
                self._confirm(process.key)

    def lose_process(self, process: Process) -> None:
        """A container is taken away."""
        if process.lives and self.processes.get((process.key, process.rank)) is process:
            process.state = "lost"
            self.watch.lost(process)
            if self.running and self.session:
                self.report(process)

    def die(self) -> None:
        """The host is gone, with all that ran on it."""
        self.host_up = self.running = False
        self.session = ""
        for process in self.processes.values():
            if process.lives:
                process.state = "lost"
            self.watch.lost(process)  # what it had ended with may be unknown, too
        self.processes.clear()

    @property
    def slots_taken(self) -> int:
        """Slots of living instances."""
        return sum(one.slots for one in self.processes.values() if one.lives)
