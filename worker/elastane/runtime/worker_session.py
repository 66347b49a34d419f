"""Thread-safe master connection and process-group lifecycle of one worker.

Two threads meet here. The session's reader thread delivers the master's messages; the script's thread waits
for requests and reports its progress. Both change the protocol's state only under `_changed`, and send the
resulting messages while they still hold it, so that the master receives them in order.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import structlog
import torch

from elastane.collective import warming
from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.ring_errors import RingAborted
from elastane.collective.transport import Forming, RingTransport
from elastane.runtime.capturing import Captures
from elastane.runtime.change_spans import ChangeSpans
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.process_exit import WorkerExits
from elastane.runtime.process_identity import ProcessIdentity
from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane.runtime.resource_use import ResourceUse
from elastane.runtime.session import MasterSession
from elastane.runtime.step_state import StepState
from elastane_common import logs
from elastane_common.credentials import master_has_tls
from elastane_common.errors import ElastaneError
from elastane_common.observe.figures import WorkerFigures
from elastane_common.process_tls import offer_of
from elastane_proto import rendezvous, tracing, versions
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)

DETAILS_MAX = 20_000
"""Limit of tensors and values named one by one: 2 MB at most, within the master's message limit of 4 MB."""


@dataclass(frozen=True)
class Duties:
    """The work of a worker's session threads.

    signature: builds the script's signature for Hello. write_manifest: called with a Checkpoint message that
    asks the leader to write the manifest. details: the parts of the state as (name, digest, value in words).
    close: ends the worker's session with a Bye when the process exits. figures: sent with every heartbeat and
    with Bye. follows: whether it can follow a ring, and be followed.
    """

    signature: Callable[[], ring_pb2.ScriptSignature]
    write_manifest: Callable[[ring_pb2.Checkpoint], None]
    details: Callable[[], list[tuple[str, int, str]]]
    close: Callable[[ring_pb2.Bye | None], None]
    figures: WorkerFigures
    follows: Callable[[], bool]


