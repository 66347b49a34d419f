"""The simulator: hand-made cases, a golden of a generated trace, identity, noise, reclaims, the picture."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ElementTree

import pytest

from elastane_scheduler.costs import Costs
from elastane_scheduler.errors import SchedulerError
from elastane_scheduler.jobs import Job
from elastane_scheduler.plan import Shape
from elastane_scheduler.policies.catalogue import POLICIES, make_policy
from elastane_scheduler.pool import Pool, parse_pool
from elastane_scheduler.simulation.beliefs import Beliefs
from elastane_scheduler.simulation.engine import Outcome, Rounds, Simulation
from elastane_scheduler.simulation.generated import generate
from elastane_scheduler.simulation.offers import Offers
from elastane_scheduler.simulation.plot import draw
from elastane_scheduler.simulation.report import report_of
from elastane_scheduler.view import Decision, View

POOL = parse_pool("v100=8,p100=4,t4=4")
COSTS = Costs(2, 0.5, 1)
ONE = Pool(("v100",), (4,))


def job(name: str, arrival: float, steps: float, ests: int = 4, **options: object) -> Job:
    return Job(name, Shape(ests, (1.0,)), steps, arrival, (ests,), **options)  # type: ignore[arg-type]


def ends(outcome: Outcome) -> dict[str, float]:
    return {ended.name: ended.finish_seconds for ended in outcome.ended}


def test_fifo_by_hand() -> None:
    jobs = [job("a", 0, 10), job("b", 1, 5)]
    outcome = Simulation(jobs, make_policy("fifo"), ONE, COSTS).run()
    assert ends(outcome) == {"a": 12, "b": 19}
    report = report_of("fifo", outcome, ONE, None)
    assert (report.average, report.makespan, report.wait, report.reallocations) == (15, 19, 5.5, 0)
    assert report.use == 1 and report.money == pytest.approx(19 * 4 / 3600)


def test_srtf_stops_the_longer_job_by_hand() -> None:
    jobs = [job("a", 0, 10), job("b", 4, 3)]
    outcome = Simulation(jobs, make_policy("srtf"), ONE, COSTS).run()
    # a trains from 2 to 4 and has 8 steps left; b from 6 to 9; a starts and restores for 3 s.
    assert ends(outcome) == {"b": 9, "a": 20}


def test_backfill_does_not_delay_the_first() -> None:
    jobs = [job("a", 0, 10, 2), job("b", 1, 5, 4), job("c", 2, 3, 2), job("d", 2, 30, 2)]
    found = ends(Simulation(jobs, make_policy("backfill"), ONE, COSTS).run())
    assert found["b"] == 12 + 2 + 5
    assert found["c"] == 2 + 2 + 3
    assert found["d"] > found["b"]


def test_golden_of_a_generated_trace() -> None:
    """A change of these figures is a change of a policy or of the costs: is it meant?"""
    workload = generate(POOL, 30, seed=1)
    found = {}
    for name in POLICIES:
        outcome = Simulation(workload.jobs, make_policy(name), POOL, COSTS).run()
        report = report_of(name, outcome, POOL, None)
        found[name] = (round(report.average, 1), round(report.makespan, 1), report.reallocations)
    assert found == GOLDEN


GOLDEN = {
    "fifo": (4545.2, 10234.3, 0),
    "packing": (3337.9, 6823.4, 0),
    "backfill": (1721.8, 5565.0, 0),
    "srtf": (845.1, 5695.8, 22),
    "maxmin": (1242.7, 4351.3, 66),
    "easyscale-homo": (1626.4, 5498.4, 22),
    "easyscale-heter": (1675.5, 7599.7, 38),
    "fixed-goodput": (1257.4, 4353.8, 75),
    "fixed-goodput-1": (1275.6, 4328.5, 68),
    "elastic-srtf": (758.1, 5129.5, 68),
    "las": (1645.3, 5580.0, 10),
    "fair-sojourn": (745.7, 4794.1, 53),
    "foresight": (693.2, 4429.4, 46),
}


@pytest.mark.parametrize("name", POLICIES)
def test_two_runs_are_equal(name: str) -> None:
    def run() -> str:
        workload = generate(POOL, 25, seed=4)
        return repr(Simulation(workload.jobs, make_policy(name), POOL, COSTS, record=True).run())

    assert run() == run()


@pytest.mark.parametrize("name", POLICIES)
def test_every_job_ends_with_all_of_its_steps_done(name: str) -> None:
    workload = generate(POOL, 25, seed=5)
    outcome = Simulation(workload.jobs, make_policy(name), POOL, COSTS).run()
    assert sorted(ends(outcome)) == sorted(each.name for each in workload.jobs)
    assert not outcome.unfinished
    for each in workload.jobs:
        alone = each.steps * each.shape.levels[each.shape.level(POOL.counts) or 0][0]
        assert ends(outcome)[each.name] >= each.arrival_seconds + COSTS.start_seconds + alone - 1e-6


@pytest.mark.parametrize("name", POLICIES)
def test_reclaimed_devices_are_given_up_at_once(name: str) -> None:
    rng = random.Random(6)
    times = sorted(rng.uniform(0, 900) for _ in range(20))
    offers = Offers(
        (
            (0.0, POOL.counts),
            *((t, tuple(rng.randint(0, n) for n in POOL.counts)) for t in times),
            (950.0, POOL.counts),
        )
    )
    workload = generate(POOL, 20, seed=6)
    outcome = Simulation(workload.jobs, make_policy(name), POOL, COSTS, offers=offers).run()
    assert len(outcome.ended) == 20  # the engine refuses more than is offered


def test_noise_and_unknown_steps_change_decisions_and_lose_nothing() -> None:
    workload = generate(POOL, 40, seed=7)
    exact = Simulation(workload.jobs, make_policy("elastic-srtf"), POOL, COSTS).run()
    noisy = Simulation(
        workload.jobs, make_policy("elastic-srtf"), POOL, COSTS, beliefs=Beliefs(sigma=1.0, seed=1)
    ).run()
    assert ends(exact) != ends(noisy) and ends(exact).keys() == ends(noisy).keys()
    hidden = [
        Job(each.name, each.shape, each.steps, each.arrival_seconds, each.request, known=False)
        for each in workload.jobs
    ]
    for name in POLICIES:
        outcome = Simulation(hidden, make_policy(name), POOL, COSTS).run()
        assert ends(outcome).keys() == ends(exact).keys()


def test_las_asks_again_when_a_job_has_had_its_service() -> None:
    jobs = [job("a", 0, 2000), job("b", 10, 100)]
    found = ends(Simulation(jobs, make_policy("las"), ONE, COSTS).run())
    # 3,200 device-seconds are 800 s of four devices: then b goes first.
    assert found["b"] == 800 + 2 + 100


def test_rounds_decide_at_multiples_alone() -> None:
    jobs = [job("a", 5, 10), job("b", 70, 10)]
    outcome = Simulation(jobs, make_policy("fifo"), ONE, COSTS, rounds=Rounds(60, 20)).run()
    assert ends(outcome) == {"a": 60 + 20 + 10, "b": 120 + 20 + 10}


def test_a_job_that_fits_nowhere_is_named() -> None:
    gang = Job("a", Shape(4, (1.0,), workers_min=4), 10, 0.0, (4,))
    outcome = Simulation([gang], make_policy("maxmin"), Pool(("v100",), (2,)), COSTS).run()
    assert outcome.unfinished == ["a"]


def test_a_policy_that_gives_too_much_is_found_out() -> None:
    class Generous:
        name = "generous"

        def decide(self, view: View) -> Decision:
            return Decision([(9,)] * len(view.jobs), math.inf, "all to all")

    with pytest.raises(SchedulerError, match="9 v100"):
        Simulation([job("a", 0, 1)], Generous(), ONE, COSTS).run()


def test_foresight_is_first_by_average() -> None:
    workload = generate(POOL, 40, seed=11)
    averages = {
        name: report_of(
            name, Simulation(workload.jobs, make_policy(name), POOL, COSTS).run(), POOL, None
        ).average
        for name in POLICIES
    }
    assert min(averages, key=lambda name: averages[name]) == "foresight"


def test_rho_compares_with_the_fair_share() -> None:
    jobs = [job("a", 0, 1000), job("b", 0, 1000)]
    fair = Simulation(jobs, make_policy("maxmin"), ONE, COSTS).run()
    outcome = Simulation(jobs, make_policy("fifo"), ONE, COSTS).run()
    report = report_of("fifo", outcome, ONE, fair)
    assert report.rho_max == pytest.approx(2004 / ends(fair)["b"])


def test_the_picture_is_valid_and_shows_each_policy() -> None:
    workload = generate(POOL, 15, seed=3)
    times, held = {}, []
    for name in ("fifo", "foresight"):
        outcome = Simulation(workload.jobs, make_policy(name), POOL, COSTS, record=True).run()
        times[name], held = [each.completion_seconds for each in outcome.ended], outcome.held
    root = ElementTree.fromstring(draw(times, held, "foresight"))
    kinds = [element.tag.rpartition("}")[2] for element in root]
    assert kinds.count("polyline") == 2
    titles = {
        title.text.partition(":")[0] for title in root.iter() if title.tag.endswith("title") and title.text
    }
    assert titles == {each.name for each in workload.jobs}
