"""Cost of a job's workers and the share of it that was useful work: exact sums, no floats.

Between two changes (of attending workers, the ring, its stage, or prices) the numbers of working and idle
workers of each capacity and device type are constant: `settle` charges the time since the last change at the
prices of that time, and counts workers again. Sums do not depend on how often that is done, so a restart
neither loses nor repeats a charge, and replaying the stored events gives the same sums.

    attended    every worker, from its Hello until it is known to be gone
    idle        ring workers that stand by or wait, and members while no ring runs
    working     members of a running ring, for steps that remain valid
    replayed    members of a running ring, for work that was thrown away; moved there from `working`
    useful      attended less idle and replayed: what is left
    baseline    the on-demand price of useful time whose own price is known

The cost of a step is the difference of `working` at the boundaries before and after it. The newest two
boundaries and those of checkpoints are kept, because history goes back only to these. For any other
checkpoint (of another job, or older), cost is taken in proportion to the steps.
"""

from __future__ import annotations

import msgspec

from elastane_master.decisions.amounts import (
    DEVICE_TYPES_MAX,
    HOUR_NANOS,
    MARKS_MAX,
    NANOS,
    NANOS_MAX,
    Charges,
    CostBook,
    DevicePrice,
    PriceBook,
    Workers,
)
from elastane_master.decisions.events import Capacity
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_proto.history.events import Spent

Key = tuple[int, Stage, int]
_SECONDS_MAX = NANOS_MAX / NANOS


def nanos(now: float) -> int:
    """Convert seconds since the epoch to whole nanoseconds; all later arithmetic is exact."""
    return round(min(max(0.0, now), _SECONDS_MAX) * NANOS)


def prices(state: JobState) -> PriceBook:
    """Return the prices that hold now."""
    settings = state.settings
    return PriceBook(settings.spot_price_micros, settings.on_demand_price_micros, state.cost.device_prices)


def price_micros(state: JobState, device_type: str, capacity: Capacity) -> int:
    """Return the current hourly price of a worker of this device type and capacity, in micros; 0: unknown."""
    return prices(state).of(device_type)[capacity == "on_demand"]


def charge(state: JobState, now: float) -> None:
    """Charge the time since the last charge. Called before any change of workers, stages or prices."""
    book, at = state.cost, nanos(now)
    since = 0 if book.at is None else at - book.at
    book.at = at if book.at is None else max(book.at, at)
    since = _chargeable(book, since)
    if since <= 0:
        return
    at_prices = prices(state)
    book.tasks = book.tasks.charged(book.task_workers, since, at_prices)
    book.working = book.working.charged(book.members, since, at_prices)
    book.idle = book.idle.charged(book.ring_workers.without(book.members), since, at_prices)
    book.devices = _by_device(book, since, at_prices)


def joined(state: JobState, record: WorkerRecord, now: float) -> None:
    """Count a worker that has joined."""
    charge(state, now)
    _attending(state.cost, record).add(record.capacity, record.device_type)


def typed(state: JobState, record: WorkerRecord, device_type: str, now: float) -> None:
    """Set the device type of a worker in its record, now that it is known."""
    charge(state, now)
    attending = _attending(state.cost, record)
    attending.add(record.capacity, record.device_type, -1)
    record.device_type = device_type
    attending.add(record.capacity, device_type)
    _count_members(state)


def left(state: JobState, record: WorkerRecord, now: float) -> None:
    """Count a worker that is gone."""
    charge(state, now)
    _attending(state.cost, record).add(record.capacity, record.device_type, -1)


def ring_key(state: JobState) -> Key:
    """Return a value that changes whenever the set of working members changes."""
    return state.ring.generation, state.ring.stage, len(state.ring.gone)


def settle(state: JobState, before: Key, now: float) -> None:
    """Charge the time until now if a decision changed the ring. before: `ring_key` before the decision."""
    if ring_key(state) != before:
        charge(state, now)
        _count_members(state)


def recount(state: JobState, now: float) -> None:
    """Count all attending workers again; a store of a release without costs has no counts."""
    charge(state, now)
    book = state.cost
    book.ring_workers, book.task_workers = Workers(), Workers()
    for record in state.workers.values():
        _attending(book, record).add(record.capacity, record.device_type)
    _count_members(state)


