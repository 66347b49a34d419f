"""Serves a newcomer that follows this worker: its state, then what each optimizer step is given.

The script's thread copies what an optimizer step is given, for the step may change it, and goes on. A thread
of the feed copies the state, beside forward and backward, and sends. `FeedBook` decides in which order.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any, Final

import structlog
import torch
from torch.optim import Optimizer

from elastane.collective.ring_errors import RingError
from elastane.runtime.est_memory import free_memory_bytes
from elastane.runtime.feed_book import FeedBook, FollowError
from elastane.runtime.worker_session import WorkerSession
from elastane.state.codec import Exported, StateNotCarriedError
from elastane.state.feed_frames import END, GIVEN, LEVEL, STATE, Frame, Memory, copy_of, send_frame
from elastane.state.repeated_steps import OutsideWrites, RepeatedState, rest_of, step_inputs, why_not_repeated
from elastane.state.stream import StreamLayout
from elastane.state.train_state import TrainState
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)
_CPU: Final = torch.device("cpu")

FEED_SECONDS_MAX: Final = 120.0
"""A ring that has not changed by then does without the newcomer: it is not served any longer."""
REST_BYTES_MAX: Final = 8 << 20
"""Most that may be sent when the ring changes, while all its members wait."""
WAITING_MAX: Final = 2
"""Most that may wait to be sent, as a multiple of the state's size: what the newcomer may be behind."""
_WRITTEN: Final = "the script has written to the state after it was compared"
NEWCOMER: Final = 0
"""Index of the newcomer in the group of the two, which meets at its store."""


class StateFeed:
    """This worker as the source of a newcomer. Used by the script's thread."""

    def __init__(self, session: WorkerSession, state: TrainState) -> None:
        self._session, self._state = session, state
        self._feed: _Feed | None = None

    @property
    def is_feeding(self) -> bool:
        """True while a newcomer is served: it has been sent what the steps so far were given."""
        return self._feed is not None

    def serves(self, message: ring_pb2.Follow) -> bool:
        """True if the newcomer of this message is being served."""
        return self._feed is not None and self._feed.message == message

    def at_boundary(self, step: int) -> None:
        """Begin to serve the newcomer that the master has named, go on, or end with a change of the ring."""
        protocol = self._session.protocol
        message = protocol.following.feed
        if (
            message is not None
            and message.step == step
            and (self._feed is None or self._feed.message != message)
        ):
            self.close()
            self._feed = _Feed(self._session, self._state, message)
        if self._feed is None:
            return
        if protocol.changing:
            self._feed.end(step)
            self._feed = None
        elif not self._feed.at_boundary(step):
            self._feed = None

    def before_step(self, step: int, optimizer: Optimizer, arguments: tuple[Any, ...]) -> None:
        """Note what an optimizer step is given, once the state may change. arguments: of the step."""
        if self._feed is not None:
            self._feed.before_step(step, optimizer, arguments)

    def after_step(self) -> None:
        """Note that an optimizer step has changed the state."""
        if self._feed is not None:
            self._feed.after_step()

    def close(self) -> None:
        """Serve no longer."""
        if self._feed is not None:
            self._feed.give_up("the source has ended")
            self._feed = None


