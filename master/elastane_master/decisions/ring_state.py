"""State of the ring, and the stages through which a change of its members passes.

    none ───────> preparing ───────> running     the highest applied step is held by a member
                      │                 ^
                      └───> loading ────┘        nobody holds it: the leader loads a checkpoint

A change may be decided anew, and the ring dissolved, at any time. Each arrow is one method of RingState; any
transition that is not in `TRANSITIONS` is a bug in this package, never a worker's fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import cast

import msgspec

from elastane_master.decisions.effects import Member, PipelinePlan


class Stage(StrEnum):
    """Stage of the ring; its value is what is stored and shown.

    NONE: there is no ring. PREPARING: Ready of every member is awaited. LOADING: the leader loads a
    checkpoint. RUNNING: the members train.
    """

    NONE = "none"
    PREPARING = "preparing"
    LOADING = "loading"
    RUNNING = "running"


TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.NONE: frozenset({Stage.NONE, Stage.PREPARING}),
    Stage.PREPARING: frozenset({Stage.NONE, Stage.PREPARING, Stage.LOADING, Stage.RUNNING}),
    Stage.LOADING: frozenset({Stage.NONE, Stage.PREPARING, Stage.RUNNING}),
    Stage.RUNNING: frozenset({Stage.NONE, Stage.PREPARING}),
}
"""Stages that may follow each stage."""


class IllegalStage(AssertionError):  # noqa: N818 - named after the fact
    """The ring's stage does not allow the next one: a bug in the decisions."""


class RingState(msgspec.Struct, dict=True):
    """The ring, and the change of membership in progress (ring.py).

    stage: entered at `since`; changed by `prepare`, `load`, `run` and `dissolve` only. gone: members that
    left since the ring was decided; gone_applied: the step up to which each had applied, or its script ended.
    order: order of members in the last ring that had any. planned: decided at a step boundary. planned_from:
    members of the previous ring whose last Prepared carries the change, empty once the ring starts.
    rebuild_due: when the ring is formed anew because a member's collective broke. put_off: reason for a
    change that must follow once the return grace is over. stalled_since: the first Go after which no step was
    prepared. unblocked_at: when a member last entered or left user code. For a pipeline: plan: assignment of
    units, since Go; leaving: members that only hand over their units and get no stage; finishing: members of
    the last ring that trained, with unbroken sessions: they apply a reported step, if it is prepared, before
    they send Ready.
    """

    generation: int = 0
    stage: Stage = Stage.NONE
    members: tuple[Member, ...] = ()
    gone: tuple[str, ...] = ()
    gone_applied: dict[str, int] = {}
    reason: str = ""
    since: float = 0.0
    order: tuple[str, ...] = ()
    planned: bool = False
    planned_from: tuple[str, ...] = ()
    resume_step: int = 0
    donors: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()
    rebuild_due: float | None = None
    rebuild_reason: str = ""
    breaks: int = 0
    put_off: str = ""
    stalled_since: float | None = None
    unblocked_at: float = 0.0
    plan: PipelinePlan | None = None
    leaving: tuple[str, ...] = ()
    finishing: tuple[str, ...] = ()

    @property
    def changing(self) -> bool:
        """True while the members do not train because their ring is being formed."""
        return self.stage is Stage.PREPARING or self.stage is Stage.LOADING

    def names(self) -> tuple[str, ...]:
        """Worker ids of the members that are not gone, in the ring's order."""
        return tuple(member.worker for member in self.members if member.worker not in self.gone)

    def member(self, worker: str) -> Member | None:
        """Return the worker's member entry, or None; a new worker with a lost member's id has none."""
        if worker in self.gone:
            return None
        return self._places().get(worker)

    # ------------------------------------------------------------------ changes of the stage

    def prepare(self, members: tuple[Member, ...], now: float, leaving: tuple[str, ...] = ()) -> None:
        """Await Ready from these members. leaving: see the class."""
        if self.stage is Stage.RUNNING:
            self.finishing = self.names()
        self._enter(Stage.PREPARING, now)
        self._replace(members)
        self.leaving = leaving

    def load(self, now: float) -> None:
        """Await the checkpoint that the leader loads, because no member holds the state."""
        self._enter(Stage.LOADING, now)

    def run(self, resume_step: int, holds: Sequence[bool], now: float) -> None:
        """Train from `resume_step` on. holds: which members hold its state; they send it to the others."""
        self._enter(Stage.RUNNING, now)
        self.planned_from = self.finishing = ()
        self.resume_step = resume_step
        self.donors = tuple(place for place, held in enumerate(holds) if held)
        self.receivers = tuple(place for place, held in enumerate(holds) if not held)
        self.unblocked_at = now
        if self.stalled_since is None:
            self.stalled_since = now

    def dissolve(self, now: float) -> None:
        """Remove the ring."""
        if self.stage is Stage.RUNNING:
            self.finishing = self.names()
        self._enter(Stage.NONE, now)
        self._replace(())
        self.plan, self.leaving = None, ()

    def _enter(self, stage: Stage, now: float) -> None:
        """Change the stage. Raises IllegalStage."""
        if stage not in TRANSITIONS[self.stage]:
            after = ", ".join(sorted(TRANSITIONS[self.stage]))
            raise IllegalStage(
                f"the ring of generation {self.generation}, {self.stage} since {self.since:.3f}, cannot be"
                f" {stage}, only {after}; members: {', '.join(self.names()) or 'none'}"
            )
        self.stage, self.since = stage, now

    def _replace(self, members: tuple[Member, ...]) -> None:
        """Set the members, which clears whatever was pending for the previous ones."""
        self.members, self.gone, self.gone_applied, self.planned_from = members, (), {}, ()
        self.rebuild_due, self.put_off = None, ""

    def _places(self) -> dict[str, Member]:
        """Members by worker id, cached because every message needs it."""
        members, places = self.__dict__.get("places", (None, {}))
        if members is not self.members:
            places = {member.worker: member for member in self.members}
            self.__dict__["places"] = (self.members, places)
        return cast("dict[str, Member]", places)
