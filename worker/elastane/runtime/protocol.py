"""A worker's side of the membership protocol: pure, one object per worker process.

`WorkerProtocol` takes the master's messages and the trainer's progress, and returns the messages to send and
whether the collective in flight must be aborted. It knows no thread, socket or tensor: `WorkerSession` calls
it under its lock, `MasterSession` carries the messages. The rule it guards is the fence: once Ready(g+1) is
sent, nothing of generation g is ever applied.

    Prepare ──▶ Ready ──▶ (Load ──▶ Loaded) ──▶ Go ──▶ entered ─┐
       ▲                                                        │ step: report ──▶ Prepared ──▶ apply
       └────────────────────────────────────────────────────────┘

In a pipeline each member holds other units, so none may be a step behind: a member that has reported a step
which Prepare, or the Welcome after a broken stream, says is prepared applies it first, and then is Ready. It
can, whoever has died: it reports only when the sums of its units are complete.

Elsewhere a worker may apply a step ahead of its Prepared (`begin_ahead`) and run the next one. Until Prepared
comes nothing of that leaves the process: `applied_step` stays, the next step's report is held back. If the
ring changes first, the step is lost like any other, and its effects are undone (`take_back`). The report says
that the step may go ahead: a planned change is then made a step later, in which nobody does.

Three parts know nothing of the fence and are asked in passing: `StepAttempts` (which attempts at steps there
are), `FollowState` (a newcomer that follows, or its source) and `RetransmitBuffer` (what a broken stream may
have lost).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from elastane.runtime.follow_state import FollowState
from elastane.runtime.retransmission import RetransmitBuffer
from elastane.runtime.step_attempts import StepAttempts
from elastane.runtime.step_state import Stage, StepState
from elastane_proto.v1 import pipeline_pb2, ring_pb2

ERROR_CHARACTERS_MAX = 500
"""The end of a longer error is left out of reports to the master."""


@dataclass
class Outcome:
    """Actions required after a message, or after the trainer's progress."""

    #: Messages to send, in order.
    send: list[ring_pb2.AttendRequest] = field(default_factory=list)
    #: Abort the collective in flight, and a group that is being formed.
    abort: bool = False
    #: Begin to form the group of this change; its Go follows.
    form: ring_pb2.Prepare | None = None
    #: Give up following the ring: the state will come from its members.
    stop_following: bool = False
    #: Complete this checkpoint, as the leader.
    manifest: ring_pb2.Checkpoint | None = None
    #: Answer with the parts of the state (`explained`).
    explain: ring_pb2.Explain | None = None
    #: Somebody wants to see what this worker does.
    capture: ring_pb2.CaptureOrder | None = None
    #: A message of this kind is not known, and has been ignored.
    unknown: str = ""


