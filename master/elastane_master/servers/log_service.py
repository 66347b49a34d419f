"""LogService: output of workers, from the agents that started them to whoever reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from elastane_common.errors import EXIT_REFUSED
from elastane_common.last_lines import LINE_BYTES_MAX, cut_line
from elastane_master.decisions.events import ExitReported, FilesIncomplete, Rejection
from elastane_master.decisions.state import OVER
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.limits import require_within
from elastane_master.jobs.serving import require_serving
from elastane_master.jobs.worker_output import OutputLine, OutputPiece, ReportedExit
from elastane_master.servers.binding import Context
from elastane_master.servers.translate import checked_name, shown, timestamp
from elastane_proto.v1 import log_pb2

LAST_WORDS_LINES: Final = 5
LAST_WORDS_CHARACTERS: Final = 1000
"""Of a worker that died, kept with the event."""
FOLLOW_SECONDS_MIN: Final = 0.05
"""A reader gets new lines at most so often."""
FINISH_SECONDS: Final = 5.0
"""How long a reader waits for the last lines of a job that is over."""
_TEXT_MAX: Final = 1000
"""Characters of an agent's words about an exit."""


class LogServicer:
    """Implementation of elastane.v1.LogService."""

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs

    async def Report(
        self, request: log_pb2.LogServiceReportRequest, context: Context
    ) -> log_pb2.LogServiceReportResponse:
        server = await self._jobs.find(request.job)
        agent = checked_name(request.agent, "agent")
        maximum = server.limits.sessions_per_job_max
        require_within("sessions_per_job_max", len(request.workers), maximum, "workers in one request")
        for told in request.workers:
            worker = checked_name(told.worker_id, "worker_id")
            if told.first < 0:
                raise Rejection("invalid_argument", "lines are numbered from 0", field="first")
            server.outputs.report(worker, agent, told.first, (_line(line) for line in told.lines))
            if told.HasField("exit"):
                await self._ended(server, worker, told.exit)
        if request.HasField("files_incomplete") and server.outputs.files_incomplete(agent):
            host, location, why = (
                shown(text, _TEXT_MAX)
                for text in (
                    request.files_incomplete.host,
                    request.files_incomplete.location,
                    request.files_incomplete.why,
                )
            )
            await server.submit(FilesIncomplete(host, location, why))
        return log_pb2.LogServiceReportResponse(memory=server.outputs.memory)

    async def _ended(self, server: JobServer, worker: str, told: log_pb2.WorkerExit) -> None:
        how, why = shown(told.how, _TEXT_MAX), shown(told.out_of_memory, _TEXT_MAX)
        is_new = server.outputs.exited(worker, told.number, told.returncode, how, why, expected=told.expected)
        # Workers of a failed job are sent away with this code, which says nothing about them.
        sent_away = server.machine.state.phase in OVER and told.returncode == EXIT_REFUSED
        if is_new and not told.expected and not sent_away:
            await server.submit(ExitReported(worker, how, why, _last_words(server, worker)))

    async def Read(
        self, request: log_pb2.LogServiceReadRequest, context: Context
    ) -> AsyncGenerator[log_pb2.LogServiceReadResponse]:
        server = await self._jobs.find(request.job)
        wanted = checked_name(request.worker_id, "worker_id") if request.worker_id else ""
        if wanted and not request.follow and wanted not in server.outputs.workers:
            raise _unknown(server, wanted)
        lines = request.lines if request.HasField("lines") else None
        reader = _Reader(server, wanted, lines, request.after)
        if not request.follow:
            for response in reader.responses():
                yield response
            return
        with server.watching():
            deadline: float | None = None
            while True:
                seen, changed = server.outputs.changed.count, server.changed.count
                require_serving(server)
                for response in reader.responses():
                    yield response
                if server.machine.state.phase in OVER:
                    now = asyncio.get_running_loop().time()
                    deadline = deadline or now + FINISH_SECONDS
                    if reader.all_ended or now >= deadline:
                        return
                await asyncio.sleep(FOLLOW_SECONDS_MIN)
                await _news(server, seen, changed, deadline)