class WorkerSession:
    """Connection of one worker to its master. Built at prepare, started with the script's first epoch.

    device: of the model; decides how the ring's messages are sent.
    """

    def __init__(self, environment: WorkerEnvironment, *, device: torch.device) -> None:
        self._environment = environment
        self._device = device
        #: What this worker announces to its rings about encryption.
        self._tls = offer_of(environment.ring_tls, master_has_tls())
        self._duties: Duties | None = None
        #: Digest of the whole state after the last step, for Bye.
        self.final_digest: int | None = None
        self._changed = threading.Condition()
        self._error: ElastaneError | None = None
        #: Set to cancel forming a group that the master has superseded.
        self._cancel = threading.Event()
        #: The group of a planned change that forms before its Go.
        self._early: Forming | None = None
        #: The connection with the source of a ring that this worker follows, and how it is given up.
        self._following: RingTransport | None = None
        self._stop_following = threading.Event()
        self._transport: RingTransport | None = None
        self._session: MasterSession | None = None
        self._store: RendezvousStore | None = None
        #: The script's thread is between steps, where it can take part in a ring change.
        self._at_boundary = False
        self._closing = False
        self._process = ProcessIdentity()
        self.protocol = WorkerProtocol()
        #: When the last step that was applied ahead became prepared.
        self.ahead_settled_at = 0.0
        self.spans = ChangeSpans(environment.job, environment.worker_id, tracing.now_ns)
        self.members: list[ring_pb2.Member] = []
        self.exits = WorkerExits(environment, self.request_leave)
        self._resources = ResourceUse(device)
        self.captures = Captures(environment.master, environment.job, environment.worker_id)

    @property
    def is_leader(self) -> bool:
        """True if this worker hosts EST 0."""
        return bool(self.members) and self.members[0].worker_id == self._environment.worker_id

    @property
    def place(self) -> int | None:
        """Position of this worker in the ring; None without one."""
        ids = [member.worker_id for member in self.members]
        own = self._environment.worker_id
        return ids.index(own) if own in ids else None

    @property
    def is_alone(self) -> bool:
        """True if there is no other member in the ring."""
        return len(self.members) < 2

    @property
    def started(self) -> bool:
        return self._session is not None

    def start(self, duties: Duties) -> None:
        """Open the session with Hello, and install the handlers for signals and process exit."""
        self._duties = duties
        warming.finish()
        self.spans.open(tracing.open_tracer("elastane-worker", self._environment.worker_id))
        self._store = RendezvousStore(
            self._environment.rendezvous_host(), secrets.token_bytes(rendezvous.KEY_BYTES)
        )
        self._session = MasterSession(
            self._environment.master,
            hello=self._hello,
            heartbeat=self._heartbeat,
            handler=self._receive,
            failed=self._session_failed,
            timeout_seconds=self._environment.master_timeout_seconds,
            evicted=self._evicted,
        )
        self.exits.install(duties.close, lambda: self.protocol.done)
        logs.say_where(self._where)
        self._session.start()

    def close(self, bye: ring_pb2.Bye | None) -> None:
        """Close the session and leave the process group. bye: sent last if the session is still open."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._session is not None:
            if bye is not None:
                # Filled in last, because the last step may have been applied since the Bye was created.
                bye.applied_step = self.protocol.applied_step
                bye.figures.CopyFrom(self._figures())
                if self.final_digest is not None and bye.reason == ring_pb2.BYE_REASON_FINISHED:
                    bye.state_digest = self.final_digest
            self._session.close(bye)
        with self._changed:
            self._give_up_early()
        if self._transport is not None:
            self._transport.close()
        self.captures.close()
        self.spans.close()

    def request_leave(self, reason: str, notice_seconds: float) -> None:
        """Ask the master to drain this worker (spot notice, SIGTERM).

        notice_seconds: time until it is terminated.
        """
        message = ring_pb2.Leaving(reason=reason)
        message.notice.FromNanoseconds(int(notice_seconds * 1e9))
        with self._changed:
            self.protocol.leaving = message
        if self._session is not None:
            self._session.send(ring_pb2.AttendRequest(leaving=message))

    def _where(self) -> dict[str, object]:
        """Fields of every log line. Takes no lock, because lines are also logged while `_changed` is held."""
        return {
            "job": self._environment.job,
            "worker": self._environment.worker_id,
            "generation": self.protocol.generation,
            "step": self.protocol.applied_step,
        }

    # ------------------------------------------------------------------ the script's thread

    def tell(self, change: Callable[[], Outcome]) -> None:
        """Change the protocol's state and send the resulting messages, in that order, under the lock."""
        with self._changed:
            outcome = change()
            if outcome.send:  # three of a step's four changes have nothing to say
                self.spans.said(outcome.send)
                if self._session is not None:
                    self._session.send(*outcome.send)
            self._changed.notify_all()

    def saved(self, message: ring_pb2.Saved) -> None:
        """Report a written shard or manifest; called by the saver's thread."""
        self.tell(lambda: self.protocol.saved(message))

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` holds. Raises the error that ended the session for good.

        condition: reads the protocol's state; evaluated under the lock.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or condition())
            if self._error is not None:
                raise self.exits.failed(self._error)

    def next_request(self) -> ring_pb2.Load | ring_pb2.Go | ring_pb2.Follow | None:
        """Return the master's request before the next step, or None if the ring is formed and training.

        Blocks until one of the two is the case. Ends the script if the master drains this worker or the job
        is done.
        """
        protocol = self.protocol
        self.tell(protocol.end_backward)  # the script may have left backward by an exception
        with self._changed:
            self._at_boundary = True
            self._changed.notify_all()
        self.wait_for(lambda: protocol.must_act)
        with self._changed:
            self._at_boundary = False
            asked = protocol.load or protocol.go or protocol.following.asked
            drain, done = protocol.drain, protocol.done
        if done is not None or drain is not None:
            self.exits.sent_away(done, drain)
        return asked

    def take_checkpoint_request(self) -> ring_pb2.Checkpoint | None:
        """Return the checkpoint requested at this step boundary, if any, and clear it."""
        with self._changed:
            message, self.protocol.checkpoint = self.protocol.checkpoint, None
        return message

    def take_check(self, step: int) -> ring_pb2.Check | None:
        """Return the sentinel's check of this worker in `step`, if any, and clear it."""
        with self._changed:
            check, self.protocol.check = self.protocol.check, None
        return check if check is not None and check.step == step else None

    def begin_step(self) -> StepState:
        """Begin the next step to apply, and return its state."""
        with self._changed:
            return self.protocol.begin_step()

    def lose_step(self) -> None:
        """Give up the step in flight, if there is one."""
        self.tell(self.protocol.lose_step)

    def begin_apply(self, step: int) -> bool:
        """Claim the right to apply `step`; False, with the step lost, if the ring changed meanwhile.

        After a successful claim a ring change waits for the optimizer, so Ready never reports a half-applied
        step.
        """
        with self._changed:
            return self.protocol.begin_apply(step)

    def begin_ahead(self, step: int) -> bool:
        """Claim the right to apply `step` ahead of its Prepared; False if it has been decided meanwhile."""
        with self._changed:
            return self.protocol.begin_ahead(step)

    def take_back(self) -> bool:
        """Give up the step that was applied ahead, if it is lost; then the caller undoes it."""
        with self._changed:
            return self.protocol.take_back()

    def explain(self) -> None:
        """Answer the master's request for the parts of the state, which waited until a step was undone."""
        with self._changed:
            asked = self.protocol.attempts.explain_later
        if asked is not None:
            self._explain(asked)

    def begin_replace(self, generation: int) -> bool:
        """Claim the right to replace the weights; False if `generation` has been superseded."""
        with self._changed:
            return self.protocol.begin_replace(generation)

    def set_between(self, between: bool) -> None:
        """Report that the script's code between epochs begins or ends: no lease is running there."""
        if self.protocol.between_steps != between:
            with self._changed:
                self.protocol.between_steps = between
                if self._session is not None:
                    self._session.send(self.protocol.heartbeat())

    def form(self, go: ring_pb2.Go, me: int) -> RingTransport:
        """Form the process group of a new generation. me: this worker's index in the ring.

        Raises RingAborted, RingBroken.
        """
        with self._changed:
            if self.protocol.fenced != go.generation:
                raise RingAborted(f"generation {go.generation} is over")
            self._cancel = cancel = threading.Event()
            # The old group is closed first: its threads and connections must not outlive its generation.
            old, self._transport = self._transport, None
            if not self.protocol.is_formed_early(go):
                self._give_up_early()
            early, self._early = self._early, None
        if old is not None:
            old.close()
        transport = (early or self._begin_forming(go, me)).result(cancel)
        with self._changed:
            self._transport = transport
            # The generation may have been superseded while the group was forming, before abort() could reach
            #  this transport.
            if cancel.is_set():
                raise RingAborted(f"generation {go.generation} is over")
        return transport

    def begin_following(self) -> ring_pb2.Follow | None:
        """Claim the right to replace the weights by those of a ring; None if that is not wanted any more."""
        with self._changed:
            self._stop_following = threading.Event()
            return self.protocol.begin_following()

    def form_following(self, message: ring_pb2.Follow, place: int) -> RingTransport:
        """Connect a newcomer that follows with its source. place: in this group of two; 0: the newcomer.

        Raises RingAborted, RingBroken.
        """
        stop = self._stop_following if place == 0 else threading.Event()
        forming = Forming(
            message.store_address,
            rendezvous.follow_group(message.generation, message.step),
            message.rendezvous_secret,
            place,
            2,
            shared_memory=self._environment.shared_memory,
            messages=self._environment.ring_messages,
            tls=self._tls,
        )
        transport = forming.result(stop)
        if place == 0:
            with self._changed:
                self._following = transport
                if stop.is_set():
                    raise RingAborted("the ring changed")
        return transport

    def _begin_forming(self, change: ring_pb2.Go | ring_pb2.Prepare, me: int) -> Forming:
        return Forming(
            change.members[0].store_address,
            rendezvous.group_of(change.generation),
            change.rendezvous_secret,
            me,
            len(change.members),
            self._device,
            shared_memory=self._environment.shared_memory,
            messages=self._environment.ring_messages,
            tls=self._tls,
        )

    def entered(self, go: ring_pb2.Go) -> bool:
        """Start running in the new ring; False if it is over already."""
        with self._changed:
            if not self.protocol.stands(go.generation):
                return False
            self.protocol.entered(go.generation, go.resume_step, list(go.extra.ready_order))
            self.protocol.check = go.check if go.HasField("check") else None
            self.members = list(go.members)
        return True

    # ------------------------------------------------------------------ the session's threads

    def _receive(self, message: ring_pb2.AttendResponse) -> None:
        with self._changed:
            self.spans.heard(message, in_ring=self.protocol.generation > 0)
            ahead = self.protocol.attempts.ahead
            outcome = self.protocol.receive(message)
            if self.protocol.attempts.ahead is not ahead:
                self.ahead_settled_at = perf_counter()
            self._carry_out(outcome)
            self.spans.said(outcome.send)
            if self._session is not None:
                self._session.send(*outcome.send)
            transport = self._transport
            followed = self._give_up_following() if outcome.stop_following else None
            if outcome.abort:
                self._cancel_forming()
            if outcome.form is not None:
                self._form_early(outcome.form)
            self._changed.notify_all()
        if outcome.abort and transport is not None:
            transport.abort()
        if followed is not None:
            followed.abort()

    def _form_early(self, change: ring_pb2.Prepare) -> None:
        """Begin to form the group of a planned change, under the lock.

        On GPUs a group is formed after its Go: while another one's kernels wait for a peer, it could block.
        """
        self._give_up_early()
        if self._device.type == "cpu":
            names = [member.worker_id for member in change.members]
            self._early = self._begin_forming(change, names.index(self._environment.worker_id))

    def _give_up_following(self) -> RingTransport | None:
        """Let this worker follow no longer, under the lock; returns the connection to abort without it."""
        self._stop_following.set()
        return self._following

    def _cancel_forming(self) -> None:
        """Cancel the groups that are being formed, under the lock."""
        self._cancel.set()
        self._give_up_early()

    def _give_up_early(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            early.give_up()

    def _carry_out(self, outcome: Outcome) -> None:
        """Do what the master asked for and no answer of the protocol covers."""
        if outcome.manifest is not None:
            assert self._duties is not None
            self._duties.write_manifest(outcome.manifest)
        if outcome.explain is not None:
            # In a thread: hashing the state takes a while, and the master's messages must still be received.
            threading.Thread(target=self._explain, args=(outcome.explain,), daemon=True).start()
        if outcome.capture is not None:
            self.captures.ordered(outcome.capture)
        if outcome.unknown:
            _log.warning("unknown message from the master", kind=outcome.unknown)

    def _explain(self, asked: ring_pb2.Explain) -> None:
        """Send names, digests and values of the state while the script's thread waits for Prepared."""
        assert self._duties is not None
        answer = ring_pb2.StateDetails(generation=asked.generation, step=asked.step)
        for name, digest, value in self._duties.details()[:DETAILS_MAX]:
            answer.details.add(name=name, digest=digest, value=value)
        self.tell(lambda: self.protocol.explained(answer))

    def _session_failed(self, error: ElastaneError) -> None:
        with self._changed:
            self._error = error
            self._cancel_forming()
            ending = [self._transport, self._give_up_following()]
            self._changed.notify_all()
        for transport in ending:
            if transport is not None:
                transport.abort()

    def _evicted(self) -> None:
        """Leave the ring, and return only when the script's thread has reached a step boundary.

        Otherwise a hung script, whose session thread is healthy, would be admitted to the next ring, and
        every member would wait for it again. A process that hangs longer than `hang_seconds` exits and logs
        where. A reported step of a pipeline waits for the master alone: Hello is sent at once, and the next
        Welcome says whether it is applied.
        """
        with self._changed:
            if self.protocol.may_finish:
                return
            self.protocol.evict()
            self._cancel_forming()
            ending = [self._transport, self._give_up_following()]
            self._changed.notify_all()
        for transport in ending:
            if transport is not None:
                transport.abort()
        with self._changed:
            while not self._changed.wait_for(
                lambda: self._at_boundary or self._closing, self._environment.hang_seconds
            ):
                if not self.protocol.between_steps:
                    self.exits.hangs(self._environment.hang_seconds)

    def _heartbeat(self) -> ring_pb2.AttendRequest:
        with self._changed:
            request = self.protocol.heartbeat()
        request.heartbeat.figures.CopyFrom(self._figures())
        return request

    def _figures(self) -> ring_pb2.WorkerFigures:
        assert self._duties is not None
        self._resources.measure(self._duties.figures)
        return ring_pb2.WorkerFigures(**vars(self._duties.figures))

    def _hello(self) -> ring_pb2.Hello:
        assert self._store is not None and self._duties is not None
        signature = self._duties.signature()
        with self._changed:
            hello = self.protocol.hello(
                job=self._environment.job,
                worker_id=self._environment.worker_id,
                role=ring_pb2.WORKER_ROLE_RING,
                signature=signature,
                host=self._environment.rendezvous_host(),
                pid=self.exits.pid,
                store_address=self._store.address,
                rendezvous_key=self._store.key,
                version=str(versions.PROTOCOL),
                capacity=self._environment.capacity_type(),
                memory_bytes=self._duties.figures.memory_bytes,
                follows=self._duties.follows(),
            )
        return self._process.fill(hello)
