"""Requests of users: submit, cancel, retry, priority, delete.

Each takes effect once, however often it is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import life, spec
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.events import (
    DataResolved,
    PriorityChanged,
    RunCancelRequested,
    RunDeleted,
    RunRetryRequested,
    RunSubmitted,
    Submitted,
)
from elastane_master.decisions.runs.run import OVER, RUN_ID_MAX, Ending, Run
from elastane_master.decisions.runs.state import RunsState

REQUESTS_MAX = 20_000
"""Request ids that are remembered: of some seconds at the highest rate of submissions."""
KEY_MAX = 256


def submit(ctx: RunsContext, event: RunSubmitted) -> None:
    """Accept a run."""
    state = ctx.state
    known = _repeated(ctx, "submit", event.owner, event.request_id)
    if known is not None:
        ctx.result = Submitted(known, created=False)
        return
    if (run := _of_client_key(ctx, event)) is not None:
        ctx.result = Submitted(run.run_id, created=False)
        return
    _check(ctx, event)
    ctx.touch()
    demand = spec.resolved(event.spec)
    _set_quota(ctx, event)
    ready = event.data == "ready"
    run = Run(
        run_id=state.next_run_id,
        spec=event.spec,
        demand=demand,
        owner=event.owner,
        created_at=ctx.now,
        priority=event.spec.priority,
        state="queued" if ready else "waiting_data",
        reason="waits for slots" if ready else _data_reason(event.data_reason),
        client_key=event.client_key,
        data_ready=ready,
        data_url=event.data_url,
        queued_at=ctx.now,
        waiting_since=ctx.now,
        charged_at=ctx.now,
    )
    run.note(ctx.now)
    state.next_run_id += 1
    state.runs[run.run_id] = run
    if event.client_key:
        state.client_keys[_client_key(event)] = run.run_id
    ctx.changed_run(run)
    ctx.fresh[run.run_id] = None
    _remember(ctx, "submit", event.owner, event.request_id, run.run_id)
    ctx.result = Submitted(run.run_id, created=True)


def check_many(ctx: RunsContext, events: Sequence[RunSubmitted]) -> None:
    """Raise Rejection, with its place, if one of these would be refused after the preceding ones."""
    new = 0
    for place, event in enumerate(events):
        if was_submitted(ctx.state, event.owner, event.request_id, event.client_key):
            continue
        try:
            _check(ctx, event, ahead=new)
        except Rejection as refusal:
            raise at_place(refusal, place) from None
        new += 1


def at_place(refusal: Rejection, place: int) -> Rejection:
    """Return the refusal of one run as the refusal of all runs of a call. place: from 0."""
    facts = dict(refusal.facts)
    if "field" in facts:
        facts["field"] = f"specs[{place}].{facts['field'].removeprefix('spec.')}"
    return Rejection(refusal.reason, f"run {place + 1} of the call: {refusal}", hint=refusal.hint, **facts)


def _set_quota(ctx: RunsContext, event: RunSubmitted) -> None:
    """Adopt the owner's quota of slots from its token."""
    quotas = ctx.state.slots_max
    if event.slots_max is None or event.slots_max == quotas.get(event.owner, 0):
        return
    if event.slots_max:
        quotas[event.owner] = event.slots_max
    else:
        del quotas[event.owner]
    ctx.capacity_grew = True


def _data_reason(reason: str) -> str:
    return reason or "its dataset is being prepared"


def _client_key(event: RunSubmitted) -> str:
    return f"{event.owner}\0{event.client_key}"


def _of_client_key(ctx: RunsContext, event: RunSubmitted) -> Run | None:
    """Return the run of this client key. Raises Rejection("already_exists") if its spec is another."""
    run_id = ctx.state.client_keys.get(_client_key(event)) if event.client_key else None
    if run_id is None:
        return None
    run = ctx.state.runs[run_id]
    differing = spec.differing_fields(run.spec, event.spec)
    if differing:
        raise Rejection(
            "already_exists",
            f"run {run_id} was submitted under this client key with another {', '.join(differing)}",
            hint="use another key for another run",
            run_id=run_id,
            fields=",".join(differing),
        )
    return run


def _check(ctx: RunsContext, event: RunSubmitted, ahead: int = 0) -> None:
    """Raise Rejection if the run cannot be accepted. ahead: runs that are accepted before it."""
    state = ctx.state
    limits = state.settings.limits
    spec.check(event.spec, limits)
    spec.check_owner(event.owner, limits)
    for name in ("client_key", "request_id"):
        if len(getattr(event, name)) > KEY_MAX:
            raise Rejection("invalid_argument", f"{name}: longer than {KEY_MAX} characters", field=name)
    algorithm = event.spec.algorithm
    if event.spec.code is None and not any(
        algorithm in runner.algorithms for runner in state.runners.values()
    ):
        offered = sorted({name for runner in state.runners.values() for name in runner.algorithms})
        raise Rejection(
            "invalid_argument",
            f"no runner offers the algorithm {algorithm!r}",
            hint=f"there are {', '.join(offered[:20])}" if offered else "give the code with the run",
            field="spec.algorithm",
        )
    slots_max = state.slots_max.get(event.owner, 0) if event.slots_max is None else event.slots_max
    needed = spec.resolved(event.spec).slots_min
    if slots_max and needed > slots_max:
        raise Rejection(
            "quota_exceeded",
            f"the run needs {needed} slots at once, and {event.owner!r} may use {slots_max}",
            hint="ask for fewer instances, or have the quota raised",
            quota="slots_max",
            most=slots_max,
            taken=needed,
        )
    if event.data == "missing":
        raise Rejection(
            "invalid_argument",
            event.data_reason or "there is no such dataset",
            hint="check its id and the hash of its version",
            field="spec.dataset",
        )
    waiting = len(ctx.index.pending) + ahead
    if waiting >= state.settings.runs_waiting_max:
        raise Rejection(
            "limit_exceeded",
            f"{waiting} runs wait already",
            hint="submit again when some have ended",
            limit=state.settings.runs_waiting_max,
        )
    if state.next_run_id + ahead > RUN_ID_MAX:
        raise Rejection("limit_exceeded", "there are no run ids left", limit=RUN_ID_MAX)


