"""A worker's decisions within a global step: when it reports, applies or gives up the step.

    begin ─▶ mini_batches: each EST's turn ─▶ end_batch
                  │  the last: first_gradient   the step is reported, if its outcome is known by then
                  │            last_gradient    the early report is confirmed, or the step is reported
                  │            begin_apply      the optimizer waits until all contexts are durable, or steps
                  │                             ahead of that: then the next step waits, before it is reported
                  └─▶ end      the step is applied, or lost and to be run again from the same contexts

If backward draws no random numbers, the contexts after the step are known when the last backward begins, and
the master makes them durable while it runs.

Decides, and knows no thread, socket or tensor: `Actions` waits, sends, and acts on the model. Those of a
worker block the script's thread (`step_actions`), so that the coroutines here never suspend; those of the
simulation are tasks in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from elastane.context import ITEM, RESERVED, Parts
from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane.runtime.step_state import Stage, StepState
from elastane.runtime.turn import Turn
from elastane_common.errors import StepError
from elastane_proto.v1 import ring_pb2

DRAWN_IN_BACKWARD: Final = (
    "random numbers were drawn in backward(): from now on steps are reported at the end of backward()"
)

T = TypeVar("T", bound=Turn)
T_contra = TypeVar("T_contra", bound=Turn, contravariant=True)


class Actions(Protocol[T_contra]):
    """Interface of a step to its surroundings. Changes of the protocol's state are atomic."""

    @property
    def failure(self) -> Exception | None:
        """Why the step's all-reduce has failed; None if it has not."""

    def tell(self, change: Callable[[], Outcome], /) -> object:
        """Change the protocol's state, and send the messages that follow."""

    async def wait_for(self, condition: Callable[[], object], /) -> object:
        """Wait until the condition on the protocol's state holds."""

    async def wait_for_decision(self, turn: T_contra, is_decided: Callable[[], bool], /) -> object:
        """Wait at the optimizer's step until the master has decided whether the step may be applied."""

    def begin_step(self) -> StepState:
        """Begin the next step to apply, and return its state."""

    def lose_step(self) -> object:
        """Give up the step in flight, if there is one."""

    def begin_apply(self, turn: T_contra, /) -> bool:
        """Claim the right to apply the turn's step; False, with the step lost, if the ring has changed."""

    def means_to_go_ahead(self, turn: T_contra, /) -> bool:
        """True if the turn's step, which is about to be reported, is to be applied ahead of its Prepared."""

    def begin_ahead(self, turn: T_contra, /) -> bool:
        """Claim the right to apply the turn's step ahead of its Prepared, and copy what it changes.

        False if it is not worth it, or cannot be undone, or if the report of the step has not said so.
        """

    def undo(self) -> bool:
        """Undo the step that was applied ahead, if it is lost; False if there is none."""

    def at_late_boundary(self, turn: T_contra, /) -> object:
        """Do what the master wants between two steps, in the turn's step, which has changed nothing yet."""

    def states(self) -> Parts:
        """Capture the current states of generators and registered items."""

    def loader_parts(self, turn: T_contra, /) -> Parts:
        """Return the loader's position and stream states after the turn's mini-batch."""

    def logged(self, turn: T_contra, /) -> Mapping[str, float]:
        """Return the values that the script has logged in the turn."""

    def batch_ended(self, turn: T_contra, states: Parts, /) -> object:
        """Keep what belongs to the end of a mini-batch. states: now; empty if they are not needed."""

    def check_backward(self, turn: T_contra, /) -> object:
        """Check the model after the step's last backward."""

    def begin_exchange(self, turn: T_contra, /) -> object:
        """Begin what is exchanged beside the gradients: the step is reported."""

    def decides_layout(self, step: int, /) -> bool:
        """True if the order in which gradients become ready in `step` decides the layout of later ones."""

    def ready_order(self) -> Sequence[int]:
        """Return the indices of parameters in the order in which their gradients became ready."""

    def digests(self) -> tuple[int, int] | None:
        """Return the digests of a part of the state and of the hyperparameters; None: not compared."""

    def drop(self) -> object:
        """Discard the step in flight, which is lost: gradients, and buffers after it."""

    def complete(self, turn: T_contra, /) -> object:
        """Complete an applied step: check the model, and adopt the buffers after it."""

    def applied(self, step: int, /) -> object:
        """Note that the protocol knows of the applied step."""


