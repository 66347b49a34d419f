"""What a master reads when it takes a job over: the snapshot, and the records written after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from redis.asyncio import Redis

from elastane_master.store.errors import Fenced
from elastane_master.store.format import FORMAT, check_written, decode_batch, decode_snapshot
from elastane_master.store.keys import JobKeys
from elastane_master.store.scripts import ACQUIRE
from elastane_master.store.streams import newest_entry, read_stream

_ENTRIES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Recovered:
    """State of a job as stored.

    token: fencing token of the taker. sequence: number of the last write. snapshot: None for a job
    that was never stored. records: those after the snapshot, in order. event_sequence: number of
    the newest event, 0 without one.
    """

    token: int
    sequence: int
    snapshot: bytes | None
    records: list[bytes] = field(default_factory=list)
    event_sequence: int = 0


async def recover(redis: Redis, job: str, state_version: int) -> Recovered:
    """Acquires the fence, then reads: no older master can write any more while this one reads.

    A newer one can: it replaces the snapshot and trims the log between two reads of this one, so what was
    read counts only if the fence is still this one's afterwards. state_version: the newest form of the job's
    state that this master reads. Raises Fenced, StoreFormatUnknown, and redis errors when the store does
    not answer.
    """
    keys = JobKeys.of(job)
    acquire = redis.register_script(ACQUIRE)
    token, sequence, *newer = await acquire(keys=[keys.fence], args=[FORMAT, state_version])
    if newer:
        check_written(job, sequence, newer[0], state_version)
    stored = await redis.get(keys.snapshot)
    covered, state = 0, None
    if stored is not None:
        snapshot = decode_snapshot(cast("bytes", stored))
        covered, state = snapshot.sequence, snapshot.state
    records: list[bytes] = []
    start = f"{covered + 1}-0"
    while entries := await read_stream(redis, keys.log, start, _ENTRIES_AT_ONCE):
        for entry in entries:
            records.extend(decode_batch(entry.payload).records)
        start = f"({entries[-1].id}"
    newest = await newest_entry(redis, keys.events)
    holder = cast("bytes | None", await redis.hget(keys.fence, "token"))
    if int(holder or 0) > token:
        raise Fenced(
            "another master took the job over while it was read", token=token, holder=int(holder or 0)
        )
    return Recovered(int(token), int(sequence), state, records, newest.number if newest else 0)
