"""Access rules: the roles an rpc needs, and the request field that names the job. One table for all rpcs.

An rpc that is not in the table is refused to everybody, so every new rpc needs a rule here. Pure: names,
values and messages in, Rejections out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

from elastane_master.decisions.events import Rejection
from elastane_master.security.tokens import Principal, Role

_JOB, _SHARD, _RING, _CONTEXT, _METRIC, _SLOT, _LOG, _CAPTURE, _TRAINING, _RUNNER = (
    f"/elastane.v1.{noun}Service/"
    for noun in ("Job", "Shard", "Ring", "Context", "Metric", "Slot", "Log", "Capture", "Training", "Runner")
)
_CHAPTER = "/training.TrainingService/"
_HEALTH = "/grpc.health.v1.Health/"

_NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Rule:
    """Access rule of an rpc or route.

    roles: one of them suffices; empty: open to everybody, without a token. job: path of the request field
    that names the job; empty: the rpc belongs to no job. only_job: a missing name means the token's only job.
    takes: quota used by a call, besides the request quota. lists: response field that lists jobs by name;
    jobs not covered by the token are removed. counts: each request of the stream counts; a message has one,
    and those in its field `more`. owned: the servicer shows and changes only runs of owners that the token is
    for.
    """

    roles: frozenset[Role] = frozenset()
    job: str = ""
    only_job: bool = False
    takes: Literal["", "session", "job", "dataset"] = ""
    lists: str = ""
    counts: bool = False
    owned: bool = False

    @property
    def open(self) -> bool:
        return not self.roles

    @property
    def writes(self) -> bool:
        """True if only operators may call it; such calls are logged."""
        return self.roles == _OPERATOR


_OPERATOR: frozenset[Role] = frozenset({"operator"})
_WORKER: frozenset[Role] = frozenset({"worker"})
_DATA: frozenset[Role] = frozenset({"worker", "operator"})
_LOOK: frozenset[Role] = frozenset({"reader", "operator"})
_ALL: frozenset[Role] = frozenset({"worker", "reader", "operator"})
_SUBMIT: frozenset[Role] = frozenset({"submitter", "operator"})
_FOLLOW: frozenset[Role] = frozenset({"submitter", "reader", "operator"})
_RUN: frozenset[Role] = frozenset({"runner"})
_FOLLOW_AND_RUN = _FOLLOW | _RUN
_LOOK_AND_RUN = _LOOK | _RUN
_ALL_AND_RUN = _ALL | _RUN

RULES: dict[str, Rule] = {
    _JOB + "Create": Rule(_OPERATOR, "name", takes="job"),
    # An agent in a pod has a worker's token: it joins its job, follows it, reads why a worker was sent away.
    # A runner records settings and last values of the jobs of runs.
    _JOB + "Get": Rule(_ALL_AND_RUN, "name"),
    _JOB + "List": Rule(_LOOK, lists="jobs"),
    _JOB + "Watch": Rule(_ALL, "name"),
    _JOB + "Scale": Rule(_OPERATOR, "name"),
    _JOB + "Suspend": Rule(_OPERATOR, "name"),
    _JOB + "Resume": Rule(_OPERATOR, "name"),
    _JOB + "Cancel": Rule(_OPERATOR, "name"),
    _JOB + "Delete": Rule(_OPERATOR, "name"),
    _JOB + "SetPrices": Rule(_OPERATOR, "name"),
    _JOB + "DrainWorker": Rule(_OPERATOR, "name"),
    _JOB + "Checkpoint": Rule(_OPERATOR, "name"),
    _JOB + "Repair": Rule(_OPERATOR, "name"),
    _SHARD + "CreateDataset": Rule(_DATA, "job", takes="dataset"),
    _SHARD + "LeaseTasks": Rule(_WORKER, "job"),
    _SHARD + "StreamTasks": Rule(_WORKER, "request.job", counts=True),
    _SHARD + "GetProgress": Rule(_ALL, "job", only_job=True),
    _SHARD + "WatchProgress": Rule(_LOOK, "job", only_job=True),
    _SHARD + "ListTasks": Rule(_ALL, "job"),
    _SHARD + "GetAuditLog": Rule(_LOOK, "job"),
    _SHARD + "ExtendDataset": Rule(_DATA, "job"),
    _RING + "Attend": Rule(_WORKER, "hello.job", takes="session"),
    # Admits nobody: each session in it passes with its own worker's token, as a call of Attend.
    _RING + "Relay": Rule(_DATA),
    _RING + "GetRing": Rule(_LOOK, "job"),
    _RING + "GetWorkerFigures": Rule(_ALL, "job"),  # an agent serves those of its workers
    _RING + "GetWorkerResources": Rule(_LOOK, "job"),
    _RING + "WatchEvents": Rule(_ALL, "job"),
    _CONTEXT + "Get": Rule(_ALL, "job"),  # job.gather, in a worker
    _CONTEXT + "List": Rule(_LOOK, "job"),
    _METRIC + "GetSeries": Rule(_LOOK_AND_RUN, "job"),
    _METRIC + "WatchSeries": Rule(_LOOK, "job"),
    _METRIC + "WatchSteps": Rule(_ALL, "job"),  # the leading worker's tracker reads it
    _SLOT + "AttendSlots": Rule(_WORKER, "hello.job", takes="session"),
    _SLOT + "RegisterModel": Rule(_WORKER, "job"),
    _SLOT + "WatchMap": Rule(_WORKER, "job"),
    _SLOT + "GetSlots": Rule(_ALL, "job", only_job=True),
    _SLOT + "CheckpointSlots": Rule(_OPERATOR, "job"),
    _SLOT + "RewindSlots": Rule(_OPERATOR, "job"),
    _SLOT + "DrainPs": Rule(_OPERATOR, "job"),
    _LOG + "Report": Rule(_DATA, "job"),  # an agent, in a pod with a worker's token
    _LOG + "Read": Rule(_LOOK, "job"),
    _CAPTURE + "Capture": Rule(_OPERATOR, "job"),  # a trace slows the workers down
    _CAPTURE + "Deliver": Rule(_WORKER, "job"),
    _TRAINING + "Train": Rule(_SUBMIT, owned=True),
    _TRAINING + "TrainMany": Rule(_SUBMIT, owned=True),
    _TRAINING + "TrainEach": Rule(_SUBMIT, counts=True, owned=True),
    # The runner of rank 0 writes the record of a run that is over.
    _TRAINING + "Get": Rule(_FOLLOW_AND_RUN, owned=True),
    _TRAINING + "List": Rule(_FOLLOW, owned=True),
    _TRAINING + "Watch": Rule(_FOLLOW, owned=True),
    _TRAINING + "Cancel": Rule(_SUBMIT, owned=True),
    _TRAINING + "Retry": Rule(_SUBMIT, owned=True),
    _TRAINING + "SetPriority": Rule(_SUBMIT, owned=True),
    _TRAINING + "Delete": Rule(_SUBMIT, owned=True),
    _TRAINING + "StreamLogs": Rule(_FOLLOW, owned=True),
    _TRAINING + "ListArtifacts": Rule(_FOLLOW, owned=True),
    _TRAINING + "GetService": Rule(_FOLLOW, owned=True),
    _TRAINING + "GetScheduling": Rule(_FOLLOW, owned=True),
    _RUNNER + "Attend": Rule(_RUN, owned=True),
    _CHAPTER + "Train": Rule(_SUBMIT, owned=True),
    _CHAPTER + "GetTrainingStatus": Rule(_FOLLOW, owned=True),
    # Probes of an orchestrator carry no token. A watch holds resources, so it needs one.
    _HEALTH + "Check": Rule(),
    _HEALTH + "Watch": Rule(_ALL),
    _HEALTH + "List": Rule(_ALL),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Rule(_ALL),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Rule(_ALL),
}

HTTP_RULES: dict[str, Rule] = {
    "/metrics": Rule(_LOOK, lists="job_name"),
    # The dashboard. Its actions are rpcs with their own rules.
    "/": Rule(_LOOK, lists="jobs"),
    "/live": Rule(_LOOK, lists="jobs"),
    "/jobs/{job}": Rule(_LOOK, "job"),
    "/jobs/{job}/live": Rule(_LOOK, "job"),
    "/jobs/{job}/output": Rule(_LOOK, "job"),
    "/runs": Rule(_FOLLOW, owned=True),
    "/runs/live": Rule(_FOLLOW, owned=True),
    "/runs/{run}": Rule(_FOLLOW, owned=True),
    "/runs/{run}/live": Rule(_FOLLOW, owned=True),
    # Of the token that is entered: one that may see some page.
    "/login": Rule(_FOLLOW),
}
"""Routes of the HTTP port that need a right.

