"""Completeness check of a job's stored data. Pure: bytes and lengths in, holes out.

  fence:    number of the last write, end of the chain, numbers of the last commit and event, lengths
  snapshot: a link of the chain  <--  log: a link for each batch  ...  the last is the one named by the fence
  history, events: as many entries as the fence says, the newest with the number in the fence

Each link names the one before it and carries a checksum over it, itself and the job's name. So a missing,
corrupt or foreign entry is detected and the hole is named exactly. Masters before format 2 wrote no links:
for their stores only the fields present in every write are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from elastane_master.store.errors import Damage, StoreFormatUnknown
from elastane_master.store.format import (
    EMPTY,
    Chain,
    Link,
    check_written,
    decode_batch,
    decode_snapshot,
    format_of,
)
from elastane_master.store.keys import JobKeys
from elastane_master.store.streams import Ends, Entry


@dataclass(frozen=True, slots=True)
class Fence:
    """Fields of the fence. sequence: None if never written, or gone. Other fields: None in format 1."""

    sequence: int | None = None
    chain: Chain | None = None
    commits: int | None = None
    event: int | None = None
    history: int = 0
    events: int = 0

    @classmethod
    def of(cls, fields: Mapping[bytes, bytes]) -> Fence:
        """Read the stored fields; a value that is not a number counts as missing."""

        def number(name: bytes) -> int | None:
            value = fields.get(name, b"")
            return int(value) if value.isdigit() else None

        return cls(
            number(b"sequence"),
            parse_chain(fields[b"chain"]) if b"chain" in fields else None,
            number(b"commits"),
            number(b"event"),
            number(b"history") or 0,
            number(b"events") or 0,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A job's data, read after the takeover."""

    fence: Fence
    snapshot: bytes | None
    log: Sequence[Entry]
    history: Ends
    events: Ends

    @property
    def is_empty(self) -> bool:
        return self.snapshot is None and not (self.log or self.history.length or self.events.length)


@dataclass(slots=True)
class Whole:
    """Usable state, and every hole.

    sequence: the next write's number must be higher. snapshot: None if there is no usable one. records: those
    after it, up to the first hole. chain: its end after them. commits: number of numbered commits included in
    the state; None if unknown. token: highest token of a writer. foreign: keys that hold another job's data.
    """

    sequence: int = 0
    snapshot: bytes | None = None
    records: list[bytes] = field(default_factory=list)
    chain: Chain = EMPTY
    commits: int | None = None
    token: int = 0
    damages: list[Damage] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


def show_chain(chain: Chain) -> str:
    """Format a chain for the fence."""
    return f"{chain.sequence}:{chain.checksum.hex()}"


def parse_chain(text: bytes) -> Chain:
    """Inverse of `show_chain`; unreadable text gives a chain end that matches nothing."""
    number, _, checksum = text.partition(b":")
    try:
        return Chain(int(number), bytes.fromhex(checksum.decode()))
    except ValueError:
        return Chain(0, b"unreadable")


def examine(job: str, found: Found) -> Whole:
    """Follow the chain, and compare the data with the fence."""
    keys, fence = JobKeys.of(job), found.fence
    whole = Whole(sequence=fence.sequence or 0)
    if fence.sequence is None:
        if found.is_empty:
            return whole
        whole.damages.append(
            Damage(keys.fence, 0, "it is gone: which write, commit and event was the last is not known")
        )
    if _examine_snapshot(job, keys, found, whole):
        _examine_log(job, keys, found, whole)
    if fence.commits is not None:
        _examine_stream(
            keys.history, "commit", found.history, keys.commits_in, fence.commits, fence.history, whole
        )
    if fence.event is not None:
        _examine_stream(keys.events, "event", found.events, keys.event_in, fence.event, fence.events, whole)
    return whole


def require_readable(
    job: str,
    snapshot: bytes | None,
    log: Sequence[Entry],
    known_state: int,
    version_of: Callable[[bytes], int] = lambda state: 0,
) -> None:
    """Raise JobTooNew if a newer master wrote the snapshot or a log entry, whatever the fence says.

    If the fence is lost or from a backup, such data must not be treated as damaged: the newer master can read
    it. known_state, version_of: see `recovery.Readable`.
    """
    keys = JobKeys.of(job)
    for entry in log:
        check_written(job, format_of(entry.payload), 0, known_state, key=keys.log)
    if snapshot is None:
        return
    check_written(job, format_of(snapshot), 0, known_state, key=keys.snapshot)
    try:
        stored = decode_snapshot(snapshot)
    except StoreFormatUnknown:
        return  # corrupt, which `examine` reports as a hole
    if stored.link is None or stored.link.fits(job, stored.state):
        check_written(job, stored.format, version_of(stored.state), known_state, key=keys.snapshot)


