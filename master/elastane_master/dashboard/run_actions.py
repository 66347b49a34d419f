"""Buttons of runs: a form's fields -> an rpc's request; its response -> text. Pure.

As for jobs (`actions`): only values that do not fit into a request are rejected here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from elastane_master.dashboard.actions import Action
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs.spec import PRIORITY_MAX
from elastane_master.decisions.runs.views import RunView
from elastane_proto.v1 import training_pb2

_SERVICE: Final = "/elastane.v1.TrainingService/"

RUN_ACTIONS: Final[dict[str, Action]] = {
    one.name: one
    for one in (
        Action("priority", _SERVICE + "SetPriority", "Set priority"),
        Action("retry", _SERVICE + "Retry", "Retry"),
        Action(
            "cancel",
            _SERVICE + "Cancel",
            "Cancel the run",
            confirmed=True,
            consequence="Its processes are stopped, and what they have not stored is lost. Retry queues it"
            " again.",
        ),
    )
}


def run_action_of(name: str) -> Action:
    """Return the action of this name. Raises Rejection if there is none."""
    action = RUN_ACTIONS.get(name)
    if action is None:
        raise Rejection("not_found", f"there is no action {name[:40]!r}")
    return action


def offered(view: RunView) -> tuple[str, ...]:
    """Return the names of the actions that are possible in the run's state; others would be refused."""
    if view.state in ("failed", "cancelled"):
        return ("retry",)
    if view.state == "succeeded":
        return ()
    return ("priority",) if view.cancelling else ("priority", "cancel")


def run_request_of(action: Action, run_id: int, fields: Mapping[str, str]) -> Message:
    """Build the rpc's request from the form's fields. Raises Rejection."""
    request_id = f"dashboard-{uuid.uuid4().hex}"
    match action.name:
        case "priority":
            return training_pb2.TrainingServiceSetPriorityRequest(
                run_id=run_id, priority=_priority(fields), request_id=request_id
            )
        case "retry":
            return training_pb2.TrainingServiceRetryRequest(run_id=run_id, request_id=request_id)
        case _:
            if fields.get("confirmed") != "yes":
                raise Rejection(
                    "invalid_argument", "the action was not confirmed", hint="confirm it on its page"
                )
            return training_pb2.TrainingServiceCancelRequest(run_id=run_id, request_id=request_id)


def run_result_of(action: Action, answer: Any) -> str:
    """Describe the result for the user. answer: the rpc's response."""
    run = answer.run
    if action.name == "priority":
        return f"The priority of run {run.run_id} is {run.priority}."
    if run.cancelling:
        return f"Run {run.run_id} is being cancelled: its processes are ending."
    state = training_pb2.RunState.Name(run.state).removeprefix("RUN_STATE_").lower().replace("_", " ")
    return f"Run {run.run_id} is {state}{f': {run.reason}' if run.reason else ''}."


def _priority(fields: Mapping[str, str]) -> int:
    text = fields.get("priority", "").strip()
    digits = text.removeprefix("-")
    if (
        not (digits.isascii() and digits.isdigit())
        or len(digits) > 4
        or not -PRIORITY_MAX <= int(text) <= PRIORITY_MAX
    ):
        raise Rejection(
            "invalid_argument",
            f"{text[:40]!r} is not a priority",
            hint=f"enter a whole number from {-PRIORITY_MAX} to {PRIORITY_MAX}",
            field="priority",
        )
    return int(text)
