"""A job's decisions and real `WorkerProtocol`s, connected by the product's translation, all in one thread.

The job can be reset to the stored state after any of its decisions: `stored[n]` is the state after n
decisions, with the length of the history at that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane_master.decisions import effects, events
from elastane_master.decisions.machine import JobMachine
from elastane_master.jobs.records import StoredEvent
from elastane_master.servers.translate_session import attend_event, attend_response, hello
from elastane_proto.contexts import context_to_proto
from elastane_proto.job_settings import JobSettings
from elastane_proto.v1 import ring_pb2

STEPS_PER_EPOCH = 4
HEARD = ("welcome", "prepare", "prepared", "load", "go")


class RingWorker:
    """One process: its protocol, and contexts that contain rank and step. attends: it has sent Hello."""

    def __init__(self, name: str, pid: int, steps: int) -> None:
        self.name, self.pid, self.steps = name, pid, steps
        self.protocol = WorkerProtocol()
        self.sessions = 0
        self.attends = False
        self.inbox: deque[ring_pb2.AttendResponse] = deque()
        self.ranks: range = range(0)
        self.pristine = True

    def hello(self) -> events.WorkerJoined:
        self.sessions += 1
        self.inbox.clear()
        signature = ring_pb2.ScriptSignature(
            dataset_size=STEPS_PER_EPOCH * 4,
            batch_size=1,
            steps_per_epoch=STEPS_PER_EPOCH,
            epochs=self.steps // STEPS_PER_EPOCH,
        )
        message = self.protocol.hello(
            worker_id=self.name,
            role=ring_pb2.WORKER_ROLE_RING,
            signature=signature,
            pid=self.pid,
            store_address=f"{self.name}:1",
        )
        return hello(message, self.session)

    @property
    def session(self) -> str:
        return f"{self.name}-{self.pid}-{self.sessions}"

    def heard(self, message: ring_pb2.AttendResponse) -> Outcome:
        kind = message.WhichOneof("message")
        if kind == "go":
            members = {member.worker_id: member.ests for member in message.go.members}
            self.ranks = range(members[self.name].start, members[self.name].end)
        return self.protocol.receive(message) if kind in HEARD else Outcome()

    def works(self) -> Outcome:
        """Do the next action of its script's thread."""
        protocol = self.protocol
        if protocol.load is not None:
            return self._load(protocol.load)
        if protocol.go is not None:
            go = protocol.go
            protocol.lose_step()
            protocol.entered(go.generation, go.resume_step, [])
        step = protocol.applied_step
        if protocol.changing or not protocol.generation:
            return Outcome()
        if protocol.may_apply(step):
            assert protocol.begin_apply(step)
            self.pristine = False
            return protocol.end_apply(step)
        request = protocol._unanswered.step_report
        reported = request is not None and request.step_report.step == step
        if reported or step >= self.steps:
            return Outcome()
        protocol.begin_step()
        return protocol.report(self._report(step))

    def _load(self, load: ring_pb2.Load) -> Outcome:
        message = ring_pb2.Loaded(generation=load.generation)
        for rank in range(4):
            message.contexts.append(context_to_proto(rank, 0, {"rng/python": b"%d@0" % rank, "item/x": b"x"}))
        return self.protocol.loaded(message)

    def _report(self, step: int) -> ring_pb2.StepReport:
        report = ring_pb2.StepReport(
            generation=self.protocol.generation, step=step, epoch=step // STEPS_PER_EPOCH
        )
        for rank in self.ranks:
            changed = {"rng/python": b"%d@%d" % (rank, step + 1)}
            report.contexts.append(context_to_proto(rank, step + 1, changed, delta=True))
            task = report.tasks.add(virtual_rank=rank)
            task.range.start, task.range.end = step * 4 + rank, step * 4 + rank + 1
            task.metrics["loss"] = step + rank / 10
        return report


