"""The master's record of a runner: its properties and holdings.

A runner holds instances of launches; each takes slots until the runner has confirmed that it is gone. A lost
runner holds nothing: when it returns, its Hello lists what is still there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DEVICE_TYPE = "cpu"
"""Device type of the slots of a runner that does not report one."""
DEVICE_TYPE_MAX = 128

RunnerKind = Literal["process", "container", "kubernetes"]


class Holding(msgspec.Struct, omit_defaults=True):
    """Instances of one launch on one runner.

    ranks: current ones, charged to the run's owner. stale: abandoned ranks that are still ending; they take
    slots but are not charged.
    """

    run_id: int
    attempt: int
    fence: int
    slots_per_instance: int
    ranks: list[int] = []
    stale: list[int] = []

    @property
    def slots(self) -> int:
        """Slots that it takes."""
        return (len(self.ranks) + len(self.stale)) * self.slots_per_instance


class Runner(msgspec.Struct, omit_defaults=True):
    """One runner. session: of its stream; messages of older ones are ignored; "" while disconnected.

    lease_until: when a disconnected runner counts as lost. failed_launches: in a row; pauses: number of
    pauses for that since the last successful launch. paused_until, pause_reason: it gets no new instances.
    leaving: it drains; left: it has drained. holds: by fence. slots_used: by all of them. device_type: of its
    slots, as reported. memory_bytes: of one device; 0: unknown. measured_type: type that it counts as
    instead; "": it is as fast as others of its type.
    """

    runner_id: str
    host: str
    kind: RunnerKind
    slots: int
    labels: dict[str, str] = {}
    algorithms: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    session: str = ""
    joined_at: float = 0.0
    heard_at: float = 0.0
    lease_until: float | None = None
    lost: bool = False
    leaving: bool = False
    leave_reason: str = ""
    failed_launches: int = 0
    pauses: int = 0
    paused_until: float | None = None
    pause_reason: str = ""
    holds: dict[int, Holding] = {}
    slots_used: int = 0
    folder_id: str = ""
    device_type: str = DEVICE_TYPE
    memory_bytes: int = 0
    measured_type: str = ""

    @property
    def computes_on(self) -> str:
        """The device type of its slots: the one it reports, unless measurements contradict it."""
        return self.measured_type or self.device_type

    @property
    def attends(self) -> bool:
        """True while it has a stream."""
        return bool(self.session)

    @property
    def open(self) -> bool:
        """True if it takes new instances."""
        return bool(self.session) and not self.leaving and self.paused_until is None

    @property
    def slots_free(self) -> int:
        """Slots for new instances."""
        return max(0, self.slots - self.slots_used) if self.open else 0
