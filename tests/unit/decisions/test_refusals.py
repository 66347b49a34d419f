"""Events drawn at random, many of them spoiled: a refused one leaves the state as it was, to the byte."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
from job_driver import JobDriver, settings

from elastane_master.decisions import events
from elastane_shards.settings import QueueSettings

SEEDS = 60
EVENTS = 300
WORKERS = ("a", "b", "c")
NUMBERS = (-1, 0, 1, 2, 5, 2000)
PAUSES = (0.0, *[0.001] * 10, *[0.05] * 10, 30.0)
SPOILED = {"generation", "step", "applied_step", "shard", "rank", "max_tasks", "watermark", "workers_max"}
"""Fields that are replaced by other numbers."""

MUST_REFUSE = {  # the functions that refuse; each must have done so, or the test sees too little
    "_check_report",
    "_check_ranks",
    "_check_reports",
    "_checkpoint",
    "_queue",
    "_require_not_over",
    "_resume",
    "_reporting_member",
    "_set_prices",
    "loaded",
    "ready",
    "report",
    "reported",
    "require_bringable",
    "require_equal",
    "require_known",
    "require_newest",
    "require_ranks",
}


class Fuzzer(JobDriver):
    """Draws events that fit the job's state, and spoils some of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        url = self.rng.choice(("", "file:///checkpoints"))
        sentinel = self.rng.choice((0, 1))
        super().__init__(settings(4, workers_min=2, checkpoint_url=url, sentinel_steps=sentinel))
        self.sessions = 0
        self.refusals: list[str] = []

    def run(self, count: int) -> None:
        for _ in range(count):
            event = self.rng.choice(self.draws)(self)
            if event is None:
                continue
            try:
                self.do(self.spoiled(event), after=self.rng.choice(PAUSES))
            except events.Rejection as refusal:
                raised = [frame.name for frame in traceback.extract_tb(refusal.__traceback__)]
                self.refusals += raised[-3:]

    def spoiled(self, event: events.Event) -> events.Event:
        fields = [name for name in event.__struct_fields__ if name in SPOILED]
        if not fields or self.rng.random() < 0.7:
            return event
        return msgspec.structs.replace(event, **{self.rng.choice(fields): self.rng.choice(NUMBERS)})

    # ------------------------------------------------------------------ what workers and operators say

    def anybody(self) -> str:
        return self.rng.choice(sorted(self.state.workers) or WORKERS)

    def hello(self) -> events.Event:
        self.sessions += 1
        signature = self.signature
        if self.rng.random() < 0.2:
            size, epochs = self.rng.choice(((65, -1), (64, -1), (-1, signature.epochs)))
            signature = msgspec.structs.replace(signature, dataset_size=size, epochs=epochs)
        return events.WorkerJoined(
            self.rng.choice(WORKERS),
            f"s{self.sessions}",
            self.rng.choice(("ring", "ring", "ring", "tasks")),
            signature,
            "host",
            1,
            f"host:{self.rng.randrange(2)}",
            generation=self.rng.choice((0, self.generation, self.generation + 1, 3000)),
            applied_step=self.state.steps.committed,
            holds_state=self.rng.random() < 0.5,
            history_generation=self.rng.choice((0, self.state.history_generation)),
        )

    def of_session(self, kind: type[events.Event], *fields: Any, **more: Any) -> events.Event | None:
        worker = self.anybody()
        record = self.state.workers.get(worker)
        return kind(worker, record.session, *fields, **more) if record is not None else None

    def readiness(self) -> events.Event | None:
        applied = self.rng.choice((0, self.state.steps.committed, self.state.steps.prepared + 1))
        return self.of_session(events.ReadyReported, self.generation, applied, self.rng.random() < 0.5)

    def load(self) -> events.Event | None:
        end = self.rng.choice((4, 4, 4, 3))
        loaded = events.LoadedReported("", "", self.generation, 0, self.deltas(0, 0, end), (2, 1))
        leader = self.rng.choice((*self.members[:1], self.anybody()))
        record = self.state.workers.get(leader)
        return msgspec.structs.replace(loaded, worker=leader, session=record.session) if record else None

    def step_report(self) -> events.Event | None:
        silent = [name for name in self.members if name not in self.state.steps.reports]
        worker, step = self.rng.choice(silent or self.members or WORKERS), self.state.steps.current
        member, record = self.state.ring.member(worker), self.state.workers.get(worker)
        if member is None or record is None:
            return None
        end = self.rng.choice((member.end, member.end, member.end, member.end + 1))
        tasks = tuple(events.StepTask(rank, 0, 2) for rank in range(member.start, member.end))
        deltas = self.deltas(step + 1, member.start, end)
        return events.StepReported(worker, record.session, self.generation, step, step // 10, deltas, tasks)

    def check(self) -> events.Event | None:
        check = self.state.sentinel.check
        step, rank = (check.step, check.rank) if check is not None else (0, 0)
        return self.of_session(events.CheckReported, self.generation, step, rank, self.rng.choice("xxxy"))

    def interval(self) -> events.Event | None:
        ranks = self.rng.choice(((), (0,), (1, 0), (7,)))
        contexts = tuple(events.ContextDelta(rank, {"rng/python": b"x"}) for rank in ranks)
        return self.of_session(
            events.IntervalReported, self.generation, self.state.steps.current, True, contexts=contexts
        )

    def save(self) -> events.Event | None:
        flight = self.state.checkpoints.in_flight
        if flight is None:
            return None
        worker = self.rng.choice(flight.workers)
        record = self.state.workers.get(worker)
        if record is None:
            return None
        error = self.rng.choice(("", "", "disk full"))
        shard, complete = flight.workers.index(worker), self.rng.random() < 0.3
        return events.SavedReported(
            worker, record.session, flight.checkpoint, flight.step, shard, "f", "s", 8, error, complete
        )

    def request(self) -> events.Event:
        name = f"r{self.rng.randrange(40)}"
        return self.rng.choice(
            (
                events.ScaleRequested(name, 1, self.rng.randrange(6)),
                events.SuspendRequested(name),
                events.ResumeRequested(name),
                events.CheckpointRequested(name),
                events.DrainRequested(name, self.rng.choice(WORKERS)),
                events.PricesRequested(name, self.rng.choice((-1, 5)), None, self.rng.choice(("", "EUR"))),
                *([events.CancelRequested(name)] if self.rng.random() < 0.05 else []),
            )
        )

    def dataset(self) -> events.Event:
        name = self.rng.choice(("d", "e", "train"))
        size = self.rng.choice((None, 6, -1))
        wanted = QueueSettings(1, size, watermark=None if size else 3)
        report = events.TaskReport(0, self.rng.randrange(8), self.rng.choice((0, 1, 1)))
        return self.rng.choice(
            (
                events.DatasetCreated("", name, wanted),
                events.DatasetExtended("", name, self.rng.randrange(6), self.rng.random() < 0.1),
                events.TasksRequested(f"t{self.rng.randrange(9)}", name, "w", (report,), 2),
            )
        )

    draws: tuple[Callable[[Fuzzer], events.Event | None], ...] = (
        hello,
        readiness,
        readiness,
        load,
        step_report,
        step_report,
        step_report,
        check,
        interval,
        save,
        save,
        request,
        dataset,
        lambda self: self.of_session(
            events.AppliedReported, self.generation, self.state.steps.prepared + 1, self.rng.random() < 0.1
        ),
        lambda self: (
            self.of_session(events.ByeReported, self.rng.choice(("finished", "failed")), "", 3)
            if self.rng.random() < 0.1
            else None
        ),
        lambda self: self.of_session(events.StreamLost, "EOF") if self.rng.random() < 0.1 else None,
        lambda self: events.MasterStarted("m") if self.rng.random() < 0.1 else None,
        lambda self: events.Tick(),
    )


def test_a_refused_event_changes_nothing_whatever_came_before() -> None:
    refusing: set[str] = set()
    formed = 0
    for seed in range(SEEDS):
        job = Fuzzer(seed)
        job.run(EVENTS)
        refusing |= set(job.refusals)
        formed += bool(job.noted("ring_formed"))
    assert formed > SEEDS / 10, "too few rings trained for their refusals to be seen"
    assert refusing >= MUST_REFUSE, MUST_REFUSE - refusing
