"""ShardService: datasets, leases of dynamic tasks, progress and the committed history."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import NamedTuple, cast

import msgspec

from elastane_master.decisions.events import DatasetCreated, DatasetExtended, Rejection, TasksRequested
from elastane_master.decisions.lease_answers import LeaseResult, answer_bytes
from elastane_master.decisions.views import list_tasks, progress_views
from elastane_master.jobs import records
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.limits import require_room
from elastane_master.jobs.serving import once_durable, require_serving
from elastane_master.servers import translate_shard
from elastane_master.servers.binding import Context, Malformed
from elastane_master.servers.pipeline import Decided, Pipeline
from elastane_master.servers.translate import checked_count, checked_name, checked_request_id, seconds
from elastane_master.servers.waiting_line import Place, WaitingLine
from elastane_master.store.history import is_history_token
from elastane_proto.v1 import shard_pb2

WAIT_SECONDS = 20.0
WAIT_SECONDS_MAX = 300.0
PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000
WATCH_SECONDS = 0.5
WATCH_SECONDS_MIN = 0.05
REQUESTS_IN_FLIGHT = 64
"""Limit of unanswered requests per stream; further ones wait."""
TOGETHER_BYTES_MAX = 16 * 1024
"""About the largest message of several answers; a client may be limited to 64 KiB."""

Leased = tuple[str, LeaseResult]
"""A dataset, and the answer to a request for its tasks."""
Begun = Decided[Leased] | asyncio.Task[Leased]


class ShardServicer:
    """Implementation of elastane.v1.ShardService."""

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs

    async def CreateDataset(
        self, request: shard_pb2.CreateDatasetRequest, context: Context
    ) -> shard_pb2.CreateDatasetResponse:
        server = await self._jobs.find(request.job)
        dataset = checked_name(request.dataset, "dataset")
        settings = translate_shard.dataset_settings(request.settings)
        request_id = checked_request_id(request.request_id)
        created = await server.submit(DatasetCreated(request_id, dataset, settings))
        progress = _progress(server, dataset)[0]
        return shard_pb2.CreateDatasetResponse(progress=progress, created=bool(created))

    async def LeaseTasks(
        self, request: shard_pb2.LeaseTasksRequest, context: Context
    ) -> shard_pb2.LeaseTasksResponse:
        await self._jobs.find(request.job)
        asked = self._asked(request)
        result = cast("LeaseResult", await asked.server.submit(asked.event))
        return translate_shard.lease_response(asked.event.dataset, await _awaited(asked, result, Place()))

    async def StreamTasks(
        self, requests: AsyncIterator[shard_pb2.StreamTasksRequest | Malformed], context: Context
    ) -> AsyncGenerator[shard_pb2.StreamTasksResponse]:
        """Decide on requests as they arrive, and answer them in order as they become durable.

        A request waiting for tasks waits at most until a later one has its answer.
        """
        job: str | None = None
        reads_more = False
        line = WaitingLine()

        def requests_of(
            message: shard_pb2.StreamTasksRequest | Malformed,
        ) -> Iterable[shard_pb2.LeaseTasksRequest]:
            nonlocal reads_more
            if isinstance(message, Malformed):
                raise message.rejection()
            if job is None:
                reads_more = message.reads_more
            return (message.request, *message.more) if message.more else (message.request,)

        def begin(request: shard_pb2.LeaseTasksRequest) -> Begun:
            line.begun()
            try:
                return taken(request)
            except Rejection:
                line.answered()
                raise

        def taken(request: shard_pb2.LeaseTasksRequest) -> Begun:
            nonlocal job
            if job is not None and request.job != job:  # rights were checked for the first one's
                raise Rejection(
                    "invalid_argument",
                    f"a stream serves one job: this one serves {job[:80]!r}",
                    hint="open another stream for another job",
                    field="job",
                )
            asked = self._asked(request)
            if job is None:
                job = request.job
                ends.enter_context(asked.server.ending(answers.end))
            return _begin(asked, line)

        def size_of(leased: Leased) -> int:
            return answer_bytes(leased[1]) if reads_more else TOGETHER_BYTES_MAX

        with contextlib.ExitStack() as ends:
            messages = self._of_an_open_job(requests)
            async with Pipeline(messages, requests_of, begin, REQUESTS_IN_FLIGHT) as answers:
                is_first = True
                async for known in answers.batches(size_of, TOGETHER_BYTES_MAX):
                    yield translate_shard.streamed_response(known, is_first=is_first)
                    is_first = False

    async def _of_an_open_job(
        self, requests: AsyncIterator[shard_pb2.StreamTasksRequest | Malformed]
    ) -> AsyncGenerator[shard_pb2.StreamTasksRequest | Malformed]:
        """Yield the requests; a closed job is reopened before the first, and stays open with the stream."""
        is_first = True
        async for message in requests:
            if is_first and not isinstance(message, Malformed):
                await self._jobs.find(message.request.job)
                is_first = False
            yield message

    def _asked(self, request: shard_pb2.LeaseTasksRequest) -> _Asked:
        """Parse a request for tasks. Raises Rejection."""
        server = self._jobs.get(request.job)
        wait_seconds = seconds(request.wait, "wait") if request.HasField("wait") else WAIT_SECONDS
        event = translate_shard.tasks_requested(request)
        return _Asked(server, event, asyncio.get_running_loop().time() + min(wait_seconds, WAIT_SECONDS_MAX))

    async def GetProgress(
        self, request: shard_pb2.GetProgressRequest, context: Context
    ) -> shard_pb2.GetProgressResponse:
        server = await self._jobs.find_or_only(request.job)
        datasets = await once_durable(server, lambda: _progress(server, request.dataset))
        return shard_pb2.GetProgressResponse(datasets=datasets)

    async def WatchProgress(
        self, request: shard_pb2.WatchProgressRequest, context: Context
    ) -> AsyncGenerator[shard_pb2.WatchProgressResponse]:
        server = await self._jobs.find_or_only(request.job)
        interval = seconds(request.interval, "interval") if request.HasField("interval") else WATCH_SECONDS
        with server.watching():
            while True:
                seen = server.changed.count
                require_serving(server)
                datasets = await once_durable(server, lambda: _progress(server, request.dataset))
                yield shard_pb2.WatchProgressResponse(datasets=datasets)
                await asyncio.sleep(max(interval, WATCH_SECONDS_MIN))
                await server.changed.beyond(seen)

    async def ListTasks(
        self, request: shard_pb2.ListTasksRequest, context: Context
    ) -> shard_pb2.ListTasksResponse:
        server = await self._jobs.find(request.job)
        count = _page_size(request.page_size)
        after = translate_shard.after_token(request.page_token)
        state = translate_shard.task_state(request.state)
        tasks = await once_durable(
            server, lambda: list_tasks(server.machine, request.dataset, state, after, count)
        )
        return shard_pb2.ListTasksResponse(
            tasks=[translate_shard.task_info(task) for task in tasks],
            next_page_token=translate_shard.task_token(tasks[-1]) if len(tasks) == count else "",
        )

    async def GetAuditLog(
        self, request: shard_pb2.GetAuditLogRequest, context: Context
    ) -> shard_pb2.GetAuditLogResponse:
        server = await self._jobs.find(request.job)
        if not is_history_token(request.page_token):
            raise translate_shard.bad_token(request.page_token)
        count = _page_size(request.page_size)
        commits, token = await self._jobs.history(server).commits(request.page_token, count)
        entries = [
            entry
            for commit in commits
            for entry in translate_shard.audit_entries(records.decode_commit(commit), request.dataset)
        ]
        return shard_pb2.GetAuditLogResponse(entries=entries, next_page_token=token)

    async def ExtendDataset(
        self, request: shard_pb2.ExtendDatasetRequest, context: Context
    ) -> shard_pb2.ExtendDatasetResponse:
        server = await self._jobs.find(request.job)
        dataset = checked_name(request.dataset, "dataset")
        request_id = checked_request_id(request.request_id)
        await server.submit(DatasetExtended(request_id, dataset, request.watermark, request.closed))
        return shard_pb2.ExtendDatasetResponse(progress=_progress(server, dataset)[0])


class _Asked(NamedTuple):
    """A request for tasks. deadline: end of its wait for tasks, on the loop's clock."""

    server: JobServer
    event: TasksRequested
    deadline: float


