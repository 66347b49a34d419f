"""Read models of runs and runners for the API, the dashboard and metrics. Nothing here changes the state."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elastane_master.decisions.retention import Retention
from elastane_master.decisions.runs import holdings, placement, queue_shares, usage
from elastane_master.decisions.runs.allocation import RunDecision
from elastane_master.decisions.runs.discretion import Covers, Discretion, everything
from elastane_master.decisions.runs.forecast import Forecast, SlotHolder
from elastane_master.decisions.runs.machine import RunsMachine
from elastane_master.decisions.runs.queue_shares import QueueUse
from elastane_master.decisions.runs.run import OVER, RankRecord, RankState, Run, RunState, Transition
from elastane_master.decisions.runs.runner import Runner, RunnerKind
from elastane_master.decisions.runs.spec import RunSpec

PAGE_DEFAULT = 100
PAGE_MAX = 1000


class RankView(msgspec.Struct, frozen=True):
    """One instance, as the proto's RankStatus."""

    rank: int
    state: RankState
    runner_id: str
    host: str
    exit_code: int
    last_line: str
    started_at: float | None
    ended_at: float | None


class RunView(msgspec.Struct, frozen=True):
    """A run, as the proto's Run.

    position: of a run that waits for slots, from 1; else 0. earliest_start_at: forecast for such a run; None:
    unknown. holders: runs that hold the slots it waits for. queue: name of its queue; "": there are none.
    """

    run_id: int
    spec: RunSpec
    owner: str
    state: RunState
    reason: str
    position: int
    queue_length: int
    attempt: int
    ranks: tuple[RankView, ...]
    created_at: float
    started_at: float | None
    ended_at: float | None
    history: tuple[Transition, ...]
    job: str
    next_attempt_at: float | None
    cancelling: bool
    revision: int
    priority: int
    slot_seconds: float
    data_url: str = ""
    fence: int = 0
    earliest_start_at: float | None = None
    holders: tuple[SlotHolder, ...] = ()
    queue: str = ""


class RunnerView(msgspec.Struct, frozen=True):
    """A runner, as the proto's Runner. last_heard_at: `Liveness` knows better while it attends."""

    runner_id: str
    host: str
    kind: RunnerKind
    slots: int
    slots_used: int
    labels: dict[str, str]
    owners: tuple[str, ...]
    attends: bool
    last_heard_at: float
    paused: bool
    reason: str
    algorithms: tuple[str, ...]
    session: str
    device_type: str
    memory_bytes: int


class ServiceView(msgspec.Struct, frozen=True):
    """The service as a whole. runs_waiting: for slots, data or their next attempt."""

    runners: tuple[RunnerView, ...]
    runs_waiting: int
    slots_used: int
    slots: int
    oldest_wait_seconds: float
    queues: tuple[QueueUse, ...]


class Page(msgspec.Struct, frozen=True):
    """A page of runs. next_before: where the next page begins; 0: there is none."""

    run_ids: tuple[int, ...]
    next_before: int


def run_view(
    machine: RunsMachine,
    run_id: int,
    now: float,
    whole: bool = True,
    forecast: Forecast | None = None,
    covers: Covers = everything,
) -> RunView | None:
    """Return a run; None if there is none.

    whole: with its instances and history. forecast: of a waiting run, if known. covers: whether the caller
    may see runs of an owner; reasons do not name others.
    """
    run = machine.state.runs.get(run_id)
    if run is None:
        return None
    waits = run.waits
    waiting = machine.index.waiting
    position = machine.policy.position(machine.state, waiting, run, now) if waits else 0
    forecast = Discretion(machine.state.runs, covers).forecast(forecast) if forecast and waits else None
    return RunView(
        run_id=run.run_id,
        spec=run.spec,
        owner=run.owner,
        state=run.state,
        reason=waiting_reason(machine, run, position, forecast) if waits else run.reason,
        position=position,
        queue_length=len(waiting),
        attempt=run.attempt,
        ranks=tuple(map(_rank_view, run.ranks)) if whole else (),
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        history=tuple(run.history) if whole else (),
        job=run.job,
        next_attempt_at=run.next_attempt_at,
        cancelling=run.cancelling,
        revision=run.revision,
        priority=run.priority,
        slot_seconds=holdings.slot_seconds(run, now),
        data_url=run.data_url,
        fence=run.launch.fence if run.launch is not None else 0,
        earliest_start_at=forecast.earliest_at if forecast is not None else None,
        holders=forecast.holders if forecast is not None else (),
        queue=queue_shares.queue_of(queues, run.owner) if (queues := machine.state.settings.queues) else "",
    )


def waiting_reason(machine: RunsMachine, run: Run, position: int, forecast: Forecast | None = None) -> str:
    """Describe what a run waits for: "needs 4 slots, 2 free, waits for run 3; 3rd of 9"."""
    state = machine.state
    runners = state.runners
    place = f"{ordinal(position)} of {len(machine.index.waiting)}"
    room = usage.room(state.uses, state.slots_max, run.owner)
    obstacle = placement.obstacle(run, runners) or usage.over_quota(
        run.owner, run.demand.slots_min, room, state.slots_max.get(run.owner, 0)
    )
    if not obstacle:
        fitting = [one for one in runners.values() if not placement.mismatch(run, one)]
        free = sum(one.slots_free for one in fitting)
        obstacle = f"needs {run.demand.slots_min} slots, {free} free"
        if paused := sum(1 for one in fitting if one.paused_until is not None):
            obstacle += f", {paused} of {len(fitting)} runners paused"
        if forecast is not None and forecast.reason:
            obstacle += f", {forecast.reason}"
    before = f"{run.reason}; " if run.state == "suspended" or run.failures else ""
    return f"{before}{obstacle}; {place}"


