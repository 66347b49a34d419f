"""The simulated network: links between processes, streams and unary calls to the master.

A link has a direction. While it is cut, data of a stream waits and arrives afterwards, as TCP retransmits it;
a unary request or its answer may be lost instead. A stream keeps its order; all other messages may overtake
each other. The worker drops a connection that was silent for the keepalive time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.rpc import status_pb2

from elastane_proto.v1 import errors_pb2
from sim.process import Process
from sim.world import World

if TYPE_CHECKING:
    from sim.master_model import MasterModel

KEEPALIVE_SECONDS = 10.0
KEEPALIVE_TIMEOUT_SECONDS = 5.0
LOST_SHARE = 0.5
DELAYS_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.02)


class Network:
    """All links.

    troubled_until: until then unary calls are also lost, delayed and duplicated. misleads_until: until then a
    worker's stream may reach a master of another store, which is not ready.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.troubled_until = self.misleads_until = 0.0
        self._cut_until: dict[tuple[str, str], float] = {}

    def cut(
        self, one: str, others: Collection[str], seconds: float, *, to: bool = True, back: bool = True
    ) -> None:
        """Cut the links from `one` to `others` (if `to`) and back (if `back`) for `seconds`."""
        arrows = "->" * to + "<-" * back
        self.world.log(f"NETWORK {one} {arrows} {', '.join(others)} is cut for {seconds:.1f} s")
        until = self.world.now + seconds
        for other in others:
            for link, wanted in (((one, other), to), ((other, one), back)):
                if wanted:
                    self._cut_until[link] = max(until, self._cut_until.get(link, 0.0))

    def passes(self, source: str, target: str) -> bool:
        """True if the link is not cut now."""
        return self._cut_until.get((source, target), 0.0) <= self.world.now

    def arrival(self, source: str, target: str) -> float:
        """Return when a message sent now arrives; not before the link works again."""
        delay = self.world.rng.choice(DELAYS_SECONDS)
        return max(self.world.now, self._cut_until.get((source, target), 0.0)) + delay

    def misleads(self) -> bool:
        """Draw whether a stream opened now reaches a master that does not know the job."""
        return self.world.now < self.misleads_until and self.world.rng.random() < 0.5

    def is_lost(self, source: str, target: str) -> bool:
        """Draw whether a message of a unary call sent now is lost."""
        rng = self.world.rng
        if not self.passes(source, target):
            return rng.random() < LOST_SHARE
        return self.world.now < self.troubled_until and rng.random() < 0.2


class Ended(Exception):  # noqa: N818 - the end of a call, not an error of ours
    """The end of a call: status code and the master's error detail."""

    def __init__(self, code: grpc.StatusCode, details: str, detail: errors_pb2.ErrorDetail) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code, self.details, self.detail = code, details, detail

    @classmethod
    def of(cls, code: grpc.StatusCode, details: str, metadata: Any = ()) -> Ended:
        """Build it from the arguments that a servicer passes to `abort`."""
        detail = errors_pb2.ErrorDetail()
        for key, value in metadata or ():
            if key == "grpc-status-details-bin":
                for packed in status_pb2.Status.FromString(value).details:
                    packed.Unpack(detail)
        return cls(code, details, detail)


def unavailable(details: str) -> Ended:
    return Ended.of(grpc.StatusCode.UNAVAILABLE, details)


class CallContext:
    """The context that a servicer receives."""

    def __init__(self, write: Callable[[Any], None] = lambda message: None) -> None:
        self._write = write

    async def write(self, message: Any) -> None:
        self._write(message)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Ignore trailing metadata, which the simulation does not read."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        raise Ended.of(code, details, trailing_metadata)


ATTEND = "/elastane.v1.RingService/Attend"


