"""A worker's attempts at global steps: the newest one, and one that is applied ahead of its Prepared. Pure.

    begin ─▶ report ───────────────▶ Prepared ─▶ prepare ─▶ apply
                │                       ▲
                └─▶ go_ahead ─▶ (the next step begins; its report is held) ─▶ settle, or take_back

Two attempts exist only while the older one is ahead. `WorkerProtocol` owns this object, passes in the fence's
facts (whether the ring still holds), and sends the messages that follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastane.runtime.step_state import Stage, StepState
from elastane_proto.v1 import ring_pb2


@dataclass
class StepAttempts:
    """Attempts of one worker in its ring. Steps are global; ends of ranges (`*_until`) are exclusive."""

    newest: StepState = field(default_factory=StepState)
    #: The attempt that is applied in memory only; the next one may run. Its Prepared has not come.
    ahead: StepState | None = None
    #: Steps before this one are Prepared in the current generation.
    prepared_until: int = 0
    #: In a pipeline: reported steps before this one are applied even though the ring changes.
    applies_until: int = 0
    #: The master has said that Prepared of the next step may bring what must be known when its successor
    #: begins.
    next_waits: bool = False
    #: The master has asked for the parts of the state while a step was ahead: it is undone before the answer.
    explain_later: ring_pb2.Explain | None = None
    #: The report that is held back until the step before it is decided.
    held: ring_pb2.StepReport | None = None
    #: The master compares the parts of the state.
    _is_explained: bool = False
    #: Steps before this one have been begun.
    _begun_until: int = 0
    #: The step that this ring began with.
    _first_step: int = 0

    # ------------------------------------------------------------------ queries

    @property
    def finishes(self) -> bool:
        """True while a reported step is still to be applied before a change of the ring is answered."""
        is_prepared = self.newest.step < self.applies_until
        return is_prepared and self.newest.stage in (Stage.REPORTED, Stage.PREPARED)

    def is_finishing(self, step: int) -> bool:
        """True if `step` is applied although the ring changes."""
        return self.finishes and self.newest.step == step

    def next_step(self, applied_step: int) -> int:
        """Return the next step to run. applied_step: the one after the newest that is applied for good."""
        return applied_step if self.ahead is None else self.ahead.step + 1

    def is_ahead_lost(self, is_running: bool) -> bool:
        """True if a step was applied ahead that must be undone. is_running: the ring is unchanged."""
        return self.ahead is not None and (not is_running or self.explain_later is not None)

    def may_report_ahead(self, step: int) -> bool:
        """True if neither this ring's first step nor a wait that the master has announced forbids it.

        Optimizers begin their state in the first step of a ring, and the whole state is compared.
        """
        return step > self._first_step and not self.next_waits and not self._is_explained

    def may_go_ahead(self, step: int) -> bool:
        """True if `step` is reported and not known to be prepared, and no other one is ahead."""
        newest = self.newest
        is_reported = newest.step == step and newest.stage is Stage.REPORTED
        return is_reported and self.ahead is None and self.prepared_until <= step

    # ------------------------------------------------------------------ transitions

    def begin(self, applied_step: int) -> StepState:
        """Begin the next step. Raises InvalidTransitionError while the newest attempt runs."""
        step = self.next_step(applied_step)
        self.newest = self.newest.next(step, is_replay=step < self._begun_until)
        self.newest.begin()
        self._begun_until = max(self._begun_until, step + 1)
        return self.newest

    def lose(self) -> bool:
        """Give up the step in flight, if there is one; True if a change of the ring waited for it."""
        waited = self.finishes
        if self.newest.in_flight and self.newest is not self.ahead:
            self.newest.lose()
        self.held = None
        return waited

    def hold(self, message: ring_pb2.StepReport, *, in_backward: bool) -> bool:
        """Hold the report back if the step before it is ahead; False if it may be sent."""
        if self.ahead is None:
            return False
        self.newest.hold(in_backward=in_backward)
        self.held = message
        return True

    def take_held(self) -> ring_pb2.StepReport | None:
        """Return the report that was held back, once, if the step before it is decided now."""
        if self.held is None or self.ahead is not None or not self.newest.is_held:
            return None
        held, self.held = self.held, None
        return held

    def prepared(self, step: int, *, next_waits: bool) -> int | None:
        """Note that `step` is prepared.

        Returns the step after the one that was ahead, if that is thereby applied for good.
        """
        self.prepared_until = max(self.prepared_until, step + 1)
        self.next_waits = next_waits
        ahead = self.ahead
        if ahead is None or ahead.step >= self.prepared_until:
            return None
        self.ahead = None
        if not ahead.body_ended:
            ahead.prepare()  # as if Prepared had come before the optimizer
            return None
        ahead.apply()
        return ahead.step + 1

    def prepare(self, *, may_apply: bool) -> bool:
        """Claim the right to apply the newest step, or lose it if it may not be applied any more."""
        if not may_apply:
            self.newest.lose()
            self.held = None
            return False
        self.newest.prepare()
        return True

    def go_ahead(self) -> None:
        """Begin to apply the newest step ahead of its Prepared."""
        self.newest.go_ahead()
        self.ahead = self.newest

    def take_back(self, is_running: bool) -> bool:
        """Give up the step that was applied ahead, if it is lost; then its effects must be undone."""
        if not self.is_ahead_lost(is_running):
            return False
        assert self.ahead is not None
        self.ahead.lose()
        self.ahead = None
        return True

    def apply(self) -> bool:
        """Note that the newest step is in the weights; False if it is ahead: `prepared` completes it, or
        `take_back` gives it up.
        """
        self.newest.body_ended = True
        if self.newest.stage is Stage.AHEAD:
            return False
        self.newest.apply()
        return True

    def explain(self, message: ring_pb2.Explain) -> bool:
        """Note that the master compares the parts of the state; True if it must wait for a step's undoing."""
        self._is_explained = True
        if self.ahead is None:
            return False
        self.explain_later = message
        return True

    # ------------------------------------------------------------------ the ring

    def enter(self, step: int) -> None:
        """Begin a ring with `step`."""
        self._first_step = self.prepared_until = step
        self.applies_until = 0
        self.next_waits = self._is_explained = False
        self.held = self.explain_later = None

    def leave(self) -> None:
        """Leave the ring: nothing is prepared without one."""
        self.prepared_until = self.applies_until = 0
        self.explain_later = None