def data_resolved(ctx: RunsContext, event: DataResolved) -> None:
    """Handle news of a dataset that a run waits for."""
    run = ctx.state.runs.get(event.run_id)
    if run is None or run.state != "waiting_data":
        return
    if event.data == "missing":
        life.end(ctx, run, "failed", event.reason or "its dataset is missing")
    elif event.data == "preparing":
        if _data_reason(event.reason) != run.reason:
            ctx.changed_run(run)
            run.reason = _data_reason(event.reason)
    else:
        ctx.changed_run(run)
        run.data_ready, run.data_url = True, event.data_url
        run.waiting_since = ctx.now
        run.enter("queued", "waits for slots", ctx.now)
        ctx.fresh[run.run_id] = None


def cancel(ctx: RunsContext, event: RunCancelRequested) -> None:
    """Cancel a run. A launch is stopped first; this cannot be revoked."""
    run = _run(ctx, event.run_id)
    ctx.result = run.run_id
    if run.over or run.cancelling:
        return
    reason = f"cancelled by {event.by}" if event.by else "cancelled on request"
    if run.launch is None:
        life.end(ctx, run, "cancelled", reason)
    else:
        ctx.changed_run(run)
        run.cancelling = True
        life.stop_launch(ctx, run, Ending("cancelled", reason))


def retry(ctx: RunsContext, event: RunRetryRequested) -> None:
    """Queue a failed or cancelled run again."""
    run = _run(ctx, event.run_id)
    ctx.result = run.run_id
    if _repeated(ctx, "retry", run.owner, event.request_id) == run.run_id:
        return
    if run.state not in ("failed", "cancelled"):
        raise Rejection(
            "wrong_phase",
            f"run {run.run_id} is {run.state}: {run.reason}",
            hint="only a run that has failed or was cancelled can be queued again",
            phase=run.state,
        )
    ctx.changed_run(run)
    run.failures = run.launch_failures = 0
    run.attempt_open, run.ended_at = False, None
    life.forget_record(ctx, run.run_id)
    run.queued_at = run.waiting_since = ctx.now
    if run.data_ready:
        run.enter("queued", "queued again on request", ctx.now)
    else:
        run.enter("waiting_data", "queued again on request; its dataset is being prepared", ctx.now)
    ctx.fresh[run.run_id] = None
    _remember(ctx, "retry", run.owner, event.request_id, run.run_id)


def set_priority(ctx: RunsContext, event: PriorityChanged) -> None:
    """Change the priority of a run that is not over."""
    run = _run(ctx, event.run_id)
    ctx.result = run.run_id
    if problem := spec.priority_problem(event.priority):
        raise Rejection("invalid_argument", f"priority: {event.priority}", hint=problem, field="priority")
    if _repeated(ctx, "priority", run.owner, event.request_id) == run.run_id:
        return
    if run.over:
        raise Rejection("wrong_phase", f"run {run.run_id} is {run.state}: {run.reason}", phase=run.state)
    if run.priority != event.priority:
        ctx.changed_run(run)
        run.priority = event.priority
    _remember(ctx, "priority", run.owner, event.request_id, run.run_id)


def delete(ctx: RunsContext, event: RunDeleted) -> None:
    """Forget a run that is over."""
    if _repeated(ctx, "delete", "", event.request_id) == event.run_id:
        ctx.result = event.run_id
        return
    run = _run(ctx, event.run_id)
    if run.state not in OVER:
        raise Rejection(
            "wrong_phase",
            f"run {run.run_id} is {run.state}: {run.reason}",
            hint="cancel it first",
            phase=run.state,
        )
    ctx.touch()
    life.forget_record(ctx, run.run_id)
    del ctx.state.runs[run.run_id]
    if run.client_key:
        ctx.state.client_keys.pop(f"{run.owner}\0{run.client_key}", None)
    ctx.index.remove(run.run_id)
    ctx.runs_changed.pop(run.run_id, None)
    _remember(ctx, "delete", "", event.request_id, run.run_id)
    ctx.result = run.run_id


def _run(ctx: RunsContext, run_id: int) -> Run:
    """Return a run. Raises Rejection("not_found")."""
    run = ctx.state.runs.get(run_id)
    if run is None:
        raise Rejection(
            "not_found", f"there is no run {run_id}", hint="it may have been deleted", run_id=run_id
        )
    return run


def was_submitted(state: RunsState, owner: str, request_id: str, client_key: str) -> bool:
    """True if a run was accepted under this request id or client key, so that the request adds nothing."""
    known = request_id and f"submit\0{owner}\0{request_id}" in state.requests
    return bool(known or (client_key and f"{owner}\0{client_key}" in state.client_keys))


def _repeated(ctx: RunsContext, kind: str, owner: str, request_id: str) -> int | None:
    """Return the run on which a request with this id took effect."""
    return ctx.state.requests.get(f"{kind}\0{owner}\0{request_id}") if request_id else None


def _remember(ctx: RunsContext, kind: str, owner: str, request_id: str, run_id: int) -> None:
    if not request_id:
        return
    ctx.touch()
    requests = ctx.state.requests
    requests[f"{kind}\0{owner}\0{request_id}"] = run_id
    if len(requests) > REQUESTS_MAX:
        del requests[next(iter(requests))]
