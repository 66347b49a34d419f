"""Following a run to its end: each change of its state, and the log of rank 0 of each attempt."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import typer

from elastane_cli.commands.log_output import LogOutput, print_log
from elastane_common.errors import ElastaneError

if TYPE_CHECKING:
    from elastane_common.training_client import TrainingClient
    from elastane_proto.v1 import training_pb2

#: Time limit of the wait for the end of the log when the run is over.
LOG_END_SECONDS: Final = 30.0


class RunFollower:
    """Follows a run. show: called with it at each change. output: of rank 0's log; None: without the log.

    A separate thread reads the log: a terminal that accepts no output must not delay the reaction to changes
    of the run or to Ctrl-C.
    """

    def __init__(
        self,
        training: TrainingClient,
        run_id: int,
        *,
        show: Callable[[training_pb2.Run], None],
        output: LogOutput | None,
    ) -> None:
        self._training = training
        self._run_id = run_id
        self._show = show
        self._output = output
        self._attempts: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._attempts_read = 0
        self._thread: threading.Thread | None = None

    def follow(self) -> training_pb2.Run:
        """Return the run when it is over. Raises the errors of the client's watches."""
        from elastane_cli.views.runs import is_over, state_name

        last: training_pb2.Run | None = None
        for run in self._training.watch(self._run_id):
            last = run
            self._show(run)
            if state_name(run) != "launching":  # its log does not exist yet
                self._read_logs(run.attempt)
        assert last is not None and is_over(last), "a watch ends with the run or raises"
        self._end_logs()
        return last

    def _read_logs(self, attempt: int) -> None:
        """Start reading the logs of all attempts up to this one, in order."""
        if self._output is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._print_logs, name="elastane-log", daemon=True)
            self._thread.start()
        for number in range(self._attempts_read + 1, attempt + 1):
            self._attempts.put(number)
        self._attempts_read = max(self._attempts_read, attempt)

    def _print_logs(self) -> None:
        assert self._output is not None
        while (attempt := self._attempts.get()) is not None:
            try:
                print_log(
                    self._training.stream_logs(self._run_id, attempt=attempt, follow=True), self._output
                )
            except BrokenPipeError:
                return  # the log cannot be written; the run is still followed
            except ElastaneError as error:
                typer.echo(f"no log of attempt {attempt}: {error}", err=True)

    def _end_logs(self) -> None:
        if self._thread is None:
            return
        self._attempts.put(None)
        self._thread.join(LOG_END_SECONDS)
        if self._thread.is_alive():
            typer.echo(f"the log goes on: elastane logs {self._run_id}", err=True)
