"""Pushes to a slot, and a slot's answers."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from elastane_slots.tasks import TaskName


class Pulled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of a slot that a worker pulled: its life, and the number of tasks applied by then.

    If a task pulls several times, the first pull counts.
    """

    life: int
    version: int


class Push(msgspec.Struct, frozen=True):
    """A task's push to one slot, without its gradients.

    lease: number of the task's lease, counted over all leases of a job. generation: of the sender's slot map.
    pulled: None if the push has no gradient for this slot, only its name.
    """

    name: TaskName
    lease: int
    generation: int
    pulled: Pulled | None = None


class Verdict(StrEnum):
    """Verdict on a push to a slot; only APPLIED changes the slot.

    Done, for this slot:
      APPLIED: to be applied now. APPLIED_BEFORE: a push of this name was.
    The task is given back, uncounted, and leased again:
      RESTORED: the slot went back to a snapshot after the lease or the pull. TOO_OLD: more tasks than allowed
      were applied since the pull: the lease is over, or its worker would not have been overtaken.
    The task is over:
      CLOSED: it is FAILED, and its part in this slot stays as it is.
    Sent again as it is, by name, after a while or with the newest map:
      FROZEN: the slot is about to move. MOVED: another process has it. OLD_GENERATION: the sender's map is
      from before this process got the slot. NOT_YET: the sender's map is newer than this process's.
    """

    APPLIED = "applied"
    APPLIED_BEFORE = "applied_before"
    RESTORED = "restored"
    TOO_OLD = "too_old"
    CLOSED = "closed"
    FROZEN = "frozen"
    MOVED = "moved"
    OLD_GENERATION = "old_generation"
    NOT_YET = "not_yet"


#: A task is done when every slot gives one of these verdicts.
DONE_VERDICTS = frozenset({Verdict.APPLIED, Verdict.APPLIED_BEFORE})
#: A task is given back if any slot gives one of these.
RETURNED_VERDICTS = frozenset({Verdict.RESTORED, Verdict.TOO_OLD})
#: After one of these the same push is sent again.
AGAIN_VERDICTS = frozenset({Verdict.FROZEN, Verdict.MOVED, Verdict.OLD_GENERATION, Verdict.NOT_YET})


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A slot's answer to a push.

    life, version: of the slot, after the push if it is applied; -1 where the slot is not held. staleness:
    number of tasks applied between the pull and this push. generation: of the answering process's map.
    """

    verdict: Verdict
    generation: int
    life: int = -1
    version: int = -1
    staleness: int = 0
