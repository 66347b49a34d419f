"""The checked properties. Checkers observe messages, the committed history in the store, and weights.

They compare with the fixed run and do not look at the master's state.

same bits           weights and contexts that a worker holds, saves or receives equal those of the fixed run
one ring            a generation has one ring, one resume step, one history; each EST has one owner in it
monotone            generations and steps grow, on every stream and in the history
answered            a Go is sent only when every member has answered the Prepare of its ring; history is given
                    up only when everybody who was asked has answered
prepared            Prepared is sent only when all N contexts of that step and generation were reported;
                    nothing is applied without it
contexts exist      a Go carries all contexts of its resume step, and what was decided of the code before it
history             committed steps are consecutive; history goes back only by an announced rewind
nothing lost        history is not rewound while a connected process holds it, nor, in a pipeline, while one
                    does whose stream has just broken; a process that was away when a checkpoint was loaded
                    holds an abandoned run, although its bits are the same
time                times of what is stored do not go back, whichever master decided it
no false alarm      a master is fenced only by a newer one; a store is called behind only if it has lost
                    something
fenced              a worker does not begin to change its weights for a ring from which it was evicted, or
                    once it knows a newer one; nor does it say then what it loaded
no write lost       what was acknowledged to a caller is in the store; at the end the history is complete
exactly once        each sample counts once in the committed history
pipelines           see `pipelines`
one owner           an attempt of a task has one holder; a returned task is leased first, and unchanged
no refusal          a well-behaved caller's requests are not refused as wrong
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import grpc

from elastane_cli.audit import audit
from elastane_master.decisions.absent_holders import GRACE_SECONDS_MIN
from elastane_master.decisions.effects import Commit, Note, TaskCommit
from elastane_master.jobs import records
from elastane_master.servers.translate_shard import audit_entries
from elastane_master.store.keys import JobKeys
from elastane_proto.contexts import context_from_proto
from elastane_proto.history.events import (
    HistoryRewound,
    IntervalLost,
    RingAnnounced,
    StragglerReplaced,
    WorkerLost,
)
from elastane_proto.v1 import ring_pb2, shard_pb2
from sim.pipelines import Pipeline, checkpoint_faults, plan_faults
from sim.reference import Context, FixedRuns
from sim.world import StoredShard, World

if TYPE_CHECKING:
    from sim.network import Ended, Stream
    from sim.store_model import StoreServer
    from sim.worker_model import WorkerModel

KEYS = JobKeys.of("job")
HISTORY, EVENTS = KEYS.history.encode(), KEYS.events.encode()
BACK_SECONDS_MAX = 1.0
"""How much earlier than its predecessor an event may be: that a job was created is noted once it is stored,
after the time from which the next master's clock goes on."""
BROKE = "its stream broke without Bye"
WRONG = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND)


@dataclass
class Ring:
    """A generation as announced in messages. owners: worker of each virtual rank."""

    owners: list[str]
    resume_step: int | None = None
    lineage: int | None = None
    prepared: int = -1
    reported: dict[int, set[int]] = field(default_factory=dict)


@dataclass
class Sent:
    """Highest values sent down one stream.

    asked: generation of the last Prepare. leaves: its worker was told to leave, or has said Bye.
    owed_interval: step of a Go that lacks what the code before it drew, which must come next.
    """

    generation: int = 0
    go: int = 0
    asked: int = 0
    leaves: bool = False
    owed_interval: int | None = None
    prepared: dict[int, int] = field(default_factory=dict)