def _examine_snapshot(job: str, keys: JobKeys, found: Found, whole: Whole) -> bool:
    """Check the snapshot; True if the log can be followed from it."""
    chained = found.fence.chain
    last = found.fence.sequence or 0
    if found.snapshot is None:
        if found.log or (last and (chained is None or chained.sequence)):
            lost = f"it is gone, and with it the job's state up to write {last or 'unknown'}"
            whole.damages.append(Damage(keys.snapshot, 1, lost))
        return False
    try:
        snapshot = decode_snapshot(found.snapshot)
    except StoreFormatUnknown as error:
        whole.damages.append(
            Damage(keys.snapshot, 1, f"it cannot be read, the job's state is in it: {error}")
        )
        return False
    link = snapshot.link
    if link is None:
        # A snapshot of format 1 beside a chained fence: the snapshot of a later write is lost.
        if chained is not None and chained.checksum:
            lost = (
                f"it is of write {snapshot.sequence}, by an older master; write {chained.sequence} is missing"
            )
            whole.damages.append(Damage(keys.snapshot, snapshot.sequence + 1, lost))
        whole.chain = Chain(snapshot.sequence)
    elif not link.fits(job, snapshot.state) or link.sequence != snapshot.sequence:
        lost = "its bytes are corrupt, or belong to another job: the job's state is lost"
        whole.damages.append(Damage(keys.snapshot, 1, lost))
        return False
    else:
        whole.chain, whole.commits, whole.token = link.chain, link.commits, link.token
    whole.snapshot = snapshot.state
    if found.fence.sequence is not None and snapshot.sequence > last:
        lost = (
            f"it ends at write {last}, the snapshot is of {snapshot.sequence}:"
            " it is older, or belongs to another job"
        )
        whole.damages.append(Damage(keys.fence, last + 1, lost))
    whole.sequence = max(whole.sequence, snapshot.sequence)
    return True


def _examine_log(job: str, keys: JobKeys, found: Found, whole: Whole) -> None:
    fence = found.fence
    hole: Damage | None = None
    log = [entry for entry in found.log if entry.number > whole.chain.sequence]
    for entry in log:
        whole.sequence = max(whole.sequence, entry.number)
        if hole is None:
            hole = _follow(job, keys, entry, whole)
    end = fence.sequence if fence.chain is None else fence.chain.sequence
    if hole is None and end is not None:
        last = log[-1].number if log else whole.chain.sequence
        if fence.chain is not None and last < end:
            hole = Damage(keys.log, last + 1, f"writes {last + 1} to {end} are gone")
        elif last > end and log:
            lost = (
                f"it ends at write {end}, the log at write {last}:"
                " it is older than the log, or belongs to another job"
            )
            hole = Damage(keys.fence, end + 1, lost)
        elif fence.chain is not None and end and fence.chain != whole.chain:
            hole = Damage(
                keys.fence,
                end,
                f"its checksum is not that of write {end}: it belongs to another job, or is corrupt",
            )
    if hole is not None:
        whole.damages.append(hole)


def _follow(job: str, keys: JobKeys, entry: Entry, whole: Whole) -> Damage | None:
    """Append the entry's records, or return what is missing before or in it."""
    try:
        batch = decode_batch(entry.payload)
        link = batch.link
        if link is not None and (link.sequence != entry.number or not link.fits(job, _body(batch.body))):
            raise StoreFormatUnknown("its bytes are corrupt, or belong to another job")
        records = batch.records
    except StoreFormatUnknown as error:
        return Damage(keys.log, entry.number, f"write {entry.number} and those after it: {error}")
    if link is None:
        whole.chain = Chain(entry.number, whole.chain.checksum)
    elif Chain(link.previous, link.before) != whole.chain:
        return _missing_before(keys, link, whole.chain)
    else:
        whole.chain, whole.commits, whole.token = link.chain, link.commits, max(whole.token, link.token)
    whole.records.extend(records)
    return None


def _missing_before(keys: JobKeys, link: Link, chain: Chain) -> Damage:
    first = chain.sequence + 1
    if link.previous > chain.sequence:
        lost = f"writes {first} to {link.previous} are gone, those after them cannot be used without them"
        return Damage(keys.log, first, lost)
    lost = f"write {link.sequence} follows other writes than those that are stored"
    return Damage(keys.log, link.sequence, lost)


def _body(body: tuple[bytes, ...] | bytes) -> bytes:
    """Body of a batch with a link. A linked batch must be in one piece; others match no checksum."""
    return body if isinstance(body, bytes) else b""


def _examine_stream(
    key: str,
    what: str,
    found: Ends,
    number_in: Callable[[str], int | None],
    last: int,
    length: int,
    whole: Whole,
) -> None:
    """Find holes of the history or the events. last, length: as in the fence."""
    newest = number_in(found.newest)
    if found.length == 0 and length > 0:
        damage = Damage(key, 1, f"it is gone, and with it {length} {what}s")
    elif newest is None:
        whole.foreign.append(key)
        damage = Damage(key, 1, f"it is another job's, and {length} {what}s of this one are gone")
    elif newest < last:
        damage = Damage(key, newest + 1, f"{what}s {newest + 1} to {last} are gone")
    elif newest > last:
        damage = Damage(
            key,
            last + 1,
            f"it has {what}s up to {newest}, the fence says {last}: they do not belong together",
        )
    elif found.length < length:
        damage = Damage(key, 0, f"{length - found.length} of {length} {what}s are gone, before the newest")
    else:
        return
    whole.damages.append(damage)