Lists omit jobs that the token does not cover, and runs of owners that it is not for. Probes, assets and the
form for a token reveal nothing about jobs, and are open.
"""


def rule_of(rpc: str) -> Rule:
    """Return the rule of "/package.Service/Method". Raises Rejection if there is none."""
    rule = RULES.get(rpc)
    if rule is None:
        raise Rejection(
            "permission_denied",
            f"nobody may call {rpc}: it has no access rule",
            hint="this is a bug in the master: the rpc is missing in its table of rights",
            rpc=rpc,
        )
    return rule


def http_rule_of(route: str) -> Rule:
    """Return the rule of a route. Raises Rejection if there is none."""
    rule = HTTP_RULES.get(route)
    if rule is None:
        raise Rejection("permission_denied", f"nobody may see {route}: it has no access rule", rpc=route)
    return rule


def unauthenticated(why: str) -> Rejection:
    """Return the refusal for a missing or unknown token."""
    return Rejection(
        "unauthenticated",
        why,
        hint="name the file of your token in ELASTANE_TOKEN_FILE, or put the token into ELASTANE_TOKEN",
    )


def require_role(rule: Rule, rpc: str, caller: Principal) -> None:
    """Raise Rejection unless the caller has one of the rule's roles."""
    if not rule.roles & caller.roles:
        raise Rejection(
            "permission_denied",
            f"token {caller.name!r} may not call {rpc}",
            hint=f"this needs the role {' or '.join(sorted(rule.roles))}",
            rpc=rpc,
            token=caller.name,
            roles=", ".join(sorted(caller.roles)),
        )