class _Feed:
    """One newcomer's feed."""

    def __init__(self, session: WorkerSession, state: TrainState, message: ring_pb2.Follow) -> None:
        self.message = message
        self._session, self._state = session, state
        self._until = monotonic() + FEED_SECONDS_MAX
        self._memory = Memory()
        self._exported: Exported | None = state.export()
        size = StreamLayout(self._exported.specs).total_bytes
        rest = sum(self._exported.specs[index].nbytes for index in rest_of(self._exported))
        self._book: FeedBook[Frame] = FeedBook(bytes_max=WAITING_MAX * size)
        self._repeated: RepeatedState | None = None
        #: From the digest on, which says nothing of what is written later.
        self._writes = OutsideWrites(state)
        self._last: Frame | None = None
        self._changed = threading.Condition()
        if why := why_not_repeated(state):
            self._book.fail(why)
        elif rest > REST_BYTES_MAX:
            self._book.fail(f"{rest} bytes of the state are not changed by optimizer steps")
        elif (free := free_memory_bytes(_CPU)) is not None and free < (1 + WAITING_MAX) * size:
            self._book.fail(f"a copy of {size} bytes and the steps after it do not fit into {free} bytes")
        threading.Thread(target=self._run, name="elastane-feed", daemon=True).start()

    # ------------------------------------------------------------------ the script's thread

    def at_boundary(self, step: int) -> bool:
        """Let the thread read the state if it has to; False if the feed has ended."""
        with self._changed:
            if monotonic() > self._until:
                self._book.fail("the ring has not changed for long")
            if self._book.at_boundary(step) == "digest":
                self._repeated = RepeatedState(self._state)
                self._writes.mark()
            self._changed.notify_all()
            return not self._book.is_over

    def before_step(self, step: int, optimizer: Optimizer, arguments: tuple[Any, ...]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._book.may_change)
            if self._book.is_over:
                return
            places = [index for index, one in enumerate(self._state.optimizers) if one is optimizer]
            if arguments or not places or why_not_repeated(self._state):
                self._book.fail(f"a step of {type(optimizer).__name__} cannot be repeated")
            elif self._writes.has_any():
                self._book.fail(_WRITTEN)
            else:
                self._copy_inputs(step, places[0], optimizer)
            self._changed.notify_all()

    def after_step(self) -> None:
        """Take what the step has made for the state to be compared with."""
        if self._repeated is not None and not self._book.is_over:
            self._writes.mark()

    def _copy_inputs(self, step: int, index: int, optimizer: Optimizer) -> None:
        try:
            inputs = step_inputs(index, optimizer)
            layout = StreamLayout(inputs.specs)
            block = copy_of(inputs.tensors, layout, self._memory)
        except (StateNotCarriedError, RuntimeError, MemoryError) as error:
            # Whatever there is no memory for, the step of this worker goes on.
            self._book.fail(str(error))
            return
        frame = Frame(GIVEN, step, self._book.calls + 1, inputs.structure, block[: layout.total_bytes], block)
        self._book.given(step, frame, layout.total_bytes)

    def end(self, step: int) -> None:
        """End with the state after `step` steps: what optimizer steps have not changed is copied now."""
        with self._changed:
            if not self._book.is_over and self._writes.has_any():
                self._book.fail(_WRITTEN)
            if self._book.end(step):
                whole = self._state.export()
                rest = rest_of(whole)
                layout = StreamLayout([whole.specs[index] for index in rest])
                block = copy_of([whole.tensors[index] for index in rest], layout, self._memory)
                stream = block[: layout.total_bytes]
                self._last = Frame(END, step, self._book.calls, whole.structure, stream)
            self._changed.notify_all()

    def give_up(self, why: str) -> None:
        with self._changed:
            self._book.fail(why)
            self._changed.notify_all()

    # ------------------------------------------------------------------ the feed's thread

    def _run(self) -> None:
        try:
            self._serve()
        except (RingError, FollowError, RuntimeError, MemoryError) as error:
            why = str(error)
            _log.info("serves no newcomer any more", newcomer=self.message.newcomer, error=why)
            self._session.tell(lambda: self._session.protocol.feeding_failed(self.message, why))
            self.give_up(why)
        finally:
            # The optimizer must never wait for a thread that has ended.
            self.give_up("the feed has ended")

    def _serve(self) -> None:
        state = self._read_state()
        transport = self._session.form_following(self.message, 1 - NEWCOMER)
        try:
            send_frame(transport, NEWCOMER, state)
            with self._changed:
                self._book.sending = False
                self._changed.notify_all()
            del state
            while (frame := self._next()) is not None:
                send_frame(transport, NEWCOMER, frame)
                if frame.kind == END:
                    # It says that it has all: a connection that is closed loses what was not read.
                    transport.recv(torch.zeros(1, dtype=torch.uint8), NEWCOMER, 0).wait()
                    return
                with self._changed:
                    self._book.sending = False
                    if frame.block is not None:
                        self._memory.give(frame.block)
                    self._changed.notify_all()
        finally:
            transport.close()

    def _read_state(self) -> Frame:
        with self._changed:
            self._changed.wait_for(lambda: self._book.reading or self._book.failure)
            self._check()
            exported, self._exported = self._exported, None
            assert exported is not None
        layout = StreamLayout(exported.specs)
        stream = copy_of(exported.tensors, layout, self._memory)
        with self._changed:
            self._check()  # if the feed was given up meanwhile, the optimizer has not waited
            self._book.read()
            self._changed.notify_all()
        return Frame(STATE, self._book.read_step, 0, exported.structure, stream)

    def _next(self) -> Frame | None:
        """Wait for what is to be sent next."""
        book = self._book
        with self._changed:
            self._changed.wait_for(
                lambda: book.failure or book.waiting or book.reading or book.end_step is not None
            )
            self._check()
            given = book.next()
        if given is not None:
            return given.item
        if book.reading == "digest":
            return self._digest()
        return self._last

    def _digest(self) -> Frame:
        repeated, step = self._repeated, self._book.read_step
        assert repeated is not None
        digest = repeated.digest()
        self._session.tell(lambda: self._session.protocol.followed(step, digest))
        with self._changed:
            self._book.read()
            self._changed.notify_all()
        return Frame(LEVEL, step, self._book.calls)

    def _check(self) -> None:
        if self._book.failure:
            raise FollowError(self._book.failure)
