"""Slots that a process has: their locks, their copies at other processes, and what answers wait for.

A slot is judged, applied and recorded under its lock. An answer leaves only when every *synchronous* copy has
applied all that the slot had by then: `barrier` is taken under the lock, `wait` called outside of all locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elastane.slots.frames import Header, Replicated
from elastane.slots.wire import Piece
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.spec import ModelSpec
from elastane_ps.links import PeerLink
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.slot_map import SlotMap


@dataclass
class Copy:
    """A copy of a slot at another process. sent, acked: numbers of messages that changed the slot.

    begun: generation in which it began, 0 for a backup that had the slot already. broken: it lacks something;
    nothing is answered until a map is without it.
    """

    link: PeerLink
    begun: int = 0
    sent: int = 0
    acked: int = 0
    broken: bool = False


Barrier = Sequence[tuple[str, Copy, int]]


class HeldSlot:
    """One slot with its weights, owned or backed up. All fields are guarded by `lock`.

    gone: not this process's any more; whoever waits stops. copies: synchronous ones, by process. pushes,
    pulls: since it is here.
    """

    def __init__(self, slot: int, record: SlotRecord, weights: SlotWeights) -> None:
        self.slot = slot
        self.record = record
        self.weights = weights
        self.lock = threading.Condition()
        self.gone = False
        self.copies: dict[str, Copy] = {}
        #: `begun` of the copies that were started, by process.
        self.started: dict[str, int] = {}
        #: Called without the lock when a copy refuses what it was sent.
        self.refused: Callable[[HeldSlot, Copy], None] | None = None
        self.pushes = 0
        self.pulls = 0

    def barrier(self) -> Barrier:
        """Return what an answer that shows the slot's present state waits for."""
        if not self.copies:
            return ()
        return [(name, copy, copy.sent) for name, copy in self.copies.items() if copy.acked < copy.sent]

    def wait(self, barrier: Barrier) -> bool:
        """Wait until all copies have what they were sent; False if the slot is not this process's any more.

        A copy that the map has dropped is not waited for.
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
        """Send what was applied to all copies; called under the lock, in the order of application."""
        for copy in self.copies.values():
            copy.sent += 1
            if not copy.broken:
                copy.link.send(header, body, self._acknowledge(copy, copy.sent))

    def release(self) -> None:
        """The slot is not this process's any more: answers that wait are not given."""
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
    """All that a process holds by the newest map that it was told.

    owned: slots that it serves; others: backups, copies that have arrived, and restored slots that are not
    served yet. lock: of these two and of `map`; taken before a slot's own.
    """

    ps_id: str
    map: SlotMap = field(default_factory=lambda: SlotMap.empty(1))
    spec: ModelSpec | None = None
    judge: HeldSlots = field(default_factory=lambda: HeldSlots(1))
    owned: dict[int, HeldSlot] = field(default_factory=dict)
    others: dict[int, HeldSlot] = field(default_factory=dict)
    lock: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    #: Highest number of a lease in any push or map.
    lease_seen: int = 0

    def knows(self, generation: int, seconds: float) -> bool:
        """Wait until the map of a generation is known; False after `seconds`."""
        with self.lock:
            return self.lock.wait_for(lambda: self.map.generation >= generation, seconds)
