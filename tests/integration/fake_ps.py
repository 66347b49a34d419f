"""A parameter server without weights: the names that its slots have applied, its session with the master."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc

from elastane_proto import versions
from elastane_proto.v1 import ps_pb2, ps_pb2_grpc
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.pushes import Answer, Push, Verdict
from elastane_slots.tasks import TaskName


class FakePs:
    """cluster: all of a test, by id: whoever gets a slot takes it from its owner there.

    disk: snapshots, by slot, of all of them. names: by slot, the names applied in their order, with every
    repetition: the weights.
    """

    def __init__(
        self, ps_id: str, cluster: dict[str, FakePs], disk: dict[int, tuple[bytes, list[TaskName]]]
    ) -> None:
        self.ps_id, self.cluster, self.disk = ps_id, cluster, disk
        self.held: HeldSlots | None = None
        self.names: dict[int, list[TaskName]] = {}
        self.map = ps_pb2.SlotMap()
        self.model: ps_pb2.SlotModel | None = None
        self.settings = ps_pb2.PsSettings()
        self.read: dict[int, tuple[int, int]] = {}
        self.given: dict[int, int] = {}
        self.ended = asyncio.Event()
        self.refused: str = ""
        self._outgoing: asyncio.Queue[ps_pb2.AttendSlotsRequest | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._welcomed = asyncio.Event()
        cluster[ps_id] = self

    # ------------------------------------------------------------------ session

    async def attend(self, channel: grpc.aio.Channel) -> None:
        """Send Hello with the slots that are held, and follow the master's messages until `die`."""
        self._outgoing = asyncio.Queue()
        self._welcomed.clear()
        held = self.held
        hello = ps_pb2.PsHello(
            job="j",
            ps_id=self.ps_id,
            host="host",
            pid=1,
            address=f"{self.ps_id}:1",
            key=self.ps_id.encode().ljust(32, b"k"),
            process=str(id(self)).encode(),
            version=str(versions.PROTOCOL),
            generation=self.map.generation,
            held=[
                ps_pb2.HeldSlot(
                    slot=slot, life=held[slot].life, version=held[slot].version, since=held[slot].since
                )
                for slot in held
            ]
            if held is not None
            else [],
        )
        self.say(hello=hello)
        self._task = asyncio.create_task(self._follow(channel))
        async with asyncio.timeout(10):
            await self._welcomed.wait()

    def say(self, **message: object) -> None:
        """Send a message to the master."""
        self._outgoing.put_nowait(ps_pb2.AttendSlotsRequest(**message))  # type: ignore[arg-type]

    async def die(self) -> None:
        """Break the stream without PsBye; only the snapshots are left."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.cluster.pop(self.ps_id, None)

    async def leave(self) -> None:
        """Send PsBye, and end."""
        self.say(bye=ps_pb2.PsBye(reason="drained"))
        self._outgoing.put_nowait(None)
        await self.ended.wait()
        self.cluster.pop(self.ps_id, None)

    async def _said(self) -> AsyncIterator[ps_pb2.AttendSlotsRequest]:
        while (message := await self._outgoing.get()) is not None:
            yield message

    async def _follow(self, channel: grpc.aio.Channel) -> None:
        call = ps_pb2_grpc.SlotServiceStub(channel).AttendSlots(self._said())
        try:
            async for response in call:
                kind = response.WhichOneof("message")
                handle: Callable[..., None] = getattr(self, f"_{kind}")
                handle(getattr(response, kind))
        except grpc.aio.AioRpcError as error:
            self.refused = error.details() or ""
        finally:
            call.cancel()
            self.ended.set()

    # ------------------------------------------------------------------ what the master says

    def _welcome(self, message: ps_pb2.PsWelcome) -> None:
        self.settings = message.settings
        if self.held is None:
            limit = message.settings.staleness if message.settings.HasField("staleness") else None
            self.held = HeldSlots(len(message.map.places), limit)
        if message.HasField("model"):
            self.model = message.model
        self._welcomed.set()
        self._map(message.map)

    def _model(self, model: ps_pb2.SlotModel) -> None:
        self.model = model
        self._map(self.map)

    def _map(self, slot_map: ps_pb2.SlotMap) -> None:
        if slot_map.generation < self.map.generation or self.held is None:
            return
        self.map = slot_map
        self.held.learn(slot_map.generation)
        for slot, place in enumerate(slot_map.places):
            if place.target == self.ps_id and self.given.get(slot) != place.begun:
                self._take(slot, place)
            if place.owner != self.ps_id:
                if slot in self.held and place.target != self.ps_id:
                    self.held.release(slot)
            elif place.restoring:
                self._restore(slot, place)
            elif slot in self.held:
                self.held[slot].frozen = bool(place.target)
                self.held[slot].since = place.since

    def _restore(self, slot: int, place: ps_pb2.SlotPlace) -> None:
        assert self.held is not None
        if self.model is None or self.read.get(slot) == (place.life, place.since):
            return
        self.read[slot] = place.life, place.since
        stored, names = self.disk.get(slot, (b"", []))
        record = SlotRecord.decode(stored, place.since) if stored else SlotRecord()
        snapshot_life = record.life if stored else -1
        if snapshot_life < place.life:
            record.restored(place.life, place.fence, place.since)
        self.held.hold(slot, record)
        self.names[slot] = list(names)
        restored = ps_pb2.SlotRestored(
            slot=slot,
            life=place.life,
            version=record.version,
            applied=record.applied.encode(),
            snapshot="disk" if stored else "",
            since=place.since,
            snapshot_life=snapshot_life,
        )
        self.say(restored=restored)

    def _take(self, slot: int, place: ps_pb2.SlotPlace) -> None:
        """Carry out a whole move at once: freeze the owner, and take its record and names."""
        assert self.held is not None
        owner = self.cluster.get(place.owner)
        if owner is None or owner.held is None or slot not in owner.held:
            return
        owner.held[slot].frozen = True
        self.given[slot] = place.begun
        self.held.hold(slot, SlotRecord.decode(owner.held[slot].encode(), place.begun))
        self.names[slot] = list(owner.names[slot])
        self.say(copied=ps_pb2.SlotCopied(slot=slot, ps_id=self.ps_id, begun=place.begun))

    def _save(self, order: ps_pb2.SaveSlots) -> None:
        self.save()
        assert self.held is not None
        saved = [
            ps_pb2.SavedSlot(
                slot=slot,
                life=self.held[slot].life,
                version=self.held[slot].version,
                folder=f"{order.folder}/{slot}",
                applied=self.held[slot].applied.encode(),
                sha256=b"s" * 32,
                bytes=10,
            )
            for slot in self.owned()
        ]
        self.say(saved=ps_pb2.SlotsSaved(request=order.request, slots=saved))

    def _save_manifest(self, order: ps_pb2.SaveManifest) -> None:
        self.say(saved=ps_pb2.SlotsSaved(request=order.request))

    def _close(self, order: ps_pb2.CloseTasks) -> None:
        assert self.held is not None
        names = [
            TaskName(run.dataset, run.epoch, i) for run in order.tasks for i in range(run.start, run.end)
        ]
        slots = [
            ps_pb2.ClosedSlot(
                slot=slot, life=self.held[slot].life, applied=[self.held[slot].close(name) for name in names]
            )
            for slot in self.owned()
            if not self.held[slot].frozen
        ]
        self.say(closed=ps_pb2.TasksClosed(tasks=order.tasks, slots=slots))

    def _drain(self, order: ps_pb2.PsDrain) -> None:
        pass

    def _done(self, order: ps_pb2.PsDone) -> None:
        self.say(bye=ps_pb2.PsBye(reason=order.reason))
        self._outgoing.put_nowait(None)

    # ------------------------------------------------------------------ data

    def owned(self) -> list[int]:
        """Slots that it serves."""
        return [
            slot
            for slot, place in enumerate(self.map.places)
            if place.owner == self.ps_id and not place.restoring
        ]

    def save(self) -> None:
        """Write a snapshot of every slot."""
        assert self.held is not None
        for slot in self.owned():
            self.disk[slot] = (self.held[slot].encode(), list(self.names[slot]))

    def push(self, slot: int, push: Push) -> Answer:
        """Answer a push; a slot that is being restored is not there yet."""
        assert self.held is not None
        if slot not in self.owned():
            return Answer(Verdict.NOT_YET, self.map.generation)
        answer = self.held.judge(slot, push)
        if answer.verdict is Verdict.APPLIED:
            self.held.record(slot, push)
            self.names[slot].append(push.name)
        return answer
