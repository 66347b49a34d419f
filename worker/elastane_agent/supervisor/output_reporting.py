"""Output of an agent's workers: to the terminal, to files, and its last lines to the master."""

from __future__ import annotations

import platform
import threading
import time
import uuid
from dataclasses import replace
from typing import Final

from elastane_agent.supervisor.log_files import LogFiles
from elastane_agent.supervisor.worker_lines import Batch, WorkerLines
from elastane_common.client import MasterClient
from elastane_common.client_errors import ClientClosedError, RequestRefusedError
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ExitStatus
from elastane_common.processes.output import Output, Stream
from elastane_proto.message_codec import set_timestamp
from elastane_proto.v1 import log_pb2

REPORT_SECONDS: Final = 1.0
"""Time between two reports of new lines."""
QUIET_SECONDS: Final = 10.0
"""Time between two reports without new lines; they show the agent a master that has lost its lines."""
REPORT_BYTES_MAX: Final = 256 * 1024
"""Limit of the lines in one report; further ones are left out."""
_ATTEMPT_SECONDS: Final = 5.0
_FINISH_SECONDS: Final = 2.0


class WorkerOutput:
    """Output of the workers and parameter servers of one agent. Thread-safe.

    files: get all that the workers write; None: nothing is kept on disk.
    """

    def __init__(self, job: str, output: Output, files: LogFiles | None) -> None:
        self._job, self._output, self._files = job, output, files
        self._agent = uuid.uuid4().hex
        self._lines = WorkerLines()
        self._changed = threading.Condition()
        self._urgent = False
        self._closing = False
        self._memory = ""
        self._told_of_files = False
        self._client: MasterClient | None = None
        self._thread = threading.Thread(target=self._run, name="report output", daemon=True)

    def start(self, master: str) -> None:
        """Begin to report to a master, at its address."""
        self._client = MasterClient(master, timeout_seconds=_ATTEMPT_SECONDS)
        self._thread.start()

    def line(self, source: str, stream: Stream, text: str) -> None:
        """Take one line of a worker; called from the threads of its processes."""
        self._output.line(source, stream, text)
        with self._changed:
            self._lines.add(source, stream == "stderr", text, time.time())
            self._changed.notify()

    def read(self, source: str, stream: Stream, data: bytes) -> None:
        """Take the bytes read from a worker's stream (b"" at its end); called before `line`."""
        if self._files is not None:
            self._files.write(source, stream, data)

    def exited(self, source: str, status: ExitStatus, *, expected: bool) -> None:
        """Report how a process ended, at once. expected: as it was asked to."""
        with self._changed:
            how = str(replace(status, out_of_memory=""))
            self._lines.exited(source, status.returncode, how, status.out_of_memory, expected=expected)
            self._urgent = True
            self._changed.notify()

    def close(self) -> None:
        """Report the rest, for a short time, and finish the files."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_FINISH_SECONDS)
        if self._client is not None:
            self._client.close()
        if self._files is not None:
            self._files.close()

    # ------------------------------------------------------------------ the reporting thread

    def _run(self) -> None:
        assert self._client is not None
        try:
            while self._wait():
                self._report(self._client)
            self._report(self._client)
        except ClientClosedError:
            return
        except RequestRefusedError as refused:
            text = f"the master takes no output of workers: {refused.args[0]}"
            self._output.say(text, "warning", "output_not_reported")

    def _wait(self) -> bool:
        """Wait until a report is due; False: the last one is."""
        with self._changed:
            deadline = time.monotonic() + QUIET_SECONDS
            begin = time.monotonic()
            while not (self._closing or self._urgent):
                due = begin + REPORT_SECONDS if self._lines.has_news else deadline
                left = due - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._urgent = False
            return not self._closing

    def _report(self, client: MasterClient) -> None:
        with self._changed:
            batches = self._lines.take(REPORT_BYTES_MAX)
        request = log_pb2.LogServiceReportRequest(job=self._job, agent=self._agent)
        request.workers.extend(map(_message, batches))
        tells = self._files is not None and bool(self._files.failure) and not self._told_of_files
        if self._files is not None and tells:
            request.files_incomplete.host = platform.node()
            request.files_incomplete.location = self._files.location
            request.files_incomplete.why = self._files.failure
        try:
            memory = client.report_output(request)
        except (ClientClosedError, RequestRefusedError):
            raise
        except ElastaneError:
            return  # no master answers: the next report has it, or what is left of it
        with self._changed:
            self._lines.sent(batches)
            self._told_of_files = self._told_of_files or tells
            if self._memory and memory != self._memory:
                self._lines.send_again()
            self._memory = memory


def _message(batch: Batch) -> log_pb2.WorkerOutput:
    message = log_pb2.WorkerOutput(worker_id=batch.worker, first=batch.first)
    for line in batch.lines:
        told = message.lines.add(is_stderr=line.is_stderr, text=line.text, cut_bytes=line.cut_bytes)
        set_timestamp(told.time, line.time)
    if (ended := batch.ended) is not None:
        message.exit.number, message.exit.returncode = ended.number, ended.returncode
        message.exit.how, message.exit.out_of_memory = ended.how, ended.out_of_memory
        message.exit.expected = ended.expected
    return message
