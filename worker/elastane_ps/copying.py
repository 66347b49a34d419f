"""Copies slots to another process, as their new owner or as a backup.

    owner        COPY_BEGIN, COPY_PART ..., COPY_END with the record          receiver   COPY_DONE
    move         the owner freezes the slot before the last part, until a map contains the result. It sends
                 the record once its backup has the whole slot, as that may become the new owner's backup. The
                 receiver reports to the master
    backup       from the last part on, answers wait for the copy, and pushes are forwarded on the same link.
                 The owner reports to the master after COPY_DONE

The receiver accepts only copies in the newest map (`begun`), so that a late copy replaces nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any, Final

import structlog

from elastane.slots.frames import CopyBegin, CopyDone, CopyEnd, CopyPart, Header, SlotFrameError
from elastane.slots.wire import pad
from elastane.tables.layout import cut, padded_sum
from elastane.tables.sections import Section, SectionHeader, decode_headers, encode_headers
from elastane.tables.slot_weights import SlotWeights
from elastane_ps.held import Barrier, Copy, HeldSlot, Holdings
from elastane_ps.links import Links, PeerLink
from elastane_ps.reading import read_slot
from elastane_shards.errors import ShardsError
from elastane_slots.held_slots import SlotRecord
from elastane_slots.slot_map import SlotPlace

_log = structlog.get_logger(__name__)

#: Seconds for which the start of a copy waits for the map that requests it.
MAP_SECONDS: Final = 10.0
Told = Callable[[int, str, int, int], None]


class Sending:
    """Sends copies of this process's slots, each in its own thread; one at a time to each process.

    copied: called with (slot, process, begun, version) when a backup is complete. broken: called with (slot,
    process, begun, error).
    """

    def __init__(
        self, holdings: Holdings, links: Links, copied: Told, broken: Callable[[int, str, int, str], None]
    ) -> None:
        self._holdings, self._links = holdings, links
        self._copied, self._broken = copied, broken

    def start(self, held: HeldSlot, place: SlotPlace) -> None:
        """Start the copy that a map requests, unless it has started. Called with the map's lock."""
        process = place.target or place.joining
        with held.lock:
            if held.started.get(process) == place.begun:
                return
            held.started[process] = place.begun
        link = self._links.to(process, anew=True)
        threading.Thread(
            target=self._run,
            args=(held, link, place.begun, bool(place.target)),
            name=f"elastane-copy-{held.slot}",
            daemon=True,
        ).start()

    def _run(self, held: HeldSlot, link: PeerLink, begun: int, move: bool) -> None:
        with link.turn:
            self._copy(held, link, begun, move)
        if link.error is not None:
            self._broken(held.slot, link.ps_id, begun, str(link.error))

    def _copy(self, held: HeldSlot, link: PeerLink, begun: int, move: bool) -> None:
        def answered(answer: Header | None) -> None:
            self._answered(held.slot, link, begun, move, answer)

        begin = CopyBegin(self._holdings.map.generation, self._holdings.ps_id, held.slot, begun, move)
        link.send(begin)
        digest, count = hashlib.sha256(), 0

        def send(section: Section) -> None:
            nonlocal count
            pieces = pad(section.parts)
            for piece in pieces:
                digest.update(piece)
            link.send(CopyPart(held.slot, begun, count, encode_headers([section.header])), pieces)
            count += 1

        def take(section: Section) -> bool:
            send(section)
            return link.wait_for_room() and self._wanted(held.slot, link.ps_id, begun)

        ends: list[tuple[CopyEnd, Barrier]] = []

        def last(rest: list[Section], mark: int) -> None:
            if not self._wanted(held.slot, link.ps_id, begun):
                return
            for section in rest:
                send(section)
            record = held.record.encode()
            digest.update(record)
            end = CopyEnd(held.slot, begun, count, digest.digest(), record)
            if move:
                held.record.frozen = True
                ends.append((end, held.barrier()))
            else:
                held.copies[link.ps_id] = Copy(link, begun)
                link.send(end, (), answered)

        read_slot(held, take, last)
        for end, barrier in ends:
            if held.wait(barrier) and self._wanted(held.slot, link.ps_id, begun):
                link.send(end, (), answered)

    def _wanted(self, slot: int, process: str, begun: int) -> bool:
        place = self._holdings.map.places[slot]
        return place.begun == begun and process in (place.target, place.joining)

    def _answered(self, slot: int, link: PeerLink, begun: int, move: bool, answer: Header | None) -> None:
        if isinstance(answer, CopyDone) and answer.version >= 0:
            if not move:
                self._copied(slot, link.ps_id, begun, answer.version)
            return
        error = "it was refused" if answer is not None else str(link.error)
        self._broken(slot, link.ps_id, begun, error)


