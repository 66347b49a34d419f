"""Every hole in what is stored of a job is found and named, and what comes before it can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from elastane_master.store.format import EMPTY, Chain, Place, encode_batch, encode_snapshot
from elastane_master.store.keys import JobKeys
from elastane_master.store.streams import Ends, Entry
from elastane_master.store.wholeness import Fence, Found, Whole, examine, parse_chain, show_chain

KEYS = JobKeys.of("j")


def whole(job: str = "j", commits: int = 9) -> Found:
    """A snapshot at write 5, batches of writes 6, 7 and 9: write 8 only told something."""
    keys = JobKeys.of(job)
    snapshot, chain = encode_snapshot(job, Place(5, 2, 5), EMPTY, b"state")
    log = []
    for number in (6, 7, 9):
        payload, chain = encode_batch(job, Place(number, 2, number), chain, (b"record %d" % number,))
        log.append(Entry(f"{number}-0", payload))
    fence = Fence(9, chain, commits, 4, history=commits, events=4)
    return Found(fence, snapshot, log, Ends(commits, f"{keys.stamp}-{commits}"), Ends(4, f"4-{keys.stamp}"))


def without_entry(number: int) -> Callable[[Found], Found]:
    return lambda found: replace(found, log=[entry for entry in found.log if entry.number != number])


def spoiled(payload: bytes, part: bytes) -> bytes:
    """One bit of a part is another."""
    at = payload.index(part)
    return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]


def entry_spoiled(found: Found) -> Found:
    log = list(found.log)
    log[1] = Entry(log[1].id, spoiled(log[1].payload, b"record 7"))
    return replace(found, log=log)


def of_newer_master(found: Found) -> Found:
    return replace(found, snapshot=msgspec.msgpack.encode([99, 5, b"state"]))


def backup_of_fence(found: Found) -> Found:
    older = Fence(7, parse_chain(b"7:" + b"00" * 16), 7, 4, history=7, events=4)
    return replace(found, fence=older)


OTHER = whole("other")
HOLES: dict[str, tuple[Callable[[Found], Found], str, int, int]] = {
    # what happens: key, number of what is missing first, records that are left
    "log gone": (lambda found: replace(found, log=[]), KEYS.log, 6, 0),
    "first entry gone": (without_entry(6), KEYS.log, 6, 0),
    "entry gone": (without_entry(7), KEYS.log, 7, 1),
    "last entry gone": (without_entry(9), KEYS.log, 8, 2),
    "entry spoiled": (entry_spoiled, KEYS.log, 7, 1),
    "log of another job": (lambda found: replace(found, log=OTHER.log), KEYS.log, 6, 0),
    "snapshot gone": (lambda found: replace(found, snapshot=None), KEYS.snapshot, 1, 0),
    "snapshot of another job": (lambda found: replace(found, snapshot=OTHER.snapshot), KEYS.snapshot, 1, 0),
    "snapshot of a newer master": (of_newer_master, KEYS.snapshot, 1, 0),
    "snapshot spoiled": (
        lambda found: replace(found, snapshot=spoiled(found.snapshot or b"", b"state")), KEYS.snapshot, 1, 0),
    "fence gone": (lambda found: replace(found, fence=Fence()), KEYS.fence, 0, 3),
    "fence of another job": (lambda found: replace(found, fence=OTHER.fence), KEYS.fence, 9, 3),
    "fence of a backup": (backup_of_fence, KEYS.fence, 8, 3),
    "history gone": (lambda found: replace(found, history=Ends()), KEYS.history, 1, 3),
    "history of another job": (lambda found: replace(found, history=OTHER.history), KEYS.history, 1, 3),
    "newest commits gone": (
        lambda found: replace(found, history=Ends(7, f"{KEYS.stamp}-7")), KEYS.history, 8, 3),
    "commits between gone": (
        lambda found: replace(found, history=found.history._replace(length=5)), KEYS.history, 0, 3),
    "events gone": (lambda found: replace(found, events=Ends()), KEYS.events, 1, 3),
    "all but the fence gone": (
        lambda found: Found(found.fence, None, [], Ends(), Ends()), KEYS.snapshot, 1, 0),
}  # fmt: skip


def test_a_whole_job_is_whole() -> None:
    found = examine("j", whole())
    assert (found.damages, found.snapshot, found.sequence) == ([], b"state", 9)
    assert found.records == [b"record 6", b"record 7", b"record 9"] and found.commits == 9


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_is_named_and_what_comes_before_it_is_left(name: str) -> None:
    harm, key, sequence, records = HOLES[name]
    found = examine("j", harm(whole()))
    assert (found.damages[0].key, found.damages[0].sequence) == (key, sequence), found.damages
    assert len(found.records) == records
    assert found.commits == ((5, 6, 7, 9)[records] if found.snapshot else None)


def test_a_job_that_was_never_stored_has_no_hole() -> None:
    assert examine("j", Found(Fence(), None, [], Ends(), Ends())) == Whole()


def test_trimmed_commits_are_no_hole() -> None:
    found = whole()
    assert not examine("j", replace(found, history=found.history._replace(length=30))).damages


def old_form(entries: tuple[int, ...] = (6, 7), sequence: int = 7) -> Found:
    """As masters wrote it that chained nothing."""
    log = [Entry(f"{n}-0", msgspec.msgpack.encode([1, [b"record %d" % n]])) for n in entries]
    fence = Fence.of({b"token": b"1", b"sequence": b"%d" % sequence, b"format": b"1"})
    snapshot = msgspec.msgpack.encode([1, 5, b"state"])
    return Found(fence, snapshot, log, Ends(7, "1700000000000-3"), Ends(4, "4-0"))


def test_a_store_of_before_the_chain_is_read_and_what_it_shows_is_checked() -> None:
    found = examine("j", old_form())
    assert not found.damages and found.records == [b"record 6", b"record 7"] and found.chain == Chain(7)
    assert not examine("j", old_form((6,))).damages  # write 7 may have had no records
    assert examine("j", replace(old_form(), snapshot=None)).damages[0].key == KEYS.snapshot
    assert examine("j", replace(old_form(), fence=Fence())).damages[0].key == KEYS.fence
    assert examine("j", old_form(sequence=6)).damages[0].key == KEYS.fence


def test_an_old_snapshot_under_a_newer_fence_is_a_hole() -> None:
    found = replace(whole(), snapshot=old_form().snapshot)
    assert examine("j", found).damages[0].key == KEYS.snapshot


def test_the_end_of_a_chain_is_shown_and_read_back() -> None:
    _, chain = encode_batch("j", Place(3, 1, 0), EMPTY, (b"x",))
    assert parse_chain(show_chain(chain).encode()) == chain and parse_chain(b"0:") == EMPTY
    assert parse_chain(b"nonsense") != EMPTY
