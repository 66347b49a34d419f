"""Hand-over: workers that hold the state send it to those that do not, all donors in parallel.

    donors d = 0..D-1 hold identical state              receivers: each gets everything
    1. every donor sends each receiver a header: its stripe, the stripe's size and the piece size
    2. the first donor sends the structure (JSON, see `codec`)
    3. donor d sends stripe d of the byte stream (see `stream`) in pieces, a few in flight,
       then the crc32 of the stripe
    4. the receiver has the stream in staging memory, compares every crc32, and returns it

The receiver's own state is not touched: only a complete state is loaded, so a donor that dies in the
middle costs a repetition and nothing else. Identical donors are a consequence of bit-exact training; that
they agree on the layout is checked, their bytes are not compared with one another.

Between two members all messages are posted in one order on both sides, as NCCL requires. The crc32 does
not guard against the network, which has its own, but against a donor whose memory changes while it sends.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import torch

from elastane.state.codec import Exported
from elastane.state.stream import ALIGNMENT_BYTES, StreamLayout, exported_from_stream
from elastane_common.errors import ElastaneError

PIECE_BYTES: Final = 4 << 20
PIECES_IN_FLIGHT: Final = 4
TAGS: Final = 3 + PIECES_IN_FLIGHT
"""Number of tags used, from `tag_base` on."""

_MAGIC: Final = 0x454C4153_54414E45
_HEADER_FIELDS: Final = 9
_HEADER_TAG, _STRUCTURE_TAG, _CHECKSUM_TAG, _PIECE_TAG = 0, 1, 2, 3
_CPU: Final = torch.device("cpu")


class HandoverError(ElastaneError):
    """A donor's data is damaged, or donors disagree; the receiver's state is unchanged."""

    code = "ELA315"


class Work(Protocol):
    """A transfer in flight; `wait` raises the transport's errors (RingAborted, RingBroken)."""

    def wait(self) -> object: ...


class Transport(Protocol):
    """Point-to-point transfers between ring members; `elastane.collective.transport` is one."""

    def send(self, tensor: torch.Tensor, dst: int, tag: int, /) -> Work: ...
    def recv(self, tensor: torch.Tensor, src: int, tag: int, /) -> Work: ...


