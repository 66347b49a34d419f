"""Captures of this worker for a command: a trace of the next steps, or the stacks of all threads.

Orders come on the session's thread. A trace begins and ends between steps, on the script's thread, whose
operators it records; answers are sent from a thread of their own. Without an order, a step costs a few
comparisons.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from elastane.runtime.stacks import all_stacks
from elastane_common.client import MasterClient
from elastane_common.errors import ElastaneError
from elastane_common.trace_names import MARK, est_span
from elastane_proto.v1 import capture_pb2, ring_pb2

if TYPE_CHECKING:
    import torch

_log = structlog.get_logger(__name__)

PART_BYTES: Final = 256 * 1024
TRACE_BYTES_MAX: Final = 64 * 2**20
"""Limit of a compressed trace."""
_TIMEOUT_SECONDS: Final = 10.0


class Captures:
    """Captures of one worker. master: addresses; job, worker_id: of this worker."""

    def __init__(self, master: str, job: str, worker_id: str) -> None:
        self._master, self._job, self._worker_id = master, job, worker_id
        self._lock = threading.Lock()
        #: A trace that has not begun; set by the session's thread.
        self._pending: ring_pb2.CaptureOrder | None = None
        #: The trace under way; of the script's thread.
        self._trace: _Trace | None = None
        self._ended: set[str] = set()
        self._client: MasterClient | None = None

    # ------------------------------------------------------------------ the session's thread

    def ordered(self, order: ring_pb2.CaptureOrder) -> None:
        """Carry out an order, or the end of one; returns at once."""
        if order.end:
            self._ended.add(order.capture)
        elif not order.trace_steps:
            self._in_thread(self._send, order.capture, all_stacks().encode("utf-8", "replace"))
        else:
            with self._lock:
                is_free = self._pending is None and self._trace is None
                if is_free:
                    self._pending = order
            if not is_free:
                self._in_thread(self._refuse, order.capture, "another trace of this worker is under way")

    def close(self) -> None:
        """Give up what is under way; called by the script's thread."""
        if (trace := self._trace) is not None:
            self._trace = None
            trace.end()
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # ------------------------------------------------------------------ the script's thread

    @property
    def is_idle(self) -> bool:
        """True unless a trace is under way, or due."""
        return self._pending is None and self._trace is None

    def step_begins(self, step: int) -> None:
        """Begin a trace that is due with this step."""
        if self._pending is None and self._trace is None:
            return
        with self._lock:
            order = self._pending
            if order is not None and order.capture in self._ended:
                self._ended.discard(order.capture)
                order = self._pending = None
            if order is not None and step >= order.first_step and self._trace is None:
                self._pending = None
                self._trace = _Trace(order.capture, order.trace_steps, step)
        if self._trace is not None:
            self._trace.begin()

    def step_over(self, applied_step: int, ranks: Sequence[int]) -> None:
        """Count an applied step of the trace under way, and send the trace once it is complete.

        ranks: of the ESTs hosted here.
        """
        if (trace := self._trace) is None:
            return
        is_wanted = trace.capture not in self._ended
        if is_wanted and not trace.is_complete(applied_step):
            done = trace.count(applied_step)
            if done:
                self._in_thread(self._tell, trace.capture, done)
            return
        trace.end()
        if is_wanted:
            self._in_thread(self._send_trace, trace, ranks)
        self._ended.discard(trace.capture)
        with self._lock:
            self._trace = None

    def est_begins(self, rank: int) -> None:
        """Begin the span of an EST's turn."""
        if self._trace is not None:
            self._trace.est_begins(rank)

    def est_ends(self) -> None:
        """End the span of an EST's turn."""
        if self._trace is not None:
            self._trace.est_ends()

    # ------------------------------------------------------------------ sending threads

    def _in_thread(self, act: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=act, args=arguments, name="elastane-capture", daemon=True).start()

    def _send_trace(self, trace: _Trace, ranks: Sequence[int]) -> None:
        self._tell(trace.capture, trace.steps)
        try:
            data = trace.compressed()
        except (OSError, RuntimeError) as error:
            self._refuse(trace.capture, f"the trace could not be written: {error}")
            return
        if len(data) > TRACE_BYTES_MAX:
            limit = f"at most {TRACE_BYTES_MAX >> 20} MiB are sent: trace fewer steps"
            self._refuse(trace.capture, f"the trace has {len(data) >> 20} MiB, compressed; {limit}")
            return
        self._send(trace.capture, data, ranks)

    def _send(self, capture: str, data: bytes, ranks: Sequence[int] = ()) -> None:
        for begin in range(0, len(data), PART_BYTES):
            if not self._deliver(capture, data=data[begin : begin + PART_BYTES]):
                return
        first, end = (ranks[0], ranks[-1] + 1) if ranks else (0, 0)
        self._deliver(capture, end=True, first_est=first, end_est=end)

    def _tell(self, capture: str, steps_done: int) -> None:
        self._deliver(capture, steps_done=steps_done)

    def _refuse(self, capture: str, error: str) -> None:
        self._deliver(capture, error=error, end=True)

    def _deliver(
        self,
        capture: str,
        *,
        data: bytes = b"",
        steps_done: int = 0,
        end: bool = False,
        error: str = "",
        first_est: int = 0,
        end_est: int = 0,
    ) -> bool:
        request = capture_pb2.CaptureServiceDeliverRequest(
            job=self._job,
            capture=capture,
            worker_id=self._worker_id,
            steps_done=steps_done,
            data=data,
            end=end,
            error=error,
            first_est=first_est,
            end_est=end_est,
        )
        with self._lock:
            if self._client is None:
                self._client = MasterClient(self._master, timeout_seconds=_TIMEOUT_SECONDS)
            client = self._client
        try:
            return client.deliver_capture(request)
        except ElastaneError as failure:
            _log.warning("a capture could not be sent", error=str(failure.args[0]))
            return False


