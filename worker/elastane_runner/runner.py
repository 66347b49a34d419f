"""A runner: attends the master, and carries out its messages with an engine.

    Prepare ──▶ code, secrets, ports ──▶ Prepared         `launching`, in a thread
    Start   ──▶ engine.launch ──▶ RankChanged             as the engine tells it
    Stop    ──▶ engine.stop ──▶ RankChanged, Stopped
    Forget  ──▶ logs are stored ──▶ folders are removed   `run_outcomes`

The ranks are the engine's, and go on without a runner and without a master. So nothing that is sent has to
arrive: the Hello of the next stream, also of the next runner process, lists every rank that there is, and
the master repeats what it wants. A launch is named by its fence; of a run, one with a lower fence than was
seen is refused, and a higher one ends those before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from elastane_common.cancellation import end_all
from elastane_proto.v1 import training_pb2
from elastane_runner import launching
from elastane_runner.code_folder import CodeCache
from elastane_runner.engine import Engine, EngineError, EngineUnreachableError, RankEvent, RankState
from elastane_runner.environment import Endpoint, LaunchSpecError
from elastane_runner.held_ports import HeldPort, PortError
from elastane_runner.launches import (
    Launch,
    LaunchKey,
    LaunchStore,
    Rank,
    folder_id,
    launch_of,
)
from elastane_runner.launching import LaunchError, LaunchSettings, Preparation, ServiceStorage
from elastane_runner.log_sending import LogSender
from elastane_runner.master_stream import MasterStream, Response
from elastane_runner.messages import attempt_of, key_of, rank_report, record_of
from elastane_runner.progress import Progress
from elastane_runner.rank_gpus import gpus_for
from elastane_runner.run_outcomes import RunOutcomes

_log = structlog.get_logger(__name__)

#: Between two tries to reach an engine that does not answer.
UNREACHABLE_SECONDS: Final = 2.0

#: Runs whose newest fence is remembered.
_FENCES_MAX: Final = 100_000

#: How long a master waits without progress that does not say so.
PREPARE_SECONDS_DEFAULT: Final = 120.0
#: How often progress is told within that time.
TELLS: Final = 4


@dataclass(frozen=True, kw_only=True)
class RunnerSettings:
    """A runner's description of itself to the master. folder: for its records; no other runner uses it.

    device_type: of its slots; empty: cpu. memory_bytes: of one device; 0: unknown.
    """

    runner_id: str
    slots: int
    folder: Path
    launch: LaunchSettings
    kind: str = "process"
    labels: Mapping[str, str] = field(default_factory=dict)
    device_type: str = ""
    memory_bytes: int = 0


class Runner:
    """One runner. Used from one event loop.

    engine: starts its ranks; not adopted yet. outcomes: stores what ended ranks have left.
    """

    def __init__(self, settings: RunnerSettings, engine: Engine, outcomes: RunOutcomes) -> None:
        self._settings = settings
        self._engine = engine
        self._outcomes = outcomes
        self._store = LaunchStore(settings.folder)
        self._folder_id = folder_id(settings.folder)
        self._cache = CodeCache(settings.folder)
        self._launches: dict[LaunchKey, Launch] = {}
        #: The newest fence of each run, that was seen last at the end.
        self._fences: dict[int, int] = {}
        self._preparations: dict[LaunchKey, Preparation] = {}
        #: How launches get on that are being prepared or started.
        self._progress: dict[LaunchKey, Progress] = {}
        self._prepare_seconds = PREPARE_SECONDS_DEFAULT
        self._welcomed = asyncio.Event()
        #: Held while the code of a launch is unpacked, which its ranks share.
        self._unpacking: dict[LaunchKey, asyncio.Lock] = {}
        #: Ranks for which something is being done, and who does it.
        self._busy: dict[tuple[LaunchKey, int], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._storage = ServiceStorage()
        self._changed = asyncio.Event()
        self._stream = MasterStream(
            settings.launch.masters,
            hello=self._hello,
            received=self._received,
            welcomed=self._welcome,
        )
        self._logs = LogSender(lambda chunk: self._stream.send(log_chunk=chunk))

    async def run(self) -> None:
        """Attend until `leave`. Raises RefusedError if a master refuses this runner, and EngineError."""
        await self._adopt()
        watching = asyncio.create_task(self._watch())
        telling = asyncio.create_task(self._tell_progress())
        attending = asyncio.create_task(self._stream.run())
        try:
            done, _ = await asyncio.wait({watching, attending}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._logs.close()
            for preparation in self._preparations.values():
                preparation.release()
            await end_all([watching, telling, attending, *self._tasks])

    async def leave(self, reason: str, *, stops: bool) -> None:
        """Accept no new ranks, and end the session; the ranks continue, or are stopped first."""
        self._stream.send(leaving=training_pb2.RunnerLeaving(reason=reason))
        if stops:
            await asyncio.gather(
                *(
                    self._stop(launch, launching.grace_seconds(launch.record))
                    for launch in list(self._launches.values())
                )
            )
        self._stream.close()

    # ------------------------------------------------------------------ what there is

    async def _adopt(self) -> None:
        attempts = await self._engine.adopt()
        for launch in self._store.load(attempts, time.time()):
            self._launches[launch.key] = launch
            self._fences[launch.key.run_id] = max(launch.key.fence, self._fences.get(launch.key.run_id, 0))
            if not launch.lives and not launch.record.elastic:
                self._ended(launch)
        known = {(unit.run, unit.attempt) for one in self._launches.values() for unit in one.record.units()}
        for attempt in attempts:
            if not attempt.launched or (attempt.run, attempt.attempt) not in known:
                self._begin(self._discard(attempt.run, attempt.attempt))

    async def _discard(self, run: str, attempt: int) -> None:
        """Remove attempts without a known launch: it was rolled back, or its record is lost."""
        with contextlib.suppress(EngineError):
            await self._engine.stop(run, attempt, 0.0)
        await self._remove(run, attempt)

    async def _remove(self, run: str, attempt: int) -> None:
        """Make the engine delete an attempt as soon as it answers."""
        while True:
            try:
                await self._engine.remove(run, attempt)
            except EngineUnreachableError:
                await asyncio.sleep(UNREACHABLE_SECONDS)
            except EngineError as error:
                _log.warning("an attempt is not removed", run=run, attempt=attempt, reason=str(error))
                return
            else:
                return

    def _hello(self) -> training_pb2.RunnerHello:
        settings = self._settings
        return training_pb2.RunnerHello(
            runner_id=settings.runner_id,
            host=settings.launch.host,
            kind=settings.kind,
            slots=settings.slots,
            labels=settings.labels,
            algorithms=sorted(settings.launch.algorithms),
            folder_id=self._folder_id,
            device_type=settings.device_type,
            memory_bytes=settings.memory_bytes,
            ranks=[
                self._report(launch, rank)
                for launch in self._launches.values()
                for rank in launch.ranks.values()
            ],
        )

    def _report(self, launch: Launch, rank: Rank) -> training_pb2.RankReport:
        settings = self._settings
        return rank_report(launch.key, rank, runner_id=settings.runner_id, host=settings.launch.host)

    def _tell(self, launch: Launch, rank: Rank) -> None:
        report = self._report(launch, rank)
        self._stream.send(rank_changed=training_pb2.RunnerRankChanged(report=report))

    # ------------------------------------------------------------------ messages

    def _welcome(self, welcome: training_pb2.RunnerWelcome) -> None:
        self._logs.close()
        self._storage = ServiceStorage(welcome.artifact_url, welcome.artifact_mark)
        if welcome.HasField("prepare"):
            self._prepare_seconds = welcome.prepare.ToTimedelta().total_seconds()
        self._welcomed.set()
        _log.info("attends", ranks=sum(len(launch.ranks) for launch in self._launches.values()))

    def _received(self, message: Response) -> None:
        match message.WhichOneof("message"):
            case "prepare":
                self._on_prepare(message.prepare)
            case "start":
                self._on_start(message.start)
            case "stop":
                self._on_stop(message.stop)
            case "forget":
                launch = self._launches.get(key_of(message.forget.attempt))
                if launch is not None and not launch.lives:
                    self._begin(self._forget(launch))
            case "read_log":
                self._read_log(message.read_log)
            case other:
                _log.warning("a message is not known to this release", message=other)

    def _read_log(self, request: training_pb2.RunnerReadLog) -> None:
        launch, number = self._launches.get(key_of(request.attempt)), request.rank
        if launch is None or number not in launch.record.tries:
            self._logs.handle(request, None)
            return
        folder = self._engine.rank_folder(*launch.record.unit_of(number), number)

        def is_over() -> bool:
            rank = launch.ranks.get(number)
            return (rank is None or not rank.lives) and (launch.key, number) not in self._busy

        self._logs.handle(request, folder, is_over)

    # ------------------------------------------------------------------ prepare

    def _on_prepare(self, message: training_pb2.RunnerPrepare) -> None:
        key = key_of(message.attempt)
        if self._is_stale(key):
            return
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches[key] = self._store.new(record_of(message))
        if launch.stopping:
            return
        for rank in message.ranks:
            known = launch.ranks.get(rank)
            if (key, rank) in self._busy:
                continue  # its answer will come
            if known is not None and known.state == "prepared":
                self._say_prepared(launch, [rank])
            elif known is not None and (known.lives or not launch.record.elastic):
                self._tell(launch, known)
        new = [
            rank
            for rank in message.ranks
            if (key, rank) not in self._busy
            and (rank not in launch.ranks or (launch.record.elastic and not launch.ranks[rank].lives))
        ]
        if new:
            self._begin(self._prepare(launch, new), launch, new)

    async def _prepare(self, launch: Launch, ranks: list[int]) -> None:
        try:
            launching.check_network(launch.record, {*launch.record.tries, *ranks}, self._settings.launch)
            await self._end_older(launch)
            async with self._unpacking.setdefault(launch.key, asyncio.Lock()):
                if (preparation := self._preparations.get(launch.key)) is None:
                    preparation = self._preparations[launch.key] = await asyncio.to_thread(
                        launching.prepare,
                        launch,
                        self._storage,
                        self._cache,
                        self._settings.launch,
                        self._progress_of(launch).tell,
                    )
            for rank in ranks:
                launch.record.tries[rank] = launch.record.tries.get(rank, 0) + 1
                self._give_gpus(launch, rank)
                if not launch.record.elastic:
                    preparation.ports[rank] = HeldPort()
            await asyncio.to_thread(launch.save)
        except (LaunchError, PortError, OSError) as error:
            self._not_launched(launch, ranks, error)
            return
        for rank in ranks:
            launch.ranks[rank] = Rank(rank)
        self._say_prepared(launch, ranks)

    def _give_gpus(self, launch: Launch, number: int) -> None:
        """Choose the GPUs of a rank, if ranks get separate GPUs here."""
        if self._settings.launch.gpus is None:
            return
        launch.record.gpus.pop(number, None)  # of the try before
        taken = [
            gpu
            for one in self._launches.values()
            for other, gpus in one.record.gpus.items()
            if (one.key, other) in self._busy or (other in one.ranks and one.ranks[other].lives)
            for gpu in gpus
        ]
        slots = launching.spec_of(launch.record).slots_per_instance or 1
        launch.record.gpus[number] = gpus_for(
            self._settings.launch.gpus, taken, slots=self._settings.slots, slots_of_rank=slots
        )

    async def _end_older(self, launch: Launch) -> None:
        """End launches of the same run that the master has given up: at most one may be alive."""
        older = [
            one
            for one in self._launches.values()
            if one.key.run_id == launch.key.run_id and one.key.fence < launch.key.fence and one.lives
        ]
        for one in older:
            await self._stop(one, launching.grace_seconds(one.record))

    def _say_prepared(self, launch: Launch, ranks: Iterable[int]) -> None:
        ports = self._preparations[launch.key].ports
        endpoints = [
            training_pb2.RankEndpoint(
                rank=rank,
                host=self._host(launch, rank),
                port=ports[rank].number if rank in ports else 0,
            )
            for rank in ranks
        ]
        self._stream.send(
            prepared=training_pb2.RunnerPrepared(attempt=attempt_of(launch.key), endpoints=endpoints)
        )

    def _host(self, launch: Launch, rank: int) -> str:
        """Return the host at which other ranks reach this one."""
        settings = self._settings.launch
        return settings.pod_host(launch.record.unit_of(rank), rank) if settings.pod_host else settings.host

    # ------------------------------------------------------------------ start

    def _on_start(self, message: training_pb2.RunnerStart) -> None:
        key = key_of(message.attempt)
        launch = self._launches.get(key)
        if self._is_stale(key):
            return
        if launch is None:
            self._fail(key, "it is not prepared here")
            return
        if launch.stopping:
            return
        endpoints = {one.rank: Endpoint(one.host, one.port) for one in message.endpoints}
        mine = [rank for rank in launch.ranks if rank in endpoints]
        ready = [
            rank for rank in mine if launch.ranks[rank].state == "prepared" and (key, rank) not in self._busy
        ]
        for rank in mine:
            if launch.ranks[rank].state != "prepared":
                self._tell(launch, launch.ranks[rank])
        for unit in [[rank] for rank in ready] if launch.record.elastic else [ready] if ready else []:
            self._begin(self._start(launch, unit, endpoints), launch, unit)

    async def _start(self, launch: Launch, ranks: list[int], endpoints: Mapping[int, Endpoint]) -> None:
        preparation = self._preparations[launch.key]
        try:
            tell = self._progress_of(launch).tell
            plan = launching.plan(launch, preparation, ranks, endpoints, self._settings.launch, tell)
            preparation.release(ranks)
            await self._engine.launch(plan)
        except LaunchSpecError as error:
            self._not_launched(launch, ranks, LaunchError(str(error), is_permanent=True))
        except (EngineError, OSError) as error:
            self._not_launched(launch, ranks, error)

    # ------------------------------------------------------------------ progress

    def _progress_of(self, launch: Launch) -> Progress:
        return self._progress.setdefault(launch.key, Progress())

    async def _tell_progress(self) -> None:
        """Report progress of slow preparations and starts, so that the master keeps waiting."""
        await self._welcomed.wait()  # how often depends on the master
        while True:
            await asyncio.sleep(self._prepare_seconds / TELLS)
            said = {key: words for key, one in self._progress.items() if (words := one.take())}
            for key, number in list(self._busy):
                if (launch := self._launches.get(key)) is not None and key in said:
                    rank = launch.ranks.get(number)
                    if rank is None or rank.state == "prepared":
                        self._tell(launch, Rank(number, state="pending", reason=said[key]))

    # ------------------------------------------------------------------ failures

    def _not_launched(self, launch: Launch, ranks: Iterable[int], error: Exception) -> None:
        """Report that ranks were not started: as a failed launch if there are no other ranks of it here."""
        permanent = isinstance(error, (LaunchError, EngineError)) and error.is_permanent
        _log.warning("a launch failed", run=launch.key.run_id, reason=str(error), permanent=permanent)
        if (preparation := self._preparations.get(launch.key)) is not None:
            preparation.release(ranks)
        gone = [launch.ranks.pop(rank, Rank(rank)) for rank in ranks]
        if not launch.lives:
            self._fail(launch.key, str(error), permanent=permanent)
            return
        for rank in gone:
            rank.apply(RankState.LOST, None, str(error).encode(), time.time())
            self._tell(launch, rank)

    def _fail(self, key: LaunchKey, reason: str, *, permanent: bool = False) -> None:
        self._stream.send(
            launch_failed=training_pb2.RunnerLaunchFailed(
                attempt=attempt_of(key), reason=reason, permanent=permanent
            )
        )

    # ------------------------------------------------------------------ stop

    def _on_stop(self, message: training_pb2.RunnerStop) -> None:
        launch = self._launches.get(key_of(message.attempt))
        if launch is None:
            self._stream.send(stopped=training_pb2.RunnerStopped(attempt=message.attempt))
            return
        grace_seconds = message.grace.ToTimedelta().total_seconds()
        ranks = [message.rank] if message.HasField("rank") else None
        _log.info("stops", run=launch.key.run_id, attempt=launch.key.attempt, reason=message.reason)
        self._begin(self._stop_and_confirm(launch, grace_seconds, ranks))

    async def _stop_and_confirm(self, launch: Launch, grace_seconds: float, ranks: list[int] | None) -> None:
        silent = [rank for rank in ranks or () if rank not in launch.ranks or not launch.ranks[rank].lives]
        await self._stop(launch, grace_seconds, ranks)
        for rank in silent:  # no event tells the end of what did not live, and the master waits for it
            self._tell_gone(launch, rank)
        if not launch.lives:
            self._stream.send(stopped=training_pb2.RunnerStopped(attempt=attempt_of(launch.key)))

    def _tell_gone(self, launch: Launch, rank: int) -> None:
        """Report that a rank does not exist here."""
        one = launch.ranks.get(rank)
        if one is None or one.state != "exited":
            one = Rank(rank)
            one.apply(RankState.EXITED, -15, b"", time.time())
        self._tell(launch, one)

    async def _stop(self, launch: Launch, grace_seconds: float, ranks: list[int] | None = None) -> None:
        """End ranks (None: all of the launch), whatever their stage, and return when they are gone."""
        if ranks is None:
            launch.stopping = True
        mine = [rank for rank in launch.record.tries if ranks is None or rank in ranks]
        preparing = [
            task
            for (key, rank), task in self._busy.items()
            if key == launch.key and (ranks is None or rank in ranks) and launch.ranks.get(rank) is None
        ]
        for task in preparing:
            task.cancel()
        starting = [self._busy[launch.key, rank] for rank in mine if (launch.key, rank) in self._busy]
        # A launch that waits for its pods is given up at once; any other one is over soon.
        begun = {
            launch.record.unit_of(rank)
            for rank in mine
            if (launch.key, rank) in self._busy and rank in launch.ranks
        }
        ends = [self._end(run, attempt, grace_seconds) for run, attempt in begun]
        await asyncio.gather(*{*preparing, *starting}, *ends, return_exceptions=True)
        if (preparation := self._preparations.get(launch.key)) is not None:
            preparation.release(ranks)
        units = {launch.record.unit_of(rank) for rank in mine if rank in launch.ranks}
        await asyncio.gather(*(self._end(run, attempt, grace_seconds) for run, attempt in units))
        for rank in mine:
            one = launch.ranks.get(rank)
            if one is not None and one.state == "prepared" and not await self._has(launch, rank):
                one.apply(RankState.EXITED, -15, b"", time.time())
                self._tell(launch, one)
        while any(launch.ranks[rank].lives for rank in mine if rank in launch.ranks):
            await self._changed.wait()
        if launch.stopping and not launch.lives:
            self._ended(launch)

    async def _end(self, run: str, attempt: int, grace_seconds: float) -> None:
        with contextlib.suppress(EngineError):  # it was never launched
            await self._engine.stop(run, attempt, grace_seconds)

    async def _has(self, launch: Launch, rank: int) -> bool:
        """True if the engine has started this rank."""
        folder = self._engine.rank_folder(*launch.record.unit_of(rank), rank)
        return await asyncio.to_thread(folder.exists)

    # ------------------------------------------------------------------ what happens to ranks

    async def _watch(self) -> None:
        async for event in self._engine.watch():
            self._on_event(event)
            self._changed.set()
            self._changed = asyncio.Event()

    def _on_event(self, event: RankEvent) -> None:
        key = launch_of(event.run)
        launch = self._launches.get(key) if key is not None else None
        rank = launch.ranks.get(event.rank) if launch is not None else None
        if launch is None or rank is None or not rank.lives:
            return
        if launch.record.unit_of(event.rank) != (event.run, event.attempt):
            return
        rank.apply(event.state, event.returncode, event.last_line, time.time(), event.reason)
        self._tell(launch, rank)
        if not launch.lives and not launch.record.elastic:
            self._ended(launch)

    def _ended(self, launch: Launch) -> None:
        """Store the results of a launch that has ended here."""
        if (preparation := self._preparations.pop(launch.key, None)) is not None:
            preparation.release()
        self._progress.pop(launch.key, None)
        self._outcomes.store(launch)

    async def _forget(self, launch: Launch) -> None:
        launch.stopping = True
        self._ended(launch)
        await self._outcomes.conclude(launch)
        if self._launches.pop(launch.key, None) is None:  # it was sent twice
            return
        self._unpacking.pop(launch.key, None)
        units = list(launch.record.units())
        ranks = launch.record.tries
        await self._logs.finish([self._engine.rank_folder(*unit, rank) for unit in units for rank in ranks])
        for unit in units:
            await self._remove(*unit)
        await asyncio.to_thread(self._store.remove, launch)

    # ------------------------------------------------------------------ internals

    def _is_stale(self, key: LaunchKey) -> bool:
        """Remember the newest fence of each run. Refuses an older one, and returns True."""
        newest = max(key.fence, self._fences.pop(key.run_id, 0))
        self._fences[key.run_id] = newest
        if len(self._fences) > _FENCES_MAX:
            del self._fences[next(iter(self._fences))]
        if newest > key.fence:
            self._fail(key, f"the fence {key.fence} of run {key.run_id} is stale: {newest} was seen")
        return newest > key.fence

    def _begin(
        self, work: Coroutine[Any, Any, None], launch: Launch | None = None, ranks: Iterable[int] = ()
    ) -> None:
        """Run a coroutine in the background; ranks of a launch are busy meanwhile."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        places = [(launch.key, rank) for rank in ranks] if launch is not None else []
        self._busy.update(dict.fromkeys(places, task))

        def done(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            for place in places:
                if self._busy.get(place) is task:
                    del self._busy[place]
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("a task of the runner failed", exc_info=error)

        task.add_done_callback(done)
