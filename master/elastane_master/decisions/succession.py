"""Leadership among several masters of one store: `(state, now, event) -> (state, reason)`.

The leader renews a lease in the store. The lease decides which master serves, for liveness; the fencing
tokens ensure that only one master can write, whatever is decided here. A leader that cannot renew for the
length of the lease is `unsure`: another may lead by now, so it ends its workers' streams for them to look for
that one, keeps its state in memory, and continues if the lease turns out to be its own.

Times are of the master's monotonic clock, in seconds; the store's clock decides when a lease expires.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["standby", "leading", "unsure"]
Action = Literal["stay", "lead", "pause", "resume", "yield"]


class Leader(msgspec.Struct, frozen=True):
    """Holder of the lease. address: as reached by clients. master: its host and process id."""

    address: str
    master: str


class Held(msgspec.Struct, frozen=True):
    """We hold the lease. token: increases if another master held it in between. asked_at: when we asked."""

    token: int
    asked_at: float


class Taken(msgspec.Struct, frozen=True):
    """Another master holds the lease."""

    leader: Leader


class NoAnswer(msgspec.Struct, frozen=True):
    """The store did not answer."""

    error: str


class Fenced(msgspec.Struct, frozen=True):
    """Another master took a job over from us, whatever the lease says."""

    error: str


LeaseEvent = Held | Taken | NoAnswer | Fenced


class Succession(msgspec.Struct, frozen=True):
    """One master's role.

    token: of the lease as last held; 0 before. leader: the known leader; None: none, or this master.
    renewed_at: the lease lasts at least `lease_seconds` from then on. not_before: it is not asked for until
    then.
    """

    lease_seconds: float
    role: Role = "standby"
    token: int = 0
    leader: Leader | None = None
    renewed_at: float = 0.0
    not_before: float = 0.0

    def acquire_seconds(self, now: float) -> float:
        """Seconds until the lease is next asked for, unless something wakes us earlier."""
        return max(self.lease_seconds / 3, self.not_before - now)


def decide(state: Succession, now: float, event: LeaseEvent) -> tuple[Succession, str]:
    """Return the state after `event`, and the reason for a change of role (empty: no change)."""
    change = msgspec.structs.replace
    match event:
        case Held(token, asked_at):
            # Leading again this early would interrupt the takeover by the master that fenced us.
            if now < state.not_before:
                return state, ""
            held = change(state, token=token, leader=None, renewed_at=asked_at, role="leading")
            if state.role == "standby":
                return held, "the lease was free"
            if token != state.token:
                return held, "another master led meanwhile and is gone"
            return held, "the lease is still ours" if state.role == "unsure" else ""
        case Taken(leader):
            reason = "" if state.role == "standby" else f"{leader.master} at {leader.address} took the lease"
            return change(state, role="standby", leader=leader), reason
        case NoAnswer(error):
            if state.role == "leading" and now - state.renewed_at > state.lease_seconds:
                reason = f"the lease could not be renewed for {state.lease_seconds:g} s: {error}"
                return change(state, role="unsure"), reason
            return state, ""
        case Fenced(error):
            # We may still hold the lease; not renewing it gives the other master time to fence all our jobs.
            not_before = now + state.lease_seconds
            return change(state, role="standby", leader=None, not_before=not_before), error


def action(served: Succession, wanted: Succession) -> Action:
    """Return the next action on the way from the `served` to the `wanted` state."""
    if wanted.role == "standby":
        return "stay" if served.role == "standby" else "yield"
    if served.role == "standby":
        return "lead" if wanted.role == "leading" else "stay"
    if served.token != wanted.token:
        return "yield"
    if served.role == wanted.role:
        return "stay"
    return "pause" if wanted.role == "unsure" else "resume"
