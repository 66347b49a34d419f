"""Links over a ring's transport; a change of membership ends every wait.

The receiver does not know a frame's size in advance. So the messages of a channel (a kind of frame between
two members) have a size that both ends compute from earlier frames. A longer frame continues in a second
message; while batches have similar sizes, each frame fits into one. Every 64th frame starts with a short
message, so that the second one measures the bandwidth of the link (`link_meter`).

    script's thread     starts messages, and waits for the thread below, or for the end of the ring
    elastane-frames-in  waits for the message that the script's thread needs now
    elastane-frames-out waits for sends to complete, in order, and releases their memory

    If gloo carries the messages, a wait for a partly transferred one does not end with its ring; its thread
    is then abandoned (`ring_thread`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Final

import torch
from torch import Tensor

from elastane.collective.ring_errors import RingError
from elastane.collective.ring_thread import RingThread
from elastane.collective.transport import RingTransport, Transfer
from elastane.pipeline.frames import (
    Frame,
    FrameError,
    FrameKey,
    Kind,
    decode,
    encode,
    received_here,
    total_bytes,
)
from elastane.pipeline.link_meter import LinkMeter

#: Initial and minimum size of a channel's messages in bytes; generator states fit into it.
ROOM_BYTES_MIN: Final = 1 << 14
#: One in this many frames of a channel starts with a message of the minimum size.
MEASURED_EVERY: Final = 64
_CPU: Final = torch.device("cpu")

#: A channel: peer and kind of frame.
Channel = tuple[int, Kind]


def next_room(room_bytes: int, frame_bytes: int) -> int:
    """Return the size of a channel's next message, given the last frame and its message's size, in bytes."""
    wanted = -(-max(frame_bytes, ROOM_BYTES_MIN) // 4096) * 4096
    return wanted if frame_bytes > room_bytes or 2 * wanted < room_bytes else room_bytes


class _Room:
    """Size of a channel's next message, the same at both ends."""

    def __init__(self) -> None:
        self.bytes = ROOM_BYTES_MIN
        self._frames = 0

    def passed(self, frame_bytes: int) -> None:
        """Record a frame."""
        self._frames += 1
        is_measured = self._frames % MEASURED_EVERY == 0
        self.bytes = ROOM_BYTES_MIN if is_measured else next_room(self.bytes, frame_bytes)


class RingLinks:
    """Links of one generation over its transport.

    device: for tensors that were on a device at the sender. meter: records the speed of received frames.
    """

    def __init__(
        self, transport: RingTransport, device: torch.device = _CPU, meter: LinkMeter | None = None
    ) -> None:
        self._transport = transport
        self._device = device
        self._meter = meter or LinkMeter()
        self._in = RingThread("elastane-frames-in", transport)
        self._out = RingThread("elastane-frames-out", transport)
        self._out_rooms: dict[Channel, _Room] = defaultdict(_Room)
        self._in_rooms: dict[Channel, _Room] = defaultdict(_Room)
        self._expected: dict[Channel, int] = defaultdict(int)
        self._coming: dict[Channel, tuple[Tensor, Transfer]] = {}
        self._there: dict[tuple[FrameKey, int], deque[Frame]] = defaultdict(deque)
        self._posted: dict[int, tuple[Transfer, Tensor, Tensor]] = {}
        self._numbers = 0
        self._settled = True
        self.receiving_seconds = 0.0

    @property
    def me(self) -> int:
        return self._transport.rank

    def send(self, frame: Frame, peer: int) -> None:
        channel = (peer, frame.key.kind)
        if peer == self.me:
            self._there[frame.key, peer].append(received_here(frame))
            return
        room = self._out_rooms[channel].bytes
        memory, total = encode(frame, room)
        self._out_rooms[channel].passed(total)
        self._start(memory[:room], peer, frame.key.kind)
        if total > room:
            self._start(memory[room:total], peer, frame.key.kind)

    def expect(self, key: FrameKey, peer: int) -> None:
        if peer != self.me:
            channel = (peer, key.kind)
            self._expected[channel] += 1
            self._post(channel)

    def receive(self, key: FrameKey, peer: int) -> Frame:
        began = perf_counter()
        there = self._there[key, peer]
        while not there:
            assert peer != self.me, f"{key} was not sent"
            frame = self._next((peer, key.kind))
            self._there[frame.key, peer].append(frame)
        frame = there.popleft()
        del self._there[key, peer]
        self.receiving_seconds += perf_counter() - began
        return frame

    def send_rows(self, row: Tensor, peer: int, tag: int) -> None:
        self._start(row.to("cpu"), peer, tag)

    def post_rows(self, row: Tensor, peer: int, tag: int) -> int:
        memory = row if row.device.type == "cpu" else torch.empty_like(row, device="cpu")
        self._numbers += 1
        self._posted[self._numbers] = (self._transport.recv(memory, peer, tag), memory, row)
        return self._numbers

    def wait_rows(self, number: int) -> None:
        transfer, memory, row = self._posted.pop(number)
        self._wait(transfer)
        if memory is not row:
            row.copy_(memory)

    def settle(self) -> None:
        if not self._settled:
            self._out.finish()
            self._settled = True

    def abandon(self) -> None:
        if self._transport.size > 1:
            self._transport.abort()
        for thread in (self._in, self._out):
            with suppress(RingError):
                thread.finish()
        self._posted.clear()
        self._coming.clear()

    def close(self) -> None:
        """End the threads. Messages in flight must have been settled or abandoned. Idempotent."""
        for thread in (self._in, self._out):
            thread.close()

    def _start(self, memory: Tensor, peer: int, tag: int) -> None:
        self._settled = False
        self._out.submit(partial(_sent, self._transport.send(memory, peer, tag), memory))

    def _wait(self, transfer: Transfer) -> None:
        self._in.submit(partial(self._arrive, transfer))
        self._in.finish()

    def _arrive(self, transfer: Transfer) -> None:
        """Wait for a message. Runs in the incoming thread, while the script's thread waits for its result."""
        began = perf_counter()
        transfer.wait()
        self.receiving_seconds -= perf_counter() - began

    def _post(self, channel: Channel) -> None:
        if channel not in self._coming and self._expected[channel] > 0:
            self._expected[channel] -= 1
            memory = torch.empty(self._in_rooms[channel].bytes, dtype=torch.uint8)
            self._coming[channel] = memory, self._transport.recv(memory, *channel)

    def _next(self, channel: Channel) -> Frame:
        """Wait for the channel's next frame, and post the receive of the one after it."""
        if channel not in self._coming:
            raise FrameError(f"no frame of kind {channel[1].name} is expected from member {channel[0]}")
        memory, transfer = self._coming.pop(channel)
        self._wait(transfer)
        room, total = len(memory), total_bytes(memory)
        if total > room:
            whole = torch.empty(total, dtype=torch.uint8)
            whole[:room].copy_(memory)
            began = perf_counter()
            self._wait(self._transport.recv(whole[room:], *channel))
            self._meter.received(channel[0], total - room, perf_counter() - began)
            memory = whole
        self._in_rooms[channel].passed(total)
        self._post(channel)
        return decode(memory, self._device)


def _sent(transfer: Transfer, memory: Tensor) -> None:
    """Wait until a message has been sent; holds a reference to its memory until then."""
    transfer.wait()
