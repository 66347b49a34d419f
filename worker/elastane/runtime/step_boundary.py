"""A worker's actions between two steps: ring changes with their hand-over, loading, checkpoints, intervals.

    checkpoint ─▶ the master's request ─▶ Load: load, or keep the initial state ──────────▶┐
        ▲                              ─▶ Go: form the group, hand over state, start ESTs ─▶┤
        │                              ─▶ Follow: take the same steps as the ring ────────▶┤
        │                              ─▶ none: report the code between epochs ────────────▶┤
        │                                       └─▶ already done: run the step              │
        └───────────────────────────────────────────────────────────────────────────────────┘

Decides, and knows no thread, socket or tensor: `Actions` waits, moves data and changes the model. Those of a
worker block the script's thread (`boundary_actions`), so that the coroutines here never suspend; those of the
simulation are tasks in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

import structlog

from elastane.collective.ring_errors import RingAborted, RingBroken
from elastane.context import EstContext
from elastane.runtime.feed_book import FollowError
from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane_common.errors import EXIT_REFUSED, ElastaneError
from elastane_proto.contexts import context_to_proto
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)


class IntervalError(ElastaneError):
    """The draws of the code between two epochs cannot be determined for every EST."""

    code = "ELA330"
    exit_code = EXIT_REFUSED


class Restored(Protocol):
    """A checkpoint whose state is in place. rejected: newer ones that are unusable, with the reasons."""

    @property
    def name(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def contexts(self) -> Mapping[int, Mapping[str, bytes]]: ...
    @property
    def ready_order(self) -> Sequence[int]: ...
    @property
    def rejected(self) -> Sequence[str]: ...


class Actions(Protocol):
    """Interface of a step boundary to its surroundings. Changes of the protocol's state are atomic."""

    def tell(self, change: Callable[[], Outcome], /) -> object:
        """Change the protocol's state, and send the messages that follow."""

    async def wait_for(self, condition: Callable[[], object], /) -> object:
        """Wait until the condition on the protocol's state holds."""

    async def next_request(self) -> ring_pb2.Load | ring_pb2.Go | ring_pb2.Follow | None:
        """Wait for the master's request, or None: the ring is formed. Ends the script if it is sent away."""

    def take_back(self) -> bool:
        """Undo the step that was applied ahead of its Prepared, if it is lost; False if there is none."""

    def explain(self) -> object:
        """Answer the master's request for the parts of the state, which waited for `take_back`."""

    def set_between(self, between: bool, /) -> object:
        """Report whether the script's code between epochs runs."""

    def start_anew(self, why: str, /) -> NoReturn:
        """End the process with EXIT_START_ANEW, so that the agent starts a fresh one."""

    def begin_replace(self, generation: int, /) -> bool:
        """Claim the right to replace the weights; False if `generation` has been superseded."""

    def begins_epoch(self, step: int, /) -> bool:
        """True if the script's code between epochs runs before `step`."""

    async def all_wait(self) -> bool:
        """Wait until no member's code between epochs needs anything of the others any more.

        False if the ring has changed meanwhile.
        """

    def interval_report(self, generation: int, step: int, /) -> ring_pb2.IntervalReport:
        """Build the report of the script's code before `step`."""

    def take_checkpoint_request(self) -> ring_pb2.Checkpoint | None:
        """Return the checkpoint requested at this boundary, if any, and clear it."""

    def save(self, message: ring_pb2.Checkpoint, /) -> object:
        """Copy this worker's shard, and write it in the background."""

    def begin_following(self) -> ring_pb2.Follow | None:
        """Claim the right to replace the weights by the ring's; None if that is not wanted any more."""

    async def follow(self, message: ring_pb2.Follow, /) -> int:
        """Follow the ring until it changes; return the step after which its state is in place here.

        Raises FollowError, RingAborted, RingBroken.
        """

    def feed(self, step: int, /) -> object:
        """Serve a newcomer that follows this worker, with the state after `step` steps in place."""

    async def restore(self, message: ring_pb2.Load, /) -> Restored | None:
        """Put the newest usable checkpoint in place; None if there is none."""

    def loaded(self, loaded: ring_pb2.Loaded, /) -> object:
        """Adapt to the state in place, a checkpoint's or the initial one."""

    def drop_step(self) -> object:
        """Give up the step in flight: its gradients must not survive the ring."""

    async def form(self, go: ring_pb2.Go, me: int, /) -> object:
        """Form the process group. Raises RingAborted, RingBroken."""

    async def send_state(self, go: ring_pb2.Go, donor: int, /) -> object:
        """Send the state to all receivers. donor: index into `go.donors`. Raises RingAborted, RingBroken."""

    async def receive_state(self, go: ring_pb2.Go, /) -> object:
        """Receive the donors' state in staging memory. Raises RingAborted, RingBroken."""

    async def adopt_state(self, go: ring_pb2.Go, /) -> object:
        """Replace this worker's state by the one received."""

    def enter(self, go: ring_pb2.Go, me: int, /) -> bool:
        """Begin to run in the ring; False if its generation has been superseded."""

    def start_ests(self, step: int, go: ring_pb2.Go | None, /) -> object:
        """Start this worker's ESTs at `step` from contexts in place. go: of a ring that was just entered."""