class Stream:
    """One stream, as that of a worker that attends: bytes in both directions, in order.

    on_message, on_end: called in the worker's process; on_end gets None if the stream ended regularly.
    method: of the master; of one that takes a single request, that is the first message.
    """

    def __init__(
        self,
        network: Network,
        worker: Process,
        master: MasterModel,
        on_message: Callable[[bytes], None],
        on_end: Callable[[Ended | None], None],
        method: str = ATTEND,
    ) -> None:
        self.method = method
        self._network, self._worker, self.master = network, worker, master
        self._on_message, self._on_end = on_message, on_end
        self._up_at = self._down_at = network.world.now
        self._inbox: deque[bytes] = deque()
        self._half_closed = False
        self._arrived: Any = None
        self.open_up = True
        self.open_down = True
        self._ended = False
        self.serving: Any = None
        self._up(lambda: master.accept(self))
        self._watch(False)

    @property
    def attends(self) -> bool:
        """True if both ends consider the stream open."""
        return self.open_up and self.open_down and not self._ended and self.serving is not None

    @property
    def worker_name(self) -> str:
        return self._worker.name

    # ------------------------------------------------------------------ the worker's end

    def write(self, payload: bytes) -> None:
        """Send a message to the master."""
        if self.open_up:
            self._up(lambda: self._take(payload))

    def close_up(self) -> None:
        """Half-close: the worker sends no more messages."""
        if self.open_up:
            self._up(lambda: self._take(None))
            self.open_up = False

    def reset(self) -> None:
        """Drop the worker's end, which cancels the call at the master."""
        if self.open_up:
            self.open_up = False
            self._ended = True
            self._up(self._cancelled)

    def give_up(self, why: str) -> None:
        """Break the stream at the worker's end and report that to its process. why: text of the error."""
        if not self._ended:
            self.reset()
            self._on_end(unavailable(why))

    def _up(self, action: Callable[[], None]) -> None:
        self._up_at = max(self._up_at, self._network.arrival(self._worker.name, self.master.name))
        process = self.master.process
        self._network.world.at(self._up_at, lambda: process.call_soon(action))

    def _watch(self, was_silent: bool) -> None:
        """The keepalive of the worker's connection."""
        if self._ended or not self._worker.alive:
            return
        names = self._worker.name, self.master.name
        process = self.master.process
        passes = self._network.passes(*names) and self._network.passes(*reversed(names))
        silent = not passes or not process.alive or process.frozen
        if silent and was_silent:
            self._worker.call_soon(self.give_up, "keepalive timed out")
        else:
            seconds = KEEPALIVE_TIMEOUT_SECONDS if silent else KEEPALIVE_SECONDS
            self._network.world.after(seconds, lambda: self._watch(silent))

    # ------------------------------------------------------------------ the master's end

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._inbox:
            if self._half_closed:
                raise StopAsyncIteration
            self._arrived = self.master.process.create_future()
            await self._arrived
        return self._inbox.popleft()

    def _take(self, payload: bytes | None) -> None:
        if payload is None:
            self._half_closed = True
        else:
            self._inbox.append(payload)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _cancelled(self) -> None:
        self.open_down = False
        if self.serving is not None:
            self.serving.cancel()

    def send(self, payload: bytes) -> None:
        """Send a message to the worker."""
        if self.open_down:
            self._down(lambda: None if self._ended else self._on_message(payload))

    def end(self, ended: Ended | None) -> None:
        """Close the master's end. ended: the error; None: a regular end."""
        if self.open_down:
            self.open_down = False
            self._down(lambda: self._end_here(ended))

    def _end_here(self, ended: Ended | None) -> None:
        if not self._ended:
            self._ended = True
            self.open_up = False
            self._on_end(ended)

    def _down(self, action: Callable[[], None]) -> None:
        self._down_at = max(self._down_at, self._network.arrival(self.master.name, self._worker.name))
        self._network.world.at(self._down_at, lambda: self._worker.call_soon(action))


async def call(
    network: Network,
    process: Process,
    master: MasterModel,
    method: str,
    request: Any,
    patience_seconds: float,
) -> Any:
    """Make a unary call; return the response or raise Ended. It may take effect although no answer comes."""
    world, answer = network.world, process.create_future()

    def settle(ended: Ended | None, response: Any) -> None:
        if not answer.done():
            answer.set_exception(ended) if ended is not None else answer.set_result(response)

    def answered(ended: Ended | None, response: Any) -> None:
        if not network.is_lost(master.name, process.name):
            back = network.arrival(master.name, process.name)
            world.at(back, lambda: process.call_soon(settle, ended, response))

    payload = request.SerializeToString()
    doubled = world.now < network.troubled_until and world.rng.random() < 0.3
    for _ in range(2 if doubled else 1):
        if not network.is_lost(process.name, master.name):
            late = world.rng.uniform(0.0, 2.0) if doubled else 0.0
            arrival = network.arrival(process.name, master.name) + late
            world.at(arrival, lambda: master.take_call(method, payload, answered))
    patience = process.call_later(patience_seconds, settle, unavailable("deadline exceeded"), None)
    try:
        return await answer
    finally:
        patience.cancel()
