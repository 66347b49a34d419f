"""Write-ahead log of one job: its decisions survive the master.

The machine decides in memory at once; nothing may leave the master before it is durable. One write is in
flight at a time, and everything appended meanwhile goes into the next one (group commit), so the rate of
decisions does not depend on the latency of the store.

  append(record) --> open group --> write in flight --> durable: on_durable, futures resolve
                                        |
          once per snapshot_seconds: the write carries a snapshot instead of its records
          and trims the log, in the same script; a large one waits until nobody waits for it

A write whose outcome is unknown (the connection broke after it was sent) is repeated with the same sequence
number until an answer arrives; the script stores it only once. If the store turns out to have lost
acknowledged writes (a replica was promoted, its host lost power), the next write carries a snapshot that
repairs the store: memory is authoritative while the master runs. History and events are not in a snapshot:
those of the last writes are kept for a while, and written again. If older ones are missing, too (a backup was
restored, a key deleted), they cannot be recovered: the job is damaged, and its log ends once the state is
stored.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

import structlog
from redis.exceptions import RedisError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from elastane_common.cancellation import cancel
from elastane_master.metrics.measures import StoreMeasures
from elastane_master.signals import Signal
from elastane_master.store.connection import StoreRedis
from elastane_master.store.errors import Damage, Fenced, JobDamaged, LogBroken, LogClosed, StoreError
from elastane_master.store.fenced_scripts import DROP, WRITE, require_ours
from elastane_master.store.format import Place, encode_batch, encode_snapshot
from elastane_master.store.kept_writes import KeptGroups, NumberedEvent
from elastane_master.store.keys import JobKeys
from elastane_master.store.log_writes import Group, Standing, Write, gone
from elastane_master.store.recovery import Readable, Recovered, recover

logger = structlog.get_logger(__name__)

T = TypeVar("T")
SnapshotSource = Callable[[], bytes]
_RETRIED = (RedisError, OSError)
_SMALL_SNAPSHOT_BYTES = 64 * 1024
"""Snapshots up to this size are never postponed: that would save nothing."""
_REST_SECONDS = 0.05
"""Time without appends after which a larger snapshot is taken."""
_LATE_SECONDS = 1.0
"""Longest time for which a larger snapshot waits for that, once it is due."""
_UNAWAITED_SECONDS = 0.01
"""Longest time for which an append that nobody waits for is not written."""
_UNAWAITED_BYTES = 2**20
"""Size from which such appends are written nevertheless, so that the last one of a step waits for little."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Limits and intervals of a job's log.

    snapshot_seconds: minimum time between two snapshots. patience_seconds: longest extra wait for a snapshot
    that is larger than the records it replaces. check_seconds: interval at which an idle master checks that
    it still owns the job. batch_bytes_max: records in one write. kept_seconds, kept_bytes_max: for how long,
    and how much, history and events are kept after their acknowledgement, for a store that loses them; longer
    than a store lags behind its disk or replica. replicas: replicas of the store that must have a write
    before it is acknowledged. state_version: version of the job's state in the snapshots; stored, so that
    older masters refuse the job. version_of: version of a stored state, 0 if it cannot be determined.
    """

    snapshot_seconds: float = 1.0
    patience_seconds: float = 10.0
    check_seconds: float = 5.0
    batch_bytes_max: int = 32 * 2**20
    kept_seconds: float = 30.0
    kept_bytes_max: int = 32 * 2**20
    history_entries_max: int = 2_000_000
    events_max: int = 10_000
    replicas: int = 0
    state_version: int = 1
    version_of: Callable[[bytes], int] = lambda state: 0


class LogListener:
    """Callbacks from a log to its owner; every method may be overridden."""

    def durable(self, position: int) -> None:
        """All appends up to `position` are durable; called before their futures resolve."""

    def reachable(self, reachable: bool) -> None:
        """The store stopped or resumed answering."""

    def failed(self, error: StoreError) -> None:
        """The log has ended: fenced, closed or broken."""

    async def revive(self) -> None:
        """Awaited after each failed attempt to write: a private server can be restarted."""

    async def mended(self) -> None:
        """Awaited once a store that had lost writes has the job again: it may have lost the job's name, too.

        May raise redis errors, and is awaited again then.
        """


class JobLog:
    """Write-ahead log of one job, held by the master with the newest fencing token.

    Positions count appends from 1; `appended` is that of the newest, `durable` that of the newest durable
    one. reachable: False while the store does not answer. measures: of its writes; the owner of several logs
    gives them a common object. token: fencing token of its writes; sequence: number of the last acknowledged
    one. snapshot_bytes: size of the last snapshot; log_bytes: of the records written since. Used from one
    event loop.
    """

    def __init__(self, redis: StoreRedis, job: str, recovered: Recovered, options: LogOptions) -> None:
        self.job = job
        self.appended = 0
        self.durable = 0
        self.failure: StoreError | None = None
        self.measures = StoreMeasures()
        self._loop = asyncio.get_running_loop()
        self._redis = redis
        self._keys = JobKeys.of(job)
        self.token = recovered.token
        self.sequence = recovered.sequence
        self._chain = recovered.chain
        self._commit, self._event = recovered.commits, recovered.event_sequence
        # Minimum numbers of stored entries: the store drops the oldest ones, several at a time.
        self._history, self._events = recovered.history, recovered.events
        # The loss was accepted: the first write replaces everything, and later checks compare with that.
        self._replaces = bool(recovered.damages)
        self._cut = recovered.state_commits if recovered.damages else None
        self._options = options
        self._script = redis.pinned_script(WRITE, options.replicas)
        self._groups: deque[Group] = deque()
        self._hurries = False
        self._unawaited: asyncio.TimerHandle | None = None
        self._kept = KeptGroups(options.kept_seconds, options.kept_bytes_max, self._commit, self._event)
        self._writing: Sequence[Group] = ()
        self._work: asyncio.Future[bool] | None = None
        self._asked: list[asyncio.Future[None]] = []
        self._changed = Signal()
        self.reachable = True
        self._dirty = False
        self._closing = False
        self._snapshot_at = 0.0
        self.snapshot_bytes = 0
        self.log_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._snapshot_source: SnapshotSource = bytes
        self._listener = LogListener()

    @classmethod
    async def open(
        cls, redis: StoreRedis, job: str, options: LogOptions | None = None, *, accept_loss: bool = False
    ) -> tuple[JobLog, Recovered]:
        """Take the job over, which fences every older master, and read its stored data.

        accept_loss: for a damaged job, return the usable data, and make the first write replace everything
        else; otherwise JobDamaged is raised. Raises BadJobName, JobTooNew, and redis errors if the store does
        not answer.
        """
        options = options or LogOptions()
        recovered = await recover(redis, job, Readable(options.state_version, options.version_of))
        if recovered.damages and not accept_loss:
            raise JobDamaged(job, recovered.damages)
        if recovered.useless:
            await redis.delete(*recovered.useless)
        log = cls(redis, job, recovered, options)
        log._dirty = bool(recovered.records or recovered.damages)
        return log, recovered

    async def drop(self) -> None:
        """Delete all stored data of the job; only before `start`. Raises Fenced and redis errors."""
        answer = cast(
            "bytes", await self._redis.register_script(DROP)(keys=self._keys.all, args=[self.token])
        )
        require_ours(self.job, self.token, answer.decode())

    def start(self, snapshot_source: SnapshotSource, listener: LogListener | None = None) -> None:
        """Start writing. snapshot_source returns the state after every append so far."""
        self._snapshot_source = snapshot_source
        self._listener = listener or self._listener
        self._task = asyncio.create_task(self._run(), name=f"log of {self.job}")

    @property
    def pending(self) -> asyncio.Future[None] | None:
        """Future that resolves when all appends so far are durable; None if they are.

        Await it through `shield`.
        """
        if self._groups:
            self.hurry()
            return self._groups[-1].durable
        return self._writing[-1].durable if self._writing else None

    def append(
        self,
        record: bytes | None,
        history: Sequence[bytes] = (),
        events: Sequence[NumberedEvent] = (),
        *,
        awaited: bool = True,
    ) -> asyncio.Future[None]:
        """Add a record, commits and events; the future resolves when they and all before them are durable.

        awaited: False if nothing outside depends on it: it is written with the next append that is awaited,
        or `_UNAWAITED_SECONDS` later. Of a step's N reports only the last one is answered, and a write costs
        more than a report.

        The future is shared by all that goes into one write: await it through `asyncio.shield`. It raises
        Fenced if another master has taken the job over, LogClosed after `close`.
        """
        if self.failure is not None or self._closing:
            raise self.failure or LogClosed(f"the log of job {self.job} is closed", job=self.job)
        group = self._groups[-1] if self._groups else None
        if group is None or group.bytes >= self._options.batch_bytes_max:
            group = Group(self._loop.create_future(), self._loop.time())
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
        if awaited or group.bytes >= _UNAWAITED_BYTES:
            self.hurry()
        elif self._unawaited is None and not self._hurries:
            self._unawaited = self._loop.call_later(_UNAWAITED_SECONDS, self._look_at_unawaited)
        return group.durable

    def hurry(self) -> None:
        """Write what was appended as soon as possible: somebody waits for it."""
        if self._groups and not self._hurries:
            self._hurries = True
            self._wake()

    def _look_at_unawaited(self) -> None:
        """Write what nobody awaits, if it has waited long enough.

        One timer for all of it: nearly every group is written with an append that is awaited, long before.
        """
        self._unawaited = None
        if self._hurries or not self._groups:
            return
        left_seconds = self._groups[0].opened_at + _UNAWAITED_SECONDS - self._loop.time()
        if left_seconds > 0:
            self._unawaited = self._loop.call_later(left_seconds, self._look_at_unawaited)
        else:
            self.hurry()

    def snapshot_soon(self) -> None:
        """Make the next write carry a snapshot, regardless of the interval."""
        self._dirty = True
        self._snapshot_at = 0.0
        self.snapshot_bytes = 0
        self._wake()

    async def settled(self) -> bool:
        """Wait until all appends so far are durable (True), or the store is known not to answer (False)."""
        self.hurry()
        position, seen = self.appended, self._changed.count
        while self.durable < position and self.reachable and self.failure is None:
            seen = await self._changed.beyond(seen)
        return self.durable >= position

    @property
    def acknowledged(self) -> tuple[int, int]:
        """Numbers of the newest commit and event that the store has acknowledged."""
        return self._commit, self._event

    async def whole(self) -> None:
        """Wait until the store was found to have all that it has acknowledged so far, or was given it again.

        Raises StoreError if that cannot come about: the log has ended.
        """
        if self.failure is not None:
            raise self.failure
        asked = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._wake()
        await asked

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """Write what is pending and a last snapshot, then stop; gives up after the timeout."""
        self._closing = True
        self._wake()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=timeout_seconds)
            await cancel(self._task)
        self._fail(self.failure or LogClosed(f"the log of job {self.job} is closed", job=self.job))

    async def abandon(self) -> None:
        """Stop at once without further writes; pending appends fail as fenced."""
        if self._task is not None:
            await cancel(self._task)
        self._fail(
            self.failure
            or Fenced(f"job {self.job} is served by another master now", job=self.job, token=self.token)
        )

    # ---------------------------------------------------------------- the writer

    async def _run(self) -> None:
        try:
            while True:
                if self._groups:
                    await asyncio.sleep(0)  # callers resumed by the last write can join this one
                timed_out = await self._wait_for_work()
                asked = len(self._asked)
                hurries = self._hurries or (self._closing and bool(self._groups))
                if hurries or (self._dirty and (self._closing or self._snapshot_due())):
                    await self._write(self._take())
                elif self._closing:
                    return
                elif asked or timed_out:
                    await self._check()
                # A write is refused by a store that lacks an older one, as a check is.
                for waiting in self._asked[:asked]:
                    if not waiting.done():
                        waiting.set_result(None)
                del self._asked[:asked]
        except Fenced as error:
            self._fail(error)
            logger.error("another master took the job over", **error.facts)
        except JobDamaged as error:
            logger.error("the store lost data that nobody can restore", error=str(error), **error.facts)
            self._fail(error)
        except Exception as error:  # a writer that died must say so to all who wait for it
            self._fail(LogBroken(f"the log of job {self.job} broke: {error!r}", job=self.job))
            logger.exception("the log of a job broke", job=self.job)

    async def _wait_for_work(self) -> bool:
        """Wait for an append, or until a snapshot or check is due; True if the time ran out."""
        if self._hurries or self._closing or self._asked:
            return False
        timeout = self._options.check_seconds
        if self._dirty:
            rest_seconds = _REST_SECONDS if self._snapshot_is_large else 0.0
            timeout = min(timeout, max(rest_seconds, self._snapshot_due_at() - time.monotonic()))
        work: asyncio.Future[bool] = self._loop.create_future()
        self._work = work
        timer = self._loop.call_later(timeout, self._wake, True)
        try:
            return await work
        finally:
            timer.cancel()

    def _wake(self, timed_out: bool = False) -> None:
        if self._work is not None and not self._work.done():
            self._work.set_result(timed_out)

    @property
    def _snapshot_is_large(self) -> bool:
        return self.snapshot_bytes > _SMALL_SNAPSHOT_BYTES

    def _snapshot_due(self) -> bool:
        """True if the next write is to carry a snapshot; a large one is not put before those who wait."""
        late_seconds = _LATE_SECONDS if self._groups and self._snapshot_is_large else 0.0
        return self._dirty and time.monotonic() >= self._snapshot_due_at() + late_seconds

    def _snapshot_due_at(self) -> float:
        """Time from which the next snapshot is due, provided that something is to be written before it.

        A snapshot holds the contexts of every EST, records only those that changed: written every second,
        snapshots would be most of the store's traffic. So a snapshot waits until the log it replaces is as
        large.
        """
        waits = self._snapshot_is_large and self.snapshot_bytes > self.log_bytes
        return self._snapshot_at + (self._options.patience_seconds if waits else 0.0)

    def _take(self, *, is_replacement: bool = False, beyond: int = 0) -> Write:
        """Take the next write: one group, or with a snapshot all of them.

        beyond: its number must be higher.
        """
        is_replacement = is_replacement or self._replaces
        sequence = max(self.sequence, beyond) + 1
        if not (is_replacement or self._closing or self._snapshot_due()):
            group = self._groups.popleft()
            self._hurries = bool(self._groups)
            self.log_bytes += group.bytes
            commit, event = self._numbers_after([group])
            batch, chain = b"", self._chain
            if group.records:
                place = Place(sequence, self.token, commit)
                batch, chain = encode_batch(self.job, place, self._chain, tuple(group.records))
            return Write(sequence, "write", chain, commit, event, [group], batch)
        started = time.monotonic()
        groups = list(self._groups)
        commit, event = self._numbers_after(groups)
        place = Place(sequence, self.token, commit)
        snapshot, chain = encode_snapshot(self.job, place, self._chain, self._snapshot_source())
        self._groups.clear()
        self._dirty = self._hurries = False
        took_seconds = time.monotonic() - started
        self.measures.snapshot_seconds.observe(took_seconds)
        # A snapshot that takes long is taken seldom: at most a twentieth of the time goes into it.
        seconds = max(self._options.snapshot_seconds, 20 * took_seconds)
        self._snapshot_at = started + seconds
        self.snapshot_bytes, self.log_bytes = len(snapshot), 0
        mode: Literal["write", "replace"] = "replace" if is_replacement else "write"
        return Write(sequence, mode, chain, commit, event, groups, snapshot=snapshot, cut=self._cut)

    def _numbers_after(self, groups: Sequence[Group]) -> tuple[int, int]:
        """Numbers of the newest commit and event once these groups are written."""
        event = next((group.events[-1][0] for group in reversed(groups) if group.events), self._event)
        return self._commit + sum([len(group.history) for group in groups]), event

    async def _write(self, write: Write) -> None:
        self._writing = write.groups
        started = time.monotonic()
        reply = await self._send(write)
        if reply.startswith("GAP"):
            await self._mend(write, reply)
        else:
            self._settle(write, started)

    async def _mend(self, write: Write, reply: str) -> None:
        """Repair a store that refused this write. Raises JobDamaged if some data cannot be recovered.

        Nothing is written if a key of this job holds another job's data: it may be the only copy, and an
        operator can restore both.
        """
        standing = Standing.of(reply)
        if foreign := standing.foreign(self._keys):
            self._groups.extendleft(reversed(write.groups))
            raise JobDamaged(self.job, foreign)
        again, damages = self._take_again(write, standing)
        self._writing = again.groups
        started = time.monotonic()
        await self._send(again)
        await self._say_mended()
        self._settle(again, started)
        if damages:
            raise JobDamaged(self.job, damages)

    def _settle(self, write: Write, started: float) -> None:
        """Account for a write that is in the store. started: when it was sent, monotonic seconds."""
        self.measures.appended(time.monotonic() - started, write.records, write.size_bytes)
        self.sequence, self._chain = write.sequence, write.chain
        self._history += write.commit - self._commit
        self._events += sum([len(group.events) for group in write.groups])
        self._commit, self._event = write.commit, write.event
        self._replaces, self._cut = False, None
        self._writing = ()
        self._kept.keep(
            write.commit, write.event, [group.entries for group in write.groups], time.monotonic()
        )
        for group in write.groups:
            self.durable = group.end
            self._listener.durable(group.end)
            if not group.durable.done():
                group.durable.set_result(None)
        self._changed.announce()

    def _take_again(self, write: Write, standing: Standing) -> tuple[Write, list[Damage]]:
        """Build the write that replaces one refused because of missing older writes.

        Also returns the damages: commits and events that are lost for good because they are no longer kept.
        """
        logger.error(
            "the store lost acknowledged writes; the whole state is written again",
            job=self.job,
            sequence=self.sequence,
            stored=standing.sequence,
            keys=standing.changed,
        )
        options, keys = self._options, self._keys
        commit = min(keys.commits_in(standing.newest_commit) or 0, self._commit)
        event = min(keys.event_in(standing.newest_event) or 0, self._event)
        history = min(self._history, options.history_entries_max)
        events = min(self._events, options.events_max)
        damages = [
            *gone(keys.history, "commit", commit, self._commit, self._kept.commit, standing.history, history),
            *gone(keys.events, "event", event, self._event, self._kept.event, standing.events, events),
        ]
        lost = self._kept.beyond(commit, event)
        groups = list(write.groups)
        self._groups.extendleft(reversed(groups))
        again = self._take(is_replacement=True, beyond=standing.sequence)
        if damages:
            new_events = sum(len(group.events) for group in again.groups)
            expected = (history + again.commit - self._commit, events + new_events)
            return replace(again, lost=lost, expected=expected), damages
        return replace(again, lost=lost), damages

    async def _say_mended(self) -> None:
        """Notify the owner, before the write is acknowledged: a job missing from all lists would be lost."""
        try:
            await self._listener.mended()
        except _RETRIED as error:
            await self._again(self._listener.mended, error)

    async def _check(self) -> None:
        """Check that the job is still ours and the store still complete."""
        write = Write(self.sequence, "check", self._chain, self._commit, self._event)
        reply = await self._send(write)
        if reply.startswith("GAP"):
            await self._mend(write, reply)

    async def _send(self, write: Write) -> str:
        """Send one write until an answer arrives. Raises Fenced."""
        keys = self._keys
        options = self._options
        arguments = write.arguments(
            self.token,
            keys.stamp,
            history_entries_max=options.history_entries_max,
            events_max=options.events_max,
            state_version=options.state_version,
        )

        async def attempt() -> bytes:
            answer: bytes = await self._script(keys=keys.all, args=arguments)
            return answer

        try:
            answer = await attempt()
        except _RETRIED as error:
            answer = await self._again(attempt, error)
        return require_ours(self.job, self.token, answer.decode())

    async def _again(self, attempt: Callable[[], Awaitable[T]], error: Exception) -> T:
        """Repeat a write without limit; it does not matter whether an earlier attempt arrived (see WRITE)."""
        if self.reachable:
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
        answer: T = await retrying(attempt)
        logger.info("the store answers again", job=self.job)
        self._set_reachable(True)
        return answer

    def _set_reachable(self, reachable: bool) -> None:
        self.reachable = reachable
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
        for waiting in self._asked:
            if not waiting.done():
                waiting.set_exception(error)
        self._asked.clear()
        self._changed.announce()
        self._listener.failed(error)


def _retrieve(future: asyncio.Future[None]) -> None:
    """Retrieve a failure, so that asyncio does not log it for appends that nobody awaits."""
    if not future.cancelled():
        future.exception()
