"""The embedded master of an agent: start, restarts after it has died, and its state directory at the end."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from elastane_agent.supervisor.budget import BudgetDecision, RestartBudget
from elastane_agent.supervisor.first_checks import is_full
from elastane_agent.supervisor.master_process import EmbeddedMaster, MasterStartError
from elastane_agent.supervisor.settings import AgentSettings
from elastane_common.exit_codes import CODE_FAILED, CODE_OK, CODE_UNREACHABLE
from elastane_common.processes.child import ExitStatus
from elastane_common.processes.output import Output
from elastane_proto.v1 import job_pb2

#: The first restart is quick because the workers wait for it; a master that keeps dying is broken.
_BUDGET: Final = RestartBudget(restarts_max=20, delay_min_seconds=0.05)
#: Interval between two checks of the disk that holds the master's state.
_LOOK_AT_DISK_SECONDS: Final = 5.0


class MasterKeeper:
    """Keeps an embedded master running. Used by the agent's main thread.

    on_exit: called from another thread when the master has ended by itself. temporary_dir: its state
    directory, if the user named none. restart_due: when to restart it, monotonic seconds; None: it runs.
    """

    def __init__(
        self, settings: AgentSettings, output: Output, on_exit: Callable[[ExitStatus], None]
    ) -> None:
        self._output = output
        self.temporary_dir: Path | None = None
        if settings.state_dir is None:
            self.temporary_dir = Path(tempfile.mkdtemp(prefix="elastane-"))
        self._state_dir = self.temporary_dir or settings.state_dir
        assert self._state_dir is not None
        host, _, port = settings.listen.rpartition(":")
        self._master = EmbeddedMaster(
            self._state_dir,
            host=host,
            port=int(port),
            arguments=("--http", settings.http) if settings.http else (),
            on_exit=on_exit,
        )
        self.restart_due: float | None = None
        self._deaths: list[float] = []
        self._disk_was_full = False
        self._log_wanted = False

    @property
    def model_dir(self) -> Path:
        """Folder for the slots of a job without a folder for checkpoints."""
        assert self._state_dir is not None
        return self._state_dir.absolute() / "model"

    @property
    def running(self) -> bool:
        return self._master.running

    def start(self) -> str:
        """Start the master and return its address. Raises MasterStartError."""
        try:
            address = self._master.start()
        except MasterStartError as error:
            self._log_wanted = error.log is not None
            raise
        self._output.say(
            f"embedded master at {address}, state in {self._state_dir}",
            event="master_started",
            address=address,
            state_dir=str(self._state_dir),
        )
        return address

    def died(self, now: float) -> BudgetDecision:
        """Decide whether the master, which has just ended, is restarted; sets `restart_due` if it is."""
        decision = _BUDGET.decide(now, self._deaths, self._deaths)
        self._deaths.append(now)
        if decision.allowed:
            self.restart_due = now + decision.delay_seconds
        return decision

    def restart(self) -> None:
        """Start the master again, at the same address. Raises MasterStartError."""
        self.restart_due = None
        self._master.start()

    def look_at_disk(self) -> float:
        """Report when the disk of the master's state fills up or has room again.

        Returns when to look next, monotonic seconds. The agent does this because a master without disk space
        may not be able to write it to its log.
        """
        if (full := is_full(self._master.state_dir)) != self._disk_was_full:
            self._disk_was_full = full
            where = self._master.state_dir
            if full:
                text = f"no space left on the disk of {where}: nothing can be committed until space is free"
                self._output.say(text, "error", event="disk_full", state_dir=str(where))
            else:
                self._output.say(f"the disk of {where} has free space again", event="disk_has_room")
        return time.monotonic() + _LOOK_AT_DISK_SECONDS

    def stop(self) -> None:
        """Stop the master and its store."""
        self._master.stop()

    def dispose_of_state(self, job: job_pb2.Job, code: int | None, *, said: str) -> None:
        """Remove the temporary state directory.

        It is kept if the job can be resumed from it, if the job failed, if the master's log is needed, or if
        slots of a model were saved in it.
        code: exit code of the agent; None: it ends with an error. said: what the agent has said of what was
        kept (`farewell.what_was_kept`); a folder that it names stays.
        """
        if self.temporary_dir is None or str(self.temporary_dir) in said:
            return
        resumable = job.saved_step >= 0 and job.phase not in (
            job_pb2.JOB_PHASE_SUCCEEDED,
            job_pb2.JOB_PHASE_CANCELLED,
        )
        failed = code in (CODE_FAILED, CODE_UNREACHABLE, None)
        if (failed and job.name) or resumable:
            if not said:
                self._output.say(
                    f"state kept: continue with --state-dir {self.temporary_dir}",
                    event="state_kept",
                    state_dir=str(self.temporary_dir),
                )
            return
        if self._log_wanted:
            return
        if self.model_dir.exists():
            if said:
                return
            folder = str(self.model_dir)
            text = f"kept: the slots of the trained model, in {folder}; --checkpoint names another folder"
            if code != CODE_OK:
                where = self.temporary_dir
                text = f"kept: the slots of the model, as last saved; continue with --state-dir {where}"
            self._output.say(text, event="model_kept", folder=folder)
            return
        shutil.rmtree(self.temporary_dir, ignore_errors=True)
