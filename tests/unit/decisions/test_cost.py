"""What workers cost: right to the cent, exactly, whatever happens, and after a restart too."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from job_driver import JobDriver, settings

from cost_oracle import CostOracle, charged, difference
from elastane_master.decisions import cost, effects, events
from elastane_master.decisions.amounts import HOUR_NANOS, NANOS_MAX, Amount, Charges, Workers
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_proto.amounts import money_text
from elastane_proto.history.describe import describe
from elastane_proto.history.events import JobCost
from elastane_proto.job_settings import PRICE_MICROS_MAX, JobSettings

HOUR = 3600.0


def priced(ests: int = 4, *, spot: int = 300_000, on_demand: int = 1_000_000, **changes: Any) -> JobSettings:
    return settings(ests, spot_price_micros=spot, on_demand_price_micros=on_demand, **changes)


def seen(job: JobDriver) -> cost.CostView:
    return cost.view(job.machine.state, job.now)


def test_a_price_table_to_the_cent() -> None:
    """Two spot workers and an on-demand one train; prices change three times; one worker dies."""
    job = JobDriver(priced())
    job.join("s1")
    job.join("s2")
    job.join("o1", capacity="on_demand")
    job.tick_due()
    for worker in ("s1", "s2", "o1"):
        job.ready(worker)
    job.loaded("s1")
    began = job.now
    assert round(seen(job).spent_micros / 10_000) == 0
    # (hours, then: spot price, on-demand price) for s1, s2, o1 at work
    for hours, spot, on_demand in ((1.5, 250_000, 1_000_000), (2, 410_000, 1_200_000), (0.25, 0, 1_200_000)):
        job.now = began = began + hours * HOUR
        job.machine.handle(events.PricesRequested(f"r{hours}", spot, on_demand), job.now)
    job.now = began + HOUR
    view = seen(job)
    # 1.5 h: 2 * 0.30 + 1.00; 2 h: 2 * 0.25 + 1.00; 0.25 h: 2 * 0.41 + 1.20; 1 h: spot unknown + 1.20
    assert (
        money_text(view.spent_micros, "USD")
        == f"{1.5 * 1.6 + 2 * 1.5 + 0.25 * 2.02 + 1.2:.2f} USD"
        == "7.11 USD"
    )
    # Without the hour of two workers that has no price: it would count as saved altogether.
    assert view.on_demand_micros // 10_000 == round((1.5 + 2) * 3 * 100 + 0.25 * 360 + 120)
    assert view.saved_micros == view.on_demand_micros - view.spent_micros
    assert view.savings == pytest.approx(1 - 7.105 / 12.6, abs=1e-4)
    assert view.worker_nanos == view.spot_worker_nanos + view.on_demand_worker_nanos
    assert view.unpriced_nanos == 2 * 3600 * 10**9


def test_workers_without_a_price_save_nothing() -> None:
    job = JobDriver(priced(1, spot=0))
    job.form("a")
    job.loaded("a")
    job.now += HOUR
    view = seen(job)
    assert (view.spent_micros, view.on_demand_micros, view.savings) == (0, 0, None)


def test_what_is_thrown_away_is_replayed_and_what_waits_is_idle() -> None:
    job = JobDriver(priced(2, workers_max=2))
    job.form("a", "b")
    idle = seen(job).idle_nanos
    job.now += 10
    job.step(0)  # the first report, the other one 1 ms later
    assert seen(job).replayed_nanos == 0
    job.now += 5
    job.lose("b")  # 5 s and 1 ms of two members for a step that nobody finishes
    assert seen(job).replayed_nanos == 2 * 5_001_000_000
    job.now += 7
    job.ready("a", 1, holds=True)  # 7 s and 1 ms of one worker without a ring
    assert seen(job).idle_nanos == idle + 7_001_000_000
    job.join("c")
    job.now += 2
    view = seen(job)
    assert view.idle_nanos - idle == 7_001_000_000 + 2_020_000_000  # c stands by until the next boundary
    assert view.useful_nanos == view.worker_nanos - view.idle_nanos - view.replayed_nanos
    book = job.state.cost
    assert book.attended_nanos == book.attended.nanos > book.attended_nanos - book.replayed.nanos


def test_steps_that_history_goes_back_behind_are_replayed() -> None:
    job = JobDriver(priced(1, checkpoint_url="x", checkpoint_interval_steps=2))
    job.form("a")
    for step in range(3):
        job.now += 1
        job.step(step)
        if step == 1:
            message = job.take(effects.Prepared)["a"].then_checkpoint
            assert message is not None and message.step == 2
            job.saved("a", message)
            job.saved("a", message, complete=True)
    job.applied("a", 3)
    before = seen(job)
    job.now += 1
    job.lose("a")
    job.join("b")
    job.ready("b")
    job.loaded("b", 2, message.checkpoint)
    [rewound] = job.noted("history_rewound")
    assert rewound.facts["to_step"] == "2"
    # Step 2 (1.001 s and what the checkpoint's three messages took), then the second in flight.
    assert seen(job).replayed_nanos - before.replayed_nanos == pytest.approx(2.005e9, abs=1e6)
    assert seen(job).useful_nanos == pytest.approx(2.002e9, abs=2e6)


def test_a_checkpoint_of_which_no_boundary_is_known_takes_its_share() -> None:
    job = JobDriver(priced(1, checkpoint_url="x"))
    job.form("a")
    for step in range(8):
        job.now += 1
        job.step(step)
    job.applied("a", 8)
    job.lose("a")
    job.join("b")
    job.ready("b")
    job.loaded("b", 4, "somebody-saved-it")
    assert seen(job).replayed_nanos == pytest.approx(4e9, rel=0.01)
    assert seen(job).useful_nanos == pytest.approx(4e9, rel=0.01)


class Accounted(JobDriver):
    """A job beside which an account is kept from outside."""

    def __init__(self, job: JobSettings) -> None:
        super().__init__(job)
        self.oracle = CostOracle(self.machine)

    def do(self, event: events.Event, *, after: float = 0.001) -> effects.Decision:
        decision = super().do(event, after=after)
        if decision.durable:
            notes = [effect for effect in decision.effects if isinstance(effect, effects.Note)]
            self.oracle.seen(notes, self.now)
        return decision


@pytest.mark.parametrize(("step", "is_exact"), [(2, True), (4, False), (5, False), (7, True)])
def test_the_account_from_outside_knows_where_the_product_takes_the_share(step: int, is_exact: bool) -> None:
    """A checkpoint that a forgotten history has left behind is of a step before which this one has none."""
    job = Accounted(priced(1, checkpoint_url="x", checkpoint_interval_steps=2))
    job.form("a")
    for each in range(8):
        job.step(each)
        if each == 1:
            message = job.take(effects.Prepared)["a"].then_checkpoint
            assert message is not None and message.step == 2
    job.applied("a", 8)
    job.lose("a")
    job.join("b")
    job.ready("b")
    job.loaded("b", step, "left-behind")
    assert job.oracle.is_lost is not is_exact


def test_workers_are_paid_for_while_the_master_is_down_and_until_they_are_proven_gone() -> None:
    job = JobDriver(priced(2))
    job.form("a", "b")
    before = seen(job)
    job.do(events.MasterStarted("m"), after=100)
    job.rejoin("a", 1, 0, session="a-2")
    job.tick_due()  # the return grace: b did not come back
    view = seen(job)
    assert len(job.noted("worker_lost")) == 1
    assert view.worker_nanos - before.worker_nanos == pytest.approx(2 * 110e9, rel=1e-3)
    job.now += 50
    assert seen(job).worker_nanos - view.worker_nanos == 50 * 10**9


def test_time_that_could_not_be_stored_is_not_charged() -> None:
    """A job of a master whose clock began in 1970, or of a thousand workers in a hundred days."""
    job = JobDriver(priced(4, spot=PRICE_MICROS_MAX, on_demand=PRICE_MICROS_MAX))
    job.form("a", "b", "c", "d")
    for _ in range(2):
        job.do(events.MasterStarted("m"), after=56 * 365 * 24 * HOUR)
        again = JobMachine.restore(job.machine.snapshot())
        assert cost.view(again.state, job.now) == seen(job)
        assert NANOS_MAX - 4 <= seen(job).worker_nanos <= NANOS_MAX


def test_the_end_of_the_job_says_what_it_cost() -> None:
    job = JobDriver(priced(1))
    job.form("a")
    job.now += HOUR
    job.steps(0, 20)
    job.bye("a")
    [note] = job.noted("job_cost")
    assert note.facts["spent_micros"] == str(seen(job).spent_micros) and note.facts["currency"] == "USD"
    assert (
        "0.30 USD for 1.00 worker-hours" in note.reason and "on demand 1.00 USD, saved 70.0%" in note.reason
    )


def test_prices_are_changed_once_and_bad_ones_change_nothing() -> None:
    job = JobDriver(priced())
    job.form("a")
    job.do(events.PricesRequested("r", 500_000))
    job.do(events.PricesRequested("r", 900_000))
    assert (job.state.settings.spot_price_micros, job.state.settings.on_demand_price_micros) == (
        500_000,
        10**6,
    )
    [note] = job.noted("prices_changed")
    assert note.reason.startswith("spot 0.50 USD and on demand 1.00 USD an hour, before spot 0.30 USD")
    job.now += HOUR
    before = job.machine.snapshot()
    bad: tuple[dict[str, Any], ...] = (
        {"spot_price_micros": -1},
        {"on_demand_price_micros": 10**13},
        {"currency": "dollars"},
        {"currency": "EUR"},
    )
    for asked in bad:
        with pytest.raises(Rejection):
            job.machine.handle(events.PricesRequested("s", **asked), job.now)
        assert job.machine.snapshot() == before
    for wrong in ({"spot_price_micros": -1}, {"currency": "us$"}, {"currency": ""}):
        with pytest.raises(Rejection):
            JobMachine.create("job", settings(1, **wrong), 0.0)


def test_a_currency_can_be_set_while_nothing_is_charged() -> None:
    job = JobDriver(settings(1))
    job.form("a")
    job.now += HOUR
    job.do(events.PricesRequested("r", 1_000_000, currency="EUR"))
    job.now += HOUR
    assert (
        describe(JobCost("running", cost.spent(job.state, job.now)))
        .removeprefix("job running: ")
        .startswith("1.00 EUR for 2.00 worker-hours")
    )


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(0, "0.00 USD"), (4_999, "0.00 USD"), (5_000, "0.01 USD"), (-1_234_567, "-1.23 USD"), (-1, "0.00 USD")],
)
def test_money_is_shown_to_the_cent(micros: int, shown: str) -> None:
    assert money_text(micros, "USD") == shown


# ------------------------------------------------------------------ by device type


def device_price(
    device_type: str, spot: int | None, on_demand: int | None = None, **more: Any
) -> events.DevicePriceRequested:
    return events.DevicePriceRequested(device_type, spot, on_demand, **more)


def measure(job: JobDriver, worker: str, device_type: str) -> None:
    job.do(
        events.AppliedReported(
            worker, job.session(worker), job.generation, job.state.steps.committed, device_type=device_type
        )
    )


def test_each_device_type_is_charged_at_its_own_price_from_the_event_on() -> None:
    job = JobDriver(priced(4))
    job.form("a", "b", "c")
    measure(job, "a", "H100")
    measure(job, "b", "L4")
    base = seen(job)
    began = job.now
    asked = (device_price("H100", 2_000_000), device_price("A10", 500_000))
    job.do(events.PricesRequested("r", devices=asked), after=HOUR)
    job.now = began + 2 * HOUR
    view = seen(job)
    # An hour at 0.30 each; then an hour at 2.00, 0.30, 0.30.
    assert view.spent_micros - base.spent_micros == pytest.approx(3 * 300_000 + 2_600_000, abs=2)
    shown = {device.device_type: device for device in view.devices}
    assert list(shown) == ["A10", "H100", "L4", ""]
    assert shown["H100"].spent_micros == pytest.approx(2_300_000, abs=2)
    assert shown["L4"].spent_micros == pytest.approx(600_000, abs=2)
    assert shown["A10"].worker_nanos == 0 and shown["A10"].spot_price_micros == 500_000
    assert shown["H100"].spot_price_micros == 2_000_000 and shown["H100"].on_demand_price_micros == 1_000_000
    assert sum(device.worker_nanos for device in view.devices) == view.worker_nanos
    assert abs(sum(device.spent_micros for device in view.devices) - view.spent_micros) <= 2
    assert cost.price_micros(job.state, "H100", "spot") == 2_000_000
    assert cost.price_micros(job.state, "V100", "on_demand") == 1_000_000
    [note] = job.noted("prices_changed")
    assert "spot 0.30 USD and on demand 1.00 USD an hour, of A10 spot 0.50 USD, of H100 spot" in note.reason


def test_a_feed_that_says_the_same_for_longer_is_no_news_and_past_its_time_is_stale() -> None:
    job = JobDriver(priced(1))
    job.form("a")
    until = job.now + 60
    job.do(events.PricesRequested("1", 400_000, devices=(device_price("L4", 7, expires_at=until),)))
    assert not seen(job).is_stale(job.now)
    assert seen(job).is_stale(until)
    job.do(events.PricesRequested("2", devices=(device_price("L4", 7, expires_at=until + 60),)))
    assert len(job.noted("prices_changed")) == 1
    assert not seen(job).is_stale(until) and seen(job).devices[0].spot_price_micros == 7
    job.do(events.PricesRequested("3", 400_000, expires_at=until))
    assert seen(job).expires_at == until
    job.do(events.PricesRequested("4", 410_000))
    assert seen(job).expires_at is None, "the operator's price holds until another one comes"


@pytest.mark.parametrize(
    "devices",
    [
        (device_price("", 5),),
        (device_price("L4", -1),),
        (device_price("L4", None, PRICE_MICROS_MAX + 1),),
        (device_price("L4", 5), device_price("L4", 6)),
        tuple(device_price(f"d{number}", 1) for number in range(65)),
    ],
    ids=["no type", "negative", "too much", "twice", "too many"],
)
def test_prices_of_devices_that_cannot_be_change_nothing(
    devices: tuple[events.DevicePriceRequested, ...],
) -> None:
    job = JobDriver(priced())
    job.form("a")
    before = job.machine.snapshot()
    with pytest.raises(Rejection):
        job.machine.handle(events.PricesRequested("r", 1, devices=devices), job.now)
    assert job.machine.snapshot() == before


def test_counts_of_a_store_without_device_types_are_made_up_for() -> None:
    """A worker's type may be in the store, and its count not: nothing becomes negative."""
    job = JobDriver(priced(2))
    job.form("a", "b")
    measure(job, "a", "L4")
    job.state.cost.ring_workers.devices.clear()
    job.state.cost.members.devices.clear()
    job.do(events.PricesRequested("1", devices=(device_price("L4", 900_000),)), after=10)
    job.lose("a")
    assert job.state.cost.ring_workers == Workers(spot=1)
    job.do(events.MasterStarted("m"), after=5)
    assert job.state.cost.ring_workers == Workers(spot=1)