@dataclass
class Checkers:
    """All checkers of one run, called by the models of workers, masters and store.

    standing: generation of the valid commit of each step. next_step: the first step without one.
    prepared_until: steps below it were prepared in the valid history. loaded_generation: the newest in which
    a checkpoint or the initial state was loaded; history continues from there, even if a worker holds more of
    the run before.
    """

    world: World
    ests: int
    steps: int
    fixed: FixedRuns
    saves: bool
    workers: Callable[[], list[WorkerModel]] = list
    follow_up: Callable[[str], None] = lambda event: None
    pipeline: Pipeline | None = None
    return_grace_seconds: float = 0.0
    rings: dict[int, Ring] = field(default_factory=dict)
    standing: dict[int, Commit] = field(default_factory=dict)
    tasks_done: set[tuple[int, int]] = field(default_factory=set)
    next_step: int = 0
    prepared_until: int = 0
    #: The script's code before this step has run and its effect is lost, so no ring may resume at this step.
    lost_before: int = -1
    #: What the script's code before this step drew was decided, in the valid history.
    decided_before: int = -1
    applied_generation: int = 0
    #: Steps that workers have applied ahead of their Prepared, and those that they have undone.
    ahead: int = 0
    undone: int = 0
    loaded_generation: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    _sent: dict[Stream, Sent] = field(default_factory=dict)
    _ready: dict[tuple[str, int], tuple[int, bool]] = field(default_factory=dict)
    _newest_times: dict[bytes, float] = field(default_factory=dict)
    _evicted: dict[str, int] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    #: Steps below it a worker of a pipeline may apply though it knows a newer ring.
    _may_finish: dict[str, int] = field(default_factory=dict)
    _plans: dict[int, bytes] = field(default_factory=dict)
    _forgotten_rings: set[int] = field(default_factory=set)
    #: Members of forgotten rings whose number another ring has now.
    _unaware: dict[int, set[str]] = field(default_factory=dict)
    _announced: dict[int, set[str]] = field(default_factory=dict)
    _formed: set[int] = field(default_factory=set)
    _loads: set[int] = field(default_factory=set)
    _reached: dict[str, int] = field(default_factory=dict)
    _trained_in: dict[str, int] = field(default_factory=dict)
    #: When each worker's last stream ended, and those that a master has called lost since.
    _broke: dict[str, float] = field(default_factory=dict)
    _absent: set[str] = field(default_factory=set)
    _lost: dict[bytes, deque[bytes]] = field(default_factory=dict)
    _has_lost: bool = False
    _holders: dict[tuple[int, int, int], str] = field(default_factory=dict)
    _newest_lease: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    _first_rng: dict[tuple[int, int], bytes] = field(default_factory=dict)

    # ------------------------------------------------------------------ workers

    def applied(self, worker: str, generation: int, lineage: int, step: int, weights: bytes) -> None:
        """Check a worker's weights in `generation` after `step` steps, trained or received."""
        if weights != self.fixed.weights(lineage, step):
            self._broken("same bits", f"{worker} has other weights after {step} steps than the fixed run")
        self._reached[worker] = step
        self._trained_in[worker] = generation
        ring = self.rings[generation]
        if worker not in ring.owners and worker in self._unaware.get(generation, ()):
            return  # it was suspended before its ring was forgotten, and goes on until it is told
        if ring.lineage not in (None, lineage) and generation in self._forgotten_rings:
            # The store lost this ring with all its members; a ring of restarted workers reuses its number.
            self._forgotten_rings.discard(generation)
            ring = self.rings[generation] = Ring(ring.owners, ring.resume_step)
        if ring.lineage not in (None, lineage):
            self._broken(
                "one ring", f"{worker} has the history of {lineage}, its ring that of {ring.lineage}"
            )
        ring.lineage = lineage
        self.applied_generation = max(self.applied_generation, generation)
        if step > max(ring.resume_step or 0, ring.prepared + 1, self._may_finish.get(worker, 0)):
            text = f"{worker} has {step} steps in ring {generation}, where {ring.prepared} was prepared last"
            self._broken("prepared", text)

    def received(self, worker: str, message: ring_pb2.AttendResponse) -> None:
        """Record a message that a worker has received."""
        if message.HasField("welcome"):
            self._asked.pop(worker, None)
            self._may_finish.pop(worker, None)
            self._absent.discard(worker)
            if message.welcome.HasField("prepared_until"):
                self._may_finish[worker] = message.welcome.prepared_until
            generation = message.welcome.generation
            if not message.welcome.resumed:
                self._evicted[worker] = generation
            elif worker in self._evicted:  # a store that has lost the end gives the number to another ring
                self._evicted[worker] = min(self._evicted[worker], generation - 1)
        elif message.HasField("prepare"):
            self._asked[worker] = message.prepare.generation
            if message.prepare.HasField("prepared_until"):
                self._may_finish[worker] = message.prepare.prepared_until

    def planned_change_drops(self, worker: str, step: int, change: ring_pb2.Prepare) -> None:
        """A worker drops a step that it has begun, for a planned change: only one that cannot wait."""
        if "; at once, " not in change.reason:
            self._broken("nothing dropped", f"{worker} drops step {step}: {change.reason}")

    def begins_to_change(self, worker: str, generation: int, step: int | None = None) -> None:
        """Check that a worker that begins to change its weights is still in the ring for which it does.

        step: that it applies, of a pipeline: before it is ready for a newer ring if that is prepared.
        """
        finishes = step is not None and step < self._may_finish.get(worker, 0)
        evicted, asked = self._evicted.get(worker, 0), self._asked.get(worker, 0)
        if generation <= evicted and not finishes:
            text = f"{worker} changes its weights for ring {generation}, and was welcomed anew in {evicted}"
            self._broken("fenced", text)
        if generation < asked and not finishes:
            text = f"{worker} changes its weights for ring {generation}, and knows ring {asked}"
            self._broken("fenced", text)

    def stream_ended(self, worker: str) -> None:
        """Record the end of a worker's stream on which it was welcomed."""
        self._broke[worker] = self.world.now

    def said(self, worker: str, message: ring_pb2.AttendRequest) -> None:
        """Check a message that a worker sends."""
        match message.WhichOneof("message"):
            case "loaded":
                generation, asked = message.loaded.generation, self._asked.get(worker, 0)
                if generation < asked:
                    text = f"{worker} says what it loaded for ring {generation}, and knows ring {asked}"
                    self._broken("fenced", text)
            case "step_report":
                report = message.step_report
                ring = self.rings.get(report.generation)
                if ring is not None:
                    ranks = {task.virtual_rank for task in report.tasks}
                    ring.reported.setdefault(report.step, set()).update(ranks)

    def checkpoint(self, step: int, shards: list[StoredShard]) -> None:
        """Check a checkpoint that has become complete."""
        contexts = {rank: parts for shard in shards for rank, parts in shard.contexts.items()}
        if sorted(contexts) != list(range(self.ests)):
            self._broken(
                "contexts exist", f"a checkpoint of step {step} has the contexts of {sorted(contexts)}"
            )
        for rank, parts in contexts.items():
            self._context(rank, step, parts)
        for fault in checkpoint_faults(self.pipeline, shards) if self.pipeline is not None else ():
            self._broken("same bits", fault)
        for shard in shards:
            if shard.weights != self.fixed.weights(shard.lineage, step):
                self._broken("same bits", f"a checkpoint of step {step} has other weights than the fixed run")

    # ------------------------------------------------------------------ the master's messages

    def sent(self, master: str, stream: Stream, message: ring_pb2.AttendResponse) -> None:
        """Check a message that a master sends down a worker's stream."""
        sent, worker = self._sent.setdefault(stream, Sent()), stream.worker_name
        kind = message.WhichOneof("message")
        body = getattr(message, str(kind))
        self.world.log(f"{master} -> {worker}: {_short(kind, body)}")
        # A planned change comes with a Prepared of the previous ring, which sends nothing after the new Go.
        newest = sent.go if kind == "prepared" else sent.generation
        if kind in ("welcome", "prepare", "load", "go", "prepared"):
            if body.generation < newest:
                self._broken(
                    "monotone", f"{master} sends {kind} of {body.generation} to {worker} after {newest}"
                )
            sent.generation = max(sent.generation, body.generation)
        is_last = kind == "prepared" and body.step == self.steps - 1
        self.follow_up("last prepared" if is_last else str(kind))
        if kind == "go":
            sent.go = body.generation
        if sent.owed_interval is not None and (kind != "interval_decided" or body.step != sent.owed_interval):
            text = f"{worker} got a Go without what the code before step {sent.owed_interval} drew"
            self._broken("contexts exist", text)
        sent.owed_interval = None
        if kind == "interval_decided":
            self.decided_before = body.step
        elif kind == "load":  # nobody holds state: the code runs again
            self.decided_before = -1
        if kind == "prepare" and body.members:
            self._ring(body.generation, list(body.members))
        elif kind == "go":
            self._check_go(stream, worker, body)
        elif kind == "load":
            self._check_asked(stream, body.generation)
            self._check_load(stream, body.generation)
        elif kind == "prepared":
            self._check_prepared(sent, worker, body)
            if body.then_prepare.members:
                self._ring(body.then_prepare.generation, list(body.then_prepare.members))
        if kind == "welcome" and body.HasField("prepared_until"):
            self._check_finishing(worker, body.prepared_until)
        if kind == "prepare":
            sent.asked = body.generation
            if body.HasField("prepared_until"):
                self._check_finishing(worker, body.prepared_until)
        elif kind == "prepared" and body.HasField("then_prepare"):
            sent.asked = body.then_prepare.generation
        elif kind in ("drain", "done"):
            sent.leaves = True

    def _ring(self, generation: int, members: list[ring_pb2.Member]) -> Ring:
        owners: list[str] = []
        for member in members:
            if member.ests.start != len(owners) or member.ests.end <= member.ests.start:
                self._broken("one ring", f"the ranges of virtual ranks of ring {generation} have holes")
            owners += [member.worker_id] * (member.ests.end - member.ests.start)
        known = self.rings.get(generation)
        if known is None:
            if len(owners) != self.ests:
                self._broken("one ring", f"ring {generation} has {len(owners)} virtual ranks")
            known = self.rings[generation] = Ring(owners)
        elif known.owners != owners and generation in self._forgotten_rings:
            self._forgotten_rings.discard(generation)
            self._unaware.setdefault(generation, set()).update(known.owners)
            del self.rings[generation]  # reinsert, so that it comes after the existing ones
            known = self.rings[generation] = Ring(owners)
        elif known.owners != owners:
            self._broken("one ring", f"ring {generation} is {known.owners} and {owners}")
        return known

    def _check_go(self, stream: Stream, worker: str, go: ring_pb2.Go) -> None:
        ring = self._ring(go.generation, list(go.members))
        if ring.resume_step not in (None, go.resume_step):
            text = f"ring {go.generation} resumes at {ring.resume_step} and at {go.resume_step}"
            self._broken("one ring", text)
        ring.resume_step = go.resume_step
        self._check_resume_step(stream, go)
        silent = {member.worker_id for member in go.members if not self._has_answered(member.worker_id, go)}
        if silent:
            text = f"ring {go.generation} goes ahead, {sorted(silent)} have not answered its Prepare"
            self._broken("answered", text)
        if self.pipeline is not None:
            self._check_plan(stream, go)
        mine = [rank for rank, owner in enumerate(ring.owners) if owner == worker]
        if not mine or [context.virtual_rank for context in go.contexts] != mine:
            self._broken("contexts exist", f"{worker} got a Go without the contexts of its {mine}")
        if not go.donors or sorted((*go.donors, *go.receivers)) != list(range(len(go.members))):
            self._broken("one ring", f"donors {go.donors} and receivers {go.receivers} are not all members")
        if go.resume_step == self.decided_before and not go.HasField("interval"):
            # Right only if an event after the one that repeats Go has decided it, durable with it.
            self._sent[stream].owed_interval = go.resume_step
        for context in go.contexts:
            parts = context_from_proto(context)
            fixed = self.fixed.before.get(go.resume_step)
            if fixed is None or parts != fixed[context.virtual_rank]:
                self._context(context.virtual_rank, go.resume_step, parts)

    def _check_finishing(self, worker: str, until: int) -> None:
        """Check that members are told to apply only what is prepared."""
        if self.pipeline is None:
            self._broken(
                "prepared", f"{worker}, in a job without a pipeline, is to apply steps below {until}"
            )
        everybody = set(range(self.ests))
        was_reported = any(ring.reported.get(until - 1) == everybody for ring in self.rings.values())
        resumed = any(ring.resume_step == until for ring in self.rings.values())
        if until > self.prepared_until and not was_reported and not resumed:
            text = f"{worker} is to apply steps below {until}, of which not all were reported"
            self._broken("prepared", text)
        self.prepared_until = max(self.prepared_until, until)

    def _check_plan(self, stream: Stream, go: ring_pb2.Go) -> None:
        """Check the plan of a pipeline, and that its donors hold what is to be taken from them."""
        assert self.pipeline is not None
        stored = {one.name: one.step for one in self.world.checkpoints}
        for fault in plan_faults(self.pipeline, go, stored):
            self._broken("plan", f"ring {go.generation}: {fault}")
        plan = go.pipeline.SerializeToString(deterministic=True)
        if self._plans.setdefault(go.generation, plan) != plan and not self._has_lost:
            self._broken("plan", f"ring {go.generation} has two plans")
        self._check_one_step(stream, go.generation)
        workers = {worker.name: worker for worker in self.workers()}
        for source in go.pipeline.sources:
            for place in source.donors:
                donor = workers.get(go.members[place].worker_id)
                # One that has gone on meanwhile, or was lost, has answered with what it held then.
                if donor is None or donor.protocol.generation >= go.generation or not donor.attends:
                    continue
                lacks = set(range(source.first_unit, source.end_unit)) - set(donor.units)
                if lacks or donor.protocol.applied_step != go.resume_step:
                    text = f"{donor.name} is to give units {sorted(lacks)} at step {go.resume_step}"
                    self._broken("sources", f"{text}, it holds {sorted(donor.units)}")

    def _check_one_step(self, stream: Stream, generation: int) -> None:
        """Check that members of a pipeline's last ring that are ready have applied the same steps."""
        steps = {
            worker.name: worker.protocol.applied_step
            for worker in self.workers()
            if worker.attends and worker.stream is not None and worker.stream.master is stream.master
            if worker.said_bye is None and worker.protocol.generation < generation
            if self._ready.get((worker.name, generation)) == (worker.protocol.applied_step, True)
            if self._trained_in.get(worker.name, 0) == self.applied_generation
        }
        if len(set(steps.values())) > 1 and not self._has_lost:
            self._broken("one step", f"members of ring {self.applied_generation} are at {steps}")

    def _has_answered(self, worker: str, go: ring_pb2.Go) -> bool:
        return (worker, go.generation) in self._ready

    def _check_prepared(self, sent: Sent, worker: str, prepared: ring_pb2.Prepared) -> None:
        generation, step = prepared.generation, prepared.step
        ring = self.rings.get(generation)
        reported = ring.reported.get(step, set()) if ring is not None else set()
        if reported != set(range(self.ests)):
            text = f"Prepared of step {step} in ring {generation}, with the reports of {sorted(reported)}"
            self._broken("prepared", text)
        if step < sent.prepared.get(generation, 0):
            self._broken("monotone", f"{worker} is sent Prepared of {step} after {sent.prepared[generation]}")
        sent.prepared[generation] = step
        if ring is not None:
            ring.prepared = max(ring.prepared, step)
        self.prepared_until = max(self.prepared_until, step + 1)

    def _check_asked(self, stream: Stream, generation: int) -> None:
        """Check that everybody whom a master has asked has answered before it gives up history by a Load.

        Members or not: a worker outside the ring may hold what no member does.
        """
        silent = {
            other.worker_name
            for other, sent in self._sent.items()
            if other.master is stream.master and other.attends and not sent.leaves
            if sent.asked == generation and (other.worker_name, generation) not in self._ready
        }
        if silent:
            text = (
                f"history is given up for ring {generation}, {sorted(silent)} have not answered its Prepare"
            )
            self._broken("answered", text)

    def _check_load(self, stream: Stream, generation: int) -> None:
        """Check a Load: no connected worker may hold a state from which the history could continue."""
        self._loads.add(generation)
        if not self.standing or (self.ests == 1 and not self.saves):
            return  # a single EST that moves cannot be handed over, because its worker leaves first
        ring = self.rings.get(self.applied_generation)
        lineage = ring.lineage if ring is not None else None
        saved = max((saved.step for saved in self.world.checkpoints if not saved.corrupt), default=-1)
        if self.pipeline is not None:
            self._check_one_step(stream, generation)
            held = [_held_by(worker) for worker in self._holders_of(stream, generation, lineage)]
            self._check_units_lost(held, saved)
            newest = max((saved.step for saved in self.world.checkpoints), default=-1)
            self._check_units_lost(
                [*held, *self._absent_ones(lineage)], newest, "workers, some of them absent,"
            )
            return
        for worker in self._holders_of(stream, generation, lineage):
            if worker.name != stream.worker_name and worker.protocol.applied_step > saved:
                text = f"a checkpoint is loaded although {worker.name} holds all {self.next_step} steps"
                self._broken("nothing lost", text)

    def _check_units_lost(
        self, holders: Iterable[tuple[int, set[int]]], saved: int, which: str = "connected workers"
    ) -> None:
        """Check a Load or a Go of a pipeline: those who hold the state hold all units of no later step.

        saved: the step from which it goes on, as far as is known.
        """
        assert self.pipeline is not None
        held: dict[int, set[int]] = {}
        for step, units in holders:
            held.setdefault(step, set()).update(units)
        for step, units in held.items():
            if step > saved and len(units) == self.pipeline.units:
                text = f"history goes back to step {saved}, {which} hold all units at step {step}"
                self._broken("nothing lost", text)

    def _check_resume_step(self, stream: Stream, go: ring_pb2.Go) -> None:
        """Check that no member of the ring has applied more steps of its history than the resume step."""
        before = self.rings.get(self.applied_generation)
        lineage = before.lineage if before is not None else None
        members = {member.worker_id for member in go.members}
        if self.pipeline is not None:
            holders = self._holders_of(stream, go.generation, lineage)
            inside = (_held_by(one) for one in holders if one.name in members)
            self._check_units_lost(inside, go.resume_step, "members")
            return
        for worker in self._holders_of(stream, go.generation, lineage):
            applied = worker.protocol.applied_step
            if (
                worker.name in members
                and worker.protocol.generation < go.generation
                and applied > go.resume_step
            ):
                text = (
                    f"ring {go.generation} goes on from step {go.resume_step}, {worker.name} holds {applied}"
                )
                self._broken("nothing lost", text)

    def _holders_of(self, stream: Stream, generation: int, lineage: int | None) -> Iterator[WorkerModel]:
        """Yield workers of this stream's master that have answered Ready and hold a state to resume from."""
        for worker in self.workers():
            ready = self._ready.get((worker.name, generation))
            if (
                worker.attends
                and worker.stream is not None
                and worker.stream.master is stream.master
                and worker.said_bye is None
                and ready is not None
                and ready == (worker.protocol.applied_step, True)
                and worker.lineage == lineage
                and self._trained_in.get(worker.name, 0) >= self.loaded_generation
                and worker.protocol.history_generation in self._formed  # else the store lost its beginning
                and self.next_step <= worker.protocol.applied_step <= self.prepared_until
                and worker.protocol.applied_step != self.lost_before
            ):
                yield worker

    def _absent_ones(self, lineage: int | None) -> Iterator[tuple[int, set[int]]]:
        """Yield what is held by living processes whose streams broke within the return grace: step and units.

        Of those that have applied a step in their last ring, from which a master knows what they hold.
        """
        for worker in self.workers():
            protocol = worker.protocol
            ring = self.rings.get(self._trained_in.get(worker.name, 0))
            step = protocol.applied_step
            if protocol.may_finish and step < self.prepared_until:
                step += 1
            if (
                worker.name in self._absent
                and self.world.now
                < self._broke[worker.name] + min(self.return_grace_seconds, GRACE_SECONDS_MIN)
                and not self._has_lost
                and worker.is_alive
                and worker.said_bye is None
                and protocol.holds_state
                and worker.lineage == lineage
                and ring is not None
                and ring.resume_step is not None
                and step > ring.resume_step
                and self._trained_in[worker.name] >= self.loaded_generation
                and protocol.history_generation in self._formed
                and self.next_step <= step <= self.prepared_until
                and step != self.lost_before
            ):
                yield step, set(worker.units)

    def heard(self, worker: str, message: ring_pb2.AttendRequest) -> None:
        """Record a message that a master received from a worker."""
        kind = str(message.WhichOneof("message"))
        if kind != "heartbeat":
            self.world.log(f"{worker} -> master: {_short(kind, getattr(message, kind))}")
        if message.HasField("ready"):
            ready = message.ready
            self._ready[worker, ready.generation] = ready.applied_step, ready.holds_state
        elif message.HasField("bye"):
            for stream, sent in self._sent.items():
                sent.leaves = sent.leaves or stream.worker_name == worker

    def refused(self, method: str, ended: Ended) -> None:
        """Count a call that a master refuses."""
        name = ended.code.name
        self.refusals[name] = self.refusals.get(name, 0) + 1

    def refused_wrongly(self, what: str, ended: Ended) -> None:
        """Check a refusal to a well-behaved caller: it must not be a permanent one."""
        if ended.code in WRONG:
            self._broken("no refusal", f"{what} was refused: {ended}")

    # ------------------------------------------------------------------ the store

    def stored(self, key: bytes, payload: bytes) -> None:
        """Check an entry that was added to a stream of the store."""
        lost = self._lost.get(key)
        if lost and lost[0] == payload:
            lost.popleft()  # a lost entry was written again
        elif key == HISTORY:
            stored = records.decode_commit(payload)
            self._check_time(key, stored.now)
            commit = stored.commit
            if isinstance(commit, Commit):
                self._check_commit(commit)
            else:
                self._check_task(commit, stored.now)
        elif key == EVENTS:
            stored_note = records.decode_note(payload)
            self._check_time(key, stored_note.now)
            note = stored_note.note
            self.notes[note.kind] = self.notes.get(note.kind, 0) + 1
            self.world.log(f"NOTE {note.kind} {note.worker} g{note.generation} s{note.step}: {note.reason}")
            if note.kind in ("interval_lost", "checkpoint_loaded"):
                self.decided_before = -1
            if note.kind == "interval_lost":
                assert isinstance(note.event, IntervalLost)
                self.lost_before = note.event.at_step
            elif note.kind in ("checkpoint_loaded", "history_rewound"):
                self.lost_before = -1
            if note.kind == "ring_formed":
                self._formed.add(note.generation)
                if note.generation in self._loads:  # also of the initial state, which has no note of its own
                    self.loaded_generation, self.lost_before = note.generation, -1
            # Not for its silence: of that a master knows before the stream ends.
            if isinstance(note.event, WorkerLost) and note.event.why == BROKE and note.worker in self._broke:
                self._absent.add(note.worker)
            if isinstance(note.event, RingAnnounced):
                self._announced[note.generation] = {place.worker for place in note.event.members}
            elif isinstance(note.event, StragglerReplaced):
                self._check_replaced(note.event, note.generation)
            if note.kind == "store_behind" and not self._has_lost:
                self._broken("no false alarm", f"the store has lost nothing, and {note.reason}")
            if note.kind == "checkpoint_loaded":
                self.loaded_generation = note.generation
            if note.kind == "history_rewound":
                self._rewound(note)

    def _check_replaced(self, event: StragglerReplaced, generation: int) -> None:
        """The straggler leaves and the newcomer joins in one change, which makes the ring no smaller."""
        before, after = self._announced.get(generation - 1, set()), self._announced[generation]
        joins = event.newcomer in after - before and event.worker in before - after
        if not joins or len(after) < len(before):
            self._broken("one ring", f"{event} made ring {sorted(after)} of {sorted(before)}")

    def _check_time(self, key: bytes, now: float) -> None:
        newest = self._newest_times.get(key, now)
        if now < newest - BACK_SECONDS_MAX:
            self._broken("time", f"{key.decode()} has an entry of {now} after one of {newest}")
        self._newest_times[key] = now

    def _rewound(self, note: Note) -> None:
        assert isinstance(note.event, HistoryRewound)
        self.next_step = self.prepared_until = note.event.to_step
        self.decided_before = -1
        self.standing = {step: commit for step, commit in self.standing.items() if step < self.next_step}

    def _is_applied_by_all(self, step: int, generation: int) -> bool:
        """True if all members of its ring or of one of the last rings have applied the step, or a checkpoint
        holds it.

        For the script's last step one worker that finished the script is enough: all others may have died.
        """
        if step == self.steps - 1 and any(reached > step for reached in self._reached.values()):
            return True
        rings = [*(ring for ring in (self.rings.get(generation),) if ring), *list(self.rings.values())[-4:]]
        if any(all(self._reached.get(owner, 0) > step for owner in ring.owners) for ring in rings):
            return True
        # A worker at the end of the script has the result, even if a peer died before its last step.
        ended = step == self.steps - 1 and self.steps in self._reached.values()
        return ended or any(saved.step > step for saved in self.world.checkpoints)

    def _check_task(self, commit: TaskCommit, now: float) -> None:
        key = commit.epoch, commit.index
        if key in self.tasks_done:
            self._broken("exactly once", f"{commit} is done a second time")
        self.tasks_done.add(key)
        attempt, deadline = self._newest_lease.get(key, (0, 0.0))
        if commit.attempt < attempt and now < deadline - 0.001:
            self._broken("one owner", f"{commit} counts although attempt {attempt} holds the task")
        if self._holders.get((*key, commit.attempt), commit.worker) != commit.worker:
            self._broken("one owner", f"{commit} counts although another worker had that attempt")

    def fenced(self, holder: int, token: int) -> None:
        """Check that the store refuses a master's write because a newer one holds the job."""
        if holder <= token:
            text = f"a master of token {token} was fenced, and the store knows of {holder}"
            self._broken("no false alarm", text)

    def store_lost(self, key: bytes, payloads: list[bytes]) -> None:
        """Record entries of a stream that a power cut has erased; they must be written again, in order."""
        self._has_lost = True
        self._lost.setdefault(key, deque()).extendleft(reversed(payloads))
        self._newest_times.pop(key, None)

    def forgotten(self, server: StoreServer) -> int:
        """Adopt the store's remaining history after its end was lost together with all masters.

        The generation of a lost ring may be used again. Returns the newest generation that the store knows.
        """
        self._lost.clear()
        self._has_lost = True
        self._newest_times.clear()
        self.next_step, self.loaded_generation, self.standing = 0, 0, {}
        self.decided_before = -1
        notes = [records.decode_note(payload) for _, payload in server.entries(EVENTS)]
        # At equal times a commit comes first: a checkpoint proves it, then history goes back.
        told = [(one.now, 0, one.commit) for one in self._stored(server)]
        told += [(one.now, 1, one.note) for one in notes]
        for _, _, one in sorted(told, key=lambda item: item[:2]):
            if isinstance(one, Commit):
                self.standing[one.step] = one
                self.next_step = one.step + 1
            elif isinstance(one, Note) and one.kind == "history_rewound":
                self._rewound(one)
            elif isinstance(one, Note) and one.kind == "checkpoint_loaded":
                self.loaded_generation = one.generation
        self.prepared_until = self.next_step
        self._formed = {one.note.generation for one in notes if one.note.kind == "ring_formed"}
        known = max((one.note.generation for one in notes), default=0)
        self._forgotten_rings = {generation for generation in self.rings if generation > known}
        return known

    @staticmethod
    def _stored(server: StoreServer) -> list[records.StoredCommit]:
        return [records.decode_commit(payload) for _, payload in server.entries(HISTORY)]

    def _check_commit(self, commit: Commit) -> None:
        if commit.step != self.next_step:
            self._broken("history", f"step {commit.step} is committed, next was {self.next_step}")
        if [task.virtual_rank for _, task in commit.tasks] != list(range(self.ests)):
            self._broken("exactly once", f"step {commit.step} is committed without all virtual ranks")
        owners = [worker for worker, _ in commit.tasks]
        ring = self.rings.get(commit.generation)
        if ring is None or owners != ring.owners:
            self._broken(
                "one ring", f"step {commit.step} was done by {owners}, not by ring {commit.generation}"
            )
        before = self.standing.get(commit.step - 1)
        if before is not None and commit.generation < before.generation:
            text = f"step {commit.step} is of ring {commit.generation}, the one before of {before.generation}"
            self._broken("monotone", text)
        if not self._is_applied_by_all(commit.step, commit.generation):
            self._broken("history", f"step {commit.step} is committed before all members have applied it")
        self.next_step = commit.step + 1
        self.standing[commit.step] = commit

    def task_acknowledged(self, epoch: int, index: int) -> None:
        """Check that a task that was acknowledged as done is in the store."""
        if (epoch, index) not in self.tasks_done:
            self._broken("no write lost", f"task {(epoch, index)} was acknowledged and is not in the store")

    def leased(self, worker: str, tasks: list[shard_pb2.Task]) -> None:
        """Check tasks of the dynamic dataset that a caller has leased."""
        for task in tasks:
            key = task.epoch, task.index
            if self._holders.setdefault((*key, task.attempt), worker) != worker:
                self._broken("one owner", f"attempt {task.attempt} of task {key} has two holders")
            newest = self._newest_lease.get(key, (0, 0.0))
            self._newest_lease[key] = max(newest, (task.attempt, task.deadline.ToNanoseconds() / 1e9))
            if self._first_rng.setdefault(key, task.rng.python) != task.rng.python:
                self._broken("same bits", f"task {key} comes again with other random states")
        attempts = [task.attempt for task in tasks]
        if any(one == 1 and other > 1 for one, other in pairwise(attempts)):
            self._broken(
                "front of the queue", f"a task that came back is given out behind new ones: {attempts}"
            )

    def dataset_complete(self, tasks: int) -> None:
        """Check that all tasks are done when a caller is told that there are no more."""
        if len(self.tasks_done) != tasks:
            text = f"the dataset is called complete with {len(self.tasks_done)} of {tasks} tasks done"
            self._broken("exactly once", text)

    # ------------------------------------------------------------------ at the end

    def finished(self, server: StoreServer, tasks: int) -> None:
        """Check, once the job has succeeded, that history and dynamic dataset (of `tasks`) are complete."""
        if gone := [records.decode_commit(payload).commit for payload in self._lost.get(HISTORY, ())]:
            self._broken("no write lost", f"the store lost {len(gone)} commits for good: {gone[0]}")
        if len(self.tasks_done) != tasks:
            self._broken("exactly once", f"{len(self.tasks_done)} dynamic tasks of {tasks} are done")
        if sorted(self.standing) != list(range(self.steps)):
            self._broken("history", f"the standing history has the steps {sorted(self.standing)}")
        stored = self._stored(server)
        entries = [entry for commit in stored for entry in audit_entries(commit, "")]
        result = audit(entries)
        if not result.ok:
            self._broken("exactly once", f"the audit finds {result.violations[:3]}")
        last = {one.commit.step: one.commit for one in stored if isinstance(one.commit, Commit)}
        if last != self.standing:
            gone = sorted(set(self.standing) - set(last))
            self._broken(
                "no write lost", f"the stored history is not what was committed; steps {gone} are gone"
            )
        done = {(c.commit.epoch, c.commit.index) for c in stored if isinstance(c.commit, TaskCommit)}
        if done != self.tasks_done:
            self._broken("no write lost", f"tasks {sorted(self.tasks_done - done)} are gone from the store")

    def _context(self, rank: int, step: int, parts: Context) -> None:
        if parts != self.fixed.contexts[step][rank]:
            self._broken("same bits", f"the context of EST {rank} at step {step} is not the fixed run's")

    def _broken(self, checker: str, text: str) -> None:
        self.world.fail(checker, text)


def _held_by(worker: WorkerModel) -> tuple[int, set[int]]:
    """Return a worker's step and the units that it holds after it."""
    return worker.protocol.applied_step, set(worker.units)


def _short(kind: str | None, body: Any) -> str:
    """Format a message for a line of the trace."""
    match kind:
        case "go":
            members = [f"{member.worker_id}:{member.ests.start}-{member.ests.end}" for member in body.members]
            text = f"g{body.generation} s{body.resume_step} {' '.join(members)} donors {list(body.donors)}"
        case "prepare":
            text = f"g{body.generation} {' '.join(member.worker_id for member in body.members)}"
        case "prepared":
            then = f", then g{body.then_prepare.generation}" if body.HasField("then_prepare") else ""
            text = f"g{body.generation} s{body.step}{then}"
        case "ready" | "hello":
            text = f"g{body.generation} s{body.applied_step} holds_state={body.holds_state}"
        case "step_report" | "loaded" | "ring_broken":
            text = f"g{body.generation} s{body.step}"
        case "welcome":
            text = f"g{body.generation} resumed={body.resumed}"
        case _:
            text = ""
    return f"{kind} {text}"
