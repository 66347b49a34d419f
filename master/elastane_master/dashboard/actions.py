"""Actions behind the dashboard's buttons: a form's fields -> an rpc's request; its response -> text. Pure.

Only values that do not fit into a request are rejected here. Whether an action is allowed and makes sense for
the job is decided by the master, as for any other caller.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from elastane_master.decisions.events import Rejection
from elastane_proto.v1 import job_pb2

_SERVICE: Final = "/elastane.v1.JobService/"
WORKERS_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Action:
    """An action. rpc: "/package.Service/Method". confirmed: True if a second page asks for confirmation."""

    name: str
    rpc: str
    label: str
    confirmed: bool = False
    consequence: str = ""


ACTIONS: Final[dict[str, Action]] = {
    one.name: one
    for one in (
        Action("scale", _SERVICE + "Scale", "Scale"),
        Action("checkpoint", _SERVICE + "Checkpoint", "Checkpoint now"),
        Action("suspend", _SERVICE + "Suspend", "Suspend"),
        Action("resume", _SERVICE + "Resume", "Resume"),
        Action("drain", _SERVICE + "DrainWorker", "Drain"),
        Action(
            "cancel",
            _SERVICE + "Cancel",
            "Cancel the job",
            confirmed=True,
            consequence="The job ends at once and cannot be resumed. What was trained since the newest"
            " checkpoint is lost; checkpoints stay.",
        ),
    )
}


def action_of(name: str) -> Action:
    """Return the action of this name. Raises Rejection if there is none."""
    action = ACTIONS.get(name)
    if action is None:
        raise Rejection("not_found", f"there is no action {name[:40]!r}")
    return action


def request_of(action: Action, job: str, fields: Mapping[str, str]) -> Message:
    """Build the rpc's request from the form's fields. Raises Rejection."""
    request_id = f"dashboard-{uuid.uuid4().hex}"
    match action.name:
        case "scale":
            return job_pb2.JobServiceScaleRequest(
                name=job,
                workers_min=_count(fields, "workers_min"),
                workers_max=_count(fields, "workers_max"),
                request_id=request_id,
            )
        case "checkpoint":
            return job_pb2.JobServiceCheckpointRequest(name=job, request_id=request_id)
        case "suspend":
            return job_pb2.JobServiceSuspendRequest(name=job, request_id=request_id)
        case "resume":
            return job_pb2.JobServiceResumeRequest(name=job, request_id=request_id)
        case "drain":
            return job_pb2.JobServiceDrainWorkerRequest(
                name=job, worker_id=fields.get("worker", ""), request_id=request_id
            )
        case _:
            if fields.get("confirmed") != "yes":
                raise Rejection(
                    "invalid_argument", "the action was not confirmed", hint="confirm it on its page"
                )
            return job_pb2.JobServiceCancelRequest(name=job, request_id=request_id)


def result_of(action: Action, fields: Mapping[str, str], answer: Any) -> str:
    """Describe the result for the user. answer: the rpc's response; None: still pending."""
    match action.name:
        case "scale":
            settings = answer.job.settings
            return (
                f"Scaled to {settings.workers_min} to {settings.workers_max or settings.ests} workers;"
                " it takes effect at a step boundary."
            )
        case "checkpoint":
            if answer is None:
                return "A checkpoint was asked for and is not complete yet; the events tell when it is."
            return f"Checkpoint saved; training would go on from step {answer.step}: {answer.url}"
        case "drain":
            worker = fields.get("worker", "")
            left = all(one.worker_id != worker for one in answer.job.workers)
            return f"{worker} has left." if left else f"{worker} leaves at the next step boundary."
        case _:
            phase = (
                job_pb2.JobPhase.Name(answer.job.phase).removeprefix("JOB_PHASE_").lower().replace("_", " ")
            )
            reason = f": {answer.job.reason}" if answer.job.reason else ""
            return f"The job is {phase}{reason}."


def _count(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "").strip()
    digits = text.lstrip("0") or text[-1:]
    if not (text.isascii() and text.isdigit()) or len(digits) > 10 or int(digits) > WORKERS_MAX:
        raise Rejection(
            "invalid_argument",
            f"{text[:40]!r} is not a number of workers",
            hint="enter a whole number",
            field=name,
        )
    return int(digits)
