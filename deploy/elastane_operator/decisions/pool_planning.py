"""Plans the devices of each job of a pool: a view of the pool, a policy, and reasons.

A policy is created anew for each plan, so the plan depends only on observations and the status: a successor,
or a second operator, arrives at the same plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from elastane_operator.decisions.pool_jobs import PoolJob, PoolPod
from elastane_operator.decisions.pool_spec import PoolSpec
from elastane_operator.decisions.pool_status import Devices, Share
from elastane_scheduler.costs import Costs
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.jobs import Job, JobState
from elastane_scheduler.plan import Shape
from elastane_scheduler.policies.catalogue import ListPolicy, make_policy
from elastane_scheduler.policies.elastic import keep
from elastane_scheduler.policies.prioritized import PrioritizedPolicy
from elastane_scheduler.policies.queued import QueuedPolicy
from elastane_scheduler.pool import Counts, Pool
from elastane_scheduler.queues import Queue
from elastane_scheduler.reasons import reasons
from elastane_scheduler.view import Policy, View

COSTS = Costs(start_seconds=20.0, stall_seconds=1.0, restore_seconds=5.0)
"""Pods start cold: the image is pulled, libraries are imported, devices are opened."""

EST_SECONDS = 1.0
"""Believed of an EST's part of a step that was not measured yet."""

REASON_CHARACTERS_MAX = 500
"""Limit for each job, because the pool's status contains the reasons of all jobs."""

BELIEVED_SECONDS = 60.0
"""Work that is believed to be left, at least, in a job that has not said its steps or its speed."""


class Plan(msgspec.Struct, frozen=True):
    """Shares in the order of the jobs, and seconds until the policy wants to plan again (or infinity)."""

    shares: tuple[Share, ...]
    wake_seconds: float


def make_plan(
    spec: PoolSpec,
    jobs: Sequence[PoolJob],
    before: dict[str, Share],
    pods: Sequence[PoolPod],
    now: datetime,
    *,
    quiet: bool,
) -> Plan:
    """Plan for jobs in order of arrival. before: their previous shares, by uid.

    quiet: running jobs keep their devices, and only free devices are assigned.
    """
    pool = Pool(spec.names, spec.quotas)
    taking, states, refused = [], [], {}
    for job in jobs:
        share = before[job.uid]
        if not job.active:
            refused[job.uid] = _inactive(job, now)
        elif quiet and not share.planned and _just_taken(share, spec, now):
            refused[job.uid] = (
                f"{job.full_name} gave its devices up less than {spec.cool_down_seconds} s ago and has none "
                f"until {spec.cool_down_seconds} s have passed"
            )
        else:
            try:
                states.append(_state(spec, job, share, pool, pods, now))
                taking.append(job)
            except InvalidSettings as error:
                refused[job.uid] = f"{job.full_name} has no devices, after {_waited(job, now)} s: {error}"
    view = View(now.timestamp(), states, pool, pool.counts, COSTS)
    decision = _policy(spec, quiet).decide(view)
    decision = replace(decision, allocation=_kept_back(taking, before, pods, pool, decision.allocation))
    said = dict(zip((job.uid for job in taking), reasons(view, decision), strict=True))
    found = dict(zip((job.uid for job in taking), decision.allocation, strict=True))
    shares = []
    for job in jobs:
        share = before[job.uid]
        if job.uid in found:
            counts = found[job.uid]
            finish = _finish(job, counts, states[taking.index(job)], now)
            text = said[job.uid].text + _late(job, finish)
        else:
            counts, finish, text = (0,) * len(pool.types), None, refused[job.uid]
        shares.append(_share(job, share, pool, counts, text, finish, now))
    return Plan(tuple(shares), decision.wake_seconds - now.timestamp())


def guarantee_is_due(spec: PoolSpec, jobs: Sequence[PoolJob], shares: dict[str, Share]) -> bool:
    """True if a queue has less than its guarantee while its jobs wait."""
    for queue in spec.queues:
        members = [job for job in jobs if job.active and job.queue == queue.name]
        for kind, guaranteed in queue.guaranteed.items():
            usable = [
                job
                for job in members
                if kind not in job.unusable and _may_use(spec, job, shares[job.uid], kind)
            ]
            demand = sum(min(job.workers_max, job.ests) for job in usable)
            had = sum(shares[job.uid].planned.get(kind, 0) for job in members)
            short = [job for job in usable if not shares[job.uid].planned]
            room = guaranteed - had
            if short and had < min(guaranteed, demand) and min(job.workers_min for job in short) <= room:
                return True
    return False


def _policy(spec: PoolSpec, quiet: bool) -> Policy:
    if quiet:
        choice = f"for {spec.cool_down_seconds} s after a change running jobs keep what they have"
        return ListPolicy("keep", keep, choice)
    queues = [
        Queue(each.name, float(each.weight), tuple(each.guaranteed.get(kind, 0) for kind in spec.names))
        for each in spec.queues
    ]
    return QueuedPolicy(queues, lambda: PrioritizedPolicy(lambda: make_policy(spec.policy)), spec.quotas)


