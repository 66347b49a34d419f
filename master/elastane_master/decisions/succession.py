"""Which of several masters on one store leads: `(state, now, event) -> (state, reason)`.

The leader renews a lease in the store. The lease decides who ought to serve, for the sake of progress;
that only one master can write is held by the fencing tokens, whatever is decided here. A leader that
cannot renew for as long as the lease lasts is `unsure`: somebody else may lead by now, so it sends its
workers away to look for that one, keeps what it knows, and goes on if the lease turns out to be its own.

Times are of the master's monotonic clock, in seconds; how long a lease lasts is judged by the store's.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["standby", "leading", "unsure"]
Action = Literal["stay", "lead", "pause", "resume", "yield"]


class Leader(msgspec.Struct, frozen=True):
    """Who holds the lease. address: where clients reach it. master: its host and process id."""

    address: str
    master: str


class Held(msgspec.Struct, frozen=True):
    """The lease is ours. token: grows when another master held it in between. asked_at: when we asked."""

    token: int
    asked_at: float


class Taken(msgspec.Struct, frozen=True):
    """The lease is another master's."""

    leader: Leader


class NoAnswer(msgspec.Struct, frozen=True):
    """The store did not answer."""

    error: str


class Fenced(msgspec.Struct, frozen=True):
    """Another master took a job over from us, whatever the lease says."""

    error: str


LeaseEvent = Held | Taken | NoAnswer | Fenced


class Succession(msgspec.Struct, frozen=True):
    """One master's place in the succession.

    token: of the lease as last held; 0 before. leader: who leads, as far as known; None: nobody, or we do.
    renewed_at: the lease lasts `lease_seconds` from then on, or longer. not_before: no claim until then.
    """

    lease_seconds: float
    role: Role = "standby"
    token: int = 0
    leader: Leader | None = None
    renewed_at: float = 0.0
    not_before: float = 0.0

    def claim_seconds(self, now: float) -> float:
        """After how long the lease is asked for again, if nothing wakes us before."""
        return max(self.lease_seconds / 3, self.not_before - now)


def decide(state: Succession, now: float, event: LeaseEvent) -> tuple[Succession, str]:
    """The state after `event`, and why its role changed; an empty reason: it did not."""
    change = msgspec.structs.replace
    match event:
        case Held(token, asked_at):
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
            # The lease may be ours all the same: whoever ignores it is given time to finish with us.
            not_before = now + state.lease_seconds
            return change(state, role="standby", leader=None, not_before=not_before), error


def action(served: Succession, wanted: Succession) -> Action:
    """What a master that serves as `served` says does to serve as `wanted` says; done one at a time."""
    if wanted.role == "standby":
        return "stay" if served.role == "standby" else "yield"
    if served.role == "standby":
        return "lead" if wanted.role == "leading" else "stay"
    if served.token != wanted.token:
        return "yield"
    if served.role == wanted.role:
        return "stay"
    return "pause" if wanted.role == "unsure" else "resume"
