"""State of the slots that a process owns, without their weights, and the judgement of pushes.

A push is judged, then its gradient is applied, then it is recorded; the caller holds the slot's lock
throughout, so that of two equal pushes the second gets APPLIED_BEFORE. Judging changes nothing, and a push
that cannot be applied is never recorded.

    slot not held  ->  MOVED, or NOT_YET if the sender's map is newer
    map from before this process got the slot          ->  OLD_GENERATION
    name in the applied set                            ->  APPLIED_BEFORE
    name closed                                        ->  CLOSED
    frozen                                             ->  FROZEN
    lease up to the fence, another life, or a version that the slot here never had  ->  RESTORED
    more than `staleness_max` tasks since the pull     ->  TOO_OLD
    else                                               ->  APPLIED

The name is checked before all reasons for refusal, so that a repeated push always learns that it was applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from elastane_shards.errors import IllegalTransition, InvalidRequest, InvalidSnapshot, InvariantViolated
from elastane_slots.applied import AppliedSet, add_to_all, in_all
from elastane_slots.pushes import Answer, Pulled, Push, Verdict
from elastane_slots.tasks import TaskName

_INTEGER_MAX = 2**63 - 1


class _StoredSlot(msgspec.Struct, frozen=True, array_like=True):
    life: int
    fence: int
    applied: bytes
    closed: bytes


_decoder = msgspec.msgpack.Decoder(_StoredSlot)


class SlotRecord:
    """One slot: its life, and the names it has applied.

    life: grows whenever it is restored from a snapshot. fence: pushes under leases up to this number are
    refused, because these were granted before the restore or have ended. since: generation of the map that
    gave the slot to this process. frozen: pushes are refused while the slot moves. closed: FAILED tasks,
    whose pushes are refused.
    """

    __slots__ = ("applied", "closed", "fence", "frozen", "life", "since")

    def __init__(self, life: int = 0, fence: int = 0, since: int = 0) -> None:
        self.life = life
        self.fence = fence
        self.since = since
        self.frozen = False
        self.applied = AppliedSet()
        self.closed = AppliedSet()

    @property
    def version(self) -> int:
        """Number of tasks applied; together with the life it identifies a state of the slot."""
        return self.applied.count

    def pulled(self) -> Pulled:
        """The state that a pull reads now. The caller holds the lock until the weights are copied."""
        return Pulled(self.life, self.version)

    def close(self, name: TaskName) -> bool:
        """Refuse further pushes of this task; return whether it was applied. Idempotent.

        Raises IllegalTransition while the slot is frozen, because its set is being transferred.
        """
        if self.frozen:
            raise IllegalTransition("a slot that moves closes no task", hint="ask its new owner")
        if name in self.applied:
            return True
        self.closed.add(name)
        return False

    def restored(self, life: int, fence: int, since: int) -> None:
        """Begin another life with the names in the snapshot. Raises IllegalTransition for an older life."""
        if life <= self.life and (life, fence) != (self.life, self.fence):
            raise IllegalTransition(f"life {life} does not follow life {self.life}", life=life)
        self.life, self.fence, self.since, self.frozen = life, fence, since, False

    def encode(self) -> bytes:
        """Serialise the slot's own state, without that of its owner, for a snapshot or a move."""
        stored = _StoredSlot(self.life, self.fence, self.applied.encode(), self.closed.encode())
        return msgspec.msgpack.encode(stored)

    @classmethod
    def decode(cls, stored: bytes, since: int) -> SlotRecord:
        """Inverse of `encode`. Raises InvalidSnapshot."""
        try:
            decoded = _decoder.decode(stored)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidSnapshot(f"these bytes are no slot: {error}") from error
        if decoded.life < 0 or decoded.fence < 0:
            raise InvalidSnapshot("a slot of negative life or fence", life=decoded.life)
        slot = cls(decoded.life, decoded.fence, since)
        slot.applied = AppliedSet.decode(decoded.applied)
        slot.closed = AppliedSet.decode(decoded.closed)
        slot.validate()
        return slot

    def validate(self) -> None:
        """Raise InvariantViolated if a task is both applied and closed, or a set contradicts itself."""
        self.applied.validate()
        self.closed.validate()
        for run in self.closed.runs():
            for index in range(run.start, run.end):
                if TaskName(run.dataset, run.epoch, index) in self.applied:
                    raise InvariantViolated("a task is applied and closed", index=index)


