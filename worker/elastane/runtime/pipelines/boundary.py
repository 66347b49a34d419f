"""A pipeline trainer's actions at a step boundary. Units move and are released by the ring's plan:

    form     the group; then every member sends the units that others lack, and gets those that it lacks
             from members, a checkpoint or the script's initial values. Members of the previous ring load
             them at once; their old units are released after the first step of the new ring
    receive, adopt   a newcomer loads the received units and the state common to all workers
    enter    the executor gets the plan

Every action ends before it returns: coroutines block the script's thread and never suspend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import torch

from elastane.collective.ring_errors import RingAborted
from elastane.collective.ring_thread import finish_in_thread
from elastane.collective.transport import HANDOVER_TAG
from elastane.pipeline.ring_links import RingLinks
from elastane.runtime import probes
from elastane.runtime.boundary_actions import RingActions, RingMember
from elastane.runtime.interval import Interval
from elastane.runtime.pipelines.actions import ORDER_STEP, ranges
from elastane.runtime.pipelines.evaluation import Evaluation
from elastane.runtime.pipelines.parts import PipelineParts
from elastane.runtime.pipelines.runner import PipelineRunner
from elastane.runtime.saving import CheckpointSaver, verify_for
from elastane.state.checkpoint import VerifiedCheckpoint
from elastane.state.unit_checkpoint import load_units, take_unit_snapshot
from elastane.state.unit_handover import hand_over
from elastane.state.unit_state import Staged
from elastane.state.unit_transfers import initial_of, read_by, saved_by, transfers, units_of
from elastane_proto.v1 import pipeline_pb2, ring_pb2


@dataclass(frozen=True)
class _Coming:
    """Units that a member receives when the plan changes. wanted: all units that the plan assigns to it."""

    wanted: frozenset[int] = frozenset()
    staged: Staged = field(default_factory=Staged)
    initial: frozenset[int] = frozenset()

    @property
    def has_units(self) -> bool:
        return bool(self.staged.units or self.initial)


class PipelineBoundaryActions(RingActions):
    """Actions of one pipeline worker's step boundary.

    num_ests: of the job. device: of the units. all_wait: takes part in other members' evaluation.
    """

    def __init__(
        self,
        parts: PipelineParts,
        runner: PipelineRunner,
        saver: CheckpointSaver,
        interval: Interval,
        member: RingMember,
        evaluation: Evaluation,
        num_ests: int,
        device: torch.device,
    ) -> None:
        super().__init__(parts.worker_session, parts.contexts, parts.figures, interval, member, runner.drop)
        self._executor, self._state = parts.executor, parts.state
        self._runner, self._saver, self._evaluation = runner, saver, evaluation
        self._num_ests, self._device = num_ests, device
        self._links: RingLinks | None = None
        self._plan = pipeline_pb2.PipelinePlan()
        self._me = 0
        self._coming = _Coming()

    # ------------------------------------------------------------------ checkpoints

    def save(self, message: ring_pb2.Checkpoint) -> None:
        """Copy the units that this worker saves, and write them in the background."""
        snapshot = take_unit_snapshot(
            self._state,
            saved_by(self._plan, self._me),
            message.shard,
            message.shards,
            step=message.step,
            contexts={rank: dict(context.parts) for rank, context in self._contexts.now.items()},
            ready_order=self._session.protocol.ready_order,
        )
        self._saver.write_snapshot(message, snapshot)

    async def restore(self, message: ring_pb2.Load) -> VerifiedCheckpoint | None:
        """Find the newest usable checkpoint, and load the state that is common to all workers.

        Each worker reads its own units later.
        """
        self._change_began = perf_counter()
        found = verify_for(message, num_ests=self._num_ests)
        if found is not None:
            self._state.adopt((), load_units(message.checkpoint_url, found.name, (), self._state))
        return found

    # ------------------------------------------------------------------ rings

    def drop_step(self) -> None:
        super().drop_step()
        if self._links is not None:
            self._links.abandon()
            self._links.close()
            self._links = None

    async def form(self, go: ring_pb2.Go, me: int) -> None:
        await super().form(go, me)
        self._coming = coming = self._take_units(go, me)
        if me in go.receivers or not coming.has_units:
            return
        if not self.begin_replace(go.generation):
            raise RingAborted(f"generation {go.generation} is over")
        self._state.adopt(coming.wanted, coming.staged, initial=coming.initial)
        claimed = [*ranges(self._claimed() | coming.wanted)]
        protocol = self._session.protocol
        self.tell(lambda: protocol.end_replace(go.generation, go.resume_step, claimed))

    def _take_units(self, go: ring_pb2.Go, me: int) -> _Coming:
        """Send units that others lack; receive or read those missing here. Live state is unchanged."""
        transport, plan = self._transport, go.pipeline
        assert transport is not None
        began = self._handover_began = perf_counter()
        moves = transfers(plan, go.donors, go.receivers)
        staged = Staged()
        if moves:
            probes.reached("hand_over", go.resume_step)
            if self._device.type == "cuda":
                # The hand-over thread has its own CUDA stream.
                torch.cuda.current_stream(self._device).synchronize()
            move = partial(hand_over, transport, self._state, moves, me, tag_base=HANDOVER_TAG)
            handed = finish_in_thread("elastane-units", transport, move)
            staged, figures = handed.staged, self._figures
            figures.handover_bytes_sent += handed.sent_bytes
            figures.handover_bytes_received += handed.received_bytes
            if handed.sent_bytes:
                self._note_handover("send", go, handed.sent_bytes)
            if handed.received_bytes:
                self._note_handover("receive", go, handed.received_bytes)
        for name, units in read_by(plan, me).items():
            read = load_units(plan.checkpoint_url, name, units, self._state)
            # Common state comes from the leader, which has read it and may have changed it since.
            staged = staged | Staged(read.units, None, read.devices)
        self._figures.handover_seconds += perf_counter() - began
        return _Coming(units_of(plan, me), staged, initial_of(plan, me))

    async def send_state(self, go: ring_pb2.Go, donor: int) -> None:
        """Do nothing: everything has been sent in `form`."""

    async def receive_state(self, go: ring_pb2.Go) -> None:
        """Do nothing: everything has been received in `form`."""

    async def adopt_state(self, go: ring_pb2.Go) -> None:
        coming = self._coming
        self._state.adopt(coming.wanted, coming.staged, initial=coming.initial)
        # units held before belong to another step
        self._session.protocol.units = tuple(ranges(coming.wanted))
        self._received = coming.staged
        self._member.replaced(None)

    def enter(self, go: ring_pb2.Go, me: int) -> bool:
        """Let the executor and the session use the group that has been formed."""
        assert self._transport is not None
        wanted, self._coming = self._coming.wanted, _Coming()
        if self._state.active != wanted:
            self._state.adopt(wanted, Staged())
        self._plan, self._me = go.pipeline, me
        self._runner.links.entered([member.worker_id for member in go.members])
        self._links = RingLinks(self._transport, self._device, self._runner.links)
        self._executor.set_ring(
            go.pipeline,
            me,
            [(m.ests.start, m.ests.end) for m in go.members],
            self._links,
            go.generation,
            list(go.extra.ready_order) if go.resume_step > ORDER_STEP else None,
        )
        self._runner.speed.entered()
        self._session.protocol.units = tuple(ranges(self._claimed() | wanted))
        is_entered = self._session.entered(go)
        if is_entered:
            self._session.spans.entered(go.generation)
        return is_entered

    async def all_wait(self) -> bool:
        return self._evaluation.serve()

    def _claimed(self) -> frozenset[int]:
        """Return the units that this worker holds at its step, as it says in Ready."""
        return frozenset(
            unit for units in self._session.protocol.units for unit in range(units.first_unit, units.end_unit)
        )
