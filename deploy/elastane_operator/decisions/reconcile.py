"""One look at a job: spec, remembered status and observed state -> actions.

Level-triggered: nothing depends on having seen a change happen. The caller writes `Decision.status` first and
carries the actions out afterwards, in order; it stops at the first failure and looks again. Therefore:

- a pod's end is in the status before the pod is deleted, so it is counted once despite a killed operator;
- a pod's name is given by its index, so it exists once, however many operators create it;
- requests to the master follow from what its view lacks, not from what was requested before.

The master decides when and with how many workers a job trains; the operator carries it out.
"""

from __future__ import annotations

from datetime import datetime

from elastane_operator.decisions import life
from elastane_operator.decisions.actions import AddFinalizer, CreateObject, RemoveFinalizer
from elastane_operator.decisions.ends import count_ends
from elastane_operator.decisions.observed import JobAtMaster, Observed
from elastane_operator.decisions.report import report
from elastane_operator.decisions.size import fit
from elastane_operator.decisions.spec import Identity, JobSpec, MasterSpec, Workers, price_micros
from elastane_operator.decisions.status import Status, with_condition
from elastane_operator.decisions.turn import FINALIZER, Decision, Turn

__all__ = ["Decision", "reconcile", "refuse"]


def reconcile(
    identity: Identity, spec: JobSpec, status: Status, observed: Observed, now: datetime
) -> Decision:
    """Decide what to do for a job now."""
    turn = Turn(identity, spec, status, observed, now)
    if turn.job is not None and not status.started:
        turn.set(started=True)
    if identity.deleted is not None:
        life.delete(turn)
        return turn.decide()
    if FINALIZER not in identity.finalizers:
        turn.act(AddFinalizer())
    if status.finished:
        life.after_end(turn)
    else:
        # Pods that end because the master released them must not count as failures.
        leaving = spec.suspend or (turn.job is not None and (turn.job.phase == "suspended" or turn.job.over))
        fatal = count_ends(turn, leaving=leaving)
        # The master's verdict takes precedence: it knows why its workers ended.
        if turn.job is not None and turn.job.over:
            life.finish_as_master(turn, turn.job)
        elif fatal is not None:
            why = "PermanentExit" if fatal.outcome == "permanent" else "RestartBudgetExhausted"
            life.finish(turn, "Failed", why, fatal.reason)
        elif spec.suspend:
            life.suspend(turn)
        else:
            _be_active(turn)
    report(turn)
    return turn.decide()


def refuse(identity: Identity, status: Status, problems: list[str], now: datetime) -> Decision:
    """Decide for a job with an invalid spec: start nothing, and leave running pods as they are."""
    if identity.deleted is not None:
        held = FINALIZER in identity.finalizers
        return Decision(status, (RemoveFinalizer(),) if held else ())
    said = "; ".join(problems)
    turn = Turn(identity, _NOTHING, status, Observed(), now)
    before = status.condition("Accepted")
    if before is None or before.status != "False" or before.message != said:
        turn.note("Warning", "InvalidSpec", said)
    conditions = with_condition(
        turn.status.conditions,
        "Accepted",
        False,
        "InvalidSpec",
        said,
        now=now,
        generation=identity.generation,
    )
    turn.set(conditions=conditions, observed_generation=identity.generation)
    if not status.started and not status.finished:
        turn.set(phase="Pending", reason=said)
    return turn.decide()


def _be_active(turn: Turn) -> None:
    """Advance a job that is neither finished nor to be suspended: its own master first, then its pods."""
    status, spec = turn.status, turn.spec
    if status.start_time is None or status.suspend_time is not None:
        if status.suspend_time is not None and status.started:
            turn.note("Normal", "Resumed", "spec.suspend is false")
        turn.set(start_time=turn.now, suspend_time=None)
    limit = spec.active_deadline_seconds
    if limit is not None and turn.passed(turn.status.start_time, limit):
        life.finish(
            turn, "Failed", "DeadlineExceeded", f"active for more than activeDeadlineSeconds ({limit} s)"
        )
        return
    objects = turn.observed.objects
    if objects.foreign:
        said = f"its master's names are taken by others: {', '.join(objects.foreign)}"
        turn.fault = ("NameTaken", said)
        turn.enter("Pending", said)
        turn.look_in(30.0)
        return
    for body in objects.missing:
        name = body["metadata"]["name"]
        turn.act(
            CreateObject(body["kind"], body, f"{body['kind']} {name} of the job's own master is missing")
        )
    if not turn.observed.master.reachable:
        _without_master(turn)
    elif turn.job is None:
        _without_job(turn)
    else:
        _with_job(turn, turn.job)


def _without_master(turn: Turn) -> None:
    """Change nothing while the master cannot be reached: the job may already be over."""
    said = f"the master cannot be asked: {turn.observed.master.error}"
    if not turn.status.started:
        turn.enter("Pending", said)
    elif turn.status.phase in ("Suspending", "Suspended"):
        turn.enter("Waiting", said)
    turn.set(reason=said)


def _without_job(turn: Turn) -> None:
    if turn.status.started:
        text = "its master does not know the job any more (was its state lost?); it is created again"
        if turn.status.reason != text:
            turn.note("Warning", "JobLost", text)
        turn.enter("Pending", text)
    elif turn.observed.master.refused_what == "Create":
        turn.enter("Pending", f"the master refused the job: {turn.observed.master.refused}")
    else:
        turn.enter("Pending", "the job is being created at its master")
    turn.ask("Create", "the master does not have the job yet")


def _with_job(turn: Turn, job: JobAtMaster) -> None:
    workers = turn.spec.workers
    fixed = (("ests", job.ests, turn.spec.ests), ("seed", job.seed, turn.spec.seed))
    changed = [
        f"{name} is {there} at the master and {wanted} in the spec; it cannot be changed"
        for name, there, wanted in fixed
        if there != wanted
    ]
    if changed:
        turn.set(reason="; ".join(changed))
        turn.fault = ("FixedFieldChanged", turn.status.reason)
        turn.look_in(30.0)
        return
    turn.enter("Running" if job.phase == "running" else "Waiting", job.reason)
    if (job.workers_min, job.workers_max) != (workers.min, workers.max):
        turn.ask(
            "Scale",
            f"the spec wants {workers.min} to {workers.max} workers, the master has "
            f"{job.workers_min} to {job.workers_max}",
        )
    _set_prices(turn, job)
    if job.phase == "suspended":
        turn.ask("Resume", "spec.suspend is false, and the master has the job suspended")
        return
    fit(turn, workers.max)


def _set_prices(turn: Turn, job: JobAtMaster) -> None:
    """Set a price of the spec only once, so that a price later set at the master is kept."""
    spot = turn.spec.spot
    if not (spot.price or spot.on_demand_price):
        return
    wanted = f"{spot.price or '-'}/{spot.on_demand_price or '-'} {spot.currency}"
    if turn.status.prices == wanted:
        return
    pairs = (
        (spot.price, job.cost.spot_price_micros),
        (spot.on_demand_price, job.cost.on_demand_price_micros),
    )
    if all(not price or price_micros(price) == at_master for price, at_master in pairs):
        turn.set(prices=wanted)
    else:
        turn.ask("SetPrices", f"prices of the spec: {wanted}")


_NOTHING = JobSpec(template={}, ests=1, workers=Workers(1), master=MasterSpec())