def _state(
    spec: PoolSpec, job: PoolJob, share: Share, pool: Pool, pods: Sequence[PoolPod], now: datetime
) -> JobState:
    """Return a job as a policy sees it. Raises InvalidSettings for one that can never train here."""
    usual = job.est_seconds or EST_SECONDS
    usable = [kind not in job.unusable and _may_use(spec, job, share, kind) for kind in pool.types]
    if not any(usable):
        where = share.started_on or ", ".join(pool.types)
        raise InvalidSettings(f"no device type is left for it: it needs {where}", hint="Add the type again.")
    names = [spec.kind_of(kind, mixes=job.mixes) for kind in pool.types]
    together: Counter[str] = Counter()
    for name, count, use in zip(names, pool.counts, usable, strict=True):
        together[name] += count if use else 0
    largest = max(together.values())
    if job.workers_min > largest:
        one = "one vendor's processors" if job.mixes else "one type"
        raise InvalidSettings(
            f"workers.min is {job.workers_min}, and the pool has at most {largest} devices of {one} for it",
            hint="Lower workers.min, or raise a quota.",
        )
    shape = Shape(
        job.ests,
        tuple(
            job.est_seconds_on.get(kind, usual) if use else math.inf
            for kind, use in zip(pool.types, usable, strict=True)
        ),
        workers_min=job.workers_min,
        workers_max=min(job.workers_max, job.ests),
        kinds=tuple(names.index(name) for name in names),
    )
    most = max((i for i, use in enumerate(usable) if use), key=lambda i: (pool.counts[i], -i))
    request = tuple(min(job.workers_max, job.ests) if i == most else 0 for i in range(len(pool.types)))
    is_known = job.steps > 0 and job.est_seconds is not None
    left = float(max(1, job.steps - job.step))
    if not is_known:
        left = max(float(job.step), BELIEVED_SECONDS / shape.step_seconds(request))
    told = Job(
        job.full_name,
        shape,
        left + job.step,
        job.created.timestamp(),
        request,
        queue=job.queue,
        weight=float(job.weight),
        known=is_known,
        priority=job.priority,
    )
    devices = _admitted(job, share, pool, pods)
    time = now.timestamp()
    state = JobState(told, shape, time, left, devices, started=job.step > 0)
    step = shape.step_seconds(devices) if any(devices) else math.inf
    if step != math.inf:
        state.stages, state.segments = ((time, devices),), ((time, 1 / step),)
        state.finish_seconds = time + left * step
    elif any(devices):
        state.stages, state.segments = ((time, devices),), ((time, 0.0),)
    return state


def _admitted(job: PoolJob, share: Share, pool: Pool, pods: Sequence[PoolPod]) -> Counts:
    """Return the planned devices of a job, without pods that are not admitted yet (Kueue)."""
    gated = [pod.device_type for pod in pods if pod.owner_uid == job.uid and pod.gated]
    admitted = (max(0, share.planned.get(kind, 0) - gated.count(kind)) for kind in pool.types)
    return tuple(min(count, job.workers_max) for count in admitted)


def _kept_back(
    jobs: Sequence[PoolJob],
    before: dict[str, Share],
    pods: Sequence[PoolPod],
    pool: Pool,
    allocation: Sequence[Counts],
) -> list[Counts]:
    """Limit a job with pods that are not admitted: it gets no more before they are."""
    gated = {pod.owner_uid for pod in pods if pod.gated}
    found = []
    for job, devices in zip(jobs, allocation, strict=True):
        planned = before[job.uid].planned
        if job.uid in gated and planned:
            devices = tuple(
                min(count, planned.get(kind, 0)) for kind, count in zip(pool.types, devices, strict=True)
            )
        # Never fewer than needed to train, which would waste the devices.
        found.append(devices if sum(devices) >= job.workers_min else (0,) * len(devices))
    return found


def _may_use(spec: PoolSpec, job: PoolJob, share: Share, kind: str) -> bool:
    """True unless the job began on devices that do not train together with these."""
    if not share.started_on:
        return True
    began_on = spec.kind_of(share.started_on, mixes=job.mixes)
    return began_on == spec.kind_of(kind, mixes=job.mixes)


def _just_taken(share: Share, spec: PoolSpec, now: datetime) -> bool:
    return share.taken_at is not None and now < share.taken_at + timedelta(seconds=spec.cool_down_seconds)


def _waited(job: PoolJob, now: datetime) -> int:
    return max(0, round((now - job.created).total_seconds()))


def _inactive(job: PoolJob, now: datetime) -> str:
    return (
        f"{job.full_name} needs no devices, {_waited(job, now)} s after it came: "
        "it is over, suspended or not valid"
    )


def _finish(job: PoolJob, counts: Counts, state: JobState, now: datetime) -> datetime | None:
    """Return when the job ends on these devices; None if steps or speed are not known yet."""
    if not state.job.known or not any(counts):
        return None
    step = state.shape.step_seconds(counts)
    seconds = state.remaining * step
    return None if not seconds < 1e9 else (now + timedelta(seconds=seconds)).replace(microsecond=0)


def _late(job: PoolJob, finish: datetime | None) -> str:
    if job.deadline is None or finish is None or finish <= job.deadline:
        return ""
    return f"; {(finish - job.deadline).total_seconds():.0f} s after its deadline"


def _share(
    job: PoolJob,
    before: Share,
    pool: Pool,
    counts: Counts,
    reason: str,
    finish: datetime | None,
    now: datetime,
) -> Share:
    planned: Devices = {kind: count for kind, count in zip(pool.types, counts, strict=True) if count}
    changed = planned != before.planned
    lost = any(planned.get(kind, 0) < count for kind, count in before.planned.items())
    started = before.started_on
    if not started and job.in_ring and before.granted:
        started = next(iter(before.granted))
    return Share(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        queue=job.queue,
        planned=planned,
        granted=before.granted,
        reason=reason[:REASON_CHARACTERS_MAX],
        predicted_finish=finish,
        at=now if changed or before.at is None else before.at,
        taken_at=now if lost else before.taken_at,
        started_on=started,
        revision=before.revision,
        outstanding=before.outstanding,
    )
