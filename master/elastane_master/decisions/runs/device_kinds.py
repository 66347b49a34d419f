"""Device types that may train one run, given its job's determinism level. Pure.

An elastic run's job accepts only workers of the same kind as its first one; others are refused when they join
(docs/decisions/0007). So no instance is placed where it would be refused. Black boxes may run anywhere.
"""

from __future__ import annotations

from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Runner
from elastane_proto.job_settings import DEFAULTS
from elastane_scheduler.mixing import Level, kind_at


def level_of(run: Run) -> Level:
    """Return the determinism level of an elastic run's job."""
    return (run.spec.job or DEFAULTS).determinism


def kind_of(run: Run, runner: Runner) -> str:
    """Return the kind of a runner's devices for a run, whose instances must all have one kind."""
    return kind_at(level_of(run), runner.device_type) if run.demand.elastic else ""


def obstacle(run: Run, runner: Runner) -> str:
    """Return why a run that has trained elsewhere cannot continue on a runner; "" if it can."""
    if not run.trains_on or kind_at(level_of(run), run.trains_on) == kind_of(run, runner):
        return ""
    level = level_of(run).upper()
    return f"has {runner.device_type}, and at {level} the run stays on what it began with, {run.trains_on}"
