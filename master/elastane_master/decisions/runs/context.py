"""Context of one event being decided: state, index, time, and the resulting effects.

As for a job: validate, `touch`, change. Code that changes a run or a runner calls `changed_run` or
`changed_runner`, so that derived state is updated after the event.
"""

from __future__ import annotations

from elastane_master.decisions.runs.effects import RunnerMessage, RunsDecision, RunsEffect, SendToRunner
from elastane_master.decisions.runs.index import Index
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Runner
from elastane_master.decisions.runs.state import RunsState


class RunsContext:
    """Working state of one `RunsMachine.handle` call.

    capacity_grew: slots may have become free. fresh: runs that began to wait.
    """

    __slots__ = (
        "capacity_grew",
        "changed",
        "effects",
        "fresh",
        "index",
        "now",
        "result",
        "runners_changed",
        "runs_changed",
        "state",
    )

    def __init__(self, state: RunsState, index: Index, now: float) -> None:
        self.state = state
        self.index = index
        self.now = max(now, state.decided_at)
        self.effects: list[RunsEffect] = []
        self.changed = False
        self.result: object = None
        self.capacity_grew = False
        self.fresh: dict[int, None] = {}
        self.runs_changed: dict[int, None] = {}
        self.runners_changed: dict[str, None] = {}

    def touch(self) -> None:
        """Mark the state as changed. Called before the first change, and after all that may refuse."""
        self.changed = True

    def emit(self, effect: RunsEffect) -> None:
        self.effects.append(effect)

    def send(self, runner: Runner, message: RunnerMessage) -> None:
        """Send a message to a connected runner; others get it when they return."""
        if runner.attends:
            self.effects.append(SendToRunner(runner.runner_id, runner.session, message))

    def changed_run(self, run: Run) -> None:
        """Note a change of a run."""
        self.changed = True
        self.runs_changed[run.run_id] = None

    def changed_runner(self, runner: Runner) -> None:
        """Note a change of a runner."""
        self.changed = True
        self.runners_changed[runner.runner_id] = None

    def attending(self, runner_id: str, session: str) -> Runner | None:
        """Return the runner if `session` is its current one; None for a message of an old stream."""
        runner = self.state.runners.get(runner_id)
        return runner if runner is not None and runner.session == session else None

    def run_of_fence(self, run_id: int, fence: int) -> Run | None:
        """Return the run if `fence` names its current launch."""
        run = self.state.runs.get(run_id)
        if run is None or run.launch is None or run.launch.fence != fence:
            return None
        return run

    def decision(self) -> RunsDecision:
        """Return the outcome after everything has been decided."""
        if self.changed:
            self.state.revision += 1
            self.state.decided_at = self.now
        return RunsDecision(self.effects, self.changed, self.result)
