"""The write-ahead stream of one job: what was decided survives the master.

The machine decides in memory at once; nothing may leave the master before it is durable. One
write is in flight at a time, and everything appended meanwhile goes into the next one (group
commit), so the rate of decisions does not depend on the latency of the store.

    append(record) --> open group --> write in flight --> durable: on_durable, futures resolve
                                          |
               once in snapshot_seconds: the write carries a snapshot in place of its records
               and trims the log, in the same script

A write whose outcome is unknown (the connection broke after it was sent) is repeated with the
same sequence number until an answer comes; the script stores it once. When the store turns out to
have lost acknowledged writes (a replica was promoted, its host lost power), the next write carries
a snapshot that makes the store whole again: memory is the truth while the master runs. History and
events are not in a snapshot: those of the last writes are kept for a while, and written again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import structlog
from redis.exceptions import RedisError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from elastane_master.cancellation import cancel
from elastane_master.metrics.measures import StoreMeasures
from elastane_master.signals import Signal
from elastane_master.store.connection import StoreRedis
from elastane_master.store.errors import Fenced, LogBroken, LogClosed, StoreError
from elastane_master.store.format import FORMAT, encode_batch, encode_snapshot
from elastane_master.store.kept import KeptGroups, NumberedEvent, Told
from elastane_master.store.keys import JobKeys
from elastane_master.store.recovery import Recovered, recover
from elastane_master.store.scripts import WRITE

logger = structlog.get_logger(__name__)

SnapshotSource = Callable[[], bytes]
_RETRIED = (RedisError, OSError)
_SMALL_SNAPSHOT_BYTES = 64 * 1024
"""Nothing is saved by waiting with a snapshot of this size."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Bounds and periods of a job's log.

    snapshot_seconds: least time between two snapshots. patience_seconds: a snapshot that is larger than the
    records it would stand for waits for so long at most. check_seconds: how long an idle master goes
    without asking whether the job is still its own. batch_bytes_max: records in one write.
    kept_seconds, kept_bytes_max: how long, and how much of it, history and events are kept after they
    were acknowledged, for a store that loses them: longer than a store is behind its disk or replica.
    state_version: of the job's state as the snapshots hold it; it is stored, so that an older master leaves
    the job alone.
    """

    snapshot_seconds: float = 1.0
    patience_seconds: float = 10.0
    check_seconds: float = 5.0
    batch_bytes_max: int = 32 * 2**20
    kept_seconds: float = 30.0
    kept_bytes_max: int = 32 * 2**20
    history_entries_max: int = 2_000_000
    events_max: int = 10_000
    state_version: int = 1


class LogListener:
    """What a log tells its owner; every method may be overridden."""

    def durable(self, position: int) -> None:
        """All appends up to `position` are safe; called before their futures resolve."""

    def reachable(self, reachable: bool) -> None:
        """The store stopped, or started again, to answer."""

    def failed(self, error: StoreError) -> None:
        """The log is over: fenced, closed or broken."""

    async def revive(self) -> None:
        """Awaited after each failed attempt to write: a private server can be started again."""


@dataclass(slots=True)
class _Group:
    """Records that become durable together. `end` is the position after its last append."""

    durable: asyncio.Future[None]
    records: list[bytes] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)
    events: list[NumberedEvent] = field(default_factory=list)
    bytes: int = 0
    end: int = 0

    @property
    def told(self) -> Told:
        return Told(self.history, self.events)


@dataclass(frozen=True, slots=True)
class _Write:
    """One call of the script: groups of records, or the snapshot that stands for them.

    lost: groups of earlier writes that the store does not have any more; the snapshot stands for their
    records too, their history and events come first.
    """

    sequence: int
    mode: Literal["write", "replace", "check"]
    groups: Sequence[_Group] = ()
    snapshot: bytes = b""
    lost: Sequence[Told] = ()

    @property
    def records(self) -> int:
        """How many records become durable with it."""
        return sum([len(group.records) for group in self.groups])

    @property
    def size_bytes(self) -> int:
        """Of the snapshot, or of the records where there is none."""
        return len(self.snapshot) or sum([group.bytes for group in self.groups])

    def arguments(self, token: int, options: LogOptions) -> list[bytes | int | str]:
        """ARGV of the script."""
        records = tuple(record for group in self.groups for record in group.records)
        batch = encode_batch(records) if records and not self.snapshot else b""
        told = [*self.lost, *(group.told for group in self.groups)]
        history = [commit for one in told for commit in one.history]
        events = [part for one in told for event in one.events for part in event]
        bounds = (options.history_entries_max, options.events_max, FORMAT, options.state_version)
        return [
            token,
            self.sequence,
            self.mode,
            batch,
            self.snapshot,
            *bounds,
            len(history),
            *history,
            *events,
        ]


class JobLog:
    """Write-ahead log of one job, held by the master whose fencing token is the newest.

    Positions count appends from 1; `appended` is that of the newest, `durable` that of the newest
    that is safe. measures: of its writes; the owner of several logs gives them all the same. Used from one
    event loop.
    """

    def __init__(self, redis: StoreRedis, job: str, token: int, sequence: int, options: LogOptions) -> None:
        self.job = job
        self.appended = 0
        self.durable = 0
        self.failure: StoreError | None = None
        self.measures = StoreMeasures()
        self._keys = JobKeys.of(job)
        self._token = token
        self._sequence = sequence
        self._options = options
        self._script = redis.pinned_script(WRITE)
        self._groups: deque[_Group] = deque()
        self._kept = KeptGroups(options.kept_seconds, options.kept_bytes_max)
        self._writing: Sequence[_Group] = ()
        self._work: asyncio.Future[bool] | None = None
        self._changed = Signal()
        self._reachable = True
        self._dirty = False
        self._closing = False
        self._snapshot_at = 0.0
        self._snapshot_bytes = 0
        self._log_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._snapshot_source: SnapshotSource = bytes
        self._listener = LogListener()

    @classmethod
    async def open(
        cls, redis: StoreRedis, job: str, options: LogOptions | None = None
    ) -> tuple[JobLog, Recovered]:
        """Takes the job over (every older master is fenced from here on) and reads what is stored.

        Raises BadJobName, StoreFormatUnknown, and redis errors when the store does not answer.
        """
        options = options or LogOptions()
        recovered = await recover(redis, job, options.state_version)
        log = cls(redis, job, recovered.token, recovered.sequence, options)
        log._dirty = bool(recovered.records)
        return log, recovered

    def start(self, snapshot_source: SnapshotSource, listener: LogListener | None = None) -> None:
        """Starts writing. snapshot_source gives the state after every append so far."""
        self._snapshot_source = snapshot_source
        self._listener = listener or self._listener
        self._task = asyncio.create_task(self._run(), name=f"log of {self.job}")

    @property
    def token(self) -> int:
        """The fencing token that it writes with."""
        return self._token

    @property
    def sequence(self) -> int:
        """Number of the last write that was acknowledged."""
        return self._sequence

    @property
    def snapshot_bytes(self) -> int:
        """Size of the last snapshot that was written."""
        return self._snapshot_bytes

    @property
    def log_bytes(self) -> int:
        """Size of the records written since."""
        return self._log_bytes

    @property
    def reachable(self) -> bool:
        """False while the store does not answer."""
        return self._reachable

    @property
    def pending(self) -> asyncio.Future[None] | None:
        """Resolves when all appended so far is durable; None when it is. Await it through `shield`."""
        for groups in (self._groups, self._writing):
            if groups:
                return groups[-1].durable
        return None

    def append(
        self,
        record: bytes | None,
        history: Sequence[bytes] = (),
        events: Sequence[NumberedEvent] = (),
    ) -> asyncio.Future[None]:
        """Adds a record, commits and events; resolves when they and all before them are durable.

        The future is shared by all that goes into one write: await it through `asyncio.shield`.
        It raises Fenced when another master has taken the job over, LogClosed after `close`.
        """
        if self.failure is not None or self._closing:
            raise self.failure or LogClosed(f"the log of job {self.job} is closed", job=self.job)
        group = self._groups[-1] if self._groups else None
        if group is None or group.bytes >= self._options.batch_bytes_max:
            group = _Group(durable=asyncio.get_running_loop().create_future())
            group.durable.add_done_callback(_retrieve)
            self._groups.append(group)
        if record is not None:
            group.records.append(record)
            group.bytes += len(record)
            self._dirty = True
        group.history.extend(history)
        group.events.extend(events)
        self.appended += 1
        group.end = self.appended
        self._wake()
        return group.durable

    def snapshot_soon(self) -> None:
        """The next write carries a snapshot, whatever the period says."""
        self._dirty = True
        self._snapshot_at = 0.0
        self._snapshot_bytes = 0
        self._wake()

    async def settled(self) -> None:
        """Returns when all appended so far is durable, or the store is known not to answer."""
        position, seen = self.appended, self._changed.count
        while self.durable < position and self._reachable and self.failure is None:
            seen = await self._changed.beyond(seen)

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """Writes what is pending and a last snapshot, then stops; gives up after the timeout."""
        self._closing = True
        self._wake()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=timeout_seconds)
            await cancel(self._task)
        self._fail(self.failure or LogClosed(f"the log of job {self.job} is closed", job=self.job))

    async def abandon(self) -> None:
        """Stops at once and writes nothing more; what is pending fails as fenced."""
        if self._task is not None:
            await cancel(self._task)
        self._fail(
            self.failure
            or Fenced(f"job {self.job} is served by another master now", job=self.job, token=self._token)
        )

    # ---------------------------------------------------------------- the writer

    async def _run(self) -> None:
        try:
            while True:
                if self._groups:
                    await asyncio.sleep(0)  # whoever the write before has let go on goes along
                timed_out = await self._wait_for_work()
                if self._groups or (self._dirty and (self._closing or self._snapshot_due())):
                    await self._write(self._take())
                elif self._closing:
                    return
                elif timed_out:
                    await self._check()
        except Fenced as error:
            self._fail(error)
            logger.error("another master took the job over", **error.facts)
        except Exception as error:  # a writer that died must say so to all who wait for it
            self._fail(LogBroken(f"the log of job {self.job} broke: {error!r}", job=self.job))
            logger.exception("the log of a job broke", job=self.job)

    async def _wait_for_work(self) -> bool:
        """Waits for an append or until a snapshot or check is due; True when the time ran out."""
        if self._groups or self._closing:
            return False
        timeout = self._options.check_seconds
        if self._dirty:
            timeout = min(timeout, max(0.0, self._snapshot_due_at() - time.monotonic()))
        work: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._work = work
        timer = asyncio.get_running_loop().call_later(timeout, self._wake, True)
        try:
            return await work
        finally:
            timer.cancel()

    def _wake(self, timed_out: bool = False) -> None:
        if self._work is not None and not self._work.done():
            self._work.set_result(timed_out)

    def _snapshot_due(self) -> bool:
        return self._dirty and time.monotonic() >= self._snapshot_due_at()

    def _snapshot_due_at(self) -> float:
        """When the next snapshot is due, if anything is written before it.

        It holds the contexts of every EST, the records only those that changed: written each second it would
        be most of what the store gets. So it waits until the log it replaces is as large.
        """
        waits = self._snapshot_bytes > max(_SMALL_SNAPSHOT_BYTES, self._log_bytes)
        return self._snapshot_at + (self._options.patience_seconds if waits else 0.0)

    def _take(self, *, is_replacement: bool = False) -> _Write:
        """Takes the next write: one group, or with a snapshot all of them."""
        sequence = self._sequence + 1
        if not (is_replacement or self._closing or self._snapshot_due()):
            group = self._groups.popleft()
            self._log_bytes += group.bytes
            return _Write(sequence, "write", [group])
        started = time.monotonic()
        snapshot = encode_snapshot(sequence, self._snapshot_source())
        groups = list(self._groups)
        self._groups.clear()
        self._dirty = False
        took_seconds = time.monotonic() - started
        self.measures.snapshot_seconds.observe(took_seconds)
        # A snapshot that takes long is taken seldom: at most a twentieth of the time goes into it.
        seconds = max(self._options.snapshot_seconds, 20 * took_seconds)
        self._snapshot_at = started + seconds
        self._snapshot_bytes, self._log_bytes = len(snapshot), 0
        return _Write(sequence, "replace" if is_replacement else "write", groups, snapshot)

    async def _write(self, write: _Write) -> None:
        self._writing = write.groups
        started = time.monotonic()
        reply = await self._send(write)
        if reply.startswith("GAP"):
            write = self._take_again(write, reply)
            self._writing = write.groups
            await self._send(write)
        self.measures.appended(time.monotonic() - started, write.records, write.size_bytes)
        self._sequence = write.sequence
        self._writing = ()
        told = [*write.lost, *(group.told for group in write.groups)]
        self._kept.keep(write.sequence, told, time.monotonic())
        for group in write.groups:
            self.durable = group.end
            self._listener.durable(group.end)
            if not group.durable.done():
                group.durable.set_result(None)
        self._changed.announce()

    def _take_again(self, write: _Write, reply: str) -> _Write:
        """The write that follows one the store refused because older ones are missing in it."""
        stored = int(reply.partition(":")[2])
        lost, incomplete = self._kept.take_after(stored)
        logger.error(
            "the store lost acknowledged writes; it is given the whole state again",
            job=self.job,
            sequence=self._sequence,
            stored=stored,
        )
        if incomplete:
            logger.error("commits that the store lost are too old to be written again", job=self.job)
        self._groups.extendleft(reversed(write.groups))
        return replace(self._take(is_replacement=True), lost=lost)

    async def _check(self) -> None:
        """Asks whether the job is still ours and the store still whole."""
        write = _Write(self._sequence, "check")
        reply = await self._send(write)
        if reply.startswith("GAP"):
            await self._write(self._take_again(write, reply))

    async def _send(self, write: _Write) -> str:
        """Sends one write until an answer comes; raises Fenced."""
        keys = self._keys
        names = [keys.fence, keys.log, keys.snapshot, keys.history, keys.events]
        arguments = write.arguments(self._token, self._options)

        async def attempt() -> bytes:
            answer: bytes = await self._script(keys=names, args=arguments)
            return answer

        try:
            answer = await attempt()
        except _RETRIED as error:
            answer = await self._send_again(attempt, error)
        if not self._reachable:
            logger.info("the store answers again", job=self.job)
            self._set_reachable(True)
        reply = answer.decode()
        if reply.startswith("FENCED"):
            holder = reply.partition(":")[2]
            raise Fenced(
                f"another master took job {self.job} over (its token is {holder}, ours {self._token})",
                job=self.job,
                token=self._token,
                holder=holder,
            )
        return reply

    async def _send_again(self, attempt: Callable[[], Awaitable[bytes]], error: Exception) -> bytes:
        """Repeats a write without end; whether an earlier attempt arrived does not matter (see WRITE)."""
        if self._reachable:
            logger.warning("the store does not answer", job=self.job, error=str(error) or repr(error))
            self.measures.outages += 1
            self._set_reachable(False)

        async def revive(state: RetryCallState) -> None:
            await self._listener.revive()

        await self._listener.revive()
        retrying = AsyncRetrying(
            wait=wait_random_exponential(multiplier=0.02, max=1.0),
            retry=retry_if_exception_type(_RETRIED),
            before_sleep=revive,
        )
        return await retrying(attempt)

    def _set_reachable(self, reachable: bool) -> None:
        self._reachable = reachable
        self._changed.announce()
        self._listener.reachable(reachable)

    def _fail(self, error: StoreError) -> None:
        self.failure = error
        groups = [*self._writing, *self._groups]
        self._writing = ()
        self._groups.clear()
        for group in groups:
            if not group.durable.done():
                group.durable.set_exception(error)
        self._changed.announce()
        self._listener.failed(error)


def _retrieve(future: asyncio.Future[None]) -> None:
    """Marks a failure as seen: not every append is awaited, and asyncio would log the others."""
    if not future.cancelled():
        future.exception()
