"""A worker that leases tasks, pulls every slot, and pushes to every slot: the rules of the client.

It may have several tasks in flight, and be frozen or killed at any time: what it does after it wakes up is
what it would have done before. Its map comes from the master; a push is sent again, under its name, as long
as a slot's answer is not final.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from elastane.slots.frames import CODES
from elastane.slots.push_state import PushState
from elastane_proto.v1 import ps_pb2, shard_pb2
from elastane_slots.pushes import RETURNED_VERDICTS, Answer, Pulled, Push
from elastane_slots.tasks import TaskName
from sim.callers import Caller
from sim.network import Ended, Stream
from slot_sim.checkers import DATASET, JOB, OTHER, SlotCheckers
from slot_sim.ps_model import PsModel, _map_of
from slot_sim.wire import Wire

WATCH = "/elastane.v1.SlotService/WatchMap"
ANSWER_SECONDS = 1.0
AGAIN_SECONDS = 0.05
STEP_SECONDS = (0.0, 0.01, 0.1)
#: Longer than a lease.
LONG_SECONDS = (4.0, 8.0)
READ_SECONDS = (0.0, 0.0, 0.3)


@dataclass(eq=False)
class PusherModel(Caller):
    """One process. ahead: tasks in flight at a time. errs: share of attempts that end with an error.

    leaves: it goes through two data sets, and leaves one for the other now and then; what it has begun goes
    on, as that of a worker that has lost its leases.
    sparse: a task has nothing for some slots, which hear of its name alone. slow: share of steps, and of
    batches that are read, that last longer than a lease.
    """

    wire: Wire = None  # type: ignore[assignment]
    peers: dict[str, PsModel] = field(default_factory=dict)
    settings: shard_pb2.DatasetSettings = field(default_factory=shard_pb2.DatasetSettings)
    model: ps_pb2.SlotModel = field(default_factory=ps_pb2.SlotModel)
    ahead: int = 1
    errs: float = 0.0
    leaves: bool = False
    sparse: bool = False
    slow: float = 0.0
    is_through: bool = False

    @property
    def slot_checkers(self) -> SlotCheckers:
        assert isinstance(self.checkers, SlotCheckers)
        return self.checkers

    def start(self) -> None:
        self.map = None
        self._generation = 0
        self._changed: list[asyncio.Future[None]] = []
        self._busy = 0
        self._reports: dict[str, list[shard_pb2.TaskReport]] = {DATASET: [], OTHER: []}
        #: Tasks of which some slots may have a part.
        self._pushing: set[TaskName] = set()
        self.process.spawn(self._main())

    def kill(self) -> None:
        """SIGKILL."""
        self.world.log(f"{self.name} is killed")
        self.slot_checkers.torn |= self._pushing
        self.process.kill()

    # ------------------------------------------------------------------ the map

    def _watch(self) -> None:
        masters = self.masters()
        if not masters:
            self.process.call_later(0.2, self._watch)
            return
        stream = Stream(
            self.network,
            self.process,
            self.world.rng.choice(masters),
            self._told,
            lambda ended: self.process.call_later(0.2, self._watch),
            method=WATCH,
        )
        request = ps_pb2.WatchMapRequest(job=JOB, worker_id=self.name, generation=self._generation)
        stream.write(request.SerializeToString())

    def _told(self, payload: bytes) -> None:
        message = ps_pb2.WatchMapResponse.FromString(payload).map
        if self.map is not None and message.generation < self.map.generation:
            return  # of a master that has been overtaken
        self.map = _map_of(message)
        self.tokens = {one.ps_id: one.address.removesuffix(":1").encode() for one in message.processes}
        self._generation = self.map.generation
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    async def _newer(self, seconds: float) -> None:
        """Wait for a map, or for a while."""
        future = self.process.create_future()
        self._changed.append(future)
        self.process.call_later(seconds, lambda: future.done() or future.set_result(None))
        await future

    # ------------------------------------------------------------------ tasks

    async def _main(self) -> None:
        left = [DATASET, OTHER] if self.leaves else [DATASET]
        create = [
            shard_pb2.CreateDatasetRequest(
                job=JOB, dataset=name, settings=self.settings, request_id=self.request_id()
            )
            for name in left
        ]
        for one in create:
            await self.ask("ShardService/CreateDataset", one)
        register = ps_pb2.RegisterModelRequest(job=JOB, worker_id=self.name, model=self.model)
        await self.ask("SlotService/RegisterModel", register)
        self._watch()
        rng, dataset = self.world.rng, left[0]
        while True:
            while self._busy >= self.ahead and not self._reports[dataset]:
                await asyncio.sleep(0.02)
            reports, self._reports[dataset] = self._reports[dataset], []
            leaves = self.leaves and rng.random() < 0.2
            request = shard_pb2.LeaseTasksRequest(
                job=JOB,
                dataset=dataset,
                worker_id=self.name,
                completed=reports,
                max_tasks=0 if leaves else max(0, self.ahead - self._busy),
                request_id=self.request_id(),
                leaves=leaves,
            )
            request.wait.FromMilliseconds(rng.choice((0, 200, 1000)) if not self._busy else 0)
            try:
                response = await self.ask("ShardService/LeaseTasks", request, rng.choice((0.5, 2.0)))
            except Ended as ended:
                self.world.log(f"{self.name} is refused: {ended}")
                # A store that has lost the data set or the model.
                for one in create:
                    await self.ask("ShardService/CreateDataset", one, may_be_wrong=True)
                await self.ask("SlotService/RegisterModel", register, may_be_wrong=True)
                await asyncio.sleep(0.5)
                continue
            if response.complete:
                self.slot_checkers.told_of_the_end(dataset)
                if len(left) > 1:
                    left.remove(dataset)
                    dataset = left[0]
                    continue
                self.is_through = not self._busy
                if self.is_through:
                    return
            for task in response.tasks:
                self._busy += 1
                self.process.spawn(self._do(dataset, task))
            if leaves:
                dataset = rng.choice(left)
            if not response.tasks:
                await asyncio.sleep(rng.choice((0.01, 0.05)))

    def _over(self, dataset: str, report: shard_pb2.TaskReport | None) -> None:
        self._busy -= 1
        if report is not None:
            self._reports[dataset].append(report)

    async def _do(self, dataset: str, task: shard_pb2.Task) -> None:
        name = TaskName(dataset, task.epoch, task.index)
        report = shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
        while self.map is None or self.map.generation < task.map_generation:
            await self._newer(0.5)
        # The batch is read before its rows are known.
        await asyncio.sleep(self._seconds(READ_SECONDS))
        slots = range(len(self.map.places))
        pulled = await self._pull_all([slot for slot in slots if self._needs(name, slot)], task)
        if self.world.rng.random() < self.errs:
            report.error = "the script raised"
            if pulled is not None and self.world.rng.random() < 0.5:
                # Between two slots: a part of it is applied.
                await self._push_all(list(slots)[: len(slots) // 2], name, task, pulled)
            self._over(dataset, report)
            return
        await asyncio.sleep(self._seconds(STEP_SECONDS))
        if pulled is None:
            report.returned, report.error = True, "a slot was restored"
            self._over(dataset, report)
            return
        outcome = (await self._push_all(slots, name, task, pulled)).outcome
        assert outcome is not None
        if outcome.kind == "done":
            report.lives_sum = outcome.lives_sum
            report.map_generations.extend(outcome.map_generations)
        elif outcome.kind == "returned":
            report.returned, report.error = True, outcome.reason
            self.slot_checkers.torn.add(name)
        else:
            self._over(dataset, None)
            return
        self._over(dataset, report)

    def _seconds(self, usual: tuple[float, ...]) -> float:
        rng = self.world.rng
        return rng.choice(LONG_SECONDS if rng.random() < self.slow else usual)

    def _needs(self, name: TaskName, slot: int) -> bool:
        return not self.sparse or (name.task + name.epoch + slot) % 3 > 0

    async def _pull_all(self, slots: list[int], task: shard_pb2.Task) -> dict[int, Pulled] | None:
        """The state of every slot; None if a slot was restored after the lease."""
        found: dict[int, Pulled] = {}
        while len(found) < len(slots):
            for slot in slots:
                if slot in found:
                    continue
                told = await self._asked(
                    slot,
                    lambda ps, generation, answer, slot=slot: ps.pull(slot, task.lease, generation, answer),
                )
                if told in RETURNED_VERDICTS:
                    return None
                if isinstance(told, Pulled):
                    found[slot] = told
            if len(found) < len(slots):
                await self._newer(AGAIN_SECONDS)
        return found

    async def _push_all(
        self, slots: list[int] | range, name: TaskName, task: shard_pb2.Task, pulled: dict[int, Pulled]
    ) -> PushState:
        state = PushState(slots)
        self._pushing.add(name)
        while state.outcome is None:
            for slot in self.world.rng.sample(sorted(state.open), len(state.open)):
                told = await self._asked(
                    slot,
                    lambda ps, generation, answer, slot=slot: ps.push(
                        slot, Push(name, task.lease, generation, pulled.get(slot)), task.attempt, answer
                    ),
                )
                if isinstance(told, Answer):
                    code = CODES[told.verdict]
                    state.answered([slot], code, told.life, told.version, told.staleness, told.generation)
                if state.outcome is not None:
                    break
            else:
                await self._newer(AGAIN_SECONDS)
        self._pushing.discard(name)
        return state

    async def _asked(self, slot: int, ask: Callable[..., None]) -> object:
        """Ask a slot's owner by the newest map; None without an answer in time."""
        assert self.map is not None
        place, generation = self.map.places[slot], self.map.generation
        ps = self.peers.get(place.owner)
        if ps is None or not ps.is_alive or self.tokens.get(place.owner) != ps.token:
            return None
        future = self.process.create_future()

        def settle(value: object) -> None:
            if not future.done():
                future.set_result(value)

        def answer(value: object) -> None:
            self.wire.send(ps.process, self.process, lambda: settle(value))

        self.wire.send(self.process, ps.process, lambda: ask(ps, generation, answer), lambda: settle(None))
        patience = self.process.call_later(ANSWER_SECONDS, settle, None)
        try:
            return await future
        finally:
            patience.cancel()
