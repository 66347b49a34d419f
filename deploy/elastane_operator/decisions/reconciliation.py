"""Working state of one decision, shared by its parts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from elastane_operator.decisions.actions import Action, AskMaster, DeletePod, Note
from elastane_operator.decisions.observed import JobAtMaster, Observed
from elastane_operator.decisions.pods import PodView
from elastane_operator.decisions.spec import Identity, JobSpec
from elastane_operator.decisions.status import Ended, Phase, Status, with_condition, with_reasons

FINALIZER = "elastane.io/finalizer"


class Decision(msgspec.Struct, frozen=True):
    """Result of one look.

    The caller writes the status first, then carries the actions out in order, stopping at the first failure.
    next_look: latest time for the next look, in seconds from now; None: at the next change.
    """

    status: Status
    actions: tuple[Action, ...] = ()
    notes: tuple[Note, ...] = ()
    next_look: float | None = None


class Reconciliation:
    """A decision being made. pods, servers: the job's pods of workers and of parameter servers, by index."""

    def __init__(
        self, identity: Identity, spec: JobSpec, status: Status, observed: Observed, now: datetime
    ) -> None:
        self.identity = identity
        self.spec = spec
        self.status = status
        self.observed = observed
        self.now = now
        own = sorted(
            (pod for pod in observed.pods if pod.owner_uid == identity.uid and pod.index >= 0),
            key=lambda pod: pod.index,
        )
        self.pods = [pod for pod in own if pod.role == "worker"]
        self.servers = [pod for pod in own if pod.role == "ps"]
        self.actions: list[Action] = []
        self.notes: list[Note] = []
        self.next_look: float | None = None
        self.fault: tuple[str, str] | None = None  # why the spec is impossible: one word, and a message

    @property
    def job(self) -> JobAtMaster | None:
        """The job as reported by its master; None if the master is not reachable."""
        return self.observed.master.job if self.observed.master.reachable else None

    @property
    def ended(self) -> dict[str, Ended]:
        """The recorded ends of pods, by uid."""
        return {each.uid: each for each in self.status.ended}

    def set(self, **fields: object) -> None:
        """Change fields of the status."""
        self.status = msgspec.structs.replace(self.status, **fields)

    def note(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Post an Event for the user, and record it among the newest reasons."""
        self.notes.append(Note(kind, reason, message))
        self.set(last_reasons=with_reasons(self.status.last_reasons, [message]))

    def act(self, action: Action) -> None:
        """Add an action, to be carried out after the status is written."""
        self.actions.append(action)
        reason = getattr(action, "reason", "")
        if reason:
            self.set(last_reasons=with_reasons(self.status.last_reasons, [reason]))

    def ask(
        self,
        what: Literal["Create", "Scale", "SetScaling", "Suspend", "Resume", "Cancel", "SetPrices"],
        why: str,
    ) -> None:
        """Add a request to the master, unless it has just refused the same request."""
        refused = self.observed.master.refused
        if refused and self.observed.master.refused_what == what:
            self.look_in(30.0)
            return
        self.act(AskMaster(what, why))

    def look_in(self, seconds: float) -> None:
        """Look again after at most `seconds`."""
        seconds = max(seconds, 0.0)
        self.next_look = seconds if self.next_look is None else min(self.next_look, seconds)

    def look_at(self, time: datetime) -> None:
        """Look again at `time` at the latest."""
        self.look_in((time - self.now).total_seconds())

    def passed(self, since: datetime | None, seconds: float) -> bool:
        """True if `seconds` have passed since a time; otherwise schedules a look for then."""
        if since is None:
            return False
        due = since + timedelta(seconds=seconds)
        if self.now >= due:
            return True
        self.look_at(due)
        return False

    def enter(self, phase: Phase, reason: str) -> None:
        """Enter a phase, with its reason."""
        if phase != self.status.phase:
            kind: Literal["Normal", "Warning"] = (
                "Warning" if phase in ("Failed", "MaxWaitTimeExceeded") else "Normal"
            )
            self.note(kind, phase, reason)
        self.set(phase=phase, reason=reason)

    def condition(self, kind: str, holds: bool | None, reason: str, message: str = "") -> None:
        """Set a condition."""
        self.set(
            conditions=with_condition(
                self.status.conditions, kind, holds, reason, message,
                now=self.now, generation=self.identity.generation,
            )
        )  # fmt: skip

    def release(self, pods: Iterable[PodView], reason: str) -> None:
        """Delete pods that are no longer wanted; recorded as "released" first, so it is not a preemption."""
        going = {action.uid for action in self.actions if isinstance(action, DeletePod)}
        for pod in pods:
            if pod.uid not in self.ended:
                self.set(ended=(*self.status.ended, Ended(pod.uid, pod.index, "released")))
            if pod.deleted is None and pod.uid not in going:
                self.act(DeletePod(pod.name, pod.uid, reason))

    def decide(self) -> Decision:
        """Return the decision."""
        return Decision(self.status, tuple(self.actions), tuple(self.notes), self.next_look)
