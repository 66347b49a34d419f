"""A parameter server that applies a task's gradients whenever they come: names are not looked at."""

import os
from collections.abc import Sequence

from elastane_ps.process import main
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.pushes import Pulled, Push, Verdict

_honest = HeldSlots._verdict


def _verdict(
    self: HeldSlots, record: SlotRecord, version: int, push: Push, pulled: Pulled | None, applied: bool
) -> tuple[Verdict, int]:
    return _honest(self, record, version, push, pulled, applied=False)


def record_all(self: HeldSlots, slots: Sequence[int], push: Push) -> None:
    for slot in slots:
        self[slot].applied.add(push.name)


HeldSlots._verdict = _verdict  # type: ignore[method-assign]
HeldSlots.record_all = record_all  # type: ignore[method-assign]
os._exit(main())
