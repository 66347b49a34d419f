"""The master imports this package on a machine without numpy, torch and gRPC."""

from __future__ import annotations

import sys
from pathlib import Path

import elastane_slots
import patience

PROGRAM = """
import sys
for name in ("numpy", "torch", "grpc", "redis", "asyncio", "google"):
    sys.modules[name] = None  # importing it now raises ImportError
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.initial_rows import InitialRows
from elastane_slots.pushes import Push, Verdict
from elastane_slots.reopening import missing
from elastane_slots.slot_map import SlotMap
from elastane_slots.staleness import StalenessGate
from elastane_slots.tasks import TaskName
held = HeldSlots(1)
held.hold(0, SlotRecord())
push = Push(TaskName("clicks", 0, 0), 1, 0)
assert held.judge(0, push).verdict is Verdict.APPLIED
assert len(InitialRows("users").row(7, 3)) == 3
assert SlotMap.empty(4).adopted(["ps-0"]).held_by("ps-0") == [0, 1, 2, 3]
"""


def test_works_without_numpy_and_torch() -> None:
    root = Path(elastane_slots.__file__).parent.parent
    done = patience.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
