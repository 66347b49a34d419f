"""What the agent does when the master's patience for more workers is over."""

from __future__ import annotations

from elastane_agent.supervisor.actions import Finish, Say, Spawn
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.policy import EXIT_DRAINED, JobView, SupervisorPolicy
from elastane_common.processes.child import ExitStatus

OVER = JobView("max_wait_exceeded", reason="1 of 2 workers were there after 600 s", workers_max=2)


def running() -> SupervisorPolicy:
    policy = SupervisorPolicy(["w0"], RestartBudget())
    assert policy.start(0.0, JobView("waiting", workers_max=2)) == [Spawn("w0")]
    return policy


def test_the_agent_ends_with_code_5_once_its_workers_left() -> None:
    policy = running()
    [told] = policy.job_changed(600.0, OVER)
    assert isinstance(told, Say) and (told.kind, told.event) == ("error", "job_max_wait_exceeded")
    assert told.text == (
        "job max wait exceeded: 1 of 2 workers were there after 600 s; `elastane resume` makes it wait again"
    )
    assert policy.worker_exited(600.5, "w0", ExitStatus(EXIT_DRAINED))[-1] == Finish(5)


def test_a_worker_that_left_before_the_news_came_is_not_started_again() -> None:
    policy = running()
    actions = policy.worker_exited(600.0, "w0", ExitStatus(EXIT_DRAINED))
    assert not any(isinstance(action, Spawn | Finish) for action in actions)
    assert policy.job_changed(600.1, OVER)[-1] == Finish(5)
    assert policy.tick(700.0) == []


def test_a_job_that_waited_too_long_before_starts_nothing() -> None:
    actions = SupervisorPolicy(["w0"], RestartBudget()).start(0.0, OVER)
    assert actions[-1] == Finish(5) and not any(isinstance(action, Spawn) for action in actions)
