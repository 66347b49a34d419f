"""Buttons of runs: which are offered, what they ask for, and what is said of the result."""

from __future__ import annotations

from typing import get_args

import pytest

from elastane_master.dashboard.run_actions import (
    RUN_ACTIONS,
    offered,
    run_action_of,
    run_request_of,
    run_result_of,
)
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs.run import OVER, RunState
from elastane_master.decisions.runs.spec import RunSpec
from elastane_master.decisions.runs.views import RunView
from elastane_master.security.policy import RULES
from elastane_proto.v1 import training_pb2


def view(state: RunState, *, cancelling: bool = False) -> RunView:
    return RunView(
        1, RunSpec(), "ann", state, "", 0, 0, 1, (), 0.0, None, None, (), "", None, cancelling, 1, 0, 0.0
    )  # fmt: skip


def test_what_would_be_refused_is_not_offered() -> None:
    for state in get_args(RunState):
        names = offered(view(state))
        assert ("cancel" in names) == ("priority" in names) == (state not in OVER)
        assert ("retry" in names) == (state in ("failed", "cancelled"))
    assert "cancel" not in offered(view("running", cancelling=True))


def test_every_action_is_an_rpc_with_a_rule_and_its_own_request() -> None:
    fields = {"priority": "-3", "confirmed": "yes"}
    for action in RUN_ACTIONS.values():
        assert RULES[action.rpc].owned
        method = action.rpc.rpartition("/")[2]
        request = run_request_of(action, 7, fields)
        assert type(request).__name__ == f"TrainingService{method}Request"
        assert request.run_id == 7 and request.request_id
    with pytest.raises(Rejection, match="there is no action"):
        run_action_of("explode")


@pytest.mark.parametrize("text", ["", "x", "1001", "-1001", "--1", "1.0", "\u0663", "9" * 5000])
def test_what_is_no_priority_is_refused(text: str) -> None:
    with pytest.raises(Rejection, match="is not a priority"):
        run_request_of(RUN_ACTIONS["priority"], 1, {"priority": text})


def test_results_are_said_in_words() -> None:
    run = training_pb2.Run(run_id=4, state="RUN_STATE_QUEUED", reason="retried", priority=2)
    answer = training_pb2.TrainingServiceRetryResponse(run=run)
    assert run_result_of(RUN_ACTIONS["retry"], answer) == "Run 4 is queued: retried."
    assert run_result_of(RUN_ACTIONS["priority"], answer) == "The priority of run 4 is 2."
    run.cancelling = True
    answer = training_pb2.TrainingServiceCancelResponse(run=run)
    assert "is being cancelled" in run_result_of(RUN_ACTIONS["cancel"], answer)
