"""Slots as they were in a run that is computed again from its journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.errors import ReplayError
from elastane.runtime.slots.local import apply, as_at_servers, pulled
from elastane.slots.access import PulledSlots, PushedTask, PushOutcome, SlotAccess, Wanted
from elastane.tables.journal_records import push_digest
from elastane.tables.layout import PushPart
from elastane.tables.replay_order import Execution, ReplayOrder, SlotState, Step
from elastane.tables.slot_weights import SlotWeights, load_all
from elastane.tables.spec import ModelSpec
from elastane_slots.pushes import Pulled


class ReplaySlots(SlotAccess):
    """Implements SlotAccess: a task pulls what it pulled then, and its push makes what it made then.

    Raises ReplayError, after `differs` was called with it, where the script asks for other weights or has
    other gradients than in the run. other_rates: tasks for which it has other rates; those of the run count.
    """

    def __init__(
        self,
        spec: ModelSpec,
        memory: DenseMemory,
        order: ReplayOrder,
        differs: Callable[[ReplayError], None] = lambda error: None,
    ) -> None:
        self._spec, self._order, self._differs = spec, order, differs
        self._weights: dict[SlotState, SlotWeights] = {}
        for state in order.initial:
            weights = self._weights[state] = SlotWeights(spec, state.slot)
            if weights.layout.blocks:
                weights.initialise(memory.initial(state.slot))
        #: Gradients of tasks by lease and slot, and how many states they will still make.
        self._parts: dict[int, dict[int, PushPart]] = {}
        self._unmade: dict[int, int] = {}
        self._requests: dict[int, int] = {}
        self._ways = order.on_the_way()
        #: Of each slot, the newest state on the way to its end.
        self._newest = {state.slot: state for state in order.initial}
        self.other_rates = 0
        self._advance()

    def next(self, dataset: str) -> Execution | None:
        """Return the next task of a data set that can be computed."""
        while True:
            self._advance()
            if (found := self._order.next(dataset)) is not None:
                return found
            step = self._order.forced()
            if step is None:
                return None
            self._make(step)

    def ends(self) -> dict[SlotState, SlotWeights]:
        """Return the states in which the run ended, once all is computed."""
        while (step := self._order.forced()) is not None:
            self._make(step)
            self._advance()
        return {end: self._weights[state] for end, state in self._order.ends.items()}

    def pull(self, lease: int, generation: int, wanted: Wanted) -> PulledSlots:
        if not lease:
            states: Mapping[int, SlotState] = self._newest
        else:
            execution = self._order.executions[lease]
            number = self._requests[lease] = self._requests.get(lease, -1) + 1
            asked = execution.pulls
            states = asked[number] if number < len(asked) else {}
            if missing := set(wanted.slots) - states.keys():
                raise self._difference(execution, min(missing), "asks for other weights")
        seen = {slot: Pulled(states[slot].life, states[slot].version) for slot in wanted.slots}
        return pulled(self._spec, lambda slot: self._weights[self._order.origin(states[slot])], wanted, seen)

    def push(self, task: PushedTask) -> PushOutcome:
        execution = self._order.executions[task.lease]
        makes = self._order.makes[task.lease]
        self._unmade[task.lease] = len(makes)
        parts = self._parts[task.lease] = {}
        for state in sorted(makes):
            layout = self._spec.layout(state.slot)
            blocks, rows, sections = layout.push_message(task.gradients.part(state.slot))
            digest = self._order.update(state).digest
            if digest and digest != push_digest(blocks, rows, sections):
                raise self._difference(execution, state.slot, "has other gradients")
            parts[state.slot] = layout.push_part(blocks, rows, sections)
        self.other_rates += execution.rates != task.rates
        for state in self._order.done(task.lease):
            del self._weights[state]
        self._advance()
        versions = {state.slot: state.version for state in makes}
        everywhere = len(versions) == self._spec.slots
        return PushOutcome("done" if everywhere else "returned", versions=versions)

    def _difference(self, execution: Execution, slot: int, what: str) -> ReplayError:
        error = ReplayError(
            f"task {execution} {what} in slot {slot} than in the run",
            hint="script, arguments, data and machine must be those of the run, and what a task computes must"
            " not depend on the tasks before it in its worker",
            task=str(execution),
            slot=slot,
        )
        self._differs(error)
        return error

    def _advance(self) -> None:
        for step in self._order.free():
            self._make(step)

    def _make(self, step: Step) -> None:
        weights = self._weights[step.before]
        if step.keep:
            kept = SlotWeights(self._spec, step.state.slot)
            load_all(kept, weights.sections())
            weights = kept
        else:
            del self._weights[step.before]
        update, slot = step.update, step.state.slot
        parts = self._parts[update.lease]
        with as_at_servers():
            apply(weights, parts[slot], self._order.executions[update.lease].rates, update.scale)
        self._weights[step.state] = weights
        self._unmade[update.lease] -= 1
        if not self._unmade[update.lease]:
            del self._parts[update.lease]
        if step.state in self._ways:
            self._newest[slot] = step.state
        self._order.made(step.state)
