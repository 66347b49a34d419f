"""A slot's weights: what changed, copies, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from elastane.tables import rates as rates_module
from elastane.tables.by_slot import check_gradients, joined
from elastane.tables.layout import (
    NonFiniteGradient,
    PushPart,
    RowGradients,
    cut,
    padded,
    padded_sum,
)
from elastane.tables.sections import Section, SectionHeader
from elastane.tables.slot_weights import SlotWeights, apply_all, load_all, prepare_all
from elastane_shards.errors import IllegalTransition, InvalidRequest, InvalidSnapshot, ShardsError
from unit.tables.models import ids_of, initial, part_of, push, rates, small, weights_of

SPEC = small()
#: Has blocks of both tensors.
SLOT = next(slot for slot in range(SPEC.slots) if SPEC.layout(slot).blocks)


def trained(pushes: int = 5, seed: int = 1) -> SlotWeights:
    weights = weights_of(SPEC, SLOT)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(pushes):
        push(SPEC, weights, part_of(SPEC, SLOT, generator))
    return weights


def test_a_copy_of_everything_is_equal_and_goes_on_equally() -> None:
    weights, copy = trained(), SlotWeights(SPEC, SLOT)
    assert not copy.initialised
    load_all(copy, weights.sections())
    assert copy.initialised and copy.digest() == weights.digest() and copy.bytes == weights.bytes
    part = part_of(SPEC, SLOT, torch.Generator().manual_seed(9))
    push(SPEC, weights, part)
    push(SPEC, copy, part)
    assert copy.digest() == weights.digest()


@pytest.mark.parametrize("row", ["row_sgd", "rowwise_adagrad", "lazy_adam"])
@pytest.mark.parametrize("dense", ["sgd", "adagrad", "adamw"])
def test_a_copy_in_rounds_while_training_goes_on_is_equal(dense: str, row: str) -> None:
    spec = small(dense=dense, row=row)
    weights, copy = weights_of(spec, SLOT), SlotWeights(spec, SLOT)
    generator = torch.Generator().manual_seed(4)
    mark = 0
    for _ in range(4):
        changes = weights.changed_since(mark)
        mark = weights.mark()
        for piece in weights.pieces(changes):
            copy.load(weights.read(piece))
            push(spec, weights, part_of(spec, SLOT, generator, rows=3))  # meanwhile
    load_all(copy, weights.sections(weights.changed_since(mark)))
    assert copy.digest() == weights.digest()


@pytest.mark.parametrize("row", ["row_sgd", "rowwise_adagrad", "lazy_adam"])
def test_slots_that_are_applied_together_have_the_bits_of_one_by_one(row: str) -> None:
    spec = small(row=row, slots=4)
    together, single = ([weights_of(spec, slot) for slot in range(4)] for _ in range(2))
    generator = torch.Generator().manual_seed(4)
    for rows in (20, 0, 1, 37, 20):
        parts = [part_of(spec, slot, generator, rows=rows + slot if rows else 0) for slot in range(4)]
        gradients = joined(dict(enumerate(parts)), 4)
        check_gradients(spec.layouts, gradients)
        apply_all(prepare_all(dict(enumerate(together)), gradients, rates(spec)), rates(spec), 0.5)
        for weights, part in zip(single, parts, strict=True):
            push(spec, weights, part, 0.5)
        assert [weights.digest() for weights in together] == [weights.digest() for weights in single]
        assert [weights.changed_since(0).bytes for weights in together] == [
            weights.changed_since(0).bytes for weights in single
        ]


def rows_of(
    slot: int,
    table: int = 0,
    ids: list[int] | None = None,
    value: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> PushPart:
    own = ids_of(SPEC, table, slot, 3) if ids is None else np.array(ids, np.int64)
    values = torch.full((len(own), SPEC.tables[table].width), value, dtype=dtype)
    return PushPart({}, (RowGradients(table, own, values),))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: rows_of(2, ids=[-1]), InvalidRequest),
        (lambda: rows_of(2, ids=[10**6]), InvalidRequest),
        (lambda: rows_of(2, ids=ids_of(SPEC, 0, 2, 2)[::-1].tolist()), InvalidRequest),
        (lambda: rows_of(2, ids=ids_of(SPEC, 0, 2, 1).tolist() * 2), InvalidRequest),
        (lambda: rows_of(2, ids=ids_of(SPEC, 0, 1, 2).tolist()), InvalidRequest),
        (lambda: rows_of(2, 1, [5]), InvalidRequest),  # padding, of its slot or not
        (lambda: rows_of(2, value=float("nan")), NonFiniteGradient),
        (lambda: rows_of(2, value=float("inf")), NonFiniteGradient),
        (lambda: rows_of(2, value=1.0, dtype=torch.float64), InvalidRequest),
        (lambda: PushPart({99: torch.ones(2)}), InvalidRequest),
    ],
)
def test_one_wrong_part_of_several_is_refused_as_it_is_alone(
    wrong: Callable[[], PushPart], error: type[Exception]
) -> None:
    parts = {0: rows_of(0), 1: rows_of(1)}
    check_gradients(SPEC.layouts, joined({**parts, 2: rows_of(2)}, 3))
    with pytest.raises(error) as together:
        check_gradients(SPEC.layouts, joined({**parts, 2: wrong()}, 3))
    with pytest.raises(error) as alone:
        SPEC.layout(2).check_part(wrong())
    assert str(together.value) == str(alone.value)


def test_marks_tell_what_was_touched_and_old_ones_everything() -> None:
    weights = trained()
    everything = weights.changed_since(0)
    mark = weights.mark()
    assert weights.changed_since(mark).bytes == 0
    ids = ids_of(SPEC, 0, SLOT, 3)
    push(SPEC, weights, PushPart({}, (RowGradients(0, ids, torch.ones(3, 16)),)))
    changes = weights.changed_since(mark)
    assert changes.blocks == () and changes.rows[0][1].tolist() == ids.tolist() and len(changes.rows) == 1
    for _ in range(1000):
        later = weights.mark()
    assert weights.changed_since(later).bytes == 0
    push(SPEC, weights, PushPart({}, (RowGradients(0, ids[:1], torch.ones(1, 16)),)))
    assert weights.changed_since(later).rows[0][1].tolist() == ids[:1].tolist()
    # Of so many marks ago it is not known: all rows of that table.
    assert len(weights.changed_since(mark).rows[0][1]) >= len(everything.rows[0][1])


def test_sizes_of_sections_follow_from_the_header() -> None:
    weights = trained()
    for section in weights.sections():
        assert weights.section_sizes(section.header) == [len(part) for part in section.parts]
    for header in (
        SectionHeader(-2, 0),
        SectionHeader(-1, 99),
        SectionHeader(-1, 0, 7),
        SectionHeader(9, 1),
        SectionHeader(0, 0),
        SectionHeader(-1, 0, 2, -1),
    ):
        with pytest.raises(InvalidSnapshot):
            weights.section_sizes(header)


def test_rows_of_another_slot_are_not_loaded() -> None:
    weights = trained()
    section = next(s for s in weights.sections() if s.header.table == 0)
    foreign = np.array([ids_of(SPEC, 0, (SLOT + 1) % SPEC.slots, 1)[0]])
    sizes = weights.section_sizes(SectionHeader(0, 1))
    parts = [memoryview(foreign.tobytes()), *(memoryview(bytes(size)) for size in sizes[1:])]
    with pytest.raises(ShardsError):
        weights.load(Section(SectionHeader(0, 1), parts))
    assert section.header.number == len(np.frombuffer(section.parts[0], np.int64))


def test_a_slot_is_initialised_once() -> None:
    weights = weights_of(SPEC, SLOT)
    with pytest.raises(IllegalTransition):
        weights.initialise(initial(SPEC, SLOT, seed=2))
    empty = small(slots=4096)
    without = next(slot for slot in range(4096) if not empty.layout(slot).blocks)
    assert SlotWeights(empty, without).initialised


def test_a_message_of_a_push_is_what_was_pushed() -> None:
    for wire in ("float32", "bfloat16"):
        spec = small(wire=wire)
        layout = spec.layout(SLOT)
        part = part_of(spec, SLOT, torch.Generator().manual_seed(1))
        bitmap, rows = layout.bitmap(part.blocks), [(r.table, len(r.ids)) for r in part.rows]
        sizes = layout.push_sections(bitmap, rows)
        body = bytearray(padded_sum(sizes))
        sections = cut(memoryview(body), sizes)
        values = [part.blocks[p].to(layout.block_dtype(p)) for p in sorted(part.blocks)]
        for r in part.rows:
            values += [torch.from_numpy(r.ids), r.values.to(layout.row_dtype(r.table)).view(-1)]
        for section, value in zip(sections, values, strict=True):
            section[:] = value.view(torch.uint8).numpy().tobytes()
        read = layout.push_part(bitmap, rows, sections)
        layout.check_part(read)
        for position, gradient in read.blocks.items():
            expected = part.blocks[position].to(layout.block_dtype(position)).float()
            assert torch.equal(gradient, expected)
        assert all((a.ids == b.ids).all() for a, b in zip(read.rows, part.rows, strict=True))
        assert sizes[-1] < padded(sizes[-1]) + 64


def test_gradients_of_slots_are_their_parts_together_and_one_by_one() -> None:
    generator = torch.Generator().manual_seed(2)
    spec = small(slots=5)
    parts = {slot: part_of(spec, slot, generator, rows=7) for slot in range(4)}
    parts[1] = PushPart({}, (parts[1].rows[1],))
    gradients = joined(parts, 5)
    assert gradients.slots == [0, 1, 2, 3] and gradients.part(4) == PushPart()
    for slots in ([0], [1], [0, 2], [0, 1, 2, 3], [1, 2, 4], [0, 3], [4], []):
        kept = gradients.only(slots)
        assert kept.slots == [slot for slot in slots if slot in parts]
        for slot in range(5):
            part, expected = kept.part(slot), parts[slot] if slot in kept.slots else PushPart()
            assert part.blocks.keys() == expected.blocks.keys()
            assert all(torch.equal(part.blocks[p], expected.blocks[p]) for p in part.blocks)
            for one, other in zip(part.rows, expected.rows, strict=True):
                assert one.table == other.table and (one.ids == other.ids).all()
                assert torch.equal(one.values, other.values)


def row_part(ids: list[int], width: int = 16, table: int = 0) -> PushPart:
    return PushPart({}, (RowGradients(table, np.array(ids, np.int64), torch.ones(len(ids), width)),))


def test_pushes_that_cannot_be_applied_are_refused_before_anything_changes() -> None:
    weights = trained()
    layout, before = weights.layout, weights.digest()
    own = ids_of(SPEC, 0, SLOT, 4).tolist()
    foreign = ids_of(SPEC, 0, (SLOT + 1) % SPEC.slots, 1).tolist()
    size = layout.blocks[0].end - layout.blocks[0].start
    wrong = [
        row_part([-1]),
        row_part([SPEC.tables[0].rows]),
        row_part([2**63 - 1]),
        row_part([own[0], own[0]]),
        row_part([own[1], own[0]]),
        row_part(foreign),
        row_part(own, width=15),
        PushPart({99: torch.ones(3)}),
        PushPart({0: torch.ones(size - 1)}),
        PushPart({0: torch.ones(size, dtype=torch.float64)}),
    ]
    if 5 in ids_of(SPEC, 1, SLOT, padding=True):
        wrong.append(row_part([5], 3, 1))
    for part in wrong:
        with pytest.raises(InvalidRequest):
            layout.check_part(part)
    for value in (float("nan"), float("inf"), float("-inf")):
        for part in (row_part(own), PushPart({0: torch.ones(size)})):
            for tensor in (*part.blocks.values(), *(r.values for r in part.rows)):
                tensor.view(-1)[-1] = value
            with pytest.raises(NonFiniteGradient):
                layout.check_part(part)
    huge = PushPart({0: torch.full((size,), 3e38)})  # whose sum is infinite
    layout.check_part(huge)
    assert weights.digest() == before


def test_messages_of_impossible_sizes_are_refused() -> None:
    layout = SPEC.layout(SLOT)
    for bitmap in (b"\xff" * layout.bitmap_bytes, b"\x01" * (layout.bitmap_bytes + 1)):
        if len(layout.blocks) % 8 or len(bitmap) != layout.bitmap_bytes:
            with pytest.raises(InvalidRequest):
                layout.push_sections(bitmap, [])
    for rows in ([(2, 1)], [(-1, 1)], [(0, -1)], [(0, 2**40)], [(1, 1), (0, 1)], [(0, 1), (0, 1)]):
        with pytest.raises(InvalidRequest):
            layout.push_sections(b"", rows)


def test_rates_of_other_groups_or_lengths_or_infinite_ones_are_refused() -> None:
    good = rates(SPEC)
    rates_module.check(SPEC.rules, good)
    for bad in ([], good[:1], [*good, []], [good[0][:-1], good[1]], [[float("nan"), *good[0][1:]], good[1]]):
        with pytest.raises(InvalidRequest):
            rates_module.check(SPEC.rules, bad)
