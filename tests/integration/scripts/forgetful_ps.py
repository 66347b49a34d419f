"""A parameter server that applies a task's gradients whenever they come: names are not looked at."""

import os

from elastane_ps.process import main
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.pushes import Push, Verdict

_honest = HeldSlots._verdict


def _verdict(self: HeldSlots, record: SlotRecord, push: Push) -> tuple[Verdict, int]:
    verdict, staleness = _honest(self, record, push)
    return (Verdict.APPLIED, 0) if verdict is Verdict.APPLIED_BEFORE else (verdict, staleness)


HeldSlots._verdict = _verdict  # type: ignore[method-assign]
os._exit(main())
