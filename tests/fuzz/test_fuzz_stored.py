"""The store's decoder with corrupted bytes: read, or refused in a typed error; never a crash or a hang."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastane_master.decisions.events import Tick
from elastane_master.jobs import records
from elastane_master.jobs.records import StoredEvent
from elastane_master.store.errors import StoreFormatUnknown
from fuzz.messages import mutated
from fuzz.stored import corpus, look_at, read, spoiled_within

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))
FUZZED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def test_what_was_stored_is_read() -> None:
    batches = 0
    for stored in corpus():
        machine = read(stored)
        assert machine is not None
        look_at(machine)
        batches += len(stored[1])
    assert batches > 10


@FUZZED
@given(st.data(), st.sampled_from(range(12)))
def test_flipped_and_cut_bytes(data: st.DataObject, number: int) -> None:
    snapshot, batches = corpus()[number]
    snapshot = data.draw(st.one_of(st.just(snapshot), mutated(st.just(snapshot))))
    changed = [data.draw(mutated(st.just(batch))) for batch in batches[:2]]
    machine = read((snapshot, (*changed, *batches[2:])))
    if machine is not None:
        machine.snapshot()


@FUZZED
@given(st.sampled_from(range(12)), st.integers(0, 2**32))
def test_values_that_contradict_each_other(number: int, seed: int) -> None:
    """The bytes decode, and say what no master has stored."""
    snapshot, batches = corpus()[number]
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        snapshot = spoiled_within(snapshot, rng) if rng.random() < 0.5 else snapshot
        batches = tuple(spoiled_within(batch, rng) if rng.random() < 0.5 else batch for batch in batches)
    machine = read((snapshot, batches))
    if machine is not None:
        machine.snapshot()


@pytest.mark.parametrize("decode", [records.decode_event, records.decode_commit, records.decode_note])
def test_records_raise_nothing_but_typed_errors(decode: object) -> None:
    right = records.encode(StoredEvent(1.0, Tick()))

    @settings(FUZZED, max_examples=100)
    @given(st.one_of(mutated(st.just(right)), st.binary(max_size=30)))
    def fuzz(payload: bytes) -> None:
        try:
            decode(payload)  # type: ignore[operator]
        except StoreFormatUnknown:
            return

    fuzz()
