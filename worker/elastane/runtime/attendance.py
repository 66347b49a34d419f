"""This worker at the master: the session, the protocol's state under one lock, the group of a generation.

Two threads meet here. The session's reader thread brings the master's messages; the script's thread
asks what is to be done and tells what it has done. Both change the protocol's state only under
`_changed`, and send what follows from a change while they hold it, so that the master hears it in order.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

import structlog

from elastane import logs
from elastane.collective import warming
from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.transport import RingAborted, RingTransport
from elastane.errors import ElastaneError
from elastane.runtime.change_spans import ChangeSpans
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.exits import WorkerExits
from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane.runtime.session import MasterSession
from elastane_proto import rendezvous, tracing, versions
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)

DETAILS_MAX = 20_000
"""So many tensors and values are named one by one: 2 MB at most, what a master takes in a message is 4."""


class Attendance:
    """Built by the trainer, started when the script asks for its first epoch.

    backend: of the process groups, "gloo" or "nccl". signature: the script's, for Hello.
    write_manifest: called with a Checkpoint that asks the leader for the manifest. details: what the state
    consists of, as name, digest and words.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        *,
        backend: str,
        signature: Callable[[], ring_pb2.ScriptSignature],
        write_manifest: Callable[[ring_pb2.Checkpoint], None],
        close: Callable[[ring_pb2.Bye | None], None],
        details: Callable[[], list[tuple[str, int, str]]],
    ) -> None:
        self._environment = environment
        self._backend = backend
        self._signature = signature
        self._write_manifest = write_manifest
        self._details = details
        #: Of the whole state after the last step, for Bye.
        self.final_digest: int | None = None
        self._changed = threading.Condition()
        self._error: ElastaneError | None = None
        #: Set when the group that is being formed is no longer wanted.
        self._cancel = threading.Event()
        self._transport: RingTransport | None = None
        self._session: MasterSession | None = None
        self._store: RendezvousStore | None = None
        #: The script's thread is where it can take part in a change of the ring.
        self._at_boundary = False
        self._closing = False
        self._process = secrets.token_bytes(versions.PROCESS_BYTES)
        self.protocol = WorkerProtocol()
        self.spans = ChangeSpans(environment.job, environment.worker_id, tracing.now_ns)
        self.members: list[ring_pb2.Member] = []
        self.exits = WorkerExits(environment, self.request_leave, close)

    @property
    def is_leader(self) -> bool:
        """Whether this worker hosts EST 0."""
        return bool(self.members) and self.members[0].worker_id == self._environment.worker_id

    @property
    def started(self) -> bool:
        return self._session is not None

    def start(self) -> None:
        """Say Hello; from now on the process's end is watched over too."""
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
        self.exits.install()
        logs.say_where(self._where)
        self._session.start()

    def close(self, bye: ring_pb2.Bye | None) -> None:
        """End the session, with `bye` if it still stands, and leave the group."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._session is not None:
            if bye is not None:
                bye.applied_step = self.protocol.applied_step
                if self.final_digest is not None and bye.reason == ring_pb2.BYE_REASON_FINISHED:
                    bye.state_digest = self.final_digest
            self._session.close(bye)
        if self._transport is not None:
            self._transport.close()
        self.spans.close()

    def request_leave(self, reason: str, notice_seconds: float) -> None:
        """Ask to be drained (spot notice, SIGTERM)."""
        message = ring_pb2.Leaving(reason=reason)
        message.notice.FromNanoseconds(int(notice_seconds * 1e9))
        with self._changed:
            self.protocol.leaving = message
        if self._session is not None:
            self._session.send(ring_pb2.AttendRequest(leaving=message))

    def _where(self) -> dict[str, object]:
        """What every log line has. Takes no lock: lines are written under this one too."""
        return {
            "job": self._environment.job,
            "worker": self._environment.worker_id,
            "generation": self.protocol.generation,
            "step": self.protocol.applied_step,
        }

    # ------------------------------------------------------------------ the script's thread

    def tell(self, change: Callable[[], Outcome]) -> None:
        """Change the protocol's state and send what follows from it, in that order."""
        with self._changed:
            outcome = change()
            self.spans.said(outcome.send)
            if self._session is not None:
                self._session.send(*outcome.send)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until `condition` of the protocol's state holds; raises what ended the session for good."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or condition())
            if self._error is not None:
                raise self.exits.failed(self._error)

    def next_request(self) -> ring_pb2.Load | ring_pb2.Go | None:
        """What the master wants before the next step; None when the ring stands and trains.

        Waits while there is neither. Ends the script when the master sends this worker away.
        """
        protocol = self.protocol

        def asked() -> object:
            running = protocol.generation > 0 and not protocol.changing
            return protocol.done or protocol.drain or protocol.load or protocol.go or running

        self.tell(protocol.end_backward)  # where the script left it by an exception
        with self._changed:
            self._at_boundary = True
            self._changed.notify_all()
        self.wait_for(asked)
        with self._changed:
            self._at_boundary = False
            load, go, drain, done = protocol.load, protocol.go, protocol.drain, protocol.done
        if done is not None or drain is not None:
            self.exits.sent_away(done, drain)
        return load or go

    def take_checkpoint_request(self) -> ring_pb2.Checkpoint | None:
        """The checkpoint asked for at this boundary, if any; it is taken once."""
        with self._changed:
            message, self.protocol.checkpoint = self.protocol.checkpoint, None
        return message

    def take_check(self, step: int) -> ring_pb2.Check | None:
        """What the sentinel asks of this worker in `step`, if anything; it is taken once."""
        with self._changed:
            check, self.protocol.check = self.protocol.check, None
        return check if check is not None and check.step == step else None

    def begin_apply(self, step: int) -> bool:
        """Claim the right to apply `step`; False if the ring changed meanwhile."""
        with self._changed:
            return self.protocol.begin_apply(step)

    def begin_replace(self, generation: int) -> bool:
        """Claim the right to put other weights in place; False if `generation` is over."""
        with self._changed:
            return self.protocol.begin_replace(generation)

    def set_between(self, between: bool) -> None:
        """The script's code between epochs begins or ends: no lease runs there."""
        if self.protocol.between_steps != between:
            with self._changed:
                self.protocol.between_steps = between
                if self._session is not None:
                    self._session.send(self.protocol.heartbeat())

    def form(self, go: ring_pb2.Go, me: int) -> RingTransport:
        """The group of the new generation, this worker at place `me`. Raises RingAborted, RingBroken."""
        with self._changed:
            if self.protocol.fenced != go.generation:
                raise RingAborted(f"generation {go.generation} is over")
            self._cancel = cancel = threading.Event()
            old, self._transport = self._transport, None
        if old is not None:
            old.close()
        transport = RingTransport.form(
            store_address=go.members[0].store_address,
            prefix=rendezvous.group_of(go.generation),
            secret=go.rendezvous_secret,
            rank=me,
            size=len(go.members),
            cancel=cancel,
            backend=self._backend,
            shared_memory=self._environment.shared_memory,
        )
        with self._changed:
            self._transport = transport
            if cancel.is_set():
                raise RingAborted(f"generation {go.generation} is over")
        return transport

    def entered(self, go: ring_pb2.Go) -> bool:
        """This worker runs in the new ring from here on; False if that is over already."""
        with self._changed:
            if self.protocol.fenced != go.generation:
                return False
            self.protocol.entered(go.generation, go.resume_step, list(go.extra.ready_order))
            self.protocol.check = go.check if go.HasField("check") else None
            self.members = list(go.members)
        return True

    # ------------------------------------------------------------------ the session's threads

    def _receive(self, message: ring_pb2.AttendResponse) -> None:
        with self._changed:
            self.spans.heard(message, in_ring=self.protocol.generation > 0)
            outcome = self._dispatch(message)
            self.spans.said(outcome.send)
            if self._session is not None:
                self._session.send(*outcome.send)
            transport = self._transport
            if outcome.abort:
                self._cancel.set()
            self._changed.notify_all()
        if outcome.abort and transport is not None:
            transport.abort()

    def _dispatch(self, message: ring_pb2.AttendResponse) -> Outcome:
        protocol = self.protocol
        match message.WhichOneof("message"):
            case "prepare":
                return protocol.prepare(message.prepare)
            case "prepared":
                return protocol.prepared(message.prepared)
            case "interval_decided":
                return protocol.interval_decided(message.interval_decided)
            case "go":
                return protocol.go_ahead(message.go)
            case "load":
                return protocol.load_requested(message.load)
            case "welcome":
                return protocol.welcome(message.welcome)
            case "checkpoint" if message.checkpoint.manifest:
                self._write_manifest(message.checkpoint)
            case "checkpoint":
                protocol.checkpoint = message.checkpoint
            case "drain":
                protocol.drain = message.drain
            case "compare" if message.compare.HasField("explain"):
                # Not here: it takes a while, and the master's messages must go on being heard.
                asked = message.compare.explain
                threading.Thread(target=self._explain, args=(asked,), daemon=True).start()
            case "compare":
                return protocol.compared(message.compare)
            case "done":
                protocol.done = message.done
                return Outcome(abort=True)
            case kind:
                _log.warning("unknown message from the master", kind=kind)
        return Outcome()

    def _explain(self, asked: ring_pb2.Explain) -> None:
        """Say what this worker's state consists of. The script's thread waits for the step to be prepared."""
        answer = ring_pb2.StateDetails(generation=asked.generation, step=asked.step)
        for name, digest, value in self._details()[:DETAILS_MAX]:
            answer.details.add(name=name, digest=digest, value=value)
        self.tell(lambda: self.protocol.explained(answer))

    def _session_failed(self, error: ElastaneError) -> None:
        with self._changed:
            self._error = error
            self._cancel.set()
            transport = self._transport
            self._changed.notify_all()
        if transport is not None:
            transport.abort()

    def _evicted(self) -> None:
        """Leave the ring, and come back when the script's thread can follow.

        A script that hangs would be let into the next ring otherwise, on the word of a session that is
        well, and everybody would wait for it again. Its process ends after a while, saying where it is.
        """
        with self._changed:
            self.protocol.put_out()
            self._cancel.set()
            transport = self._transport
            self._changed.notify_all()
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
            return self.protocol.heartbeat()

    def _hello(self) -> ring_pb2.Hello:
        assert self._store is not None
        signature = self._signature()
        with self._changed:
            protocol = self.protocol
            return ring_pb2.Hello(
                job=self._environment.job,
                worker_id=self._environment.worker_id,
                role=ring_pb2.WORKER_ROLE_RING,
                signature=signature,
                host=self._environment.rendezvous_host(),
                pid=self.exits.pid,
                store_address=self._store.address,
                rendezvous_key=self._store.key,
                process=self._process,
                generation=protocol.fenced,
                applied_step=protocol.applied_step,
                holds_state=protocol.holds_state,
                version=str(versions.PROTOCOL),
                capacity=self._environment.capacity_type(),
                history_generation=protocol.history_generation,
            )