@dataclass
class WorkerProtocol:
    """State of one worker in the ring protocol. Steps are global; `applied_step` is the next step to run."""

    applied_step: int = 0
    holds_state: bool = False
    #: Generation in which the history of these weights began or was last rewound; 0: not known.
    history_generation: int = 0
    #: That history begins with what this worker has loaded, and no Go has confirmed it.
    unconfirmed: bool = False
    #: Generation of the ring that this worker runs in; 0: none.
    generation: int = 0
    #: The highest generation seen in a Prepare; above `generation` while the ring changes.
    fenced: int = 0
    #: Attempts at steps, and how far they are prepared in `generation`.
    attempts: StepAttempts = field(default_factory=StepAttempts)
    #: This worker as a newcomer that follows the ring, or as the source of one.
    following: FollowState = field(default_factory=FollowState)
    #: The master puts planned changes off where a report says that its step may go ahead.
    changes_wait: bool = False
    #: True while received or loaded state is put in place. Ready is delayed until then.
    replacing: bool = False
    #: True while the user's code runs between two epochs: no lease is running.
    between_steps: bool = False
    ready_order: list[int] = field(default_factory=list)
    #: The master reads positions of generators in step reports.
    takes_positions: bool = False
    load: ring_pb2.Load | None = None
    go: ring_pb2.Go | None = None
    #: A planned change that came with Prepared; takes effect once the step is applied.
    planned: ring_pb2.Prepare | None = None
    #: The master has let this worker go, and has sent no Prepare since: what it asked for before is void.
    _is_evicted: bool = False
    #: The change whose group this worker forms before its Go.
    _early: ring_pb2.Prepare | None = None
    #: The answer to this worker's IntervalReport.
    interval: ring_pb2.IntervalDecided | None = None
    checkpoint: ring_pb2.Checkpoint | None = None
    drain: ring_pb2.Drain | None = None
    done: ring_pb2.Done | None = None
    leaving: ring_pb2.Leaving | None = None
    #: All members' scripts left their loop over epochs at the same step: the training has ended.
    all_ended: bool = False
    #: In a pipeline: the units that this worker holds after `applied_step` steps.
    units: tuple[pipeline_pb2.UnitRange, ...] = ()
    #: The sentinel's check of this worker, in the step it names.
    check: ring_pb2.Check | None = None
    _history_of_go: int = 0
    _unanswered: RetransmitBuffer = field(default_factory=RetransmitBuffer)

    # ------------------------------------------------------------------ queries

    @property
    def changing(self) -> bool:
        """True during a change of membership: the step in flight is lost or has ended."""
        return self.fenced > self.generation or self.done is not None or self.drain is not None

    def stands(self, generation: int) -> bool:
        """True if the change to `generation` has not been superseded, and this worker is still part of it."""
        return generation == self.fenced and not self._is_evicted

    @property
    def is_running(self) -> bool:
        """True while this worker runs in a ring, as far as it knows unchanged."""
        return self.generation > 0 and not self.changing

    def may_apply(self, step: int) -> bool:
        """True if all contexts after `step` are durable and the ring is unchanged."""
        if self.attempts.is_finishing(step):
            return True
        return not self.changing and self.attempts.prepared_until > step

    def is_decided(self, step: int) -> bool:
        """True once this worker knows whether `step` may be applied or is lost with the ring."""
        return self.may_apply(step) or not self.is_running or self.attempts.explain_later is not None

    @property
    def next_step(self) -> int:
        """The next step to run: `applied_step`, or the one after a step that is applied ahead."""
        return self.attempts.next_step(self.applied_step)

    @property
    def is_ahead_lost(self) -> bool:
        """True if a step was applied ahead that must be undone."""
        return self.attempts.is_ahead_lost(self.is_running)

    @property
    def is_ahead_decided(self) -> bool:
        """True unless a step is applied ahead of which it is not known whether it must be undone."""
        return self.attempts.ahead is None or self.is_ahead_lost

    def may_go_ahead(self, step: int) -> bool:
        """True if `step`, which is reported, may be applied before it is known whether it is prepared.

        Its report must have said so, if the master reads that: `_may_report_ahead`.
        """
        return self.is_running and self.attempts.may_go_ahead(step) and self._may_report_ahead(step)

    @property
    def may_finish(self) -> bool:
        """True if a step of a pipeline is reported of which only the master can say whether it is prepared.

        A Welcome may say so, even if this worker was evicted; its sums need nobody else.
        """
        return bool(self.units) and self.is_running and self.attempts.newest.stage is Stage.REPORTED

    def is_formed_early(self, change: ring_pb2.Go | ring_pb2.Prepare) -> bool:
        """True if the group that `Outcome.form` has begun is that of `change`.

        It is another one's if the master's store has lost a change, and the master decided anew under the
        same generation.
        """
        early = self._early
        return (
            early is not None
            and early.generation == change.generation
            and list(early.members) == list(change.members)
            and early.rendezvous_secret == change.rendezvous_secret
        )

    @property
    def must_act(self) -> bool:
        """True if this worker, at a step boundary, runs in a ring or is asked for something; else it waits.

        `done` and `drain` end the script, `load` and `go` are carried out first.
        """
        asked = self.done is not None or self.drain is not None or self.load is not None
        return self.is_running or asked or self.go is not None or self.following.asked is not None

    def hello(self, **facts: Any) -> ring_pb2.Hello:
        """Build Hello from the current position. facts: the fields about the process and its script.

        It does not claim weights that were loaded and are not confirmed: the master would have to take their
        history, which it may not know, for one that its store has lost.
        """
        return ring_pb2.Hello(
            generation=self.fenced,
            applied_step=self.applied_step,
            holds_state=self.holds_state and not self.unconfirmed,
            history_generation=self.history_generation,
            **facts,
        )

    # ------------------------------------------------------------------ the master's messages

    def receive(self, message: ring_pb2.AttendResponse) -> Outcome:
        """Handle a message of the master."""
        match message.WhichOneof("message"):
            case "prepare":
                return self.prepare(message.prepare)
            case "prepared":
                return self.prepared(message.prepared)
            case "follow":
                return self.follow_requested(message.follow)
            case "interval_decided":
                return self.interval_decided(message.interval_decided)
            case "go":
                return self.go_ahead(message.go)
            case "load":
                return self.load_requested(message.load)
            case "welcome":
                return self.welcome(message.welcome)
            case "checkpoint" if message.checkpoint.manifest:
                return Outcome(manifest=message.checkpoint)
            case "checkpoint":
                self.checkpoint = message.checkpoint
            case "drain":
                self.drain = message.drain
                return Outcome(stop_following=self.following.is_following)
            case "compare" if message.compare.HasField("explain"):
                return self.explain_requested(message.compare.explain)
            case "compare":
                return self.compared(message.compare)
            case "capture":
                return Outcome(capture=message.capture)
            case "done":
                self.done = message.done
                return Outcome(abort=True, stop_following=self.following.is_following)
            case kind:
                return Outcome(unknown=str(kind))
        return Outcome()

    def prepare(self, message: ring_pb2.Prepare) -> Outcome:
        """Handle an unplanned change: fence at once, unless the optimizer or the backward of a reported step
        is running.

        Then Ready is sent by `end_apply` or `end_backward`, with the step that has been applied by that time.
        """
        if message.generation < self.fenced:
            return Outcome()
        self._is_evicted = False
        if message.generation == self.fenced:  # an echo, after a reconnect
            in_ring = self.generation == self.fenced
            return Outcome() if in_ring or self._ready_waits else Outcome(send=[self._ready()])
        # From here on no message of the old generation has any effect, whether or not Ready is sent yet.
        self.fenced = message.generation
        self.load = None
        self.go = None
        self.planned = None
        self.following.asked = None
        self._unanswered.change_ring()
        is_reported = self.attempts.newest.stage is Stage.REPORTED
        if message.HasField("prepared_until") and is_reported and self.generation:
            self.attempts.applies_until = message.prepared_until
        send = [] if self._ready_waits else [self._ready()]
        stop = self.following.is_following and not message.followed
        return Outcome(send=send, abort=True, form=self._formed_early(message), stop_following=stop)

    def follow_requested(self, message: ring_pb2.Follow) -> Outcome:
        """Store the master's request to follow the ring that trains."""
        if self.generation == 0 and self.fenced <= message.generation and not self.replacing:
            self.following.asked = message
        return Outcome()

    def load_requested(self, message: ring_pb2.Load) -> Outcome:
        """Store the master's request to load a checkpoint or keep the initial state: nobody holds state."""
        if message.generation != self.fenced or self.generation == self.fenced:
            return Outcome()
        if self._unanswered.loaded is not None:
            return Outcome(send=[self._unanswered.loaded])
        self.load = message
        return Outcome()

    def go_ahead(self, message: ring_pb2.Go) -> Outcome:
        """Store Go, for the trainer to form the group: all members are ready."""
        if message.generation == self.fenced and self.generation < self.fenced:
            self.go = message
            self._history_of_go = message.history_generation
            if self.unconfirmed and self._history_of_go == self.history_generation:
                self.unconfirmed, self.holds_state = False, True
        return Outcome()

    def prepared(self, message: ring_pb2.Prepared) -> Outcome:
        """Note that all contexts after the step are durable, and take the requests that came along."""
        # After the fence the step in flight is lost, even if all its contexts have become durable meanwhile.
        is_late = message.generation != self.generation or self.changing
        if is_late or self.attempts.explain_later is not None:
            return Outcome()
        applied = self.attempts.prepared(message.step, next_waits=message.next_waits)
        if applied is not None:
            self.applied_step = applied
            self._unanswered.step_applied()
        if message.HasField("extra") and message.extra.ready_order:
            self.ready_order = list(message.extra.ready_order)
        if message.HasField("then_checkpoint"):
            self.checkpoint = message.then_checkpoint
        if message.HasField("check"):
            self.check = message.check
        if message.HasField("follow"):
            self.following.feed = message.follow
        # A planned change waits for the step that this Prepared allows, so that nothing is lost or repeated.
        if message.HasField("then_prepare"):
            form = self._formed_early(message.then_prepare)
            if self.applied_step > message.step and not self._weights_change:
                outcome = self._fence_planned(message.then_prepare)
                outcome.form = form
                # The step after one that was applied ahead may run: other members will not take part in it.
                outcome.abort = self.attempts.newest.in_flight
                self.attempts.newest.end_backward()
                return outcome
            self.planned = message.then_prepare
            return Outcome(form=form)
        return self._send_held()

    def explain_requested(self, message: ring_pb2.Explain) -> Outcome:
        """Take the master's request for the parts of the state, as of the step that is reported.

        What was applied ahead is undone before it is answered.
        """
        if not self.attempts.explain(message):
            return Outcome(explain=message)
        # The next step's all-reduce may wait for members that are not ahead, and will not run that step.
        return Outcome(abort=True)

    def interval_decided(self, message: ring_pb2.IntervalDecided) -> Outcome:
        """Take the master's decision on the draws between two epochs.

        The epoch may begin, or the job ends.
        """
        if message.generation == self.generation and message.step == self.applied_step:
            self.interval, self._unanswered.interval_report = message, None
        return Outcome()

    def welcome(self, message: ring_pb2.Welcome) -> Outcome:
        """Return the messages to repeat after a (re)connect.

        A member (`resumed`) repeats whatever the old stream may have lost; any other worker leaves its ring.
        `reports_from`: the master's store has lost reports from this step on, so the kept ones are sent
        again.
        """
        # As Hello said it: until a Go confirms what was loaded, this master may never have known of it.
        self.holds_state = self.holds_state and not self.unconfirmed
        self.takes_positions = message.generator_positions
        self.changes_wait = message.planned_changes_wait
        # An older master would leave positions out without a word, and cannot read this job's store.
        is_unread = not self.takes_positions and self._unanswered.drop_positions()
        reports = (
            self._unanswered.reports_since(message.reports_from) if message.HasField("reports_from") else []
        )
        finishes = message.HasField("prepared_until") and self.may_finish
        if not message.resumed or is_unread:
            outcome = self.evict()
            outcome.send.extend(reports)
            if finishes:
                self.attempts.applies_until = message.prepared_until
        else:
            is_due = self.fenced > self.generation and not self._ready_waits
            ready = self._ready() if is_due else None
            outcome = Outcome(send=self._unanswered.repeated(reports, ready))
        if self.leaving is not None:
            outcome.send.append(ring_pb2.AttendRequest(leaving=self.leaving))
        return outcome

    def evict(self) -> Outcome:
        """Leave the current ring, because the master does not count this worker as a member (any more)."""
        self.generation = 0
        self._is_evicted = True
        self._early = None
        self.load = self.go = self.planned = self.checkpoint = self.interval = self.check = None
        self.following.leave()
        self.attempts.leave()
        self._unanswered.leave()
        return Outcome(abort=True, stop_following=self.following.is_following)

    # ------------------------------------------------------------------ the trainer's progress

    def entered(self, generation: int, step: int, ready_order: list[int]) -> None:
        """Note that the group of `generation` is formed and this worker holds the state at `step`.

        Of a pipeline that is what the plan gives it, `units`, which the caller has set.
        """
        assert generation == self.fenced, (generation, self.fenced)
        self.generation = generation
        self.applied_step = step
        self.attempts.enter(step)
        self.holds_state = True
        self._take_history(self._history_of_go, step)
        self.ready_order = ready_order
        self._early = None
        self.load = self.go = self.interval = self.check = self.following.feed = None
        self._unanswered.enter()

    def begin_replace(self, generation: int) -> bool:
        """Claim the right to replace the weights; False if the change to `generation` is over."""
        if not self.stands(generation):
            return False
        self.replacing = True
        return True

    def end_replace(
        self, generation: int, step: int, units: Iterable[pipeline_pb2.UnitRange] | None = None
    ) -> Outcome:
        """Note that the state at `step` is completely in place, even if `generation` has been superseded.

        units: of a pipeline, all that this worker holds now; None: as before.
        """
        self.replacing = False
        self.applied_step = step
        self.units = self.units if units is None else tuple(units)
        self.holds_state = True
        self._take_history(self._history_of_go, step)
        return Outcome() if generation == self.fenced else Outcome(send=[self._ready()])

    def begin_following(self) -> ring_pb2.Follow | None:
        """Begin to follow the ring, which changes the weights; None if that is not wanted any more."""
        follow = self.following.begin()
        if follow is not None:
            self.replacing = True
            self.holds_state = False
        return follow

    def followed(self, step: int, digest: int) -> Outcome:
        """Report the digest of the state after `step` steps, as a newcomer that follows or as its source."""
        return Outcome(send=self.following.report_digest(step, digest))

    def feeding_failed(self, follow: ring_pb2.Follow, error: str) -> Outcome:
        """Report that this worker cannot go on sending to the newcomer that follows."""
        return Outcome(send=self.following.feed_failed(follow, error[:ERROR_CHARACTERS_MAX]))

    def end_following(self, step: int | None, error: str = "") -> Outcome:
        """Note that this worker has followed the ring to `step`, where it ends; None: it has given up."""
        outcome = Outcome()
        if step is None:
            follow, outcome.send = self.following.give_up(error[:ERROR_CHARACTERS_MAX])
        else:
            follow = self.following.end()
            self.applied_step, self.holds_state = step, True
            self._take_history(follow.history_generation, step)
            # As with a Load: no Hello claims it before a Go has confirmed it.
            self.unconfirmed = True
        self.replacing = False
        if self.fenced > follow.generation:
            outcome.send.append(self._ready())
        return outcome

    def begin_step(self) -> StepState:
        """Begin the next step to apply, and return its state."""
        return self.attempts.begin(self.applied_step)

    def lose_step(self) -> Outcome:
        """Give up the step in flight, if there is one. Answers a change that waited for it to be applied."""
        waited = self.attempts.lose()
        return Outcome(send=[self._ready()]) if waited and not self._ready_waits else Outcome()

    def report(self, message: ring_pb2.StepReport, *, in_backward: bool = False) -> Outcome:
        """Send the report of a step that all ESTs of this worker have run, and keep it for repetition.

        in_backward: the last EST's backward is still running. After a step that is applied ahead, the report
        is held back until that step is prepared. `message.goes_ahead` is cleared if the step may not go ahead
        for reasons that are known here.
        """
        # A change that is known by now has been answered; `end_backward` must not answer it again.
        in_backward = in_backward and not self.changing
        if self.attempts.hold(message, in_backward=in_backward):
            return Outcome()
        message.goes_ahead = message.goes_ahead and self._may_report_ahead(message.step)
        self.attempts.newest.report(in_backward=in_backward, goes_ahead=message.goes_ahead)
        return Outcome(send=[self._unanswered.add_step_report(message)])

    def report_interval(self, message: ring_pb2.IntervalReport) -> Outcome:
        """Report the code before the first step of an epoch.

        Repeated after a reconnect until it is answered.
        """
        if not self.is_running:
            return Outcome()
        self.interval = None
        self._unanswered.interval_report = request = ring_pb2.AttendRequest(interval_report=message)
        return Outcome(send=[request])

    def check_report(self, message: ring_pb2.CheckReport) -> Outcome:
        """Report the digest of a checked EST's gradients, after its last backward of the step."""
        self._unanswered.check_report = request = ring_pb2.AttendRequest(check_report=message)
        return Outcome(send=[request])

    def end_backward(self) -> Outcome:
        """End the last backward, or give it up. Answers a change that arrived during it."""
        waited = self.attempts.newest.end_backward()
        return Outcome(send=[self._ready()]) if waited and self.fenced > self.generation else Outcome()

    def begin_apply(self, step: int) -> bool:
        """Claim the right to apply `step`; False, with the step lost, if the ring has changed meanwhile."""
        return self.attempts.prepare(may_apply=self.may_apply(step))

    def begin_ahead(self, step: int) -> bool:
        """Claim the right to apply `step` ahead of its Prepared.

        False if it has been decided meanwhile, or its report has not said so. A change of the ring does not
        wait for it: Ready says `applied_step`, and what is done to the weights is undone before anything of
        them is sent.
        """
        if not self.attempts.newest.may_go_ahead or not self.may_go_ahead(step):
            return False
        self.attempts.go_ahead()
        return True

    def take_back(self) -> bool:
        """Give up the step that was applied ahead, if it is lost. True: the caller must undo its effects."""
        return self.attempts.take_back(self.is_running)

    def end_apply(self, step: int) -> Outcome:
        """Note that the step is in the weights. Answers a change that was delayed by it."""
        if not self.attempts.apply():
            return Outcome()
        self.applied_step = step + 1
        self._unanswered.step_applied()
        if self.fenced > self.generation:
            return Outcome(send=[self._ready()])
        if self.planned is not None:
            return self._fence_planned(self.planned)
        return Outcome()

    def end_early(self, message: ring_pb2.EndEarly) -> Outcome:
        """Report that the script left its loop over epochs.

        Repeated after a reconnect, and by the trainer in a new ring.
        """
        request = ring_pb2.AttendRequest(comparison=ring_pb2.Comparison(end_early=message))
        self._unanswered.ended = request
        return Outcome(send=[request])

    def compared(self, message: ring_pb2.Compare) -> Outcome:
        """Take the master's comparison result, except requests that only the trainer can answer."""
        if message.HasField("all_end") and message.all_end.step == self.applied_step:
            self.all_ended = True
        return Outcome()

    def explained(self, message: ring_pb2.StateDetails) -> Outcome:
        """Answer the master's request for the parts of the state."""
        comparison = ring_pb2.Comparison(details=message)
        return Outcome(send=[ring_pb2.AttendRequest(comparison=comparison)])

    def loaded(self, message: ring_pb2.Loaded) -> Outcome:
        """Report that the leader holds state now."""
        self.replacing = False
        self.applied_step = message.step
        self.holds_state = message.generation == self.fenced
        self.units = ()  # a leader of a pipeline reads what is common to all members; units come with Go
        if not self.holds_state:
            # These weights were not adopted by the job; the Load of a newer generation may already be stored.
            return Outcome(send=[self._ready()])
        self.load = None
        self._take_history(message.generation, message.step)
        self.unconfirmed = True
        self._unanswered.loaded = request = ring_pb2.AttendRequest(loaded=message)
        return Outcome(send=[request])

    def saved(self, message: ring_pb2.Saved) -> Outcome:
        """Report a written shard or manifest; repeated after a reconnect until the next checkpoint."""
        return Outcome(send=[self._unanswered.add_saved(message)])

    def broken(self, step: int, error: str) -> Outcome:
        """Report that the collective failed, unless a change is already known."""
        if not self.is_running:
            return Outcome()
        return self._report_broken(self.generation, step, error)

    def forming_failed(self, generation: int, error: str) -> Outcome:
        """Report that the group of `generation` could not be formed or filled with state."""
        if generation != self.fenced:
            return Outcome()  # the Go of a newer generation may already be stored
        self.go = None
        return self._report_broken(generation, self.applied_step, error)

    def heartbeat(self) -> ring_pb2.AttendRequest:
        """Build a heartbeat from the current state."""
        phase = ring_pb2.TRAINER_PHASE_BETWEEN if self.between_steps else ring_pb2.TRAINER_PHASE_STEP
        return ring_pb2.AttendRequest(
            heartbeat=ring_pb2.Heartbeat(
                generation=self.generation, applied_step=self.applied_step, phase=phase
            )
        )

    # ------------------------------------------------------------------ internals

    def _may_report_ahead(self, step: int) -> bool:
        """True if nothing that is known when `step` is reported keeps it from going ahead.

        A step with whose Prepared may come what must be known at the beginning of the next one may not, and
        none may with a master that would drop the next one for a planned change. A worker that is to leave
        with its node may be asked for a checkpoint, and saves it a step earlier if it waits.
        """
        return (
            self.changes_wait
            and self.attempts.may_report_ahead(step)
            and self.units == ()
            and self.following.feed is None
            and self.leaving is None
            and self._unanswered.check_report is None
        )

    def _send_held(self) -> Outcome:
        """Send the report that was held back, if the step before it is prepared now."""
        held = self.attempts.take_held()
        return Outcome() if held is None else self.report(held, in_backward=self.attempts.newest.in_backward)

    def _report_broken(self, generation: int, step: int, error: str) -> Outcome:
        cause = error[:ERROR_CHARACTERS_MAX]
        message = ring_pb2.RingBroken(generation=generation, step=step, error=cause)
        self._unanswered.broken = request = ring_pb2.AttendRequest(ring_broken=message)
        return Outcome(send=[request])

    def _take_history(self, history_generation: int, step: int) -> None:
        """Adopt the history of the weights, which are at `step`."""
        self._unanswered.take_history(step, is_same=history_generation == self.history_generation)
        self.history_generation = history_generation
        self.unconfirmed = False

    @property
    def _weights_change(self) -> bool:
        """True from the optimizer step to the end of the turn's body, and while state is put in place."""
        return self.replacing or self.attempts.newest.stage is Stage.PREPARED

    @property
    def _ready_waits(self) -> bool:
        return self.replacing or self.attempts.newest.delays_ready or self.attempts.finishes

    def _ready(self) -> ring_pb2.AttendRequest:
        ready = ring_pb2.Ready(
            generation=self.fenced, applied_step=self.applied_step, holds_state=self.holds_state
        )
        if self.holds_state:
            ready.units.extend(self.units)
        return ring_pb2.AttendRequest(ready=ready)

    def _formed_early(self, prepare: ring_pb2.Prepare) -> ring_pb2.Prepare | None:
        """Return the change if its group is to be formed before its Go, and is not being formed yet."""
        if self.is_formed_early(prepare):
            return None
        self._early = prepare if prepare.rendezvous_secret else None
        return self._early

    def _fence_planned(self, prepare: ring_pb2.Prepare) -> Outcome:
        self.planned = None
        if prepare.generation <= self.fenced:
            return Outcome()
        self.fenced = prepare.generation
        self.load = None
        self.go = None
        self._unanswered.loaded = None
        return Outcome(send=[self._ready()])
