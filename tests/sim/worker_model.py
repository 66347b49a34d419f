"""A worker process as the protocol describes it, without torch: the honest counterpart of the master.

It answers Ready only when it will not apply in the old generation any more, applies only what is both
prepared and reduced, hands its weights to receivers, and after a restart of the master says again what
was not answered. Its trainer can hang, its process can be frozen or killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from elastane_master.decisions import effects, events
from sim.master_model import MasterModel
from sim.network import Group, Stream
from sim.reference import Context, contribution, initial_context, initial_weights, next_context, next_weights
from sim.world import StoredCheckpoint, StoredShard, World

Repeated = events.StepReported | events.LoadedReported | events.RingBrokenReported


@dataclass
class Script:
    """What all workers run."""

    ests: int
    steps_per_epoch: int
    epochs: int
    step_seconds: float
    user_seconds: float

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def signature(self) -> events.Signature:
        return events.Signature((), 64, 2, self.steps_per_epoch, self.epochs, {"torch": "2"})


@dataclass(eq=False)
class WorkerModel:
    """One process. generation: the newest it answered Ready for; go: of that generation, once it came."""

    world: World
    master: MasterModel
    script: Script
    groups: dict[int, Group]
    name: str
    pid: int
    is_alive: bool = True
    frozen_until: float = 0.0
    backlog: list[Callable[[], None]] = field(default_factory=list)
    stream: Stream | None = None
    sessions: int = 0
    is_welcome: bool = False
    generation: int = 0
    go: effects.Go | None = None
    group: Group | None = None
    applied: int = 0
    holds_state: bool = False
    lineage: int = 0
    weights: bytes = b""
    last_go: effects.Go | None = None
    go_session: str = ""
    contexts: dict[int, Context] = field(default_factory=dict)
    report: events.StepReported | None = None
    load_report: events.LoadedReported | None = None
    broken_report: events.RingBrokenReported | None = None
    reduced_parts: dict[int, bytes] | None = None
    reduced_step: int = -1
    prepared: effects.Prepared | None = None
    is_between: bool = False
    is_hung: bool = False
    is_leaving: bool = False
    script_ended: bool = False
    said_bye: events.ByeReported | None = None
    heartbeat_sent: tuple[int, int, bool] | None = None

    # ------------------------------------------------------------------ process

    def start(self) -> None:
        """The script reached `prepare`."""
        self.world.log(f"{self.name} starts, pid {self.pid}")
        self.lineage, self.weights = self.pid, initial_weights(self.pid)
        self._connect()
        self._beat()

    def kill(self, *, is_silent: bool = False) -> None:
        """SIGKILL; silent: the node is gone and nobody closes its sockets."""
        if not self.is_alive:
            return
        self.world.log(f"{self.name} is killed, silent={is_silent}")
        self._exit()
        if self.stream is not None and not is_silent:
            self.stream.break_up("EOF")

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if self.is_alive and self.frozen_until <= self.world.now:
            self.world.log(f"{self.name} is frozen for {seconds:.2f} s")
            self.frozen_until = self.world.now + seconds
            self.world.after(seconds, self._thaw)

    def hang(self) -> None:
        """The trainer never comes back from its next step."""
        self.world.log(f"{self.name} hangs")
        self.is_hung = True

    def fail(self) -> None:
        """The script raises; its agent may start it anew."""
        if self.is_alive and self.is_welcome and self.world.now >= self.frozen_until:
            self.world.log(f"{self.name}: the script raises")
            error = ("failed", "ValueError", self.applied)
            self._up(lambda session: events.ByeReported(self.name, session, *error))  # type: ignore[arg-type]
            self._exit()

    def leave(self) -> None:
        """Spot notice."""
        self.is_leaving = True
        self._up(lambda session: events.LeavingReported(self.name, session, "spot notice", 30.0))

    def blip(self) -> None:
        """The connection to the master breaks."""
        if self.is_alive and self.stream is not None and self.stream.open_up:
            self.world.log(f"{self.name} loses its connection")
            self.stream.break_up("connection reset")
            self.stream.break_down()

    def _exit(self) -> None:
        self.is_alive = False
        if self.group is not None:
            self.group.leave(self, through_with=self.reduced_step)

    def _awake(self, action: Callable[[], None]) -> bool:
        """False when the process cannot run now; a frozen one runs `action` when it thaws."""
        if self.is_alive and self.world.now < self.frozen_until:
            self.backlog.append(action)
            return False
        return self.is_alive

    def _thaw(self) -> None:
        backlog, self.backlog = self.backlog, []
        for action in backlog:
            if self.is_alive:
                action()

    def is_in_newest_ring(self, generation: int) -> bool:
        """It got the newest Go in this very session, and holds the state from before or after it."""
        go, session = self.last_go, self.stream.session if self.stream is not None else ""
        if go is None or go.generation != generation or self.go_session != session:
            return False
        return self.applied >= go.resume_step - 1

    # ------------------------------------------------------------------ session

    def _connect(self) -> None:
        if not self._awake(self._connect) or (self.stream is not None and self.stream.open_down):
            return
        if not self.master.is_up:
            self.world.after(self.world.rng.uniform(0.05, 0.3), self._connect)
            return
        self.sessions += 1
        self.is_welcome = False
        self.heartbeat_sent = None
        self.stream = Stream(self.world, self.master, self, f"{self.name}-{self.pid}-{self.sessions}")
        self.stream.up(
            events.WorkerJoined(
                self.name, self.stream.session, "ring", self.script.signature(), "host", self.pid,
                f"{self.name}:1", self.generation, self.applied, self.holds_state,
            )
        )  # fmt: skip

    def _up(self, make: Callable[[str], events.Event]) -> None:
        if self.is_welcome and self.stream is not None and self.stream.open_down:
            self.stream.up(make(self.stream.session))

    def _beat(self) -> None:
        if not self.is_alive:
            return
        if self.world.now >= self.frozen_until:
            self._heartbeat()
        self.world.after(1.0, self._beat)

    def _heartbeat(self) -> None:
        if self.stream is None or not self.is_welcome:
            return
        news = (self.generation, self.applied, self.is_between)
        if news == self.heartbeat_sent:
            self.master.heartbeat(self.stream)
            return
        self.heartbeat_sent = news
        self._up(lambda session: events.AppliedReported(self.name, session, *news))

    def stream_ended(self, stream: Stream, final: bool) -> None:
        """The stream ended from the master's side."""
        if stream is not self.stream or not self._awake(lambda: self.stream_ended(stream, final)):
            return
        stream.break_up("closed by the master")
        if final or (self.said_bye is not None and self.said_bye.reason == "drained"):
            self.world.log(f"{self.name} exits")
            self._exit()
        elif self.is_hung:
            self.world.log(f"{self.name} hung and is put away by its agent")
            self._exit()
        else:
            self.world.after(self.world.rng.uniform(0.01, 0.3), self._connect)

    def receive(self, stream: Stream, message: effects.Message) -> None:
        """A message of the master."""
        if stream is not self.stream or not self._awake(lambda: self.receive(stream, message)):
            return
        match message:
            case effects.Welcome():
                self._welcomed(message)
            case effects.Prepare():
                self._prepare(message)
            case effects.Load():
                self._load(message)
            case effects.Go():
                self._go(message)
            case effects.Prepared():
                if self.report is not None and (message.generation, message.step) == (
                    self.generation,
                    self.report.step,
                ):
                    self.prepared = message
                    self._apply_if_possible()
            case effects.Checkpoint():
                self._write_manifest(message)
            case effects.Drain() | effects.Done():
                self._abort()
                self._bye("drained")

    def _welcomed(self, welcome: effects.Welcome) -> None:
        self.is_welcome = True
        if not welcome.resumed and self.said_bye is None:
            self._abort()
        if self.said_bye is not None:
            self._bye(self.said_bye.reason)
            return
        if welcome.resumed:
            if self.generation and self.go is None:
                self._ready()
            for report in (self.load_report, self.report, self.broken_report):
                if report is not None:
                    self._send_again(report)
        if self.is_leaving:
            self.leave()
        self._heartbeat()

    def _send_again(self, report: Repeated) -> None:
        self._up(lambda session: msgspec.structs.replace(report, session=session))

    def _bye(self, reason: str) -> None:
        bye = events.ByeReported(self.name, "", reason, "", self.applied)  # type: ignore[arg-type]
        self.said_bye = bye
        self._up(lambda session: events.ByeReported(self.name, session, bye.reason, "", self.applied))

    # ------------------------------------------------------------------ change of the ring

    def _abort(self) -> None:
        if self.group is not None:
            self.group.leave(self, through_with=self.reduced_step)
        self.group, self.go = None, None
        self.report = self.load_report = self.broken_report = None
        self.prepared, self.reduced_parts, self.reduced_step = None, None, -1

    def _prepare(self, prepare: effects.Prepare) -> None:
        if prepare.generation < self.generation or self.said_bye is not None:
            return
        if prepare.generation > self.generation:
            self._abort()
            self.generation = prepare.generation
        if self.go is None:
            self._ready()

    def _ready(self) -> None:
        state = (self.generation, self.applied, self.holds_state)
        self._up(lambda session: events.ReadyReported(self.name, session, *state))

    def _load(self, load: effects.Load) -> None:
        if load.generation == self.generation and self.load_report is None:
            self.world.after(self.world.rng.uniform(0.01, 0.2), lambda: self._loaded(load.generation))

    def _loaded(self, generation: int) -> None:
        if not self._awake(lambda: self._loaded(generation)):
            return
        if generation != self.generation or self.load_report is not None or self.go is not None:
            return
        found = sorted(self.world.checkpoints, key=lambda checkpoint: -checkpoint.step)
        usable = next((checkpoint for checkpoint in found if not checkpoint.corrupt), None)
        rejected = tuple(c.name for c in found if c.corrupt and (usable is None or c.step > usable.step))
        ranks = range(self.script.ests)
        contexts = {rank: initial_context(rank) for rank in ranks}
        self.lineage, self.weights, self.applied, name = self.pid, initial_weights(self.pid), 0, ""
        if usable is not None:
            self.lineage, self.weights = usable.shards[0].lineage, usable.shards[0].weights
            self.applied, name = usable.step, usable.name
            contexts = {rank: parts for shard in usable.shards for rank, parts in shard.contexts.items()}
        self.holds_state = True
        self.load_report = events.LoadedReported(
            self.name, "", generation, self.applied,
            tuple(events.ContextDelta(rank, contexts[rank], False) for rank in ranks),
            (), name, rejected,
        )  # fmt: skip
        self._send_again(self.load_report)

    def _go(self, go: effects.Go) -> None:
        if go.generation != self.generation or self.go is not None:
            return
        self.go, self.last_go = go, go
        self.go_session = self.stream.session if self.stream is not None else ""
        self.load_report = None
        if not self.is_between:
            self._enter_group()

    def _enter_group(self) -> None:
        if self.go is None or self.group is not None:
            return
        self.contexts = {rank: dict(parts) for rank, parts in self.go.contexts}
        generation = self.go.generation
        self.group = self.groups.setdefault(generation, Group(self.world, self.go))
        self.group.enter(self)

    def receive_state(self, group: Group, donor: WorkerModel) -> None:
        """The group has formed; this member receives the weights, which overwrites what it has."""
        if not self._awake(lambda: self.receive_state(group, donor)) or self.group is not group:
            return
        self.holds_state = False
        self.world.after(self.world.rng.choice((0.002, 0.05)), lambda: self._received(group, donor))

    def _received(self, group: Group, donor: WorkerModel) -> None:
        if not self._awake(lambda: self._received(group, donor)) or self.group is not group:
            return
        if group.is_broken or donor.group is not group:
            return
        self.lineage, self.weights = donor.lineage, donor.weights
        self.applied, self.holds_state = group.resume_step, True
        self.master.checkers.applied(self.name, self.lineage, self.applied, self.weights)
        self.group_formed(group)

    def group_formed(self, group: Group) -> None:
        """This member can go on from the resume step."""
        if self._awake(lambda: self.group_formed(group)) and self.group is group:
            self._next_step()

    def collective_broke(self, group: Group) -> None:
        """A peer is gone."""
        if not self._awake(lambda: self.collective_broke(group)) or self.group is not group or self.is_hung:
            return
        if self.reduced_parts is None and not self.script_ended:
            self.broken_report = events.RingBrokenReported(
                self.name, "", self.generation, self.applied, "connection closed by peer"
            )
            self._send_again(self.broken_report)

    # ------------------------------------------------------------------ trainer

    def _next_step(self) -> None:
        if self.applied == self.script.steps:
            self._end_of_script()
            return
        generation, step = self.generation, self.applied
        seconds = self.script.step_seconds * self.world.rng.uniform(0.5, 1.5)
        self.world.after(seconds, lambda: self._step_done(generation, step))

    def _step_done(self, generation: int, step: int) -> None:
        if not self._awake(lambda: self._step_done(generation, step)) or self.is_hung:
            return
        if (generation, step) != (self.generation, self.applied) or self.group is None:
            return
        before = self.contexts
        after = {rank: next_context(rank, step, parts) for rank, parts in before.items()}
        deltas = tuple(
            events.ContextDelta(rank, {key: v for key, v in after[rank].items() if before[rank][key] != v})
            for rank in sorted(after)
        )
        tasks = tuple(events.StepTask(rank, step, step + 1) for rank in sorted(after))
        epoch = step // self.script.steps_per_epoch
        order = (1, 0) if step == 0 and 0 in after else ()
        self.report = events.StepReported(self.name, "", generation, step, epoch, deltas, tasks, order)
        self._send_again(self.report)
        given = {rank: contribution(self.weights, rank, step, parts) for rank, parts in before.items()}
        self.group.contribute(step, given, self.script.ests)

    def reduced(self, group: Group, step: int, parts: dict[int, bytes]) -> None:
        """The all-reduce of a step completed here."""
        if not self._awake(lambda: self.reduced(group, step, parts)) or self.is_hung:
            return
        if self.group is group and self.broken_report is None and step == self.applied:
            self.reduced_parts, self.reduced_step = dict(parts), step
            self._apply_if_possible()

    def _apply_if_possible(self) -> None:
        prepared = self.prepared
        if prepared is None or self.reduced_parts is None or prepared.step != self.reduced_step:
            return
        step = prepared.step
        self.weights = next_weights(self.weights, self.reduced_parts)
        self.contexts = {rank: next_context(rank, step, parts) for rank, parts in self.contexts.items()}
        self.applied = step + 1
        self.master.checkers.applied(self.name, self.lineage, self.applied, self.weights)
        self.report, self.prepared, self.reduced_parts = None, None, None
        if prepared.then_checkpoint is not None:
            self._write_shard(prepared.then_checkpoint)
        if self.applied == self.script.steps:
            self._end_of_script()
        elif self.applied % self.script.steps_per_epoch == 0:
            self._user_code()
        if prepared.then_prepare is not None:
            self._prepare(prepared.then_prepare)
        elif not self.is_between and not self.script_ended:
            self._next_step()

    def _user_code(self) -> None:
        self.is_between = True
        self._heartbeat()
        seconds = self.script.user_seconds * self.world.rng.choice((0.01, 0.1, 1.0))
        self.world.after(seconds, self._user_code_done)

    def _user_code_done(self) -> None:
        if not self._awake(self._user_code_done):
            return
        self.is_between = False
        self._heartbeat()
        if self.script_ended:
            return
        if self.group is not None:
            self._next_step()
        else:
            self._enter_group()

    def _end_of_script(self) -> None:
        if not self.script_ended:
            self.script_ended = True
            self.is_between = False
            self._heartbeat()
            self.world.after(self.world.rng.choice((0.001, 0.1, 1.0)), self._finish)

    def _finish(self) -> None:
        if not self._awake(self._finish) or self.said_bye is not None:
            return
        handing_over = self.go is not None and self.group is not None and not self.group.is_broken
        if handing_over and self.go.receivers and not self.group.contributions:  # type: ignore[union-attr]
            waiting = self.group.receivers - {w.name for w in self.group.present.values() if w.holds_state}  # type: ignore[union-attr]
            if waiting:
                self.world.after(0.1, self._finish)
                return
        if self.applied < self.script.steps:  # history went back: the script is not at its end
            self.script_ended = False
            return
        self.world.log(f"{self.name} finished")
        self._abort()
        self._bye("finished")

    # ------------------------------------------------------------------ checkpoints

    def _write_shard(self, message: effects.Checkpoint) -> None:
        shard = StoredShard(
            self.lineage, self.weights, {rank: dict(parts) for rank, parts in self.contexts.items()}
        )
        self.world.after(self.world.rng.uniform(0.01, 0.4), lambda: self._shard_written(message, shard))

    def _shard_written(self, message: effects.Checkpoint, shard: StoredShard) -> None:
        if not self._awake(lambda: self._shard_written(message, shard)):
            return
        error = "disk full" if self.world.storage_broken else ""
        self.world.written[message.checkpoint, message.shard] = shard
        self._up(
            lambda session: events.SavedReported(
                self.name, session, message.checkpoint, message.step, message.shard, "f", "s", 8, error
            )
        )

    def _write_manifest(self, message: effects.Checkpoint) -> None:
        shards = [self.world.written[message.checkpoint, entry.shard] for entry in message.manifest]
        self.world.checkpoints.append(StoredCheckpoint(message.checkpoint, message.step, shards))
        self._up(
            lambda session: events.SavedReported(
                self.name, session, message.checkpoint, message.step, 0, complete=True
            )
        )