def send_state(
    transport: Transport,
    exported: Exported,
    *,
    donor_index: int,
    donors: Sequence[int],
    receivers: Sequence[int],
    tag_base: int,
    device: torch.device = _CPU,
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Send this donor's stripe to every receiver; returns when all of it is delivered or in transit.

    donors, receivers: indices in the ring, the same lists in every member. donor_index: this worker's index
    into donors. device: from which the transport sends (CPU for gloo). piece_bytes: a multiple of 64. The
    exported tensors must not change meanwhile. Errors of the transport pass through.
    """
    if not receivers:
        return
    sender = StripeSender(
        transport,
        exported,
        donor_index=donor_index,
        donors=len(donors),
        receivers=receivers,
        tag_base=tag_base,
        device=device,
        piece_bytes=piece_bytes,
    )
    sender.announce()
    while sender.has_more:
        sender.post()
    sender.finish()
    sender.wait()


def receive_state(
    transport: Transport,
    *,
    donors: Sequence[int],
    tag_base: int,
    device: torch.device = _CPU,
    staging_device: torch.device | None = None,
) -> Exported:
    """Receive the donors' state, complete and checked, in staging memory, for `TrainState.load`.

    device: to which the transport delivers (CPU for gloo). staging_device: where the state is gathered
    (default: device); use the CPU if the device has no room for a second copy. Raises HandoverError; errors
    of the transport pass through.
    """
    receiver = StateReceiver(transport, donors, tag_base, device, staging_device)
    receiver.expect_structure()
    receiver.expect_pieces()
    while receiver.has_more:
        receiver.take()
        receiver.post()
    receiver.expect_checksums()
    return receiver.result()


def layout_checksum(exported: Exported) -> int:
    """Return the crc32 of paths, dtypes, shapes and strides; equal in donors whose stripes fit together."""
    facts = [[str(spec.dtype), spec.shape, spec.stride] for spec in exported.specs]
    return zlib.crc32(json.dumps([exported.paths, facts]).encode("ascii"))


class StripeSender:
    """Sends one donor's stripe to the receivers: `announce`, `post` all pieces, `finish`, `wait`.

    Arguments as for `send_state`. `post` waits for the oldest piece if PIECES_IN_FLIGHT are in flight; only
    `wait` waits otherwise.
    """

    def __init__(
        self,
        transport: Transport,
        exported: Exported,
        *,
        donor_index: int,
        donors: int,
        receivers: Sequence[int],
        tag_base: int,
        device: torch.device = _CPU,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        if piece_bytes <= 0 or piece_bytes % ALIGNMENT_BYTES:
            raise ValueError(f"piece_bytes {piece_bytes} is not a positive multiple of {ALIGNMENT_BYTES}")
        self._transport, self.receivers = transport, list(receivers)
        self._tag_base, self._device, self._piece_bytes = tag_base, device, piece_bytes
        self._exported, self._layout = exported, StreamLayout(exported.specs)
        self._start, self._end = self._layout.stripe(donor_index, donors)
        self._structure = exported.structure if donor_index == 0 else b""
        self._is_first = donor_index == 0
        self._head = [_MAGIC, donors, donor_index, self._layout.total_bytes, self._start, self._end]
        self._position, self._posted, self._checksum = self._start, 0, 0
        self._buffers: list[torch.Tensor | None] = [None] * PIECES_IN_FLIGHT
        self._in_flight: deque[list[Work]] = deque()
        self._others: list[Work] = []

    @property
    def stripe_bytes(self) -> int:
        return self._end - self._start

    @property
    def has_more(self) -> bool:
        return self._position < self._end

    def announce(self) -> None:
        """Send the header and, as the first donor, the structure."""
        tail = [self._piece_bytes, layout_checksum(self._exported), len(self._structure)]
        self._send(torch.tensor(self._head + tail, device=self._device), _HEADER_TAG)
        if self._is_first:
            text = torch.frombuffer(bytearray(self._structure), dtype=torch.uint8).to(self._device)
            self._send(text, _STRUCTURE_TAG)

    def post(self) -> None:
        """Send the next piece, if there is one."""
        if not self.has_more:
            return
        if len(self._in_flight) == PIECES_IN_FLIGHT:
            for work in self._in_flight.popleft():
                work.wait()
        start, end = self._position, min(self._position + self._piece_bytes, self._end)
        slot = self._posted % PIECES_IN_FLIGHT
        piece = self._layout.view(self._exported.tensors, start, end, self._device)
        if piece is None:
            buffer = self._buffers[slot]
            if buffer is None:
                buffer = torch.empty(self._piece_bytes, dtype=torch.uint8, device=self._device)
                self._buffers[slot] = buffer
            piece = self._layout.gather(self._exported.tensors, start, end, buffer)
        tag = self._tag_base + _PIECE_TAG + slot
        self._in_flight.append([self._transport.send(piece, dst, tag) for dst in self.receivers])
        self._checksum = _crc32(piece, self._checksum)
        self._position, self._posted = end, self._posted + 1

    def finish(self) -> None:
        """Send the checksum of all pieces."""
        self._send(torch.tensor([self._checksum], device=self._device), _CHECKSUM_TAG)

    def wait(self) -> None:
        """Return when everything is delivered or in transit."""
        for works in (*self._in_flight, self._others):
            for work in works:
                work.wait()
        self._in_flight.clear()
        self._others.clear()

    def _send(self, message: torch.Tensor, tag: int) -> None:
        self._others += [self._transport.send(message, dst, self._tag_base + tag) for dst in self.receivers]


class StateReceiver:
    """Receives the stripes of all donors into staging memory; arguments as for `receive_state`.

    Call in this order; each first waits for the messages posted by the previous one: `expect_structure`,
    `expect_pieces`, `take` and `post` while there is more, `expect_checksums`, `result`.
    """

    def __init__(
        self,
        transport: Transport,
        donors: Sequence[int],
        tag_base: int,
        device: torch.device = _CPU,
        staging_device: torch.device | None = None,
    ) -> None:
        self._transport, self._donors, self._tag_base, self._device = transport, donors, tag_base, device
        self._staging_device = staging_device or device
        self._headers = [_Header(transport, src, tag_base, device) for src in donors]
        self._stripes: list[_StripeReceiver] = []

    @property
    def total_bytes(self) -> int:
        return self._headers[0].total_bytes

    @property
    def has_more(self) -> bool:
        return any(stripe.in_flight for stripe in self._stripes)

    def expect_structure(self) -> None:
        for index, header in enumerate(self._headers):
            header.read(index, len(self._donors))
        size = self._headers[0].structure_bytes
        self._structure = torch.empty(size, dtype=torch.uint8, device=self._device)
        tag = self._tag_base + _STRUCTURE_TAG
        self._structure_work = self._transport.recv(self._structure, self._donors[0], tag)

    def expect_pieces(self) -> None:
        self._structure_work.wait()
        text = self._structure.cpu().numpy().tobytes()
        # Not the live state: an incomplete hand-over must leave the receiver unchanged.
        staging = torch.empty(self.total_bytes, dtype=torch.uint8, device=self._staging_device)
        self._exported = exported_from_stream(text, staging)
        layout = StreamLayout(self._exported.specs)
        for index, header in enumerate(self._headers):
            stripe = layout.stripe(index, len(self._donors))
            header.compare(layout, stripe, layout_checksum(self._exported))
        self._stripes = [
            _StripeReceiver(self._transport, header, staging, self._tag_base, self._device)
            for header in self._headers
        ]
        # Alternating between donors, so that all of them send at the same time.
        for _ in range(PIECES_IN_FLIGHT):
            self.post()

    def post(self) -> None:
        """Start to receive the next piece of each donor."""
        for stripe in self._stripes:
            stripe.post()

    def take(self) -> None:
        """Wait for the oldest piece of each donor."""
        for stripe in self._stripes:
            stripe.take()

    def expect_checksums(self) -> None:
        for stripe in self._stripes:
            stripe.expect_checksum()

    def result(self) -> Exported:
        """Return the state, complete and checked. Raises HandoverError."""
        for stripe in self._stripes:
            stripe.verify()
        return self._exported


class _Header:
    """A donor's description of its stripe. Receiving starts with the constructor; valid after `read`."""

    def __init__(self, transport: Transport, src: int, tag_base: int, device: torch.device) -> None:
        self.src = src
        self._tensor = torch.zeros(_HEADER_FIELDS, dtype=torch.int64, device=device)
        self._work = transport.recv(self._tensor, src, tag_base + _HEADER_TAG)

    def read(self, index: int, donors: int) -> None:
        self._work.wait()
        magic, count, mine, *rest = self._tensor.tolist()
        if (magic, count, mine) != (_MAGIC, donors, index):
            raise HandoverError(
                f"member {self.src} is donor {mine} of {count}, expected donor {index} of {donors}",
                donor=self.src,
            )
        self.total_bytes, self.start, self.end, self.piece_bytes, self._layout, self.structure_bytes = rest
        if min(self.total_bytes, self.start, self.structure_bytes) < 0 or self.piece_bytes <= 0:
            raise HandoverError(f"member {self.src} sent an invalid header: {rest}", donor=self.src)

    def compare(self, layout: StreamLayout, stripe: tuple[int, int], checksum: int) -> None:
        """Raise HandoverError unless this donor's stream is the one the structure describes."""
        mine = (self.total_bytes, self.start, self.end, self._layout)
        expected = (layout.total_bytes, *stripe, checksum)
        if mine != expected:
            raise HandoverError(
                f"member {self.src} holds a different state than the first donor: (bytes, start, end, "
                f"layout) {mine}, expected {expected}",
                hint="every worker must build the same model and optimizer",
                donor=self.src,
            )


class _StripeReceiver:
    """Receives one donor's stripe into staging memory."""

    def __init__(
        self,
        transport: Transport,
        header: _Header,
        staging: torch.Tensor,
        tag_base: int,
        device: torch.device,
    ) -> None:
        self._transport = transport
        self._header = header
        self._staging = staging
        self._tag_base = tag_base
        self._device = device
        self._position = header.start
        self._posted = 0
        self._checksum = 0
        self.in_flight: deque[tuple[Work, torch.Tensor, torch.Tensor]] = deque()

    def post(self) -> None:
        """Start to receive the next piece, if there is one."""
        if self._position >= self._header.end:
            return
        end = min(self._position + self._header.piece_bytes, self._header.end)
        home = self._staging[self._position : end]
        same = home.device == self._device
        landing = home if same else torch.empty(home.numel(), dtype=torch.uint8, device=self._device)
        # Sender and receiver derive the tag from the piece's number, so that pieces in flight cannot be
        # confused.
        tag = self._tag_base + _PIECE_TAG + self._posted % PIECES_IN_FLIGHT
        self.in_flight.append((self._transport.recv(landing, self._header.src, tag), landing, home))
        self._position, self._posted = end, self._posted + 1

    def take(self) -> None:
        """Wait for the oldest piece in flight."""
        if not self.in_flight:
            return
        work, landing, home = self.in_flight.popleft()
        work.wait()
        if landing.data_ptr() != home.data_ptr():
            home.copy_(landing)
        self._checksum = _crc32(landing, self._checksum)

    def expect_checksum(self) -> None:
        self._trailer = torch.zeros(1, dtype=torch.int64, device=self._device)
        tag = self._tag_base + _CHECKSUM_TAG
        self._trailer_work = self._transport.recv(self._trailer, self._header.src, tag)

    def verify(self) -> None:
        self._trailer_work.wait()
        if int(self._trailer.item()) != self._checksum:
            raise HandoverError(
                f"the stripe received from member {self._header.src} is damaged",
                hint="the donor's memory changed during sending, or is faulty",
                donor=self._header.src,
            )


def _crc32(piece: torch.Tensor, value: int) -> int:
    return zlib.crc32(piece.cpu().numpy().data, value)
