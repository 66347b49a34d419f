"""What TensorBoard would show of a folder: its event files read record by record, purged as it does."""

from __future__ import annotations

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog


def shown(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By tag: (step, value) in the order written. A session's start drops what is at its step or above."""
    scalars: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for event in _events(file.read_bytes()):
            if event.session_log.status == SessionLog.START:
                scalars = {tag: [row for row in rows if row[0] < event.step] for tag, rows in scalars.items()}
            for value in event.summary.value:
                scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    return scalars


def _events(data: bytes) -> list[Event]:
    """Records are: length (8 bytes), its checksum (4), the event, its checksum (4)."""
    events, at = [], 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            break  # being written
        events.append(Event.FromString(data[at + 12 : at + 12 + length]))
        at += 16 + length
    return events
