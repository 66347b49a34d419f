"""Reads the inputs of a slot audit: records of parameter servers, and the master's tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from typing import Final

from elastane.runtime.environment import encrypts_connections
from elastane.slots.connection import PsConnection
from elastane.slots.frames import Inspect, Inspected, SlotFrameError
from elastane_cli.slot_audit import (
    MasterView,
    Name,
    SlotAuditError,
    SlotContent,
    SlotsAudit,
    audit_slots,
    decode_record,
)
from elastane_common.client import MasterClient
from elastane_common.credentials import master_has_tls
from elastane_common.errors import ElastaneError
from elastane_proto.v1 import shard_pb2

#: Interval between two reads of slots that are moving or being restored.
_TRY_SECONDS: Final = 0.25
_NAMED_MAX: Final = 10


def audit_job(client: MasterClient, job: str, timeout_seconds: float) -> SlotsAudit:
    """Read all slots of a job, which may be training, and compare them with its tasks.

    Raises SlotAuditError for a slot that is not served within the time, and RequestRefusedError.
    """
    before = master_view(client, job)
    slots, lives = read_slots(client, job, timeout_seconds)
    return audit_slots(slots, lives, before, master_view(client, job))


def master_view(client: MasterClient, job: str) -> MasterView:
    """Return the master's view of the tasks of pushing datasets. Raises RequestRefusedError."""
    slots = client.get_slots(job)
    states: dict[int, set[Name]] = {}
    committed: set[Name] = set()
    for dataset in slots.datasets:
        for task in client.list_tasks(job, dataset):
            states.setdefault(task.state, set()).add((dataset, task.epoch, task.index))
        committed |= {(dataset, entry.epoch, entry.step) for entry in client.audit_log(job, dataset)}
    opened = states.get(shard_pb2.TASK_STATE_TODO, set()) | states.get(shard_pb2.TASK_STATE_DOING, set())
    failed = states.get(shard_pb2.TASK_STATE_FAILED, set())
    left = {(parts.dataset, parts.epoch, parts.task): tuple(parts.slots) for parts in slots.left}
    return MasterView(committed - opened, opened, failed | left.keys(), left, slots.gate.closing)


def read_slots(
    client: MasterClient, job: str, timeout_seconds: float
) -> tuple[dict[int, SlotContent], Mapping[int, int]]:
    """Read the record of every slot from its owner; return them, and the lives by the map.

    Raises SlotAuditError for a slot that is not served within the time.
    """
    encrypted = master_has_tls() and encrypts_connections()
    found: dict[int, SlotContent] = {}
    lives: dict[int, int] = {}
    deadline = time.monotonic() + timeout_seconds
    why = "it is not served"
    while True:
        told = client.slot_map(job)
        if not told.places:
            raise SlotAuditError(f"job {job} has no slots", hint="its script trains without prepare_ps")
        addresses = {process.ps_id: process for process in told.processes}
        for slot, place in enumerate(told.places):
            if slot in found and lives[slot] != place.life:
                del found[slot]
        with ExitStack() as stack:
            connections: dict[str, PsConnection] = {}
            for slot, place in enumerate(told.places):
                process = addresses.get(place.owner)
                if slot in found or process is None or place.restoring:
                    continue
                try:
                    if place.owner not in connections:
                        opened = PsConnection(process.address, process.secret, encrypted=encrypted)
                        stack.callback(opened.close)
                        connections[place.owner] = opened
                    reply = connections[place.owner].send(Inspect(slot)).result(timeout_seconds)
                except (OSError, ElastaneError, FutureTimeoutError) as error:
                    why = f"{place.owner} does not answer: {error}"
                    continue
                if not isinstance(reply.header, Inspected):
                    raise SlotFrameError(f"{place.owner} answered with {type(reply.header).__name__}")
                if reply.header.record:
                    found[slot] = decode_record(reply.header.record)
                    lives[slot] = place.life
        missing = [slot for slot in range(len(told.places)) if slot not in found]
        if not missing:
            return found, lives
        if time.monotonic() >= deadline:
            raise SlotAuditError(
                f"slot {missing[0]} cannot be read: {why}",
                hint="`elastane ps --slots` shows where each slot is; --timeout sets the limit",
                slots=missing[:_NAMED_MAX],
            )
        time.sleep(_TRY_SECONDS)
