"""Elastic runs whose job scales by itself: how many instances they get, and on which runners.

A run gets at most its job's target. If its deadline may require on-demand workers, runners with the label
capacity=on-demand are a class of their own: the number of instances on them is the job's number of on-demand
workers, and all other instances run on the other runners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Runner

CAPACITY_LABEL = "capacity"
ON_DEMAND = "on-demand"

Classes = Mapping[str, int]
"""Instances by class of runner: ON_DEMAND, and "" for all others."""


def may_be_on_demand(run: Run) -> bool:
    """True if a run's deadline may require on-demand workers; then the class of a runner matters."""
    job = run.spec.job
    return run.demand.elastic and job is not None and bool(job.on_demand_workers)


def wanted(run: Run) -> Classes | None:
    """Return the maximum instances of a run by class; None: all, anywhere."""
    scaled = run.scaled if run.scaled is not None and run.scaled.job == run.job else None
    target = run.demand.instances if scaled is None else scaled.workers
    target = max(target, run.demand.instances_min)
    if may_be_on_demand(run):
        on_demand = 0 if scaled is None else min(scaled.on_demand, target)
        return {ON_DEMAND: on_demand, "": target - on_demand}
    return None if scaled is None else {"": target}


def class_of(runner: Runner, classes: Classes) -> str:
    """Return the class of a runner; "" if `classes` does not distinguish any."""
    is_on_demand = ON_DEMAND in classes and runner.labels.get(CAPACITY_LABEL) == ON_DEMAND
    return ON_DEMAND if is_on_demand else ""


def placed(run: Run, runners: Mapping[str, Runner], classes: Classes) -> Counter[str]:
    """Return the instances of a run that have a place, by class."""
    return Counter(class_of(runners[record.runner_id], classes) for record in run.ranks if record.placed)


def takes_on_demand(run: Run) -> bool | None:
    """Return whether a run takes places on on-demand runners now; None: it does not tell them apart."""
    return bool((wanted(run) or {}).get(ON_DEMAND)) if may_be_on_demand(run) else None


def closed(run: Run, runner: Runner) -> str:
    """Return why a run must not be given a place on a runner now, by its class; "" if it may."""
    if takes_on_demand(run) is False and runner.labels.get(CAPACITY_LABEL) == ON_DEMAND:
        return "is on demand, which the run's deadline does not require yet"
    return ""


def offers_on_demand(runners: Mapping[str, Runner]) -> bool:
    """True if a runner that attends is on demand."""
    return any(
        runner.attends and runner.labels.get(CAPACITY_LABEL) == ON_DEMAND for runner in runners.values()
    )
