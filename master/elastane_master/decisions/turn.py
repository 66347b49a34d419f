"""One event being decided: the state, the time, and what comes of it.

The modules that decide get a Turn, change the state through it and leave effects in it. `touch`
marks the state as changed: the event must then be stored before any effect is carried out.
"""

from __future__ import annotations

from elastane_master.decisions.effects import (
    AllEnd,
    Checkpoint,
    Close,
    Decision,
    Done,
    Drain,
    Effect,
    Explain,
    Go,
    IntervalDecided,
    Load,
    Note,
    Prepare,
    Prepared,
    Send,
    Welcome,
)
from elastane_master.decisions.queues import Queues
from elastane_master.decisions.state import JobState, WorkerRecord


class Turn:
    """What one `JobMachine.handle` works on."""

    __slots__ = ("changed", "effects", "now", "queues", "result", "state")

    def __init__(self, state: JobState, queues: Queues, now: float) -> None:
        self.state = state
        self.queues = queues
        self.now = now
        self.effects: list[Effect] = []
        self.changed = False
        self.result: object = None

    def touch(self) -> None:
        """The state has changed."""
        self.changed = True

    def emit(self, effect: Effect) -> None:
        """Adds an effect behind the others."""
        self.effects.append(effect)

    def send(
        self,
        worker: str,
        message: Welcome
        | Prepare
        | Load
        | Go
        | Prepared
        | IntervalDecided
        | Checkpoint
        | Drain
        | Done
        | Explain
        | AllEnd,
    ) -> None:
        """Sends `message` to a worker, once the event is durable."""
        self.effects.append(Send(worker, message))

    def close(self, worker: str, reason: str, message: str, hint: str = "") -> None:
        """Ends a worker's stream with a typed error."""
        self.effects.append(Close(worker, reason, message, hint))

    def note(self, kind: str, reason: str, worker: str = "", **facts: object) -> None:
        """Tells people what was decided and why."""
        self.effects.append(
            Note(
                kind,
                reason,
                worker,
                self.state.ring.generation,
                self.state.steps.committed,
                {name: str(value) for name, value in facts.items()},
            )
        )

    def attending(self, worker: str, session: str) -> WorkerRecord | None:
        """The worker's record if `session` is its current one, else None: an old stream's message."""
        record = self.state.workers.get(worker)
        if record is None or record.awaited or record.session != session:
            return None
        return record

    def decision(self) -> Decision:
        """The outcome, when everything has been decided."""
        if self.changed:
            self.state.revision += 1
            self.state.decided_at = max(self.state.decided_at, self.now)
        return Decision(self.effects, self.changed, self.result)
