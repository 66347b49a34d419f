"""Task queue of all-reduce training: task (epoch, step, virtual rank), N of them per step.

The tasks of a step are leased to the workers that host the ESTs, reported one by one, and become DONE
together when the step commits. Since a step commits only when every member of the ring has applied it, the
next one has begun by then: a reported step and its successor may both be in DOING. A ring change returns all
of them to TODO.

A lease is a multiple of the median step, so a task that outlives its lease means a hung worker. Between steps
(evaluation, saving) a worker is paused and its leases have no deadline.

Pure: the caller passes the time as `now`, in seconds. Steps are global, from 0; epoch = step //
steps_per_epoch. All errors are raised before any state changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import msgspec

from elastane_shards.errors import (
    IllegalTransition,
    InvalidRequest,
    InvalidSettings,
    InvalidSnapshot,
    InvariantViolated,
    NotHolder,
)
from elastane_shards.progress import Progress
from elastane_shards.steps import (
    DURATIONS_KEPT,
    STEPS_IN_FLIGHT_MAX,
    LockstepSettings,
    LockstepState,
    StepInFlight,
    StepLease,
)

_decoder = msgspec.msgpack.Decoder(LockstepState)


class LockstepQueue:
    """State machine of the lockstep tasks of a ring. The constructor raises InvalidSettings."""

    def __init__(self, settings: LockstepSettings) -> None:
        settings.check()
        self._state = LockstepState(settings)

    @property
    def settings(self) -> LockstepSettings:
        """Settings given at creation."""
        return self._state.settings

    @property
    def committed(self) -> int:
        """The next step to commit; all before it are DONE."""
        return self._state.committed

    @property
    def step(self) -> int | None:
        """The newest step in DOING; None when nothing is leased."""
        return self._state.in_flight[-1].step if self._state.in_flight else None

    @property
    def epoch(self) -> int:
        """The epoch of the next step to commit; the last one when all is complete."""
        settings = self._state.settings
        return min(self._state.committed // settings.steps_per_epoch, settings.epochs - 1)

    @property
    def complete(self) -> bool:
        """True if every step of every epoch is DONE."""
        return self._state.committed == self._state.settings.steps

    @property
    def all_reported(self) -> bool:
        """True if every task of the newest step in DOING is reported; False if there is none."""
        return bool(self._state.in_flight) and self._state.in_flight[-1].all_reported

    @property
    def lease_seconds(self) -> float:
        """Duration of a lease granted now, in seconds."""
        settings, durations = self._state.settings, self._state.durations
        if not durations:
            return settings.lease_min_seconds
        return max(settings.lease_min_seconds, settings.lease_factor * median(durations))

    # ------------------------------------------------------------------ transitions

    def begin(self, step: int, holders: Mapping[int, str], now: float) -> int:
        """Lease the N tasks of a step to `holders` (virtual rank -> worker); return the attempt, from 1.

        The step must be the next one: `committed` when nothing is in DOING, else the one after a fully
        reported step. A step that was put back is begun again with a higher attempt. The time from one begin
        to the next counts as the step's duration. Raises IllegalTransition, and InvalidRequest unless every
        virtual rank has a holder.
        """
        state = self._state
        expected = state.committed + len(state.in_flight)
        if step != expected or step >= state.settings.steps:
            raise IllegalTransition(
                f"step {step} cannot begin; next is {expected}", step=step, expected=expected
            )
        if state.in_flight and not self.all_reported:
            raise IllegalTransition(f"step {step - 1} is not reported in full", step=step)
        if len(state.in_flight) == STEPS_IN_FLIGHT_MAX:
            raise IllegalTransition(f"step {state.committed} is not committed", step=step)
        if set(holders) != set(range(state.settings.ests)) or not all(holders.values()):
            raise InvalidRequest(
                f"step {step} needs a holder for each of {state.settings.ests} ESTs", ranks=sorted(holders)
            )
        self._time_newest(now)
        # Drop the pauses of workers that left the ring: nobody would end them.
        if state.paused:
            present = set(holders.values())
            state.paused = [worker for worker in state.paused if worker in present]
        deadline = now + self.lease_seconds
        attempt = self._next_attempt(step)
        leases = {
            rank: StepLease(holders[rank], None if holders[rank] in state.paused else deadline)
            for rank in sorted(holders)
        }
        # A step that begins during a pause is not timed: the pause would count in the median.
        state.in_flight.append(StepInFlight(step, attempt, now, not state.paused, leases))
        state.rate.begin(now)
        state.now = now
        return attempt

    def report(self, rank: int, worker: str) -> bool:
        """Record that an EST's task of the newest step is complete; False if it was already reported.

        A worker that reports is no longer paused. Raises IllegalTransition if no step is in DOING, NotHolder
        if another worker holds the lease.
        """
        if not self._state.in_flight:
            raise IllegalTransition("no step is in DOING", rank=rank, worker=worker)
        newest = self._state.in_flight[-1]
        lease = newest.leases.get(rank)
        if lease is None or lease.worker != worker:
            raise NotHolder(
                f"{worker} does not hold EST {rank} in step {newest.step}",
                rank=rank,
                worker=worker,
                holder=lease.worker if lease else "",
                step=newest.step,
            )
        self._unpause(worker)
        if lease.reported:
            return False
        lease.reported, lease.deadline = True, None
        return True

    def commit(self, now: float | None = None) -> int:
        """Mark all N tasks of the oldest step in DOING as DONE; return that step.

        now: time for the throughput figure; by default that of the last begin. Raises IllegalTransition
        unless all of them are reported.
        """
        state = self._state
        if not state.in_flight or not state.in_flight[0].all_reported:
            raise IllegalTransition(f"step {state.committed} is not reported in full", step=state.committed)
        # Otherwise the begin of the newer step has already ended this one's duration.
        if len(state.in_flight) == 1:
            self._time_newest(state.now if now is None else now)
        done = state.in_flight.pop(0)
        state.attempts.pop(done.step, None)
        state.committed = done.step + 1
        samples = state.settings.batch_length(done.step) * state.settings.ests
        state.rate.add(state.now if now is None else now, samples)
        return done.step

    def requeue(self, *, timed_out: int = 0) -> list[tuple[int, int]]:
        """Return every task in DOING to TODO, for a ring change. Returns their (step, virtual rank).

        Commit first the steps that the resume step proves committed. timed_out: how many of the tasks were
        overdue.
        """
        state = self._state
        tasks = [(flight.step, rank) for flight in state.in_flight for rank in flight.leases]
        state.in_flight.clear()
        state.requeued += len(tasks)
        state.timed_out += timed_out
        return tasks

    def rewind(self, step: int) -> list[tuple[int, int]]:
        """Take history back to a saved step: `step` is the next to commit, later steps are TODO again.

        Returns the (step, virtual rank) that were in DOING. Raises InvalidRequest unless 0 <= step <=
        committed.
        """
        state = self._state
        if not 0 <= step <= state.committed:
            raise InvalidRequest(f"history at step {state.committed} cannot go back to {step}", step=step)
        # Attempt numbers must never repeat for a step that ran before the rewind: late reports of the old run
        # would pass for the new one. The highest attempt so far bounds them all.
        begun_until = max([state.committed, *(s + 1 for s in state.attempts)])
        state.replayed_until = max(state.replayed_until, begun_until)
        state.replay_attempt = state.attempt_highest
        state.requeued += (state.committed - step) * state.settings.ests
        tasks = self.requeue()
        state.committed = step
        return tasks

    def forward(self, step: int) -> list[tuple[int, int]]:
        """Continue history at a later step: weights or a checkpoint prove that all steps before it are DONE.

        Returns the (step, virtual rank) that were in DOING. Raises InvalidRequest unless committed <= step <=
        the number of steps.
        """
        state = self._state
        if not state.committed <= step <= state.settings.steps:
            raise InvalidRequest(f"history at step {state.committed} cannot go on at {step}", step=step)
        tasks = self.requeue()
        state.requeued -= sum(1 for in_doing, _ in tasks if in_doing < step)  # these are DONE, not TODO again
        state.committed = step
        state.attempts = {kept: attempt for kept, attempt in state.attempts.items() if kept >= step}
        return tasks

    def pause(self, worker: str) -> None:
        """Mark the worker as between steps (evaluation, saving): its leases have no deadline."""
        if worker not in self._state.paused:
            self._state.paused.append(worker)
        for flight in self._state.in_flight:
            for lease in flight.leases_of(worker):
                lease.deadline = None
                flight.timed = False

    def resume(self, worker: str, now: float) -> None:
        """Restart the worker's leases at `now`: it is in a step again, or the master was restarted."""
        self._unpause(worker)
        deadline = now + self.lease_seconds
        for flight in self._state.in_flight:
            for lease in flight.leases_of(worker):
                if not lease.reported:
                    lease.deadline = deadline

    # ------------------------------------------------------------------ queries

    def overdue(self, now: float) -> list[tuple[int, str]]:
        """Return (virtual rank, worker) of tasks that outlived their lease: those workers hang."""
        return [
            (rank, lease.worker)
            for flight in self._state.in_flight
            for rank, lease in flight.leases.items()
            if lease.deadline is not None and lease.deadline <= now
        ]

    def next_deadline(self) -> float | None:
        """Time at which to check `overdue`; None while no lease has a deadline."""
        deadlines = [
            lease.deadline
            for flight in self._state.in_flight
            for lease in flight.leases.values()
            if lease.deadline is not None
        ]
        return min(deadlines, default=None)

    def holders(self, step: int) -> dict[int, str]:
        """Virtual rank -> worker of a step in DOING; {} for any other step."""
        for flight in self._state.in_flight:
            if flight.step == step:
                return {rank: lease.worker for rank, lease in flight.leases.items()}
        return {}

    def unreported(self) -> list[tuple[int, str]]:
        """Return (virtual rank, worker) of the tasks in DOING that are not reported."""
        return [
            (rank, lease.worker)
            for flight in self._state.in_flight
            for rank, lease in flight.leases.items()
            if not lease.reported
        ]

    def attempt(self, step: int) -> int:
        """Number of times the step was begun; 0 if never, or if it is committed."""
        return self._state.attempts.get(step, 0)

    def bounds(self, step: int, rank: int) -> tuple[int, int]:
        """Return positions [start, end) of a task in its epoch, in the order of consumption (see `samplers`).

        Raises InvalidRequest when there is no such task.
        """
        settings = self._state.settings
        if not (0 <= step < settings.steps and 0 <= rank < settings.ests):
            raise InvalidRequest(f"no task of step {step}, EST {rank}", step=step, rank=rank)
        length = settings.batch_length(step)
        epoch_start = settings.samples_before(step - step % settings.steps_per_epoch)
        start = settings.samples_before(step) - epoch_start + rank * length
        return start, start + length

    def progress(self, now: float) -> Progress:
        """Return the progress figures, in tasks of the current epoch; changes nothing."""
        state, settings = self._state, self._state.settings
        epoch_end = (self.epoch + 1) * settings.steps_per_epoch
        done = settings.steps_per_epoch - (epoch_end - state.committed)
        doing = sum(1 for flight in state.in_flight if flight.step < epoch_end)
        samples_done = settings.samples_before(state.committed)
        rate = state.rate.rate(now)
        remaining = settings.samples_before(settings.steps) - samples_done
        eta = 0.0 if self.complete else remaining / rate if rate > 0 else None
        return Progress(
            epoch=self.epoch,
            epochs=settings.epochs,
            todo=(settings.steps_per_epoch - done - doing) * settings.ests,
            doing=doing * settings.ests,
            done=done * settings.ests,
            failed=0,
            failed_before=0,
            total=settings.steps_per_epoch * settings.ests,
            requeued=state.requeued,
            timed_out=state.timed_out,
            samples_done=samples_done,
            samples_per_second=rate,
            eta_seconds=eta,
            complete=self.complete,
        )

    def validate(self) -> None:
        """Raise InvariantViolated if the state contradicts itself; for tests and after a restore."""
        state, settings = self._state, self._state.settings
        steps = [flight.step for flight in state.in_flight]
        expected = list(range(state.committed, state.committed + len(steps)))
        if (
            not 0 <= state.committed <= settings.steps
            or steps != expected
            or len(steps) > STEPS_IN_FLIGHT_MAX
        ):
            raise InvariantViolated("the steps in DOING are not the next ones", steps=steps)
        if steps and (steps[-1] >= settings.steps or not all(f.all_reported for f in state.in_flight[:-1])):
            raise InvariantViolated("a step began before the one before it was reported", steps=steps)
        for flight in state.in_flight:
            if sorted(flight.leases) != list(range(settings.ests)):
                raise InvariantViolated("a step in DOING has not N leases", step=flight.step)
            if flight.attempt != state.attempts.get(flight.step):
                raise InvariantViolated("a step in DOING has lost its attempt", step=flight.step)
            for lease in flight.leases.values():
                runs = lease.deadline is not None
                if runs and (lease.reported or lease.worker in state.paused):
                    raise InvariantViolated("a lease runs that should not", step=flight.step)
        if any(step < state.committed for step in state.attempts) or len(state.durations) > DURATIONS_KEPT:
            raise InvariantViolated("something is kept for too long", attempts=sorted(state.attempts))

    # ------------------------------------------------------------------ durability

    def snapshot(self) -> bytes:
        """Serialise the full state."""
        return msgspec.msgpack.encode(self._state)

    @classmethod
    def restore(cls, snapshot: bytes) -> LockstepQueue:
        """Rebuild the queue from `snapshot`. Raises InvalidSnapshot."""
        try:
            state = _decoder.decode(snapshot)
            state.settings.check()
            queue = cls.__new__(cls)
            queue._state = state
            queue.validate()
        except (msgspec.MsgspecError, UnicodeDecodeError, InvalidSettings, InvariantViolated) as error:
            raise InvalidSnapshot(f"these bytes are no snapshot of a lockstep queue: {error}") from error
        if state.version != LockstepState(state.settings).version:
            raise InvalidSnapshot(f"a snapshot of version {state.version}", version=state.version)
        return queue

    # ------------------------------------------------------------------ inside

    def _unpause(self, worker: str) -> None:
        if worker in self._state.paused:
            self._state.paused.remove(worker)

    def _next_attempt(self, step: int) -> int:
        state = self._state
        before = state.replay_attempt if step < state.replayed_until else 0
        attempt = max(state.attempts.get(step, 0), before) + 1
        state.attempts[step] = attempt
        state.attempt_highest = max(state.attempt_highest, attempt)
        return attempt

    def _time_newest(self, now: float) -> None:
        """Record the duration of the newest step in DOING for the median, at most once per step."""
        if not self._state.in_flight:
            return
        newest = self._state.in_flight[-1]
        if newest.timed and now > newest.begun:
            newest.timed = False
            self._state.durations = [*self._state.durations[1 - DURATIONS_KEPT :], now - newest.begun]