class StepBody(Generic[T]):
    """A worker's side of everything that happens within a step. `BackwardReport` of its last mini-batch.

    contexts: those of the ESTs hosted here, replaced when a step is applied. reports_late: True if steps are
    always reported at the end of their last backward, as on a GPU, where the host runs ahead of the device;
    None: the first backward shows whether it draws random numbers.
    """

    #: How a loop body is written.
    hint = "call backward() and optimizer.step() once for every mini-batch"

    def __init__(
        self,
        protocol: WorkerProtocol,
        contexts: HostedContexts,
        steps_per_epoch: int,
        actions: Actions[T],
        *,
        reports_late: bool | None,
    ) -> None:
        self._protocol = protocol
        self._contexts = contexts
        self._steps_per_epoch = steps_per_epoch
        self._actions = actions
        self._reports_late = reports_late
        self._state = StepState()
        self._turn: T | None = None
        #: Number of steps of the training; the last one is not applied ahead.
        self.total_steps = 0

    # ------------------------------------------------------------------ the step

    def begin(self) -> StepState:
        """Begin the next step to apply."""
        self._turn = None
        self._state = self._actions.begin_step()
        return self._state

    def mini_batches(self, turns: Sequence[T]) -> Iterator[T]:
        """Yield each turn once for each of its mini-batches; end, with the step lost, if the ring changes."""
        for turn in turns:
            for micro in range(turn.batches):
                if self._protocol.changing:
                    self._actions.lose_step()
                    return
                self._turn, turn.micro = turn, micro
                yield turn

    def end_batch(self, turn: T) -> None:
        """End an EST's mini-batch; after its last one note its context after the step.

        Not called for the worker's last one of the step, which `last_gradient` ends.
        """
        turn.loader_parts |= self._actions.loader_parts(turn)
        noted = turn.sync and turn.guest is None
        states = self._actions.states() if noted else {}
        self._actions.batch_ended(turn, states)
        if noted:
            self._note(turn, states)

    async def end(self) -> bool:
        """End the step after its mini-batches: complete it, or give it up. True if it has been applied.

        Raises StepError if random numbers were drawn after backward(), and if the script has not called
        optimizer.step() although the step could be applied.
        """
        state = self._state
        if state.may_step:
            self._complete()
            return True
        failure, lost = self._actions.failure, not state.in_flight
        await self.give_up()
        if failure is None and not lost:
            said = f"the loop body of step {state.step} ended without optimizer.step()"
            raise StepError(said, hint=self.hint)
        return False

    async def give_up(self) -> None:
        """Give up the step in flight; if its ring has broken, return when the change is known."""
        failure, step = self._actions.failure, self._state.step
        self._actions.lose_step()
        self._actions.drop()
        if failure is not None:
            # A member that knows of a planned change leaves the ring, while the Prepared that the change
            # comes with may still be under way to this one.
            if not self._protocol.is_ahead_decided:
                await self._actions.wait_for(lambda: self._protocol.is_ahead_decided)
            if self._protocol.attempts.explain_later is not None:
                return  # it was aborted for that, and is answered at the boundary
            why = str(failure)
            self._actions.tell(lambda: self._protocol.broken(step, why))
            # No further step can run in a broken ring: wait for the change, or for an eviction.
            await self._actions.wait_for(lambda: not self._protocol.is_running)

    # ------------------------------------------------------------------ the last backward

    def first_gradient(self) -> bool:
        """Report the step early in the last EST's backward, if its outcome is already known.

        Returns True if it was reported; the step may not be applied before `last_gradient` has confirmed it.
        """
        turn = self._last_turn
        if self._reports_late:
            return False
        turn.states = self._actions.states()
        if self._reports_late is None or self._actions.decides_layout(turn.step):
            return False
        turn.loader_parts |= self._actions.loader_parts(turn)
        self._note(turn, turn.states)
        self._report(turn, in_backward=True)
        return True

    def last_gradient(self) -> str:
        """Report the step at the end of the last EST's backward, or confirm the early report.

        Then the step's all-reduce can start. Returns why no worker may apply it, if the report was wrong.
        """
        turn, actions = self._last_turn, self._actions
        is_reported = turn.state.is_reported
        if is_reported:
            actions.tell(self._protocol.end_backward)
        actions.check_backward(turn)
        states = actions.states() if turn.states else {}
        if states:
            self._reports_late = states != turn.states
        if is_reported:
            actions.batch_ended(turn, states)
        else:
            self.end_batch(turn)
            self._report(turn)
        actions.begin_exchange(turn)
        # An early report that turns out wrong may be durable. Nobody has applied the step: this worker still
        # withholds a bucket.
        return DRAWN_IN_BACKWARD if is_reported and self._reports_late else ""

    # ------------------------------------------------------------------ the optimizer

    async def begin_apply(self, turn: T) -> bool:
        """True if the global step is applied in this turn; waits until all contexts are durable.

        False on turns other than the worker's last and after a ring change; once True, it stays True for the
        turn. Raises StepError before backward().
        """
        state = turn.state
        if not turn.last or not state.in_flight or self._actions.failure is not None:
            return False
        if not state.is_reported:
            raise StepError(
                f"optimizer.step() came before backward() in step {turn.step}",
                hint="each turn of the loop is forward, backward, optimizer.step()",
            )
        if not state.may_step:
            await self._before_apply(turn)
            if not (self._may_go_ahead(turn.step) and self._actions.begin_ahead(turn)):
                await self._actions.wait_for_decision(turn, lambda: self._protocol.is_decided(turn.step))
                self._actions.begin_apply(turn)
        return state.may_step

    async def is_applied(self, turn: T) -> bool:
        """True if the turn has applied its step for good; waits for Prepared if it was applied ahead.

        Called where something is to be done that cannot be undone. Before the turn's optimizer.step() it
        waits for the step before.
        """
        state, protocol = turn.state, self._protocol
        if protocol.attempts.ahead is not None:
            await self._actions.wait_for(lambda: protocol.is_ahead_decided)
        if state.stage is Stage.AHEAD:
            self.take_back()
        return state.may_step

    async def decided_step(self, turn: T) -> int:
        """Return the turn's step, for a script that may act on it irrevocably.

        If the step before was applied ahead, wait until it is decided; if it is lost, return that step, which
        is the next one to run.
        """
        ahead = self._protocol.attempts.ahead
        if ahead is None:
            return turn.step
        await self.is_applied(turn)
        return turn.step if self._protocol.attempts.ahead is None else ahead.step

    def take_back(self) -> bool:
        """Undo the step that was applied ahead, if it is lost; False if there is none."""
        ahead = self._protocol.attempts.ahead
        if ahead is None or not self._actions.undo():
            return False
        if ahead.body_ended:
            self._contexts.take_back()
        return True

    # ------------------------------------------------------------------ internals

    async def _before_apply(self, turn: T) -> None:
        """Wait until the step before is decided, and do what its Prepared asks for, if this step began
        earlier."""
        protocol = self._protocol
        if not protocol.is_ahead_decided:
            await self._actions.wait_for_decision(turn, lambda: protocol.is_ahead_decided)
        if protocol.is_running and protocol.attempts.ahead is None and turn.state.in_flight:
            self._actions.at_late_boundary(turn)

    def _may_go_ahead(self, step: int) -> bool:
        """True if `step`, which is reported, may be applied before it is known whether it is prepared."""
        return self._is_followed(step) and self._protocol.may_go_ahead(step)

    def _is_followed(self, step: int) -> bool:
        """True if another step of the same epoch follows; else the script's own code does."""
        return step + 1 < self.total_steps and (step + 1) % self._steps_per_epoch != 0

    @property
    def _last_turn(self) -> T:
        assert self._turn is not None and self._turn.last
        return self._turn

    def _complete(self) -> None:
        """Adopt the contexts after an applied step.

        Raises StepError if a registered object was changed, or random numbers were drawn, after backward().
        """
        turn, state = self._last_turn, self._state
        reported = state.contexts[turn.rank].parts
        changed = [key for key, value in self._actions.states().items() if reported.get(key) != value]
        items = [key.removeprefix(ITEM) for key in changed if key.startswith(ITEM)]
        if items := sorted(name for name in items if not name.startswith(RESERVED)):
            raise StepError(
                f"{', '.join(items)}, registered with the job, changed after backward() in step {turn.step}",
                hint="change it before backward(), or between epochs under `for rank in job.each_rank():`",
                virtual_rank=turn.rank,
            )
        if changed:
            raise StepError(
                f"random numbers were drawn after backward() in step {turn.step}",
                hint="draw them before backward(), or inside `with job.isolated_rng():`",
                virtual_rank=turn.rank,
            )
        self._actions.complete(turn)
        self._contexts.applied(state.contexts)
        self._actions.tell(lambda: self._protocol.end_apply(state.step))
        self._actions.applied(state.step)

    def _note(self, turn: T, states: Parts) -> None:
        """Record the EST's context after the step and its StepTask."""
        context = self._contexts.now[turn.rank]
        turn.state.contexts[turn.rank] = context.next(states, turn.loader_parts)
        task = ring_pb2.StepTask(virtual_rank=turn.rank)
        task.range.start, task.range.end = turn.taken[0].start, turn.taken[-1].end
        for taken in turn.taken:
            task.samples.extend(taken.samples)
        for name, value in self._actions.logged(turn).items():
            task.metrics[name] = value
        turn.state.tasks.append(task)

    def _report(self, turn: T, *, in_backward: bool = False) -> None:
        actions, state = self._actions, turn.state
        report = ring_pb2.StepReport(
            generation=self._protocol.generation,
            step=turn.step,
            epoch=turn.step // self._steps_per_epoch,
            tasks=state.tasks,
        )
        contexts = self._contexts.reported(state.contexts, positions=self._protocol.takes_positions)
        report.contexts.extend(contexts)
        # Only EST 0's order decides the layout, as rank 0's does under DDP.
        if 0 in state.contexts and actions.decides_layout(turn.step):
            report.extra.ready_order.extend(actions.ready_order())
        digests = actions.digests()
        if digests is not None:
            report.state_digest, report.settings_digest = digests
        report.goes_ahead = self._is_followed(turn.step) and actions.means_to_go_ahead(turn)
        actions.tell(lambda: self._protocol.report(report, in_backward=in_backward))