class _Trace:
    """A trace by torch.profiler of some steps of this worker."""

    def __init__(self, capture: str, steps: int, first_step: int) -> None:
        self.capture, self.steps = capture, steps
        self._applied_step = first_step
        self._end_step = first_step + steps
        self._profile: torch.profiler.profile | None = None
        self._est: torch.profiler.record_function | None = None

    def begin(self) -> None:
        """Start to record, unless it has."""
        import torch.profiler

        if self._profile is None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its messages would be among the script's output
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._profile = torch.profiler.profile(activities=activities)
            self._profile.start()

    def count(self, applied_step: int) -> int:
        """Mark a step as applied; return how many are, or 0 if there is none more."""
        self.est_ends()
        if applied_step <= self._applied_step:
            return 0
        self._applied_step = applied_step
        self._mark()
        return self.steps - (self._end_step - applied_step)

    def is_complete(self, applied_step: int) -> bool:
        return applied_step >= self._end_step

    def end(self) -> None:
        """Stop to record."""
        assert self._profile is not None
        self.est_ends()
        self._applied_step = self._end_step
        self._mark()
        self._profile.stop()

    def compressed(self) -> bytes:
        """Return the trace as gzip of Chrome's JSON."""
        assert self._profile is not None
        with tempfile.TemporaryDirectory(prefix="elastane-trace-") as folder:
            file = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(file))
            self._profile = None
            return gzip.compress(file.read_bytes(), 5)

    def est_begins(self, rank: int) -> None:
        import torch.profiler

        self.est_ends()
        self._est = torch.profiler.record_function(est_span(rank))
        self._est.__enter__()

    def est_ends(self) -> None:
        if self._est is not None:
            self._est.__exit__(None, None, None)
            self._est = None

    def _mark(self) -> None:
        """Leave a mark in the trace by which the clocks of workers are aligned."""
        import torch.profiler

        with torch.profiler.record_function(f"{MARK}{self._applied_step - 1}"):
            pass