class HeldSlots:
    """The slots that one process owns, of `count` in all.

    staleness_max: most tasks that may be applied between a task's pull and its push; None: any number.
    generation: of the newest map that the process has received.
    """

    def __init__(self, count: int, staleness_max: int | None = None) -> None:
        if staleness_max is not None and staleness_max < 0:
            raise InvalidRequest(f"a staleness of {staleness_max}", staleness=staleness_max)
        self.count = count
        self.generation = 0
        self._staleness_max = staleness_max
        self._slots: dict[int, SlotRecord] = {}

    def __iter__(self) -> Iterator[int]:
        """Iterate over the slots held, in the order in which they were added."""
        return iter(self._slots)

    def __contains__(self, slot: int) -> bool:
        return slot in self._slots

    def __getitem__(self, slot: int) -> SlotRecord:
        return self._slots[slot]

    def hold(self, slot: int, record: SlotRecord) -> None:
        """Start to own a slot. Raises InvalidRequest for an unknown slot number."""
        self._check_slot(slot)
        self._slots[slot] = record

    def release(self, slot: int) -> SlotRecord:
        """Stop owning a slot. Raises InvalidRequest if it is not held."""
        if slot not in self._slots:
            raise InvalidRequest(f"slot {slot} is not held here", slot=slot)
        return self._slots.pop(slot)

    def learn(self, generation: int) -> None:
        """Record the generation of a map; older ones are ignored."""
        self.generation = max(self.generation, generation)

    def judge_pull(self, slot: int, lease: int, generation: int) -> Verdict | None:
        """Return why a pull is refused; None if it is allowed. lease: of the task; 0: of an evaluation.

        A pull waits for the sender's map: pushes that a fence in it refuses must not be applied after the
        pull.
        """
        record = self._slots.get(slot)
        if generation > self.generation:
            return Verdict.NOT_YET
        if record is None:
            return Verdict.MOVED
        if generation < record.since:
            return Verdict.OLD_GENERATION
        return Verdict.RESTORED if 0 < lease <= record.fence else None

    def judge_pulls(self, slots: Sequence[int], lease: int, generation: int) -> list[Verdict | None]:
        """Return `judge_pull` of several slots."""
        found = [self._slots.get(slot) for slot in slots]
        records = [record for record in found if record is not None]
        if records and len(records) == len(slots) and generation <= self.generation:
            oldest, fence = max([one.since for one in records]), max([one.fence for one in records])
            if generation >= oldest and not 0 < lease <= fence:
                return [None] * len(slots)
        return [self.judge_pull(slot, lease, generation) for slot in slots]

    def judge(self, slot: int, push: Push) -> Answer:
        """Return the answer to a push; changes nothing. If it is APPLIED, apply the gradient and `record`.

        Raises InvalidRequest for a slot, name or number that no valid client sends.
        """
        return self.judge_all(push, [(slot, push.pulled)])[0]

    def judge_all(self, push: Push, pulled: Sequence[tuple[int, Pulled | None]]) -> list[Answer]:
        """Return `judge` of a push to several slots. pulled: of each slot, in the place of `push.pulled`.

        Equal answers of slots that follow one another are one object.
        """
        self._check(push)
        records = [self._slots.get(slot) for slot, _ in pulled]
        if (same := self._judge_together(push, pulled, records)) is not None:
            return [same] * len(pulled)
        known = iter(in_all([record.applied for record in records if record is not None], push.name))
        answers = list[Answer]()
        before: tuple[Verdict, int, int, int] | None = None
        for (slot, seen), record in zip(pulled, records, strict=True):
            if seen is not None and not (0 <= seen.life < _INTEGER_MAX and 0 <= seen.version < _INTEGER_MAX):
                raise InvalidRequest("a push needs numbers that are not negative", slot=slot)
            if record is None:
                self._check_slot(slot)
                absent = Verdict.NOT_YET if push.generation > self.generation else Verdict.MOVED
                answers.append(Answer(absent, self.generation))
                continue
            applied, version = next(known)
            verdict, staleness = self._verdict(record, version, push, seen, applied)
            if verdict is Verdict.APPLIED:
                version += 1
            told = (verdict, record.life, version, staleness)
            if told != before:
                before, answer = told, Answer(verdict, self.generation, record.life, version, staleness)
            answers.append(answer)
        return answers

    def _judge_together(
        self, push: Push, pulled: Sequence[tuple[int, Pulled | None]], records: Sequence[SlotRecord | None]
    ) -> Answer | None:
        """Return the answer of all slots, if it is seen at once that it is the same; None if it is not."""
        there = [record for record in records if record is not None]
        seen = {one for _, one in pulled}
        states = {(one.life, one.fence, one.since, one.frozen, one.closed.count) for one in there}
        if len(there) < len(pulled) or len(seen) != 1 or len(states) != 1:
            return None
        names = set(in_all([record.applied for record in there], push.name))
        if len(names) != 1:
            return None
        (applied, version), one = names.pop(), seen.pop()
        if one is not None and not (0 <= one.life < _INTEGER_MAX and 0 <= one.version < _INTEGER_MAX):
            return None
        if there[0].closed.count:
            return None  # which tasks are closed differs
        verdict, staleness = self._verdict(there[0], version, push, one, applied)
        version += verdict is Verdict.APPLIED
        return Answer(verdict, self.generation, there[0].life, version, staleness)

    def record(self, slot: int, push: Push) -> None:
        """Record that a push judged as APPLIED was applied. Raises IllegalTransition if it may not be now."""
        answer = self.judge(slot, push)
        if answer.verdict is not Verdict.APPLIED:
            raise IllegalTransition(f"a push that is {answer.verdict} was applied", slot=slot)
        self.record_all([slot], push)

    def record_all(self, slots: Sequence[int], push: Push) -> None:
        """Note that a push was applied in several slots, by the same judgement. Raises IllegalTransition, and
        notes it nowhere, if one of them has it."""
        if not add_to_all([self._slots[slot].applied for slot in slots], push.name):
            raise IllegalTransition("a push was applied twice", task=push.name.task)

    def _verdict(
        self, record: SlotRecord, version: int, push: Push, pulled: Pulled | None, applied: bool
    ) -> tuple[Verdict, int]:
        if push.generation < record.since:
            return Verdict.OLD_GENERATION, 0
        if applied:
            return Verdict.APPLIED_BEFORE, 0
        if record.closed.count and push.name in record.closed:
            return Verdict.CLOSED, 0
        if record.frozen:
            return Verdict.FROZEN, 0
        if push.lease <= record.fence or (pulled is not None and pulled.life != record.life):
            return Verdict.RESTORED, 0
        if pulled is None:
            return Verdict.APPLIED, 0
        if pulled.version > version:
            # Pulled from an owner that the store, having lost writes, no longer knows.
            return Verdict.RESTORED, 0
        staleness = version - pulled.version
        if self._staleness_max is not None and staleness > self._staleness_max:
            return Verdict.TOO_OLD, staleness
        return Verdict.APPLIED, staleness

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.count:
            raise InvalidRequest(
                f"there is no slot {slot}: the model has {self.count}",
                hint="the number of slots is fixed with the job",
                slot=slot,
            )

    def _check(self, push: Push) -> None:
        name = push.name
        numbers = (name.epoch, name.task, push.generation)
        if not name.dataset or push.lease < 1 or not all(0 <= n < _INTEGER_MAX for n in numbers):
            raise InvalidRequest(
                "a push needs a data set, and numbers that are not negative", lease=push.lease
            )