class RingOfProtocols:
    """One job of four ESTs. history: its stored commits. notes: (kind, reason) of events since a takeover."""

    def __init__(self, steps: int = 8, **changes: object) -> None:
        settings = JobSettings(ests=4, join_window_seconds=0.0, **changes)  # type: ignore[arg-type]
        self.machine = JobMachine.create("job", settings, 0.0)
        self.steps = steps
        self.now = 100.0
        self.started = 0
        self.workers: dict[str, RingWorker] = {}
        self.history: list[effects.Commit] = []
        self.notes: list[tuple[str, str]] = []
        self.stored: list[tuple[bytes, int]] = []
        self.decided: list[tuple[StoredEvent, effects.Decision]] = []

    def start(self, name: str) -> RingWorker:
        """Start a process; `attend` sends its Hello."""
        self.started += 1
        worker = RingWorker(name, self.started, self.steps)
        self.workers[name] = worker
        return worker

    def attend(self, *names: str) -> None:
        for name in names:
            worker = self.workers[name]
            worker.attends = True
            self.handle(worker.hello())

    def lose(self, name: str) -> None:
        """The process dies."""
        worker = self.workers.pop(name)
        self.handle(events.StreamLost(name, worker.session, "EOF"))

    def handle(self, event: events.AnyEvent) -> None:
        self.now += 0.001
        decision = self.machine.handle(event, self.now)
        self.decided.append((StoredEvent(self.now, event), decision))
        for effect in decision.effects:
            match effect:
                case effects.Send(name, message) if name in self.workers and self.workers[name].attends:
                    response = attend_response(message, self.machine.state.settings)
                    self.workers[name].inbox.append(response)
                case effects.Commit():
                    self.history.append(effect)
                case effects.Note():
                    self.notes.append((effect.kind, effect.reason))
        self.stored.append((self.machine.snapshot(), len(self.history)))

    def turn(self, worker: RingWorker) -> bool:
        """Let the worker process a message or do an action; False if it has nothing to do."""
        protocol, is_told = worker.protocol, bool(worker.inbox)
        before = protocol.applied_step, protocol.generation
        if not is_told and protocol.load is not None and not worker.pristine:
            self.lose(worker.name)  # it cannot begin anew: its agent starts a fresh one
            self.start(worker.name)
            self.attend(worker.name)
            return True
        outcome = worker.heard(worker.inbox.popleft()) if is_told else worker.works()
        for request in outcome.send:
            self.handle(attend_event(request, worker.name, worker.session))
        return is_told or bool(outcome.send) or before != (protocol.applied_step, protocol.generation)

    def run(self, until: int | None = None) -> None:
        """Run until the workers have applied this many steps (None: all), or nothing happens any more."""
        for _ in range(10_000):
            busy = False
            for worker in list(self.workers.values()):
                if worker.attends and (until is None or worker.protocol.applied_step < until):
                    busy |= self.turn(worker)
            if not busy and not self._ticks():
                return
        raise AssertionError("it does not come to rest")

    def _ticks(self) -> bool:
        """Advance time to the next deadline, if that can change anything while all wait."""
        due = self.machine.next_deadline()
        state = self.machine.state
        if due is None or state.all_committed or (state.ring.stage == "running" and not state.awaited()):
            return False
        self.now = max(self.now, due)
        before = self.machine.snapshot()
        self.handle(events.Tick())
        return self.machine.snapshot() != before

    def forget(self, decisions: int) -> None:
        """Master and store die; the state stored after this many decisions is left."""
        snapshot, length = self.stored[decisions]
        self.taken_over(JobMachine.restore(snapshot), self.history[:length])

    def taken_over(self, machine: JobMachine, history: list[effects.Commit]) -> None:
        """Let another master take over the job; no worker attends yet."""
        self.machine, self.history, self.notes = machine, history, []
        for worker in self.workers.values():
            worker.attends = False
        self.handle(events.MasterStarted("master-2"))

    # ------------------------------------------------------------------ what came of it

    @property
    def applied(self) -> int:
        """The highest number of steps applied by any worker."""
        return max(worker.protocol.applied_step for worker in self.workers.values())

    def noted(self, kind: str) -> list[str]:
        return [reason for noted, reason in self.notes if noted == kind]

    def finish(self) -> None:
        """Heartbeats show what was applied last."""
        for worker in self.workers.values():
            self.handle(attend_event(worker.protocol.heartbeat(), worker.name, worker.session))


def standing(history: Iterable[effects.Commit]) -> list[effects.Commit]:
    """Return the valid commits by step: a later commit of a step supersedes it and all steps after it."""
    commits: list[effects.Commit] = []
    for commit in history:
        assert commit.step <= len(commits), f"step {commit.step} follows {len(commits) - 1}: a hole"
        assert [task.virtual_rank for _, task in commit.tasks] == list(range(4)), commit
        assert [task.metrics["loss"] for _, task in commit.tasks] == [
            commit.step + rank / 10 for rank in range(4)
        ]
        del commits[commit.step :]
        commits.append(commit)
    return commits
