"""CaptureService: traces and stacks of workers, ordered through their sessions and passed to who asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

from elastane_master.decisions.effects import CaptureOrder, WorkerMessage
from elastane_master.decisions.events import Rejection
from elastane_master.jobs.captures import PART_BYTES_MAX, Capture, Part
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.limits import require_within
from elastane_master.jobs.serving import require_serving
from elastane_master.jobs.sessions import Session
from elastane_master.servers.binding import Context
from elastane_master.servers.translate import checked_count, checked_name, seconds, shown
from elastane_proto.v1 import capture_pb2

TRACE_STEPS_MAX: Final = 1000
SESSIONS_LOOK_SECONDS: Final = 0.5
"""A worker whose session has ended is noticed within this time."""
_BEGIN_STEPS: Final = 2
"""Steps from the last committed one to the start of a trace, so that all workers start at the same step."""

Sessions = Mapping[str, Session[WorkerMessage]]


class CaptureServicer:
    """Implementation of elastane.v1.CaptureService."""

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs

    async def Capture(
        self, request: capture_pb2.CaptureServiceCaptureRequest, context: Context
    ) -> AsyncGenerator[capture_pb2.CaptureServiceCaptureResponse]:
        server = await self._jobs.find(request.job)
        steps = request.trace_steps
        checked_count(steps, "trace_steps", TRACE_STEPS_MAX, f"a trace of {steps} steps", 0)
        wait_seconds = seconds(request.wait, "wait") if request.HasField("wait") else None
        require_serving(server)
        sessions = _asked(server, request.worker_ids, is_trace=steps > 0)
        with server.watching():
            capture = server.captures.begin(sessions)
            try:
                first_step = server.machine.state.steps.committed + _BEGIN_STEPS if steps else 0
                for session in sessions.values():
                    session.put(CaptureOrder(capture.id, first_step, steps))
                yield capture_pb2.CaptureServiceCaptureResponse(worker_ids=sessions)
                async for part in _parts(server, capture, sessions, wait_seconds):
                    yield part
            finally:
                server.captures.end(capture)
                for worker in capture.waiting:
                    if server.sessions.get(worker) is sessions[worker]:
                        sessions[worker].put(CaptureOrder(capture.id, end=True))

    async def Deliver(
        self, request: capture_pb2.CaptureServiceDeliverRequest, context: Context
    ) -> capture_pb2.CaptureServiceDeliverResponse:
        server = await self._jobs.find(request.job)
        worker = checked_name(request.worker_id, "worker_id")
        require_within(
            "message_bytes_max", len(request.data), PART_BYTES_MAX, "bytes in one part of a capture"
        )
        part = Part(
            worker,
            request.steps_done,
            request.data,
            request.end,
            shown(request.error, 1000),
            request.first_est,
            request.end_est,
        )
        return capture_pb2.CaptureServiceDeliverResponse(
            wanted=await server.captures.deliver(request.capture, part)
        )


async def _parts(
    server: JobServer, capture: Capture, sessions: Sessions, wait_seconds: float | None
) -> AsyncGenerator[capture_pb2.CaptureServiceCaptureResponse]:
    """Yield the answers until all workers have sent everything, or cannot any more."""
    loop = asyncio.get_running_loop()
    deadline = None if wait_seconds is None else loop.time() + wait_seconds
    while True:
        seen = capture.news.count
        require_serving(server)
        for part in capture.take():
            yield _response(part)
        if not capture.waiting:
            for part in capture.take():
                yield _response(part)
            return
        for worker in list(capture.waiting):
            if server.sessions.get(worker) is not sessions[worker]:
                capture.lose(worker, "its session has ended")
            elif deadline is not None and loop.time() >= deadline:
                capture.lose(worker, f"no answer within {wait_seconds:g} s")
        left = (
            SESSIONS_LOOK_SECONDS if deadline is None else min(SESSIONS_LOOK_SECONDS, deadline - loop.time())
        )
        if capture.news.count == seen:
            try:
                async with asyncio.timeout(max(left, 0)):
                    await capture.news.beyond(seen)
            except TimeoutError:
                continue


def _asked(server: JobServer, wanted: Sequence[str], *, is_trace: bool) -> dict[str, Session[WorkerMessage]]:
    """Return the sessions of the workers that are asked, the ring's in its order. Raises Rejection."""
    state = server.machine.state
    ring = [member.worker for member in state.ring.members]
    others = sorted(
        name for name, record in state.workers.items() if record.role == "ring" and name not in ring
    )
    able = [name for name in (ring if is_trace else ring + others) if name in server.sessions]
    missing = [name for name in wanted if name not in able]
    if missing or not able:
        what = f"worker {missing[0][:80]!r} is not" if missing else "no worker is"
        raise Rejection(
            "not_found" if missing else "wrong_phase",
            f"{what} {'in the ring' if is_trace else 'connected'}",
            hint=f"there are: {', '.join(able[:20])}" if able else "wait until the job trains",
        )
    return {name: server.sessions[name] for name in able if not wanted or name in wanted}


def _response(part: Part) -> capture_pb2.CaptureServiceCaptureResponse:
    return capture_pb2.CaptureServiceCaptureResponse(
        worker_id=part.worker,
        steps_done=part.steps_done,
        data=part.data,
        end=part.end,
        error=part.error,
        first_est=part.first_est,
        end_est=part.end_est,
    )