class _Arriving:
    def __init__(self, begin: CopyBegin, weights: SlotWeights) -> None:
        self.begin, self.weights = begin, weights
        self.digest: Any = hashlib.sha256()
        self.parts = 0


class Receiving:
    """Receives copies of slots.

    arrived: called with (slot, process, begun, version) when a slot that this process will own is complete.
    ended: True once this process leaves and accepts no more copies.
    """

    def __init__(self, holdings: Holdings, arrived: Told) -> None:
        self._holdings, self._arrived = holdings, arrived
        self.ended = False
        self._lock = threading.Lock()
        self._arriving: dict[int, _Arriving] = {}

    def body_bytes(self, header: Header) -> int:
        """Return the required length of the body. Raises SlotFrameError, InvalidSnapshot."""
        if isinstance(header, CopyPart):
            return sum(padded_sum(sizes) for _, sizes in self._sections(header))
        return 0

    def do(self, header: CopyBegin | CopyPart | CopyEnd, body: memoryview) -> Header | None:
        """Process a frame of a copy; only COPY_END is answered. Copies not in the map are dropped."""
        if isinstance(header, CopyBegin):
            self._begin(header)
            return None
        if isinstance(header, CopyPart):
            self._part(header, body)
            return None
        version = self._end(header)
        return CopyDone(header.slot, header.begun, version)

    def _begin(self, header: CopyBegin) -> None:
        spec = self._holdings.spec
        known = self._holdings.knows(header.generation, MAP_SECONDS)
        if spec is None or not known or not self._wanted(header):
            return
        with self._lock:
            self._arriving[header.slot] = _Arriving(
                header, SlotWeights(spec, header.slot, self._holdings.arenas)
            )

    def _wanted(self, begin: CopyBegin) -> bool:
        holdings = self._holdings
        if not 0 <= begin.slot < len(holdings.map.places):
            return False
        place = holdings.map.places[begin.slot]
        wanted = place.target if begin.move else place.joining
        return (place.owner, wanted, place.begun) == (begin.sender, holdings.ps_id, begin.begun)

    def _part(self, header: CopyPart, body: memoryview) -> None:
        arriving = self._of(header.slot, header.begun)
        if arriving is None or arriving.parts != header.sequence:
            return
        for section_header, sizes in self._sections(header):
            arriving.digest.update(body[: padded_sum(sizes)])
            arriving.weights.load(Section(section_header, cut(body, sizes)))
            body = body[padded_sum(sizes) :]
        arriving.parts += 1

    def _end(self, header: CopyEnd) -> int:
        arriving = self._of(header.slot, header.begun)
        if arriving is None:
            return -1
        with self._lock:
            self._arriving.pop(header.slot, None)
        arriving.digest.update(header.record)
        if arriving.parts != header.parts or arriving.digest.digest() != header.digest:
            _log.error("a copy of a slot is damaged", slot=header.slot, sender=arriving.begin.sender)
            return -1
        try:
            record = SlotRecord.decode(header.record, since=0)
        except ShardsError as error:
            _log.error("a copy of a slot has no record", slot=header.slot, error=str(error))
            return -1
        holdings = self._holdings
        with holdings.lock:
            if self.ended or not self._wanted(arriving.begin) or header.slot in holdings.owned:
                return -1
            held = HeldSlot(header.slot, record, arriving.weights)
            if (before := holdings.others.get(header.slot)) is not None:
                before.release()
            holdings.others[header.slot] = held
        if arriving.begin.move:
            self._arrived(header.slot, holdings.ps_id, header.begun, record.version)
        return record.version

    def _of(self, slot: int, begun: int) -> _Arriving | None:
        with self._lock:
            arriving = self._arriving.get(slot)
        return arriving if arriving is not None and arriving.begin.begun == begun else None

    def _sections(self, header: CopyPart) -> list[tuple[SectionHeader, list[int]]]:
        spec = self._holdings.spec
        if spec is None or not 0 <= header.slot < spec.slots:
            raise SlotFrameError(f"there is no slot {header.slot}")
        sizes = SlotWeights(spec, header.slot).section_sizes
        return [(told, sizes(told)) for told in decode_headers(header.sections)]
