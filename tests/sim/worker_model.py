"""A worker process around the unmodified modules that decide in a worker, without torch.

`WorkerProtocol`, `StepBoundary`, `StepBody`, `EpochLoop` and `IntervalDraws` are those of workers. What
`WorkerSession`, `MasterSession`, `BoundaryActions` and `StepActions` do with threads and tensors is done here
by tasks of one virtual process: the session carries out what the unmodified `SessionMachine` decides, and the
script goes through its loop body as autograd and the intercepted optimizer do. The trainer can hang, the
script can raise, the process can be frozen, told to leave, or killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health_pb2

from elastane.collective.ring_errors import RingAborted, RingBroken, RingError
from elastane.context import EstContext
from elastane.runtime.epoch_loop import EpochLoop
from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.interval_draws import IntervalDraws
from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane.runtime.session_machine import (
    SILENT_SECONDS,
    ByeRequested,
    CheckLeader,
    End,
    Event,
    LeaderChecked,
    LeaveRing,
    MessageReceived,
    Probe,
    Probed,
    RingLeft,
    SendBye,
    SessionMachine,
    SwitchTo,
    Ticked,
    Welcomed,
)
from elastane.runtime.step_body import StepBody
from elastane.runtime.step_boundary import IntervalError, StepBoundary
from elastane.runtime.step_state import Stage, StepState
from elastane.runtime.turn import Turn
from elastane_common.backoff import backoff_seconds
from elastane_common.client_errors import stream_ended
from elastane_common.stream_session import Connect, Started, StreamEnded, StreamOpened
from elastane_proto.v1 import pipeline_pb2, ring_pb2
from sim import pipelines
from sim.checkers import Checkers
from sim.following import FollowingModel, Link
from sim.group import Group
from sim.master_model import HEALTH, MasterModel
from sim.network import Ended, Network, Stream, call, unavailable
from sim.pipelines import Pipeline, unit_weights
from sim.process import Process
from sim.reference import (
    DRAWS,
    LEADER_DRAWS,
    Context,
    after_draws,
    contribution,
    initial_context,
    initial_weights,
    next_context,
    next_weights,
)
from sim.unlike import Pace, Speed
from sim.world import StoredCheckpoint, StoredShard, World

GroupKey = tuple[int, tuple[str, ...]]
"""Generation and members of a ring: a generation that the store has lost may be reused with other members."""
JOB = "job"
HANG_SECONDS = 8.0
NOTICE_SECONDS = 30.0
BYE_SECONDS = 20.0
MASTER_TIMEOUT_SECONDS = 600.0
PROBE_TIMEOUT_SECONDS = 1.0


@dataclass
class Script:
    """The training script that all workers run.

    receive_seconds: how long its state takes to receive. follows: newcomers follow the ring. writes_outside:
    its optimizer has state of which nothing is known. ahead: workers apply steps ahead of their Prepared
    where they may; in every third step the script asks whether it is applied.
    """

    ests: int
    steps_per_epoch: int
    epochs: int
    step_seconds: float
    user_seconds: float
    receive_seconds: tuple[float, float] = (0.002, 0.05)
    pipeline: Pipeline | None = None
    follows: bool = False
    writes_outside: bool = False
    ahead: bool = False

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def signature(self) -> ring_pb2.ScriptSignature:
        return ring_pb2.ScriptSignature(
            dataset_size=self.steps_per_epoch * self.ests,
            batch_size=1,
            steps_per_epoch=self.steps_per_epoch,
            epochs=self.epochs,
            environment={"torch": "2"},
            pipeline=self.pipeline.model() if self.pipeline is not None else None,
        )


@dataclass(frozen=True)
class Samples:
    """The samples of a mini-batch."""

    start: int
    end: int
    samples: tuple[int, ...]


@dataclass
class Restored:
    """A checkpoint as its leader found it. rejected: newer ones that are damaged."""

    name: str
    step: int
    contexts: dict[int, Context]
    rejected: list[str]
    ready_order: tuple[int, ...] = ()


class ScriptEnds(Exception):  # noqa: N818 - an outcome
    """The script's thread ends. reason: that of the Bye to send."""

    def __init__(self, reason: ring_pb2.ByeReason) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerModel:
    """One worker process. masters: returns those that a connection may reach now."""

    def __init__(
        self,
        world: World,
        network: Network,
        checkers: Checkers,
        script: Script,
        groups: dict[GroupKey, Group],
        links: dict[bytes, Link],
        masters: Callable[[], list[MasterModel]],
        name: str,
        pid: int,
        speed: Speed | None = None,
    ) -> None:
        self.world, self.network, self.checkers = world, network, checkers
        self.script, self.groups, self.masters, self.name, self.pid = script, groups, masters, name, pid
        self.started_at = world.now
        self.speed = speed
        self.process = Process(world, name)
        self.protocol = WorkerProtocol()
        self.machine = SessionMachine(
            "the masters",
            timeout_seconds=MASTER_TIMEOUT_SECONDS,
            now=world.now,
            backoff=partial(backoff_seconds, uniform=world.rng.uniform),
        )
        #: The master of the last stream; that of the next one, if the session has switched to it.
        self.master: MasterModel | None = None
        self.switched_to: MasterModel | None = None
        self.stream: Stream | None = None
        self.is_welcome = False
        self.group: Group | None = None
        #: The group that it forms before its Go.
        self.early: Group | None = None
        self.following = FollowingModel(self, links)
        self.broken_group: Group | None = None
        self.cancelled = False
        # Of a pipeline each worker makes the initial values of its own units, and all of them the same.
        self.lineage = 0 if script.pipeline is not None else pid
        self.weights = initial_weights(self.lineage)
        #: What it holds of the units of a pipeline; with `adopt_state` those that it has received.
        self.units: dict[int, bytes] = {}
        self._staged: dict[int, bytes] = {}
        self.plan = pipeline_pb2.PipelinePlan()
        self._place = 0
        self.contexts = HostedContexts()
        initial = {rank: EstContext(rank, 0, initial_context(rank)) for rank in range(script.ests)}
        self.boundary = StepBoundary(name, self.protocol, self.contexts, initial, self)
        per_epoch = script.steps_per_epoch
        self.loop = EpochLoop(self.protocol, self.boundary, per_epoch, self.set_between, script.steps)
        self.body: StepBody[Turn] = StepBody(
            self.protocol, self.contexts, per_epoch, self, reports_late=False
        )
        self.body.total_steps = script.steps
        #: The weights before the step that was applied ahead.
        self._before = b""
        #: Why the step's all-reduce has failed.
        self.failure: RingError | None = None
        #: The ring that the step began in: an eviction does not stop an optimizer that is at work.
        self._step_generation = 0
        #: All contributions to the step's all-reduce.
        self.gradients: dict[int, bytes] = {}
        #: States of the process's generators and registered items.
        self._states = initial_context(0)
        #: The script's code between epochs.
        self.interval = IntervalDraws(0, initial, initial_context(0), leads=True)
        self._received: tuple[int, bytes] = (0, b"")
        self.reduced_parts: dict[int, bytes] | None = None
        self.reduced_step = -1
        self.hangs = self.raises = False
        self.told_to_end_at: float | None = None
        self.said_bye: ring_pb2.Bye | None = None
        self._at_boundary = False
        self._finds_no_job = False
        self._session_over = False
        self._waiting: list[asyncio.Future[None]] = []
        self._ended: asyncio.Future[Ended | None] | None = None

    # ------------------------------------------------------------------ process

    def start(self) -> None:
        """Start the process's tasks: the script has reached `job.epochs`."""
        self.world.log(f"{self.name} starts, pid {self.pid}")
        self.process.spawn(self._session())
        self.process.spawn(self._beat())
        self.process.spawn(self._look())
        self.process.spawn(self._main())

    @property
    def is_alive(self) -> bool:
        return self.process.alive

    def kill(self, *, is_silent: bool = False) -> None:
        """SIGKILL the process. is_silent: its node is gone too, so its sockets are not closed."""
        if not self.process.alive:
            return
        self.world.log(f"{self.name} is killed, silent={is_silent}")
        self.process.kill()
        if self.stream is not None:
            if is_silent:
                self.stream.open_up = False
            else:
                self.stream.reset()
        self.following.leave()
        self._leave_group()

    def leave(self) -> None:
        """Deliver a spot notice: the node is taken away after `NOTICE_SECONDS`."""
        self.world.log(f"{self.name} is told to leave")
        message = ring_pb2.Leaving(reason="spot notice")
        message.notice.FromNanoseconds(int(NOTICE_SECONDS * 1e9))
        self.protocol.leaving = message
        self._send(ring_pb2.AttendRequest(leaving=message))
        self.world.after(NOTICE_SECONDS, self.kill)

    def blip(self) -> None:
        """Break the connection to the master."""
        if self.stream is not None and self.process.alive:
            self.process.call_soon(self.stream.give_up, "connection reset")

    @property
    def attends(self) -> bool:
        return self.process.alive and self.is_welcome and self.stream is not None and self.stream.attends

    def notify(self) -> None:
        """Wake all waiting tasks, because something has changed."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait_for(self, condition: Callable[[], object], seconds: float | None = None) -> bool:
        """Wait until the condition holds; return False if `seconds` pass before."""
        deadline = None if seconds is None else self.world.now + seconds
        while not condition():
            if deadline is not None and self.world.now >= deadline:
                return False
            future = self.process.create_future()
            self._waiting.append(future)
            if deadline is not None:
                self.process.call_at(deadline, lambda future=future: future.done() or future.set_result(None))
            await future
        return True

    # ------------------------------------------------------------------ session

    async def _session(self) -> None:
        event: Event = Started()
        while not self._session_over:
            match self.machine.handle(event, self.world.now):
                case Connect() as connect:
                    await asyncio.sleep(connect.wait_seconds)
                    self.machine.handle(StreamOpened(), self.world.now)
                    ended = await self._attend(self._chosen(connect))
                    self.is_welcome = False
                    event = StreamEnded()
                    if ended is not None:
                        event = stream_ended(ended.code, ended.details, ended.detail)
                case CheckLeader():
                    event = LeaderChecked(self.master is not None and await self._leads(self.master))
                case LeaveRing():
                    await self._evicted()
                    event = RingLeft()
                case End(error):
                    if error is not None and not self._finds_no_job:
                        self.world.fail("no refusal", f"{self.name}: {error}")
                    self._session_over = True
        self.notify()

    def _chosen(self, connect: Connect) -> MasterModel | None:
        """Return the master to connect to; None if none can be reached."""
        masters, switched_to = self.masters(), self.switched_to
        self.switched_to = None
        if switched_to in masters:
            return switched_to
        if connect.stays and self.master in masters:
            return self.master
        named = [master for master in masters if master.candidate.address == connect.leader]
        return self.world.rng.choice(named or masters) if masters else None

    async def _leads(self, master: MasterModel) -> bool:
        """As `MasterSession._leads`."""
        request = health_pb2.HealthCheckRequest()
        try:
            reply = await call(self.network, self.process, master, HEALTH, request, PROBE_TIMEOUT_SECONDS)
        except Ended:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def _look(self) -> None:
        """As `MasterSession._look`: move from a silent master to one that leads."""
        while not self._session_over:
            await asyncio.sleep(SILENT_SECONDS)
            others = {master.name: master for master in self.masters() if master is not self.master}
            stream = self.stream
            action = self.machine.handle(Ticked(tuple(others)), self.world.now)
            while isinstance(action, Probe):
                leads = await self._leads(others[action.address])
                action = self.machine.handle(Probed(action.address, leads), self.world.now)
            if isinstance(action, SwitchTo) and stream is not None:
                self.world.log(f"{self.name} switches to {action.address}")
                self.switched_to = others[action.address]
                stream.give_up("cancelled")

    async def _attend(self, master: MasterModel | None) -> Ended | None:
        """Run one stream to a master; return how it ended."""
        self.master = master
        if master is None:
            await asyncio.sleep(0.1)
            return unavailable("connection refused")
        if self.network.misleads():
            self.world.log(f"{self.name} is led to a master of another store")
            self.master = None
            await asyncio.sleep(0.01)
            return Ended.of(grpc.StatusCode.NOT_FOUND, f"there is no job {JOB!r}")
        self._ended = ended = self.process.create_future()
        self.stream = stream = Stream(
            self.network,
            self.process,
            master,
            lambda payload: self._receive(stream, payload),
            lambda end: ended.done() or ended.set_result(end),
        )
        hello = self.protocol.hello(
            job=JOB,
            worker_id=self.name,
            role=ring_pb2.WORKER_ROLE_RING,
            signature=self.script.signature(),
            host=self.speed.host if isinstance(self.speed, Pace) else "host",
            pid=self.pid,
            store_address=f"{self.name}:1",
            rendezvous_key=self.name.encode(),
            version="1",
            process_clock="clock of host",
            follows=self.script.follows,
        )
        hello.process_started.FromNanoseconds(round(self.started_at * 1e9))
        stream.write(ring_pb2.AttendRequest(hello=hello).SerializeToString())
        end = await ended
        if self.is_welcome:
            self.checkers.stream_ended(self.name)
        if end is not None:
            # A job that is over may have been deleted meanwhile, as it was one of too many.
            self._finds_no_job = end.code == grpc.StatusCode.NOT_FOUND and master.deletes_jobs
            if not self._finds_no_job:
                self.checkers.refused_wrongly(f"the session of {self.name}", end)
        return end

    def _send(self, *messages: ring_pb2.AttendRequest) -> None:
        if self.is_welcome and self.stream is not None:
            for message in messages:
                self.checkers.said(self.name, message)
                self.stream.write(message.SerializeToString())

    def tell(self, change: Callable[[], Outcome]) -> None:
        """Change the protocol's state, and send the messages that follow."""
        self._send(*change().send)
        self.notify()

    def _receive(self, stream: Stream, payload: bytes) -> None:
        if stream is not self.stream or self._ended.done():
            return  # gRPC gives no message of a stream that has ended
        message = ring_pb2.AttendResponse.FromString(payload)
        event: Event = MessageReceived()
        if message.HasField("welcome"):
            self.is_welcome = True
            interval = message.welcome.heartbeat_interval.ToTimedelta().total_seconds()
            event = Welcomed(message.welcome.version, interval)
        action = self.machine.handle(event, self.world.now)
        in_ring, ahead = self.protocol.generation, self.protocol.attempts.ahead
        self.checkers.received(self.name, message)
        begun = self.protocol.attempts.newest
        outcome = self.protocol.receive(message)
        if message.prepared.HasField("then_prepare") and outcome.abort:
            self.checkers.planned_change_drops(self.name, begun.step, message.prepared.then_prepare)
        if ahead is not None and ahead.stage is Stage.APPLIED:
            self.checkers.applied(self.name, in_ring, self.lineage, ahead.step + 1, self.weights)
        if outcome.manifest is not None:
            self.process.spawn(self._write_manifest(outcome.manifest))
        if message.HasField("drain") or message.HasField("done"):
            self.told_to_end_at = self.world.now
        if outcome.abort and message.HasField("prepare") and message.prepare.generation == in_ring:
            self.world.fail("one ring", f"{self.name} leaves ring {in_ring} because of its own Prepare")
        self._send(*outcome.send)
        self.following.stops = self.following.stops or outcome.stop_following
        if outcome.abort:
            self._abort()
        if outcome.form is not None:
            self._form_early(outcome.form)
        if isinstance(action, SendBye):
            self._send(ring_pb2.AttendRequest(bye=self.said_bye))
        self.notify()

    async def _evicted(self) -> None:
        if self.protocol.may_finish:
            return
        outcome = self.protocol.evict()
        self.following.stops = self.following.stops or outcome.stop_following
        self._abort()
        self.notify()
        while not await self.wait_for(self._may_rejoin, HANG_SECONDS):
            if not self.protocol.between_steps:
                self.world.log(f"{self.name} was evicted, hangs, and ends itself")
                self.kill()
                await self.process.create_future()

    def _may_rejoin(self) -> bool:
        """True at a step boundary, and once the script has ended."""
        return self._at_boundary or self._session_over or self.said_bye is not None

    async def _beat(self) -> None:
        while not self._session_over:
            await asyncio.sleep(self.machine.heartbeat_seconds)
            heartbeat = self.protocol.heartbeat()
            if self.speed is not None:
                heartbeat.heartbeat.figures.CopyFrom(self.speed.figures(self.protocol.generation))
            if self.script.pipeline is not None:
                heartbeat.heartbeat.figures.MergeFrom(pipelines.figures(self.world.rng, self.units))
            self._send(heartbeat)

    def set_between(self, between: bool) -> None:
        if self.protocol.between_steps != between:
            self.protocol.between_steps = between
            self._send(self.protocol.heartbeat())

    # ------------------------------------------------------------------ the script

    async def _main(self) -> None:
        try:
            await self._script()
            reason = ring_pb2.BYE_REASON_FINISHED
        except ScriptEnds as ends:
            reason = ends.reason
        except SystemExit:  # a new process must start
            reason = ring_pb2.BYE_REASON_DRAINED
        except IntervalError as error:
            self.world.fail("no refusal", f"{self.name}: {error}")
            return
        self._leave_group()
        self.said_bye = ring_pb2.Bye(reason=reason, applied_step=self.protocol.applied_step)
        self.world.log(f"{self.name} says Bye: {ring_pb2.ByeReason.Name(reason)}")
        if isinstance(self.machine.handle(ByeRequested(), self.world.now), SendBye):
            self._send(ring_pb2.AttendRequest(bye=self.said_bye))
        await self.wait_for(lambda: self._session_over, BYE_SECONDS)
        if self.stream is not None:
            self.stream.close_up()
        self.kill()

    async def _script(self) -> None:
        loop = self.loop
        await self.boundary.settle(in_loop=False)
        self.interval.leads = 0 in self.contexts.now
        self._run_between_epochs()
        while not loop.is_through or not await loop.finish():
            epoch = loop.epoch
            while await loop.next_step(epoch):
                await self._run_step()
                loop.end_attempt()
            step, hosted = loop.interval_after(epoch), self.contexts.now
            states = dict(hosted[min(hosted)].parts)
            self.interval = IntervalDraws(step, hosted, states, leads=0 in hosted)
            self._run_between_epochs()
            self.set_between(True)
            await asyncio.sleep(self.script.user_seconds * self.world.rng.choice((0.01, 0.1, 1.0)))
            self._look_around()

    def _look_around(self) -> None:
        if self.raises:
            self.world.log(f"{self.name}: the script raises")
            raise ScriptEnds(ring_pb2.BYE_REASON_FAILED)

    def _run_between_epochs(self) -> None:
        """Draw as the script's code between two epochs does, in which the leader evaluates from step 1 on."""
        interval = self.interval
        states = after_draws(interval.anchor, DRAWS)
        interval.fold(states)
        if interval.step > 0:
            interval.asked = True
            if interval.leads:
                interval.skip(after_draws(states, LEADER_DRAWS))

    # ------------------------------------------------------------------ actions of the step boundary

    def begins_epoch(self, step: int) -> bool:
        return self.loop.begins_epoch(step)

    def take_back(self) -> bool:
        return self.body.take_back()

    def explain(self) -> None:
        """No master asks: all workers send the same digests."""

    async def all_wait(self) -> bool:
        """Nothing is evaluated between epochs."""
        return True

    def interval_report(self, generation: int, step: int) -> ring_pb2.IntervalReport:
        return self.interval.report(generation, step)

    def begin_following(self) -> ring_pb2.Follow | None:
        self.following.stops = False
        return self.protocol.begin_following()

    async def follow(self, message: ring_pb2.Follow) -> int:
        return await self.following.follow(message)

    def feed(self, step: int) -> None:
        self.following.feed(step)

    async def pause(self, seconds: tuple[float, ...]) -> None:
        """Let some time pass, one of these."""
        await asyncio.sleep(self.world.rng.choice(seconds))

    async def next_request(self) -> ring_pb2.Load | ring_pb2.Go | ring_pb2.Follow | None:
        protocol = self.protocol
        self._at_boundary = True
        self.notify()
        await self.wait_for(lambda: protocol.must_act)
        self._at_boundary = False
        if protocol.done is not None and protocol.done.phase == "succeeded":
            raise ScriptEnds(ring_pb2.BYE_REASON_FINISHED)
        if protocol.done is not None or protocol.drain is not None:
            raise ScriptEnds(ring_pb2.BYE_REASON_DRAINED)
        return protocol.load or protocol.go or protocol.following.asked

    def begin_replace(self, generation: int) -> bool:
        begins = self.protocol.begin_replace(generation)
        if begins:
            self.checkers.begins_to_change(self.name, generation)
        return begins

    async def restore(self, message: ring_pb2.Load) -> Restored | None:
        await asyncio.sleep(self.world.rng.uniform(0.01, 0.2))
        found = sorted(self.world.checkpoints, key=lambda checkpoint: -checkpoint.step)
        if message.HasField("step_max"):
            for one in found:
                # A checkpoint that is not part of the history stops the worker until an operator removes it.
                one.corrupt = one.corrupt or (
                    one.step > message.step_max
                    and all(other.corrupt or other.step > message.step_max for other in found)
                )
            found = [one for one in found if one.step <= message.step_max or one.corrupt]
        usable = next((checkpoint for checkpoint in found if not checkpoint.corrupt), None)
        if usable is None:
            return None
        self.lineage, self.weights = usable.shards[0].lineage, usable.shards[0].weights
        self.units = {}
        contexts = {rank: parts for shard in usable.shards for rank, parts in shard.contexts.items()}
        rejected = [one.name for one in found if one.corrupt and one.step > usable.step]
        return Restored(usable.name, usable.step, contexts, rejected)

    def loaded(self, loaded: ring_pb2.Loaded) -> None:
        """There is nothing to adapt: the weights are all that the model has."""

    def drop_step(self) -> None:
        self.lose_step()
        self.drop()

    async def form(self, go: ring_pb2.Go, me: int) -> None:
        self._leave_ring()
        if self.protocol.fenced != go.generation:
            raise RingAborted("it is over")
        self.cancelled = False
        if self.early is not None and not self.protocol.is_formed_early(go):
            self.early.leave(self)
            self.early = None
        early, self.early = self.early, None
        names = tuple(early.members) if early is not None else tuple(one.worker_id for one in go.members)
        self.group = group = self._group_of(go, names)
        group.enter(self, go)
        await self._while_wanted(group, lambda: group.formed)
        if self.script.pipeline is not None:
            await self._take_units(group, go, me)
            await self._while_wanted(group, lambda: True)

    async def _take_units(self, group: Group, go: ring_pb2.Go, me: int) -> None:
        """Take the units that the plan gives this member, from wherever Go says."""
        wanted, protocol = pipelines.units_of(go.pipeline, me), self.protocol
        if me in go.receivers or protocol.applied_step != go.resume_step:
            held: set[int] = set()
        else:
            held = set(self.units)
        self.plan, self._place, self._staged = go.pipeline, me, {}
        if wanted - held:
            await asyncio.sleep(self.world.rng.choice(self.script.receive_seconds))
        for unit in sorted(wanted - held):
            self._staged[unit] = await self._unit_from(group, go, unit)
        if me in go.receivers or not self._staged:
            return  # what it receives is put in place with all else
        if not self.begin_replace(go.generation):
            raise RingAborted("it is over")
        await asyncio.sleep(0.001)
        self.units |= self._staged
        units = list(pipelines.ranges(self.units))
        self.tell(lambda: protocol.end_replace(go.generation, go.resume_step, units))

    async def _unit_from(self, group: Group, go: ring_pb2.Go, unit: int) -> bytes:
        source = pipelines.source_of(go.pipeline, unit)
        if source.donors:
            donor = go.members[self.world.rng.choice(list(source.donors))].worker_id
            if group.is_broken and donor not in group.present:
                await self._while_wanted(group, lambda: False)
            found = group.units[donor].get(unit)
        elif source.checkpoint:
            stored = next(one for one in self.world.checkpoints if one.name == source.checkpoint)
            found = next((shard.units[unit] for shard in stored.shards if unit in shard.units), None)
        else:
            found = unit_weights(initial_weights(0), unit)
        if found is None:
            self.world.fail("sources", f"{self.name} takes unit {unit} where it is not: {source}")
            return b""
        return found

    async def receive_state(self, go: ring_pb2.Go) -> None:
        group = self.group
        assert group is not None
        await asyncio.sleep(self.world.rng.choice(self.script.receive_seconds))
        if self.protocol.fenced != go.generation and group.exported:
            # All of it had come before the ring was given up: `begin_replace` keeps it out of the weights.
            self._received = group.exported[group.donors[0]]
            return
        await self._while_wanted(group, lambda: True)
        donor = self.world.rng.choice(group.donors)
        if group.is_broken and donor not in group.present:
            await self._while_wanted(group, lambda: False)
        self._received = group.exported[donor]
        group.taken(self)

    async def adopt_state(self, go: ring_pb2.Go) -> None:
        await asyncio.sleep(0.001)
        self.lineage, self.weights = self._received
        if self.script.pipeline is not None:
            self.units = dict(self._staged)
            self.protocol.units = tuple(pipelines.ranges(self.units))
        self.checkers.applied(self.name, go.generation, self.lineage, go.resume_step, self.weights)

    async def send_state(self, go: ring_pb2.Go, donor: int) -> None:
        group = self.group
        assert group is not None
        await self._while_wanted(group, lambda: group.receivers <= group.received)

    def enter(self, go: ring_pb2.Go, me: int) -> bool:
        if not self.protocol.stands(go.generation):
            return False
        if self.script.pipeline is not None:
            wanted = pipelines.units_of(go.pipeline, me)
            self.units = {unit: held for unit, held in self.units.items() if unit in wanted}
            self.protocol.units = tuple(pipelines.ranges(self.units))
            self._check_units(go.resume_step)
        self.protocol.entered(go.generation, go.resume_step, list(go.extra.ready_order))
        return True

    def start_ests(self, step: int, go: ring_pb2.Go | None) -> None:
        if go is not None:
            self.checkers.applied(self.name, go.generation, self.lineage, step, self.weights)

    # ------------------------------------------------------------------ the group

    async def _while_wanted(self, group: Group, condition: Callable[[], object]) -> None:
        """Wait until the condition holds. Raises RingAborted or RingBroken if the group is of no use."""

        def stop() -> bool:
            return self.cancelled or self.broken_group is group

        await self.wait_for(lambda: stop() or condition())
        if self.cancelled:
            raise RingAborted("the ring changed")
        if self.broken_group is group:
            raise RingBroken("connection closed by peer")

    def _abort(self) -> None:
        self.cancelled = True
        self._leave_group()

    def _form_early(self, change: ring_pb2.Prepare) -> None:
        if self.early is not None:
            self.early.leave(self)
        self.early = self._group_of(change, tuple(member.worker_id for member in change.members))
        self.early.connect(self)

    def _group_of(self, change: ring_pb2.Go | ring_pb2.Prepare, names: tuple[str, ...]) -> Group:
        return self.groups.setdefault((change.generation, names), Group(self.world, change, self.script.ests))

    def _leave_group(self) -> None:
        if self.early is not None:
            self.early.leave(self)
            self.early = None
        self._leave_ring()

    def _leave_ring(self) -> None:
        if self.group is not None:
            self.group.leave(self, through_with=self.reduced_step)
        self.group, self.reduced_parts, self.reduced_step = None, None, -1

    def group_broke(self, group: Group) -> None:
        """Notify this process that the group has lost a member."""
        self.process.call_soon(self._group_broke, group)

    def _group_broke(self, group: Group) -> None:
        if self.group is group:
            self.broken_group = group
            self.notify()

    # ------------------------------------------------------------------ the step

    async def _run_step(self) -> None:
        """As `StepRunner.run`, with the loop body of the script: forward, backward, optimizer.step."""
        state = self.body.begin()
        self.failure = None
        if self.hangs and self.decides_layout(state.step):
            self.world.log(f"{self.name} hangs in step {state.step}")
            await self.process.create_future()
        await asyncio.sleep(self.script.step_seconds * self.world.rng.uniform(0.5, 1.5))
        self._look_around()
        for turn in self.body.mini_batches(Turn.of_step(state, self.contexts.now)):
            self._run_forward(turn)
            if not turn.last:
                self.body.end_batch(turn)
                continue
            if self.script.pipeline is not None:
                await self._run_pipeline(turn)
            else:
                await self._run_last_backward(turn)
            if await self.body.begin_apply(turn):
                await asyncio.sleep(self.world.rng.choice((0.0, 0.001, 0.02)))
                await self.following.before_step(turn.step, self.gradients)
                self._apply(turn.step)
                if self.script.ahead and turn.step % 3 == 0:
                    await self.body.is_applied(turn)
        await self.body.end()

    def _run_forward(self, turn: Turn) -> None:
        position = turn.step % self.script.steps_per_epoch * self.script.ests + turn.rank
        turn.taken.append(Samples(position, position + 1, (position,)))
        self._states = next_context(turn.rank, turn.step, dict(self.contexts.now[turn.rank].parts))

    async def _run_pipeline(self, turn: Turn) -> None:
        """All micro-batches of all members; the step is reported once the sums of its units are complete."""
        self.failure = await self._all_reduce(turn.step)
        if self.failure is None:
            self.body.last_gradient()

    def _apply(self, step: int) -> None:
        if self.script.pipeline is not None:
            self._check_units(step)
        self.weights = next_weights(self.weights, self.gradients)
        self.units = {unit: unit_weights(self.weights, unit) for unit in self.units}

    def _check_units(self, step: int) -> None:
        """Check that this worker holds what its plan gives it, after `step` steps."""
        wanted = pipelines.units_of(self.plan, self._place)
        right = {unit: unit_weights(self.checkers.fixed.weights(self.lineage, step), unit) for unit in wanted}
        if self.units != right:
            wrong = sorted(unit for unit in wanted if self.units.get(unit) != right[unit])
            self.world.fail("same bits", f"{self.name} has other units after {step} steps: {wrong}")

    async def _run_last_backward(self, turn: Turn) -> None:
        if self.body.first_gradient():
            if self.hangs:
                self.world.log(f"{self.name} hangs in the last backward of step {turn.step}")
                await self.process.create_future()
            await asyncio.sleep(self.script.step_seconds * self.world.rng.uniform(0.0, 0.5))
        self.body.last_gradient()
        self.failure = await self._all_reduce(turn.step)

    async def _all_reduce(self, step: int) -> RingError | None:
        """Add this worker's contributions to the sums of a step; return why there are none."""
        group, self.reduced_parts = self.group, None
        if group is None:
            return RingAborted("the ring changed")
        group.contribute(
            step,
            {
                rank: contribution(self.weights, rank, step, context.parts)
                for rank, context in self.contexts.now.items()
            },
        )

        def over() -> bool:
            return self.group is not group or self.broken_group is group

        await self.wait_for(lambda: over() or (self.reduced_parts is not None and self.reduced_step == step))
        if self.group is not group:
            return RingAborted("the ring changed")
        if self.reduced_parts is None or self.reduced_step != step:
            return RingBroken("connection closed by peer")
        self.gradients = self.reduced_parts
        return None

    # ------------------------------------------------------------------ actions of the step body

    async def wait_for_decision(self, turn: Turn, is_decided: Callable[[], bool]) -> None:
        await self.wait_for(is_decided)
        if self.script.pipeline is not None:  # its thread notices it a little later
            await asyncio.sleep(self.world.rng.choice((0.0, 0.002, 0.05)))

    def begin_step(self) -> StepState:
        self._step_generation = self.protocol.generation
        return self.protocol.begin_step()

    def lose_step(self) -> None:
        outcome = self.protocol.lose_step()
        if outcome.send:
            self._send(*outcome.send)
            self.notify()

    def begin_apply(self, turn: Turn) -> bool:
        if not self.protocol.begin_apply(turn.step):
            return False
        if self.script.pipeline is not None:
            self.checkers.begins_to_change(self.name, self._step_generation, turn.step)
            return True
        assert self.group is not None
        self.checkers.begins_to_change(self.name, self.group.generation)
        return True

    def means_to_go_ahead(self, turn: Turn) -> bool:
        """Not in all steps: members of a ring do not agree on it."""
        is_meant = (turn.step + self.pid) % 4 != 0
        return self.script.ahead and turn.step > 0 and is_meant and not self.following.is_feeding

    def begin_ahead(self, turn: Turn) -> bool:
        """As `StepActions.begin_ahead`, wherever it is allowed."""
        if self.following.is_feeding:
            return False
        if not self.protocol.begin_ahead(turn.step):
            return False
        self._before = self.weights
        self.world.log(f"{self.name} applies step {turn.step} ahead")
        self.checkers.ahead += 1
        return True

    def undo(self) -> bool:
        if not self.protocol.take_back():
            return False
        self.world.log(f"{self.name} undoes a step")
        self.weights = self._before
        self.checkers.undone += 1
        return True

    def at_late_boundary(self, turn: Turn) -> None:
        checkpoint, feed = self.protocol.checkpoint, self.protocol.following.feed
        if checkpoint is not None and checkpoint.step == turn.step:
            self.save(checkpoint)
            self.protocol.checkpoint = None
        if feed is not None and feed.step == turn.step:
            self.following.feed(turn.step)

    def states(self) -> Context:
        return self._states

    def loader_parts(self, turn: Turn) -> Context:
        return {}

    def logged(self, turn: Turn) -> dict[str, float]:
        return {}

    def batch_ended(self, turn: Turn, states: Context) -> None:
        """There is nothing to keep: the model has no buffers."""

    def check_backward(self, turn: Turn) -> None:
        """There is nothing to check in weights that are all that the model has."""

    def begin_exchange(self, turn: Turn) -> None:
        """There is nothing to exchange but gradients."""

    def decides_layout(self, step: int) -> bool:
        """In every second step, so that steps are reported early and late in turn."""
        return step % 2 == 0

    def ready_order(self) -> tuple[int, ...]:
        return (1, 0) if self.protocol.applied_step == 0 else ()

    def digests(self) -> tuple[int, int]:
        """All workers must send the same digests: a false alarm would fail the job."""
        digest = blake2b(repr(self.weights).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big"), 0

    def drop(self) -> None:
        self.gradients = {}

    def complete(self, turn: Turn) -> None:
        if turn.state.stage is not Stage.AHEAD:
            self.checkers.applied(self.name, self._step_generation, self.lineage, turn.step + 1, self.weights)

    def applied(self, step: int) -> None:
        """There is no layout that the step could decide."""

    def reduced(self, group: Group, step: int, parts: dict[int, bytes]) -> None:
        """Notify this process that the all-reduce of a step has completed."""
        self.process.call_soon(self._reduced, group, step, parts)

    def _reduced(self, group: Group, step: int, parts: dict[int, bytes]) -> None:
        if self.group is group and self.broken_group is not group and step == self.protocol.next_step:
            self.reduced_parts, self.reduced_step = parts, step
            self.notify()

    # ------------------------------------------------------------------ checkpoints

    def start_anew(self, why: str) -> NoReturn:
        raise SystemExit(why)

    def take_checkpoint_request(self) -> ring_pb2.Checkpoint | None:
        message, self.protocol.checkpoint = self.protocol.checkpoint, None
        return message

    def save(self, message: ring_pb2.Checkpoint) -> None:
        contexts = {rank: dict(context.parts) for rank, context in self.contexts.now.items()}
        mine = pipelines.first_held(self.plan, self._place)
        units = {unit: held for unit, held in self.units.items() if unit in mine}
        self.process.spawn(
            self._write_shard(message, StoredShard(self.lineage, self.weights, contexts, units))
        )

    async def _write_shard(self, message: ring_pb2.Checkpoint, shard: StoredShard) -> None:
        await asyncio.sleep(self.world.rng.uniform(0.01, 0.4))
        saved = ring_pb2.Saved(checkpoint=message.checkpoint, step=message.step, shard=message.shard)
        if self.world.storage_broken:
            saved.error = "disk full"
        else:
            self.world.written[message.checkpoint, message.shard] = shard
            saved.file, saved.sha256, saved.bytes = "f", "s", 8
        self.tell(lambda: self.protocol.saved(saved))

    async def _write_manifest(self, message: ring_pb2.Checkpoint) -> None:
        await asyncio.sleep(self.world.rng.uniform(0.001, 0.1))
        shards: list[Any] = [self.world.written.get((message.checkpoint, e.shard)) for e in message.manifest]
        if None in shards:
            self.world.fail("no write lost", f"a manifest of {message.checkpoint} names a shard nobody wrote")
            return
        self.checkers.checkpoint(message.step, shards)
        self.world.checkpoints.append(StoredCheckpoint(message.checkpoint, message.step, shards))
        saved = ring_pb2.Saved(checkpoint=message.checkpoint, step=message.step, complete=True)
        self.tell(lambda: self.protocol.saved(saved))