class StepBoundary:
    """A worker's side of everything that happens at a step boundary.

    contexts: those of the ESTs hosted here, replaced with each ring. initial: of all ESTs at step 0.
    """

    def __init__(
        self,
        worker_id: str,
        protocol: WorkerProtocol,
        contexts: HostedContexts,
        initial: Mapping[int, EstContext],
        actions: Actions,
    ) -> None:
        self._worker_id = worker_id
        self._protocol = protocol
        self._contexts = contexts
        self._initial = initial
        self._actions = actions
        #: The weights are still those that the script built.
        self.pristine = True

    async def settle(self, *, in_loop: bool = True) -> None:
        """Return when this worker runs in a ring and the master requests nothing before the next step.

        in_loop: the script's code before the step has ended. After a step that is applied ahead there is
        nothing to do before the next one: what its Prepared asks for is done within that. Raises
        IntervalError.
        """
        protocol = self._protocol
        while True:
            if protocol.attempts.ahead is not None and not self._actions.take_back():
                return
            if protocol.attempts.explain_later is not None and protocol.is_running:
                self._actions.explain()
                # No step can run before the master has decided what comes of it: its members are not alike.
                await self._actions.wait_for(lambda: not protocol.is_running)
            if not self._interval_is_open():
                self._take_checkpoint()
            self._actions.feed(protocol.applied_step)
            request = await self._actions.next_request()
            if request is None:
                if not in_loop or not self._interval_is_open():
                    return
                await self._close_interval()
                continue
            if in_loop:
                self._actions.set_between(False)
            if isinstance(request, ring_pb2.Load):
                await self._load(request)
            elif isinstance(request, ring_pb2.Follow):
                await self._follow()
            else:
                await self._enter(request)

    def _interval_is_open(self) -> bool:
        """True if the random draws of the code before the next step are not in the contexts yet."""
        step = self._protocol.applied_step
        return self._actions.begins_epoch(step) and self._contexts.is_open(step)

    async def _close_interval(self) -> None:
        """Report the draws of the code before the step, and adopt the master's decision.

        Also returns when the ring changes first. Raises IntervalError if the master refuses the draws.
        """
        if not await self._actions.all_wait():
            return
        protocol, step = self._protocol, self._protocol.applied_step
        report = self._actions.interval_report(protocol.generation, step)
        self._actions.tell(lambda: protocol.report_interval(report))
        await self._actions.wait_for(lambda: protocol.interval is not None or not protocol.is_running)
        decided = protocol.interval
        if decided is None:
            return
        if decided.refusal:
            raise IntervalError(decided.refusal, step=step)
        self._contexts.decide(decided, step)
        self._actions.start_ests(step, None)

    async def _load(self, message: ring_pb2.Load) -> None:
        """Load the newest checkpoint or keep the initial state, as leader, if nobody holds state.

        If there is no checkpoint and the weights are no longer initial, ends the process with
        EXIT_START_ANEW, so that the agent starts a fresh one.
        """
        if not self._actions.begin_replace(message.generation):
            return
        restored = await self._actions.restore(message)
        if restored is None and not self.pristine:
            self._actions.start_anew("there is no checkpoint to go back to, and this process has trained")
        loaded = self._loaded(message.generation, restored)
        self._actions.loaded(loaded)
        self.pristine = self.pristine and loaded.step == 0
        self._actions.tell(lambda: self._protocol.loaded(loaded))

    def _loaded(self, generation: int, restored: Restored | None) -> ring_pb2.Loaded:
        """Build the report of what is in place, with the contexts of all ESTs."""
        loaded = ring_pb2.Loaded(generation=generation)
        contexts = {rank: context.parts for rank, context in self._initial.items()}
        if restored is not None:
            loaded.step, loaded.checkpoint = restored.step, restored.name
            loaded.rejected.extend(restored.rejected)
            loaded.extra.ready_order.extend(restored.ready_order)
            contexts = dict(restored.contexts)
        for rank, parts in contexts.items():
            loaded.contexts.append(context_to_proto(rank, loaded.step, parts))
        return loaded

    async def _follow(self) -> None:
        """Follow the ring as a newcomer. If that fails, the state comes from the members after Go."""
        message = self._actions.begin_following()
        if message is None:
            return
        self.pristine = False
        step, failure = None, ""
        try:
            step = await self._actions.follow(message)
        except (FollowError, RingAborted, RingBroken) as error:
            failure = str(error)
            _log.info("does not follow the ring", source=message.source, error=failure)
        self._actions.tell(lambda: self._protocol.end_following(step, failure))

    async def _enter(self, go: ring_pb2.Go) -> None:
        """Form the generation's process group, hand state over, and start this worker's ESTs.

        A failure to form the group is reported to the master, which decides on the next generation.
        """
        me = [member.worker_id for member in go.members].index(self._worker_id)
        # Before forming: the collective of the old ring must have ended, and its gradients must not survive.
        self._actions.drop_step()
        try:
            await self._actions.form(go, me)
            await self._hand_over(go, me)
        except (RingAborted, RingBroken) as error:
            _log.debug("group was not formed", generation=go.generation, error=str(error))
            failure = str(error)
            self._actions.tell(lambda: self._protocol.forming_failed(go.generation, failure))
            return
        if not self._actions.enter(go, me):
            return
        self._contexts.enter(go)
        self._actions.start_ests(go.resume_step, go)

    async def _hand_over(self, go: ring_pb2.Go, me: int) -> None:
        """Send the state at the resume step as a donor, or receive it; other members do nothing."""
        if me in go.receivers:
            await self._actions.receive_state(go)
            if not self._actions.begin_replace(go.generation):
                raise RingAborted(f"generation {go.generation} is over")
            # Only now, and not while it is received: an abandoned transfer must never touch live weights.
            await self._actions.adopt_state(go)
            self.pristine = False
            self._actions.tell(lambda: self._protocol.end_replace(go.generation, go.resume_step))
        elif go.receivers and me in go.donors:
            await self._actions.send_state(go, list(go.donors).index(me))

    def _take_checkpoint(self) -> None:
        """Save this worker's shard if the master requested a checkpoint here."""
        message = self._actions.take_checkpoint_request()
        if message is None:
            return
        if message.step != self._protocol.applied_step:
            _log.warning("checkpoint missed", checkpoint=message.checkpoint, step=self._protocol.applied_step)
            return
        self._actions.save(message)
