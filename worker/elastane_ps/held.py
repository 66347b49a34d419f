"""Slots held by a process: their locks, copies at other processes, and waiting answers.

Pushes to a slot are checked, applied and recorded under its lock. An answer is sent only when every
*synchronous* copy has applied all that the slot contained at that time: `barrier` is called under the lock,
`wait` outside of all locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elastane.slots.frames import Header, Replicated
from elastane.slots.wire import Piece
from elastane.tables.row_arena import RowArenas
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.spec import ModelSpec
from elastane_ps.links import PeerLink
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.slot_map import SlotMap


@dataclass
class Copy:
    """A copy of a slot at another process. sent, acked: number of changes sent, and acknowledged.

    begun: generation in which the copy started; 0 for a backup that already had the slot. broken: it is
    incomplete; answers wait until a map no longer contains it.
    """

    link: PeerLink
    begun: int = 0
    sent: int = 0
    acked: int = 0
    broken: bool = False


Barrier = Sequence[tuple[str, Copy, int]]


class HeldSlot:
    """One slot with its weights, owned or backed up. All fields are guarded by `lock`.

    gone: True once this process no longer holds it, which ends all waits. copies: synchronous ones, by
    process. pushes, pulls: counts since the slot is here.
    """

    def __init__(self, slot: int, record: SlotRecord, weights: SlotWeights) -> None:
        self.slot = slot
        self.record = record
        self.weights = weights
        self.lock = threading.Condition()
        self.gone = False
        self.copies: dict[str, Copy] = {}
        #: `begun` of the copies that have been started, by process.
        self.started: dict[str, int] = {}
        #: Called without the lock when a copy refuses a message.
        self.refused: Callable[[HeldSlot, Copy], None] | None = None
        self.pushes = 0
        self.pulls = 0

    def barrier(self) -> Barrier:
        """Return the state of the copies for which an answer about the slot's present state must wait."""
        if not self.copies:
            return ()
        return [(name, copy, copy.sent) for name, copy in self.copies.items() if copy.acked < copy.sent]

    def wait(self, barrier: Barrier) -> bool:
        """Wait until all copies have applied what was sent; False if this process no longer holds the slot.

        Does not wait for a copy that the map has dropped.
        """
        if not barrier:
            return not self.gone
        with self.lock:
            while not self.gone:
                if all(
                    self.copies.get(name) is not copy or copy.acked >= sent for name, copy, sent in barrier
                ):
                    return True
                self.lock.wait()
        return False

    def send_to_copies(self, header: Header, body: Sequence[Piece] = ()) -> None:
        """Send a change to all copies; called under the lock, in the order in which changes were applied."""
        for copy in self.copies.values():
            copy.sent += 1
            if not copy.broken:
                copy.link.send(header, body, self._acknowledge(copy, copy.sent))

    def release(self) -> None:
        """Stop holding the slot; waiting answers are dropped."""
        with self.lock:
            self.gone = True
            self.lock.notify_all()

    def _acknowledge(self, copy: Copy, number: int) -> Callable[[Header | None], None]:
        def told(answer: Header | None) -> None:
            applied, refused = isinstance(answer, Replicated) and answer.version >= 0, False
            with self.lock:
                if applied and not copy.broken:
                    copy.acked = max(copy.acked, number)
                elif not copy.broken:
                    copy.broken = True
                    refused = answer is not None
                self.lock.notify_all()
            if refused and self.refused is not None:
                self.refused(self, copy)

        return told


@dataclass
class Holdings:
    """All slots that a process holds by its newest map.

    owned: slots that it serves. others: backups, received copies, and restored slots that are not served yet.
    lock: guards these two and `map`; taken before a slot's own lock. arenas: the memory of all their rows.
    """

    ps_id: str
    map: SlotMap = field(default_factory=lambda: SlotMap.empty(1))
    spec: ModelSpec | None = None
    arenas: RowArenas | None = None
    judge: HeldSlots = field(default_factory=lambda: HeldSlots(1))
    owned: dict[int, HeldSlot] = field(default_factory=dict)
    others: dict[int, HeldSlot] = field(default_factory=dict)
    lock: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    #: Highest lease number in any push or map.
    lease_seen: int = 0

    def knows(self, generation: int, seconds: float) -> bool:
        """Wait until the map of this generation is known; False after `seconds`."""
        with self.lock:
            return self.lock.wait_for(lambda: self.map.generation >= generation, seconds)
