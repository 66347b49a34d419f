"""What a master finds in its store, spoiled: it reads it, or says in a typed error that it cannot."""

from __future__ import annotations

import random
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec

from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.views import checkpoints_view, context_views, job_view, progress_views
from elastane_master.jobs.job_servers import JobServers
from elastane_master.store.errors import StoreFormatUnknown
from elastane_master.store.format import decode_batch, decode_snapshot
from elastane_master.store.log import LogOptions
from elastane_master.store.recovery import Recovered
from sim.simulation import stored_by
from sim.unlike import hurried

SEEDS = 12
ODD = (None, True, -1, 0, 1, 2**40, 2**63 - 1, -(2**63), 1e308, float("nan"), "", "x", b"", [], {})
Stored = tuple[bytes, tuple[bytes, ...]]
"""A snapshot and the batches after it, as they lie in the store."""


@cache
def corpus() -> tuple[Stored, ...]:
    """Stores that simulated masters left behind at some moment of their jobs."""
    return tuple(stored_by(seed) for seed in range(SEEDS))


def read(stored: Stored) -> JobMachine | None:
    """What a starting master does with it; None after the typed refusal. All else is a fault."""
    snapshot, batches = stored
    try:
        state = decode_snapshot(snapshot).state
        records = [record for batch in batches for record in decode_batch(batch).records]
        hosts = JobServers(SimpleNamespace(redis=None), LogOptions())  # type: ignore[arg-type]
        with hurried():  # decided as the simulated master has decided
            machine = hosts.opening.replay("job", Recovered(1, 1, state, records))
    except StoreFormatUnknown:
        return None
    return machine


def look_at(machine: JobMachine) -> None:
    """What is read of a job right after its start."""
    machine.snapshot()
    machine.next_deadline()
    job_view(machine)
    checkpoints_view(machine)
    context_views(machine)
    progress_views(machine, 0.0)


def spoil(value: Any, rng: random.Random) -> Any:
    """The same MessagePack value with one leaf, however deep, of another value or type."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {other: part for other, part in value.items() if other != key}
        return {**value, key: spoil(value[key], rng)}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        if rng.random() < 0.1:
            return value[:place] + value[place + 1 :] * rng.choice((1, 2))
        return [*value[:place], spoil(value[place], rng), *value[place + 1 :]]
    return rng.choice(ODD)


def spoiled_within(payload: bytes, rng: random.Random) -> bytes:
    """Bytes that are MessagePack still, of another meaning; nested encodings are opened too."""
    try:
        value = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return payload
    nested = _nested(value)
    if nested and rng.random() < 0.8:
        place = rng.choice(nested)
        return msgspec.msgpack.encode(_replaced(value, place, rng))
    return msgspec.msgpack.encode(spoil(value, rng))


def _nested(value: Any) -> list[tuple[int, ...]]:
    """Places of bytes in a list, or in a list in it: the state of a snapshot, the records of a batch."""
    if not isinstance(value, list):
        return []
    places: list[tuple[int, ...]] = []
    for number, part in enumerate(value):
        if isinstance(part, bytes):
            places.append((number,))
        elif isinstance(part, list):
            places += [(number, inner) for inner, one in enumerate(part) if isinstance(one, bytes)]
    return places


def _replaced(value: list[Any], place: tuple[int, ...], rng: random.Random) -> list[Any]:
    head, *rest = place
    inner = value[head]
    changed = _replaced(inner, tuple(rest), rng) if rest else spoiled_within(inner, rng)
    return [*value[:head], changed, *value[head + 1 :]]
