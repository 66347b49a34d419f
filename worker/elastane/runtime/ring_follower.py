"""Follows a ring as a newcomer: takes its source's state, then the same optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from elastane.collective.ring_thread import RingThread
from elastane.collective.transport import RingTransport
from elastane.runtime.est_memory import is_out_of_memory
from elastane.runtime.feed_book import FollowBook, FollowError
from elastane.runtime.state_feed import NEWCOMER
from elastane.runtime.worker_session import WorkerSession
from elastane.state.codec import StateFormatError
from elastane.state.feed_frames import END, GIVEN, LEVEL, STATE, Frame, Memory, receive_frame
from elastane.state.handover import HandoverError
from elastane.state.repeated_steps import RepeatedState, completed, repeat_step, why_not_repeated
from elastane.state.train_state import StateError, TrainState
from elastane_proto.v1 import ring_pb2

_SOURCE = 1 - NEWCOMER


FOLLOW_BYTES_MIN: Final = 16 << 20
"""Parameters of fewer bytes are handed over, with the optimizer's state, before following would pay."""


def is_worthwhile(state: TrainState) -> bool:
    """True if a ring of this state should be followed, and can be."""
    parameters = list(state.model.parameters())
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    on_host = all(parameter.device.type == "cpu" for parameter in parameters)
    return size >= FOLLOW_BYTES_MIN and on_host and not why_not_repeated(state)


class RingFollower:
    """One worker's following of a ring. Runs in the script's thread, which has nothing else to do.

    Frames are received in a thread, into memory that is abandoned with it if the connection ends.
    """

    def __init__(self, session: WorkerSession, state: TrainState) -> None:
        self._session, self._state = session, state

    def follow(self, message: ring_pb2.Follow, meanwhile: Callable[[RingTransport], None]) -> int:
        """Return the step at which the ring changes, with its state in place here.

        meanwhile: work to be done while the state travels over this connection. Raises FollowError,
        RingAborted, RingBroken.
        """
        transport = self._session.form_following(message, NEWCOMER)
        try:
            return self._follow(transport, message.step, lambda: meanwhile(transport))
        except (HandoverError, StateError, StateFormatError, KeyError) as error:
            raise FollowError(str(error)) from error
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise FollowError(f"there is no memory for the state: {error}") from error
        finally:
            transport.close()

    def _follow(self, transport: RingTransport, step: int, meanwhile: Callable[[], None]) -> int:
        book, memory = FollowBook(step), Memory()
        thread = RingThread("elastane-follow", transport)
        try:
            while True:
                frame = _received(thread, transport, memory, meanwhile)
                meanwhile = _nothing
                match frame.kind:
                    case kind if kind == STATE:
                        self._state.load(frame.exported())
                    case kind if kind == GIVEN:
                        book.given(frame.step, frame.number)
                        repeat_step(self._state.optimizers, frame.exported())
                    case kind if kind == LEVEL:
                        book.reach(frame.step, frame.number)
                        self._report(frame.step)
                    case kind if kind == END:
                        book.reach(frame.step, frame.number)
                        self._end(frame)
                        transport.send(torch.ones(1, dtype=torch.uint8), _SOURCE, 0).wait()
                        return frame.step
                if frame.block is not None:
                    memory.give(frame.block)
        finally:
            thread.close()

    def _report(self, step: int) -> None:
        digest = RepeatedState(self._state).digest()
        self._session.tell(lambda: self._session.protocol.followed(step, digest))

    def _end(self, frame: Frame) -> None:
        assert frame.stream is not None
        self._state.load(completed(frame.structure, frame.stream, self._state.export()))


def _received(
    thread: RingThread, transport: RingTransport, memory: Memory, meanwhile: Callable[[], None]
) -> Frame:
    frames: list[Frame] = []
    thread.submit(lambda: frames.append(receive_frame(transport, _SOURCE, memory)))
    meanwhile()
    thread.finish()
    return frames[0]


def _nothing() -> None:
    """There is no work left to be done meanwhile."""