def prepared(state: JobState, now: float) -> None:
    """Record the boundary between the step that was just prepared and the next; called first."""
    charge(state, now)
    book = state.cost
    book.before, book.boundary = book.boundary, (state.steps.current, book.working)


def checkpointed(state: JobState, step: int) -> None:
    """Record a checkpoint at the boundary before `step`: history may go back to there."""
    book = state.cost
    book.marks.pop(step, None)
    book.marks[step] = _working_at(book, step)
    while len(book.marks) > MARKS_MAX:
        del book.marks[min(set(book.marks) - {min(book.marks)})]


def dropped(state: JobState, now: float) -> None:
    """Count the step in flight, if any, as discarded: the ring changes or is stopped."""
    if state.all_committed:
        return
    charge(state, now)
    _replay(state.cost, state.cost.boundary[1])


def resumed(state: JobState, step: int, now: float) -> None:
    """Resume at `step`: later work was lost and counts as replayed."""
    charge(state, now)
    book = state.cost
    if step < book.boundary[0]:
        _replay(book, _working_at(book, step))
    elif step > book.boundary[0]:  # restored steps that the store had lost: no work was charged for them
        checkpointed(state, book.boundary[0])
        book.marks[step] = book.working
    book.marks = {marked: counters for marked, counters in book.marks.items() if marked <= step}
    book.boundary = (step, book.working)
    if book.before[0] >= step:  # else it stays: the next ring may find only a member that is a step behind
        book.before = book.boundary
    if not book.marks:
        book.marks[step] = book.working


class DeviceCostView(msgspec.Struct, frozen=True):
    """Cost of the workers of one device type, as job.proto's DeviceCost; "": of unknown type.

    Prices are the current ones. expires_at: time by which a newer price is due, if known.
    """

    device_type: str
    spent_micros: int
    worker_nanos: int
    spot_worker_nanos: int
    on_demand_worker_nanos: int
    unpriced_nanos: int
    spot_price_micros: int
    on_demand_price_micros: int
    expires_at: float | None


class CostView(msgspec.Struct, frozen=True):
    """Cost of a job, as job.proto's Cost; savings: None while there is no baseline.

    devices: by device type, for types that have worked or have their own price. expires_at: time by which
    newer general prices are due, if known.
    """

    currency: str
    spent_micros: int
    on_demand_micros: int
    saved_micros: int
    savings: float | None
    worker_nanos: int
    spot_worker_nanos: int
    on_demand_worker_nanos: int
    useful_nanos: int
    replayed_nanos: int
    idle_nanos: int
    replayed_micros: int
    idle_micros: int
    unpriced_nanos: int
    spot_price_micros: int
    on_demand_price_micros: int
    expires_at: float | None = None
    devices: tuple[DeviceCostView, ...] = ()

    def is_stale(self, now: float) -> bool:
        """True if a newer price is overdue; the last ones are kept."""
        expiries = (self.expires_at, *(device.expires_at for device in self.devices))
        return any(expires_at is not None and expires_at <= now for expires_at in expiries)


def view(state: JobState, now: float) -> CostView:
    """The cost up to `now`; changes nothing."""
    book, settings, at_prices = state.cost, state.settings, prices(state)
    since = _chargeable(book, max(0, nanos(now) - book.at)) if book.at is not None else 0
    idle = book.idle.charged(book.ring_workers.without(book.members), since, at_prices)
    working = book.working.charged(book.members, since, at_prices)
    useful = working.plus(book.tasks.charged(book.task_workers, since, at_prices))
    attended = useful.plus(idle).plus(book.replayed)
    spent, baseline = attended.spent.rounded(), useful.baseline.rounded()
    return CostView(
        currency=settings.currency,
        spent_micros=spent,
        on_demand_micros=baseline,
        saved_micros=baseline - spent,
        savings=(baseline - spent) / baseline if baseline else None,
        worker_nanos=attended.nanos,
        spot_worker_nanos=attended.spot_nanos,
        on_demand_worker_nanos=attended.on_demand_nanos,
        useful_nanos=useful.nanos,
        replayed_nanos=book.replayed.nanos,
        idle_nanos=idle.nanos,
        replayed_micros=book.replayed.spent.rounded(),
        idle_micros=idle.spent.rounded(),
        unpriced_nanos=attended.unpriced_nanos,
        spot_price_micros=settings.spot_price_micros,
        on_demand_price_micros=settings.on_demand_price_micros,
        expires_at=book.expires_at,
        devices=_device_views(book, since, at_prices, attended),
    )


