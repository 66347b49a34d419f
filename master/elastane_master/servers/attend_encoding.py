"""Encoding of messages to workers; messages equal for many workers are encoded once.

A ring of N is sent to N workers. Built anew for each, a ring of 5,000 would be 25 million members, which took
longer than everything else in forming it.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from elastane_master.decisions import effects
from elastane_master.decisions.effects import WorkerMessage
from elastane_master.servers.translate_session import attend_response, fill_members
from elastane_proto.job_settings import JobSettings
from elastane_proto.v1 import ring_pb2

_LENGTH_DELIMITED = 2

Traceparents = Callable[[int], str]
"""Returns the parent of workers' spans for a generation; empty if it is not traced."""


def untraced(generation: int) -> str:
    """The `Traceparents` of a master without tracing."""
    return ""


class AttendEncoder:
    """Encodes the messages of all sessions. Used from one event loop."""

    __slots__ = ("_alike", "_alike_bytes", "_alike_parent", "_go_members", "_members")

    def __init__(self) -> None:
        self._alike: WorkerMessage | None = None
        self._alike_bytes = b""
        self._alike_parent = ""
        self._members: tuple[effects.Member, ...] | None = None
        self._go_members = b""

    def encode(
        self, message: WorkerMessage, settings: JobSettings, traceparents: Traceparents = untraced
    ) -> bytes:
        """Return a serialized AttendResponse."""
        response, tail = self.parts(message, settings, traceparents)
        return response + tail if tail else response

    def parts(
        self, message: WorkerMessage, settings: JobSettings, traceparents: Traceparents = untraced
    ) -> tuple[bytes, bytes]:
        """Return a serialized AttendResponse in two parts.

        The second one, often empty, is the same object for as many as have it in common.
        """
        if isinstance(message, effects.Go):
            return self._go(message, settings, traceparents(message.generation))
        return self._whole(message, settings, traceparents), b""

    def _whole(self, message: WorkerMessage, settings: JobSettings, traceparents: Traceparents) -> bytes:
        if not isinstance(message, effects.Prepare | effects.Prepared):
            return attend_response(message, settings).SerializeToString()
        change = message.then_prepare if isinstance(message, effects.Prepared) else message
        parent = traceparents(change.generation) if change is not None else ""
        # Two jobs can have equal messages, but in different traces.
        if parent != self._alike_parent or not _is_alike(message, self._alike):
            self._alike, self._alike_parent = message, parent
            response = attend_response(message, settings)
            if parent:
                ring_change = (
                    response.prepared.then_prepare if response.HasField("prepared") else response.prepare
                )
                ring_change.traceparent = parent
            self._alike_bytes = response.SerializeToString()
        return self._alike_bytes

    def _go(self, message: effects.Go, settings: JobSettings, parent: str) -> tuple[bytes, bytes]:
        # Serialized fields are simply concatenated, so the encoded members can be appended to the rest.
        if self._members is not message.members:
            self._members = message.members
            everybody = ring_pb2.Go()
            fill_members(everybody.members, message.members)
            self._go_members = everybody.SerializeToString()
        own = attend_response(replace(message, members=()), settings).go
        own.traceparent = parent
        body = own.SerializeToString()
        tag = ring_pb2.AttendResponse.GO_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
        size = varint(len(body) + len(self._go_members))
        return b"".join((bytes((tag,)), size, body)), self._go_members


def _is_alike(message: WorkerMessage, known: WorkerMessage | None) -> bool:
    """True if both messages are equal; the large lists of members are compared by identity."""
    match message, known:
        case effects.Prepare(), effects.Prepare():
            # Whatever else a Prepare carries: workers of one ring may be told it differently.
            same = replace(message, members=()) == replace(known, members=())
            return same and message.members is known.members
        case effects.Prepared(), effects.Prepared():
            change, known_change = message.then_prepare, known.then_prepare
            if change is None or known_change is None:
                return change is known_change and message == known
            # A planned ring change reaches every worker in this form.
            rest, known_rest = (replace(one, then_prepare=None) for one in (message, known))
            return _is_alike(change, known_change) and rest == known_rest
        case _:
            return False


def varint(value: int) -> bytes:
    """Encode a length as a protobuf varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