def test_device_types_without_bound_are_counted_together() -> None:
    workers = Workers()
    for number in range(70):
        workers.add("spot", f"d{number}")
    assert (workers.spot, len(workers.devices)) == (70, 64)
    *_, (name, spot, on_demand) = workers.groups()
    assert (name, spot, on_demand) == ("", 6, 0)


# ------------------------------------------------------------------ against exact arithmetic

_prices = st.one_of(st.none(), st.integers(0, 50_000_000), st.just(10**12))
_times = st.floats(0.0, 5000.0, allow_nan=False)
_acts = st.one_of(
    st.tuples(st.just("join"), st.sampled_from("abcd"), st.sampled_from(("spot", "on_demand"))),
    st.tuples(st.just("tasks"), st.sampled_from("tu"), st.sampled_from(("spot", "on_demand"))),
    st.tuples(st.sampled_from(("lose", "drain", "leave")), st.sampled_from("abcdtu"), st.just("")),
    st.tuples(st.just("price"), _prices, _prices),
    st.tuples(st.sampled_from(("price of x", "price of y")), _prices, _prices),
    st.tuples(st.just("measured"), st.sampled_from("abcdtu"), st.sampled_from(("x", "y"))),
    st.tuples(
        st.sampled_from(("step", "step", "step", "restart", "tick", "suspend", "resume")),
        st.none(),
        st.none(),
    ),
)