def spent(state: JobState, now: float) -> Spent:
    """Return the cost up to `now` in the form of events."""
    cost = view(state, now)
    priced = bool(cost.spot_price_micros or cost.on_demand_price_micros or cost.spent_micros)
    figures = {name: getattr(cost, name) for name in Spent.__struct_fields__ if name != "priced"}
    return Spent(**figures, priced=priced)


def spent_at(state: JobState, micros: int) -> float | None:
    """Return when the job will have cost this much if workers and prices stay the same; None: never.

    In seconds since the epoch; it may be past.
    """
    book, at_prices = state.cost, prices(state)
    hourly = sum(
        count * price
        for workers in (book.ring_workers, book.task_workers)
        for device_type, *counts in workers.groups()
        for count, price in zip(counts, at_prices.of(device_type), strict=True)
    )
    if book.at is None or hourly <= 0:
        return None
    spent = book.attended.spent
    left = micros - spent.micros - spent.rest / HOUR_NANOS
    return book.at / NANOS + left * HOUR_NANOS / NANOS / hourly


def _chargeable(book: CostBook, since: int) -> int:
    """Return the chargeable part of a time span: a clock corrected by decades must not cost the job."""
    workers = sum(kind.spot + kind.on_demand for kind in (book.ring_workers, book.task_workers))
    return min(since, (NANOS_MAX - book.attended_nanos) // workers) if workers else since


def _by_device(book: CostBook, since: int, at_prices: PriceBook) -> dict[str, Charges]:
    """Return attended charges by device type, with another `since` nanoseconds."""
    charges = dict(book.devices)
    for workers in (book.ring_workers, book.task_workers):
        for device_type, spot, on_demand in workers.groups():
            if not spot and not on_demand:
                continue
            name = device_type if device_type in charges or len(charges) < DEVICE_TYPES_MAX else ""
            charged = charges.get(name, Charges())
            charges[name] = charged.charged_alike(spot * since, on_demand * since, at_prices.of(device_type))
    return charges


def _device_views(
    book: CostBook, since: int, at_prices: PriceBook, attended: Charges
) -> tuple[DeviceCostView, ...]:
    """Return the cost by device type; charges from before types were counted have type ""."""
    charges = _by_device(book, since, at_prices)
    known = Charges()
    for device_type, of_type in charges.items():
        if device_type:
            known = known.plus(of_type)
    charges[""] = attended.minus(known)
    names = sorted(name for name in charges.keys() | at_prices.devices.keys() if name)
    return tuple(
        _device_view(name, charges.get(name, Charges()), at_prices)
        for name in [*names, *([""] if charges[""].nanos and names else [])]
    )


def _device_view(device_type: str, charges: Charges, at_prices: PriceBook) -> DeviceCostView:
    spot, on_demand = at_prices.of(device_type)
    own = at_prices.devices.get(device_type, DevicePrice())
    return DeviceCostView(
        device_type,
        charges.spent.rounded(),
        charges.nanos,
        charges.spot_nanos,
        charges.on_demand_nanos,
        charges.unpriced_nanos,
        spot,
        on_demand,
        own.expires_at,
    )


def _attending(book: CostBook, record: WorkerRecord) -> Workers:
    return book.ring_workers if record.role == "ring" else book.task_workers


def _count_members(state: JobState) -> None:
    members = Workers()
    if state.ring.stage is Stage.RUNNING:
        for record in state.active_members():
            members.add(record.capacity, record.device_type)
    state.cost.members = members


def _replay(book: CostBook, stands: Charges) -> None:
    """Count all work beyond `stands` as replayed."""
    book.replayed = book.replayed.plus(book.working.minus(stands))
    book.working = stands


def _working_at(book: CostBook, step: int) -> Charges:
    """Work charged before `step` began, in the current history."""
    known = {0: Charges(), **book.marks, book.before[0]: book.before[1], book.boundary[0]: book.boundary[1]}
    if step in known:
        return known[step]
    above = min((marked for marked in known if marked > step), default=None)
    if above is None:
        return book.working
    below = max(marked for marked in known if marked < step)
    return known[below].plus(known[above].minus(known[below]).share(step - below, above - below))