def require_job(rule: Rule, caller: Principal, request: Any, jobs: Iterable[str]) -> str:
    """Return the job of a request. Raises Rejection unless the token covers it, whether it exists or not.

    If the rule allows a missing name, it is set to the only one of `jobs` that the token covers.
    """
    if not rule.job:
        return ""
    *parents, field = rule.job.split(".")
    holder = reduce(getattr, parents, request)
    job: str = getattr(holder, field)
    if not job and rule.only_job:
        job = _only(caller, jobs)
        setattr(holder, field, job)
    require_covers(caller, job)
    return job


def require_covers(caller: Principal, job: str) -> None:
    """Raise Rejection unless the token covers this job, whether it exists or not."""
    if not caller.covers(job):
        raise Rejection(
            "permission_denied",
            f"token {caller.name!r} is not for job {job[:80]!r}",
            hint=f"it is for {', '.join(caller.jobs)}",
            job=job[:80],
            token=caller.name,
        )


def hide_others(rule: Rule, caller: Principal, response: Any) -> None:
    """Remove jobs that the token does not cover from the response of a rule that `lists`."""
    listed = getattr(response, rule.lists)
    kept = [job for job in listed if caller.covers(job.name)]
    del listed[:]
    listed.extend(kept)


def _only(caller: Principal, jobs: Iterable[str]) -> str:
    seen = sorted(job for job in jobs if caller.covers(job))
    if len(seen) != 1:
        raise Rejection(
            "invalid_argument" if seen else "not_found",
            f"this token is for {len(seen)} jobs, and the request names none",
            hint="name the job",
            jobs=", ".join(seen[:_NAMES_SHOWN]),
        )
    return seen[0]