class Churn(JobDriver):
    """A job to which anything happens; every worker answers at once."""

    def __init__(self) -> None:
        super().__init__(priced(3, checkpoint_url="x", checkpoint_interval_steps=3, workers_min=2))
        self.oracle = CostOracle(self.machine)
        self.base = charged(self.machine, 0.0)
        self.log: list[tuple[Any, float]] = []
        self.count = 0

    def do(self, event: Any, *, after: float = 0.0) -> effects.Decision:
        self.now += after
        decision = self.machine.handle(event, self.now)
        if decision.durable:
            self.log.append((event, self.now))
            notes = [effect for effect in decision.effects if isinstance(effect, effects.Note)]
            self.oracle.seen(notes, self.now)
            self.check()
        for effect in decision.effects:
            if isinstance(effect, effects.Send):
                self._answer(effect.worker, effect.message)
        return decision

    def check(self) -> None:
        assert not difference(self.oracle, self.base, charged(self.machine, self.now))
        book = self.state.cost
        attended, of_devices = book.attended, Charges()
        for charges in book.devices.values():
            of_devices = of_devices.plus(charges)
        assert (of_devices.nanos, of_devices.unpriced_nanos, of_devices.spent) == (
            attended.nanos,
            attended.unpriced_nanos,
            attended.spent,
        )

    def _answer(self, worker: str, message: Any) -> None:
        if worker not in self.state.workers:
            return
        self.now += 0.25
        record = self.state.workers[worker]
        match message:
            case effects.Prepare():
                self.ready(worker, record.applied_step, holds=record.holds_state)
            case effects.Load():
                saved = self.state.checkpoints.saved_step
                self.loaded(worker, max(saved, 0), "saved" if saved >= 0 else "")
            case effects.Drain():
                self.bye(worker, "drained", record.applied_step)
            case effects.Prepared():
                if message.then_checkpoint is not None:
                    self.saved(worker, message.then_checkpoint)
                if message.then_prepare is not None and worker in self.state.workers:
                    self.ready(worker, message.step + 1, holds=True)
            case effects.Checkpoint():
                self.saved(worker, message, complete=True)

    def act(self, what: str, one: Any, other: Any) -> None:
        self.count += 1
        workers = self.state.workers
        match what:
            case "join" | "tasks":
                role = "ring" if what == "join" else "tasks"
                self.join(one, session=f"{one}-{self.count}", role=role, capacity=other)
            case "lose" if one in workers:
                self.lose(one)
            case "drain" if one in workers:
                self.do(events.DrainRequested("", one))
            case "leave" if one in workers:
                self.do(events.LeavingReported(one, self.session(one), "spot", 30.0))
            case "price":
                self.do(events.PricesRequested("", one, other))
            case "price of x" | "price of y":
                device = events.DevicePriceRequested(what[-1], one, other)
                self.do(events.PricesRequested("", devices=(device,)))
            case "measured" if one in workers and not workers[one].awaited:
                session, step = self.session(one), workers[one].applied_step
                self.do(events.AppliedReported(one, session, self.generation, step, device_type=other))
            case "step" if self.state.ring.stage == "running":
                for worker in self.members:
                    if worker in self.members and worker not in self.state.steps.reports:
                        self.report(worker, self.state.steps.current)
            case "restart":
                self.do(events.MasterStarted("m"))
            case "tick" if self.machine.next_deadline() is not None:
                self.tick_due()
            case "suspend" | "resume":
                with contextlib.suppress(Rejection):
                    self.do(events.SuspendRequested("") if what == "suspend" else events.ResumeRequested(""))


@effort(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_times, _acts), min_size=5, max_size=40))
def test_every_nano_and_every_fraction_of_a_micro_is_accounted_for(
    acts: list[tuple[float, tuple[str, Any, Any]]],
) -> None:
    job = Churn()
    for worker in ("a", "b", "c"):
        job.act("join", worker, "spot")
    job.act("tick", None, None)
    for seconds, act in acts:
        job.now += seconds
        job.act(*act)
    # The stored events give the same sums again, and a snapshot keeps them.
    again = JobMachine.create("job", job.machine.state.original, 0.0)
    for event, now in job.log:
        again.handle(event, now)
    assert again.snapshot() == job.machine.snapshot()
    assert cost.view(JobMachine.restore(again.snapshot()).state, job.now) == seen(job)


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**15)), max_size=20))
def test_money_is_exact(charges: list[tuple[int, int]]) -> None:
    amount, exact = Amount(), Fraction()
    for price, nanos in charges:
        amount = amount.plus(price, nanos)
        exact += Fraction(price * nanos, 3600 * 10**9)
    assert amount.micros + Fraction(amount.rest, HOUR_NANOS) == exact
    assert abs(amount.rounded() - exact) <= Fraction(1, 2)
    assert amount.and_amount(amount, -1) == Amount()
