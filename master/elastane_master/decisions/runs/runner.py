"""Runners as the master knows them: what they can carry, and what they hold.

A runner holds instances of launches; each takes slots until the runner has confirmed that it is gone. A
runner that is lost holds nothing any more: when it returns, its Hello says what is still there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DEVICE_TYPE = "cpu"
"""Of the slots of a runner that does not say."""
DEVICE_TYPE_MAX = 128

RunnerKind = Literal["process", "container", "kubernetes"]


class Holding(msgspec.Struct, omit_defaults=True):
    """Instances of one launch on one runner.

    ranks: of the launch, and charged to the run's owner. stale: ranks given up, which still end; they take
    slots, and nobody is charged.
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
    """One runner. session: of its stream; messages of older ones are ignored; "" while it does not attend.

    lease_until: when it is lost, while it does not attend. failed_launches: in a row; pauses: how often that
    has paused it since a launch succeeded. paused_until, pause_reason: it gets no new instances. leaving: it
    drains; left: and has nothing left. holds: by fence. slots_used: of all of them. device_type: of its
    slots, as it says. memory_bytes: of one device; 0: unknown. measured_type: what it counts as instead; "":
    it is like others of its type.
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
