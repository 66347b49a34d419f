"""Feeds a RunsMachine what users and well-behaved runners say, and keeps what it answers."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import effects, events
from elastane_master.decisions.runs.events import AttemptKey, Endpoint, RankReport, RankStatus
from elastane_master.decisions.runs.machine import RunsMachine
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Runner
from elastane_master.decisions.runs.spec import CodeRef, RunSpec
from elastane_master.decisions.runs.state import ServiceSettings

Wanted = TypeVar("Wanted", bound=effects.RunnerMessage)
SPEC = RunSpec(
    output_model_name="model",
    framework="plain",
    instances=1,
    code=CodeRef(installed=True),
    command=("train",),
)
ELASTIC = msgspec.structs.replace(SPEC, framework="elastane", instances=4)


def spec(**changes: Any) -> RunSpec:
    """A black box that can be accepted, with changes."""
    return msgspec.structs.replace(SPEC, **changes)


class RunsDriver:
    """sent: (runner, message) since the last `take`. ended: runs, as often as they came to an end."""

    def __init__(self, settings: ServiceSettings | None = None) -> None:
        self.machine = RunsMachine.create(settings)
        self.now = 1000.0
        self.effects: list[effects.RunsEffect] = []
        self.sent: list[tuple[str, Any]] = []
        self.ended: list[int] = []
        self.sessions: dict[str, str] = {}
        self.ports = 5000

    # ------------------------------------------------------------------ events

    def do(self, event: events.RunsEvent, *, after: float = 0.001) -> Any:
        """Handle one event, and check what must hold for each. Returns the result."""
        self.now += after
        before = self.machine.snapshot()
        try:
            decision = self.machine.handle(event, self.now)  # type: ignore[arg-type]
        except Rejection:
            assert self.machine.snapshot() == before, event
            raise
        after_snapshot = self.machine.snapshot()
        assert decision.durable == (after_snapshot != before), event
        assert RunsMachine.restore(after_snapshot).snapshot() == after_snapshot
        self.effects = decision.effects
        for effect in decision.effects:
            match effect:
                case effects.SendToRunner(runner, session, message):
                    assert self.sessions[runner] == session
                    self.sent.append((runner, message))
                case effects.RunEnded(run_id):
                    self.ended.append(run_id)
        return decision.result

    def tick(self, *, after: float = 0.0) -> None:
        self.do(events.Tick(), after=after)

    def tick_due(self) -> None:
        """Let time pass until the next deadline."""
        due = self.machine.next_deadline()
        assert due is not None
        self.do(events.Tick(), after=max(0.0, due - self.now))

    def submit(
        self,
        owner: str = "ann",
        request_id: str = "",
        client_key: str = "",
        slots_max: int | None = None,
        **changes: Any,
    ) -> int:
        event = events.RunSubmitted(spec(**changes), owner, request_id, client_key, slots_max=slots_max)
        result: events.Submitted = self.do(event)
        return result.run_id

    def cancel(self, run_id: int) -> None:
        self.do(events.RunCancelRequested(run_id, by="ann"))

    def join(self, runner: str, slots: int = 4, *reports: RankReport, **changes: Any) -> None:
        number = int(self.sessions.get(runner, "x-0").rpartition("-")[2]) + 1
        self.sessions[runner] = f"{runner}-{number}"
        hello = events.RunnerJoined(
            runner, self.sessions[runner], f"host-{runner}", "process", slots, ranks=reports
        )
        self.do(msgspec.structs.replace(hello, **changes))

    def lose_stream(self, runner: str) -> None:
        self.do(events.RunnerStreamLost(runner, self.sessions[runner], self.now))

    def lose(self, runner: str) -> None:
        """Its stream ends, and its lease too."""
        self.lose_stream(runner)
        self.tick(after=self.machine.state.settings.lease_seconds)

    def prepared(self, runner: str, prepare: effects.Prepare) -> None:
        endpoints = tuple(
            Endpoint(rank, f"host-{runner}", self.ports + place) for place, rank in enumerate(prepare.ranks)
        )
        self.ports += len(endpoints)
        self.do(events.LaunchPrepared(runner, self.sessions[runner], prepare.attempt, endpoints))

    def rank(
        self,
        runner: str,
        key: AttemptKey,
        rank: int,
        state: Any,
        exit_code: int = 0,
        last_line: str = "",
        reason: str = "",
    ) -> None:
        status = RankStatus(rank, state, exit_code=exit_code, last_line=last_line, reason=reason)
        report = RankReport(key, status)
        self.do(events.RankChanged(runner, self.sessions[runner], report))

    def stopped(self, runner: str, key: AttemptKey) -> None:
        self.do(events.AttemptStopped(runner, self.sessions[runner], key))

    def prepare_all(self) -> None:
        """Runners answer every Prepare that was sent."""
        for runner, prepare in self.take_with_runner(effects.Prepare):
            self.prepared(runner, prepare)

    def start_all(self) -> None:
        """Runners make every launch: prepare, and start what they are asked to."""
        self.prepare_all()
        for runner, start in self.take_with_runner(effects.Start):
            for rank in self.ranks_of(start.attempt.run_id, runner):
                self.rank(runner, start.attempt, rank, "running")

    def stop_all(self) -> None:
        """Runners confirm every Stop."""
        for runner, stop in self.take_with_runner(effects.Stop):
            self.stopped(runner, stop.attempt)

    def finish(self, run_id: int, exit_code: int = 0) -> None:
        """All instances of a run that runs end with this code."""
        key = self.key(run_id)
        for record in list(self.run(run_id).ranks):
            if record.placed and self.run(run_id).launch is not None:
                self.rank(record.runner_id, key, record.rank, "exited", exit_code)

    def restart(self) -> None:
        """The master is killed, and another one takes over."""
        self.machine = RunsMachine.restore(self.machine.snapshot())
        self.do(events.MasterStarted("master", self.machine.state.settings))

    # ------------------------------------------------------------------ what there is

    def run(self, run_id: int) -> Run:
        return self.machine.state.runs[run_id]

    def runner(self, runner: str) -> Runner:
        return self.machine.state.runners[runner]

    def state(self, run_id: int) -> str:
        return self.run(run_id).state

    def key(self, run_id: int) -> AttemptKey:
        launch = self.run(run_id).launch
        assert launch is not None
        return AttemptKey(run_id, launch.attempt, launch.fence)

    def ranks_of(self, run_id: int, runner: str) -> list[int]:
        return [
            one.rank
            for one in self.run(run_id).ranks
            if one.runner_id == runner and one.state in ("starting", "running")
        ]

    def reports(self, run_id: int, runner: str, state: Any = "running") -> tuple[RankReport, ...]:
        """What a runner's Hello says of its instances of a run."""
        key = self.key(run_id)
        ranks = [one.rank for one in self.run(run_id).ranks if one.runner_id == runner and one.placed]
        return tuple(RankReport(key, RankStatus(rank, state)) for rank in ranks)

    def take_with_runner(self, kind: type[Wanted]) -> list[tuple[str, Wanted]]:
        """Remove and return the messages of a kind that were sent."""
        found = [(runner, message) for runner, message in self.sent if isinstance(message, kind)]
        self.sent = [one for one in self.sent if not isinstance(one[1], kind)]
        return found

    def take(self, kind: type[Wanted]) -> list[Wanted]:
        return [message for _, message in self.take_with_runner(kind)]
