"""Context of one event being decided: the state, the time, and the resulting effects.

Decision modules receive a DecisionContext, change the state through it and add effects. The order is:
validate, `touch`, change. `touch` marks the state as changed: the event must then be stored before any effect
is carried out, and can no longer be refused.
"""

from __future__ import annotations

from elastane_master.decisions.effects import Close, Decision, Effect, Note, Send, WorkerMessage
from elastane_master.decisions.queues import Queues
from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_proto.history.events import AnyHistoryEvent


class DecisionContext:
    """Working state of one `JobMachine.handle` call."""

    __slots__ = ("changed", "effects", "now", "queues", "result", "state")

    def __init__(self, state: JobState, queues: Queues, now: float) -> None:
        self.state = state
        self.queues = queues
        self.now = now
        self.effects: list[Effect] = []
        self.changed = False
        self.result: object = None

    def touch(self) -> None:
        """Mark the state as changed. Called before the first change, and after all that may refuse."""
        self.changed = True

    def emit(self, effect: Effect) -> None:
        """Append an effect."""
        self.effects.append(effect)

    def send(self, worker: str, message: WorkerMessage) -> None:
        """Send `message` to a worker once the event is durable."""
        self.effects.append(Send(worker, message))

    def close(self, worker: str, reason: str, message: str, hint: str = "") -> None:
        """End a worker's stream with a typed error."""
        self.effects.append(Close(worker, reason, message, hint))

    def note(self, event: AnyHistoryEvent) -> None:
        """Report a decision and its reason as an event of the job's history."""
        self.effects.append(Note.of(event, self.state.ring.generation, self.state.steps.committed))

    def attending(self, worker: str, session: str) -> WorkerRecord | None:
        """Return the worker's record if `session` is its current one; None for a message of an old stream."""
        record = self.state.workers.get(worker)
        if record is None or record.awaited or record.session != session:
            return None
        return record

    def decision(self) -> Decision:
        """Return the outcome after everything has been decided."""
        if self.changed:
            self.state.revision += 1
            self.state.decided_at = max(self.state.decided_at, self.now)
        return Decision(self.effects, self.changed, self.result)