class _Reader:
    """One reader's positions. wanted: the worker; empty: all. lines: to begin with, of each worker."""

    def __init__(self, server: JobServer, wanted: str, lines: int | None, after: Mapping[str, str]) -> None:
        self._server, self._wanted, self._lines = server, wanted, lines
        self._after = dict(after)
        self._positions: dict[str, int] = {}
        self._exits: dict[str, ReportedExit] = {}

    @property
    def _workers(self) -> list[str]:
        return [self._wanted] if self._wanted else self._server.outputs.workers

    @property
    def all_ended(self) -> bool:
        """True if every worker's process has ended, as far as is known."""
        return all(self._server.outputs.has_ended(worker) for worker in self._workers)

    def responses(self) -> list[log_pb2.LogServiceReadResponse]:
        """Return what is new since the last call."""
        outputs, found = self._server.outputs, []
        for worker in self._workers:
            if worker not in self._positions:
                self._positions[worker] = self._begin(worker)
            for piece in outputs.pieces(worker, self._positions[worker]):
                self._positions[worker] = piece.next
                if piece.ended is not None:
                    if self._exits.get(worker) is piece.ended:
                        continue
                    self._exits[worker] = piece.ended
                found.append(_response(piece))
        return found

    def _begin(self, worker: str) -> int:
        token = self._after.get(worker, "")
        agent, separator, number = token.rpartition(":")
        if not token:
            return self._server.outputs.begin(worker, self._lines)
        if not separator or not number.isdecimal():
            raise Rejection("invalid_argument", f"{token[:80]!r} is no token", field="after")
        return self._server.outputs.position(worker, agent, int(number))


async def _news(server: JobServer, seen: int, changed: int, deadline: float | None) -> None:
    """Wait for new output, a change of the job, or the deadline."""
    waits = [
        asyncio.ensure_future(server.outputs.changed.beyond(seen)),
        asyncio.ensure_future(server.changed.beyond(changed)),
    ]
    left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
    try:
        await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _line(line: log_pb2.LogLine) -> tuple[float, bool, str, int]:
    text, cut_bytes = cut_line(line.text, LINE_BYTES_MAX)
    time = line.time.seconds + line.time.nanos / 1e9
    return time, line.is_stderr, text, max(0, line.cut_bytes) + cut_bytes


def _last_words(server: JobServer, worker: str) -> str:
    """Return the end of a worker's output, as one text."""
    outputs = server.outputs
    pieces = outputs.pieces(worker, outputs.begin(worker, LAST_WORDS_LINES))
    text = "\n".join(shown(line.text) for piece in pieces for line in piece.lines).strip()
    return text if len(text) <= LAST_WORDS_CHARACTERS else "..." + text[-LAST_WORDS_CHARACTERS:]


def _response(piece: OutputPiece) -> log_pb2.LogServiceReadResponse:
    response = log_pb2.LogServiceReadResponse(
        worker_id=piece.worker, left_out=piece.left_out, lines=map(_line_message, piece.lines)
    )
    if piece.lines:
        response.token = f"{piece.lines[-1].agent}:{piece.lines[-1].number}"
    if (ended := piece.ended) is not None:
        response.exit.number, response.exit.returncode = ended.number, ended.returncode
        response.exit.how, response.exit.out_of_memory = ended.how, ended.out_of_memory
        response.exit.expected = ended.expected
    return response


def _line_message(line: OutputLine) -> log_pb2.LogLine:
    return log_pb2.LogLine(
        time=timestamp(line.time), is_stderr=line.is_stderr, text=line.text, cut_bytes=line.cut_bytes
    )


def _unknown(server: JobServer, worker: str) -> Rejection:
    known = server.outputs.workers
    return Rejection(
        "not_found",
        f"no output of worker {worker[:80]!r} is known",
        hint=f"there is some of {', '.join(known[:20])}"
        if known
        else "no agent has reported any output: `elastane run` of this release does",
        worker=worker[:80],
    )