def ordinal(number: int) -> str:
    """Write 1st, 2nd, 3rd, 4th, 11th, 21st."""
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def _rank_view(record: RankRecord) -> RankView:
    state: RankState = "prepared" if record.state == "starting" else record.state
    return RankView(
        record.rank,
        state,
        record.runner_id,
        record.host,
        record.exit_code,
        record.last_line,
        record.started_at,
        record.ended_at,
    )


def list_runs(
    machine: RunsMachine,
    *,
    before: int = 0,
    page_size: int = PAGE_DEFAULT,
    states: Iterable[RunState] = (),
    owner: str | None = None,
    labels: dict[str, str] | None = None,
    covers: Covers = everything,
) -> Page:
    """Return the runs with ids below `before` (0: all) that match, the newest first.

    covers: whether the caller may see runs of an owner.
    """
    size = max(1, min(page_size or PAGE_DEFAULT, PAGE_MAX))
    wanted = frozenset(states)
    found: list[int] = []
    runs = machine.state.runs
    for run_id in sorted((one for one in runs if not before or one < before), reverse=True):
        run = runs[run_id]
        if (
            (not wanted or run.state in wanted)
            and (owner is None or run.owner == owner)
            and covers(run.owner)
            and all(run.spec.labels.get(name) == value for name, value in (labels or {}).items())
        ):
            if len(found) == size:
                return Page(tuple(found), found[-1])
            found.append(run_id)
    return Page(tuple(found), 0)


def queue(machine: RunsMachine, now: float) -> list[tuple[int, str, str]]:
    """Return (run, verdict, reason) of all runs that wait for slots, in their order."""
    free = placement.free_slots(machine.state.runners)
    places = machine.policy.order(machine.state, machine.index.waiting, free, now)
    return [(place.run_id, place.verdict, place.reason) for place in places]


SCHEDULING_DEFAULT = 100
SCHEDULING_MAX = 1000


def scheduling(
    machine: RunsMachine,
    run_id: int = 0,
    limit: int = SCHEDULING_DEFAULT,
    covers: Covers = everything,
) -> tuple[RunDecision, ...]:
    """Return the newest decisions of the scheduling policy about a run, or (0) about all, the newest last.

    covers: whether the caller may see runs of an owner; texts do not name others.
    """
    size = max(1, min(limit or SCHEDULING_DEFAULT, SCHEDULING_MAX))
    runs = machine.state.runs
    caller = Discretion(runs, covers)
    if run_id:
        return tuple(map(caller.decision, runs[run_id].decided[-size:])) if run_id in runs else ()
    found: list[RunDecision] = []
    for decided in machine.state.allocation.decided:
        for about in decided.runs:
            run = runs.get(about.run_id)
            if run is not None and covers(run.owner):
                found.append(msgspec.structs.replace(about, choice=decided.choice, rejected=decided.rejected))
    return tuple(map(caller.decision, found[-size:]))


def service_view(machine: RunsMachine, now: float) -> ServiceView:
    """Return the service as a whole."""
    runners = [machine.state.runners[name] for name in sorted(machine.state.runners)]
    here = [runner for runner in runners if runner.attends]
    by_wait = machine.index.waiting.by_wait
    alive = [machine.state.runs[run_id] for run_id in machine.index.active | machine.index.pending]
    return ServiceView(
        runners=tuple(map(runner_view, runners)),
        runs_waiting=len(machine.index.pending),
        slots_used=sum(runner.slots_used for runner in here),
        slots=sum(runner.slots for runner in here),
        oldest_wait_seconds=max(0.0, now - by_wait[0][0]) if by_wait else 0.0,
        queues=queue_shares.uses(machine.state.settings.queues, alive, machine.state.runners),
    )


def runner_view(runner: Runner) -> RunnerView:
    """Return a runner."""
    return RunnerView(
        runner_id=runner.runner_id,
        host=runner.host,
        kind=runner.kind,
        slots=runner.slots,
        slots_used=runner.slots_used,
        labels=runner.labels,
        owners=runner.owners,
        attends=runner.attends,
        last_heard_at=runner.heard_at,
        paused=runner.leaving or runner.paused_until is not None,
        reason=_runner_reason(runner),
        algorithms=runner.algorithms,
        session=runner.session,
        device_type=runner.device_type,
        memory_bytes=runner.memory_bytes,
    )


def _runner_reason(runner: Runner) -> str:
    if runner.lost:
        return "lost: its lease has ended"
    if not runner.attends:
        return "silent: its stream is gone, its lease is not over"
    if runner.leaving:
        return runner.leave_reason or "leaves"
    return runner.pause_reason


def overdue(machine: RunsMachine, retention: Retention, now: float) -> list[int]:
    """Return the finished runs beyond the retention limits, oldest first."""
    ended = (
        (str(run.run_id), run.ended_at or run.created_at)
        for run in machine.state.runs.values()
        if run.state in OVER
    )
    return [int(name) for name in retention.overdue(ended, now)]
