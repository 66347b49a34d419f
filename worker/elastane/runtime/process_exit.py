"""The ways a worker process ends: finished, drained, dismissed, refused, raised; and its SIGTERM handler.

The master must learn how a worker ended (Bye gives the reason; a stream that ends without Bye is a death),
and so must the agent (exit code). Both are decided here.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

import structlog

from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.est_memory import is_out_of_memory
from elastane_common.errors import EXIT_SCRIPT_RAISED, EXIT_START_ANEW, ElastaneError, JobFailedError
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)


def tell_agent() -> None:
    """Install an excepthook that exits with the error's own code, so that the agent does not retry."""
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        previous(kind, value, trace)
        if isinstance(value, ElastaneError) and value.exit_code != EXIT_SCRIPT_RAISED:
            # SystemExit from an excepthook sets the interpreter's exit code; the agent must not restart the
            # worker.
            raise SystemExit(value.exit_code)

    sys.excepthook = excepthook


class WorkerExits:
    """Handlers for the end of the process. `install` them once the worker is connected.

    leave: asks the master to drain this worker.
    """

    def __init__(self, environment: WorkerEnvironment, leave: Callable[[str, float], None]) -> None:
        self._environment = environment
        self._leave = leave
        self._bye: ring_pb2.Bye | None = None
        self._closed = False
        self._leaving = False
        self.finished = False
        self.pid = os.getpid()

    def install(
        self, close: Callable[[ring_pb2.Bye | None], None], done: Callable[[], ring_pb2.Done | None]
    ) -> None:
        """Handle SIGTERM (drain; a second one exits at once), uncaught exceptions and interpreter exit.

        close: ends the session with the given Bye. done: returns how the job has ended; None: it has not.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._terminated)
        previous = sys.excepthook

        def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            # Where it happened, as the notes of a pipeline say: in which unit, for which EST.
            places = [note for note in getattr(value, "__notes__", ()) if note.startswith("  in ")]
            in_one_line = " ".join(f"{kind.__name__}: {', '.join([str(value), *places])}".split())
            self._bye = ring_pb2.Bye(
                reason=ring_pb2.BYE_REASON_FAILED,
                message=in_one_line[:1000],
                out_of_memory=is_out_of_memory(value),
            )
            try:
                previous(kind, value, trace)
            except SystemExit:
                over = done()
                if not self.finished or over is None or over.phase != "succeeded":
                    raise
                # The others have finished the training: this error is about code after it, not about it.
                raise SystemExit(EXIT_SCRIPT_RAISED) from None

        sys.excepthook = excepthook
        atexit.register(self._at_exit, close)

    def sent_away(self, done: ring_pb2.Done | None, drain: ring_pb2.Drain | None) -> None:
        """End the script quietly after a drain, the end of the job, or a restart request."""
        if done is not None and done.phase == "succeeded":
            self._say(ring_pb2.BYE_REASON_FINISHED, done.reason)
            raise SystemExit(0)
        if done is not None and done.phase == "restart":
            _log.info("this process will be restarted", reason=done.reason)
            self._say(ring_pb2.BYE_REASON_DRAINED, done.reason)
            raise SystemExit(EXIT_START_ANEW)
        reason = done.reason if done is not None else drain.reason if drain is not None else ""
        if done is not None and done.phase == "failed":
            error = JobFailedError(reason, hint="`elastane events` shows what happened before")
            sys.stderr.write(f"elastane: {error.line()}\n")
            self._say(ring_pb2.BYE_REASON_DRAINED, reason)
            raise SystemExit(error.exit_code) from error
        _log.info("leaving", reason=reason)
        self._say(ring_pb2.BYE_REASON_DRAINED, reason)
        raise SystemExit(self._environment.drain_exit_code)

    def start_anew(self, why: str) -> NoReturn:
        """End the script, so that the agent starts another process: this one's state cannot be gone back to.

        The master is told that it leaves, not that the script has failed.
        """
        message = f"{why}: a new process must start"
        _log.error(message)
        self._say(ring_pb2.BYE_REASON_DRAINED, message)
        raise SystemExit(EXIT_START_ANEW)

    def failed(self, error: ElastaneError) -> BaseException:
        """Return the exception to raise in the script's thread for an error that ended the session."""
        sys.stderr.write(f"elastane: {error.line()}\n")
        self._closed = True  # there is no session left to send Bye on
        exit_error = SystemExit(error.exit_code)
        exit_error.__cause__ = error
        return exit_error

    def hangs(self, seconds: float) -> NoReturn:
        """End a hung process with its stack trace, so that the agent starts another one."""
        sys.stderr.write(f"elastane: evicted, and still in the same step after {seconds:g} s, here:\n")
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        traceback.print_stack(frame)
        sys.stderr.flush()
        os._exit(EXIT_SCRIPT_RAISED)

    def _say(self, reason: ring_pb2.ByeReason, message: str) -> None:
        self._bye = ring_pb2.Bye(reason=reason, message=message)

    def _at_exit(self, close: Callable[[ring_pb2.Bye | None], None]) -> None:
        if self._closed or os.getpid() != self.pid:  # a forked data worker
            return
        self._closed = True
        bye = self._bye
        if bye is None:
            reason = ring_pb2.BYE_REASON_FINISHED if self.finished else ring_pb2.BYE_REASON_FAILED
            message = "" if self.finished else "the script ended before its epochs did"
            bye = ring_pb2.Bye(reason=reason, message=message)
        close(bye)

    def _terminated(self, signum: int, frame: FrameType | None) -> Any:
        if self._leaving or self.finished:
            # A second signal ends at once; atexit handlers could wait for the master.
            os._exit(128 + signum)
        self._leaving = True
        notice_seconds, reason = self._environment.notice()
        # The node is terminated when the notice runs out, drained or not; exit in time.
        timer = threading.Timer(notice_seconds, os._exit, args=(EXIT_SCRIPT_RAISED,))
        timer.daemon = True
        timer.start()
        # In a thread: the handler may have interrupted the thread that holds the trainer's lock.
        threading.Thread(target=self._leave, args=(reason, notice_seconds), daemon=True).start()