def _begin(asked: _Asked, line: WaitingLine) -> Begun:
    """Decide on a request: return the answer, or a task if it has to wait."""
    server = asked.server
    server.require_taking()
    try:
        result, durable = server.begin(asked.event)
    except Rejection as refusal:
        line.answered()
        return asyncio.create_task(server.refuse(refusal))
    leased = cast("LeaseResult", result)
    if leased.wait:
        return asyncio.create_task(_answer(asked, leased, durable, line, line.enter()))
    line.answered()
    return Decided((asked.event.dataset, leased), durable)


async def _answer(
    asked: _Asked,
    result: LeaseResult,
    durable: asyncio.Future[None] | None,
    line: WaitingLine,
    place: Place,
) -> Leased:
    """Compute the answer to a request that has to wait."""
    try:
        if durable is not None:
            await asyncio.shield(durable)
        result = await _awaited(asked, result, place)
    finally:
        line.answered(place)
    return asked.event.dataset, result


async def _awaited(asked: _Asked, result: LeaseResult, place: Place) -> LeaseResult:
    """Return the result or a later one: waits while there is nothing to lease yet, unless hurried."""
    if not result.wait:
        return result
    server, event, deadline = asked
    loop, outcomes = asyncio.get_running_loop(), result.outcomes
    while result.wait and not place.hurried and (left := deadline - loop.time()) > 0:
        require_serving(server)
        maximum = server.limits.lease_waiters_per_job_max
        require_room(
            "lease_waiters_per_job_max", server.task_waiters.count, maximum, "calls that wait for tasks"
        )
        await place.sleep(server.task_waiters, event.dataset, left)
        if place.hurried:
            require_serving(server)
            break
        # The reports were already counted. Later requests may have been decided meanwhile, so more answers
        # must be remembered.
        unanswered = REQUESTS_IN_FLIGHT - 1 if place.followed else event.unanswered
        again = msgspec.structs.replace(event, completed=(), unanswered=unanswered)
        result = cast("LeaseResult", await server.submit(again))
    return msgspec.structs.replace(result, outcomes=outcomes)


def _progress(server: JobServer, dataset: str) -> list[shard_pb2.Progress]:
    """Progress of one dataset, or of all. Raises Rejection."""
    views = progress_views(server.machine, server.clock())
    chosen = [view for view in views if dataset in ("", view.dataset)]
    if dataset and not chosen:
        raise Rejection("not_found", f"the job has no dataset {dataset!r}", dataset=dataset)
    return [translate_shard.progress_message(view) for view in chosen]


def _page_size(asked: int) -> int:
    return checked_count(asked, "page_size", PAGE_SIZE_MAX, f"a page of {asked}", PAGE_SIZE)
