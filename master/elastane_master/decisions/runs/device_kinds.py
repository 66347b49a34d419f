"""Which device types may train one run, at the level of its job's determinism. Pure.

An elastic run's job takes workers of one kind only, and keeps to that of its first one: others are refused
when they join (docs/decisions/0007). So none is placed where it would be refused. Black boxes may be
anywhere.
"""

from __future__ import annotations

from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Runner
from elastane_proto.job_settings import DEFAULTS
from elastane_scheduler.mixing import Level, kind_at


def level_of(run: Run) -> Level:
    """Return the level of determinism of an elastic run's job."""
    return (run.spec.job or DEFAULTS).determinism


def kind_of(run: Run, runner: Runner) -> str:
    """Return what a runner's devices count as for a run: its instances are on runners of one kind."""
    return kind_at(level_of(run), runner.device_type) if run.demand.elastic else ""


def obstacle(run: Run, runner: Runner) -> str:
    """Return why a run that has trained elsewhere cannot go on at a runner; "" if it can."""
    if not run.trains_on or kind_at(level_of(run), run.trains_on) == kind_of(run, runner):
        return ""
    level = level_of(run).upper()
    return f"has {runner.device_type}, and at {level} the run stays on what it began with, {run.trains_on}"
