"""Decision of a scheduling policy: instances of each run by device type, and why. Plain values."""

from __future__ import annotations

from typing import Literal

import msgspec

Instances = dict[str, int]
"""Instances of a run by the device type of their runners."""
DecisionKind = Literal["granted", "taken", "kept", "declined", "waits"]

DECISIONS_MAX = 50
"""Decisions of the service that are kept, the newest."""
RUN_DECISIONS_MAX = 10
"""Decisions about one run that are kept, the newest."""
RUNS_OF_DECISION_MAX = 50
"""Runs that a kept decision names, those with a change first."""
REJECTED_MAX = 10
"""Alternatives that a kept decision names."""


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run's target under a policy. instances: empty for a run that waits. reason: in words."""

    run_id: int
    instances: Instances = {}
    reason: str = ""


class RunDecision(msgspec.Struct, frozen=True, array_like=True):
    """A decision about one run. choice, rejected: of the whole decision. slots_before: of its target."""

    time_at: float
    policy: str
    choice: str
    rejected: tuple[str, ...]
    run_id: int
    kind: DecisionKind
    slots_before: int
    slots_after: int
    reason: str


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """A decision of the service. runs: those with new decisions, without choice and rejected."""

    time_at: float
    policy: str
    choice: str
    rejected: tuple[str, ...]
    runs: tuple[RunDecision, ...]


class Allocation(msgspec.Struct, omit_defaults=True):
    """The decision in force. Without a policy, or with `failure`, runs are ordered by `queue.FairShare`.

    policy: by which it was decided; "" before the first decision. revision: of the state that it was about.
    failure: why the policy did not decide. targets: in the order in which runs get what is free.
    reshaped_at: when the target of a running run was changed. steady_until: until then no running run is
    reshaped. decided: the newest last.
    """

    policy: str = ""
    decided_at: float = 0.0
    revision: int = 0
    failure: str = ""
    targets: dict[int, Instances] = {}
    reshaped_at: dict[int, float] = {}
    steady_until: float = 0.0
    decided: list[Decided] = []

    @property
    def in_charge(self) -> bool:
        """True if targets decide who gets what is free."""
        return bool(self.policy) and not self.failure

    def note(self, decided: Decided) -> None:
        """Keep a decision."""
        self.decided.append(decided)
        del self.decided[:-DECISIONS_MAX]
