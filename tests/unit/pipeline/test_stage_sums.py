"""A stage's gradients are added in the order of the whole model's buckets, by whichever members hold it."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from elastane.collective.buckets import first_layout, rebuilt_layout
from elastane.collective.order import canonical_order, chunk_elements
from elastane.pipeline import stage_sums
from elastane.pipeline.gradient_memory import GradientMemory, groups_of
from elastane.pipeline.local_links import LocalHub, run_together
from elastane.pipeline.stage_sums import Holders, StageSums, pieces_of
from elastane.pipeline.waits import RowsWait

SHAPES = [(7, 3), (5,), (300, 40), (40,), (3, 2, 2), (1,), (0, 3), (17, 5)]


def _layout(order=None, dtypes=(torch.float32,)):
    params = [
        torch.empty(shape, dtype=dtype) for shape, dtype in zip(SHAPES, itertools.cycle(dtypes), strict=False)
    ]
    return first_layout(params) if order is None else rebuilt_layout(params, order, 0.01)


def _expected(layout, by_est):
    """The sums of the whole model: by_est[r][index], each in its bucket's canonical order."""
    ests = len(by_est)
    found = {}
    for bucket in layout:
        if not bucket.elements:
            continue
        chunk = chunk_elements(bucket.elements, bucket.element_size, ests)
        flats = []
        for gradients in by_est:
            flat = torch.empty(bucket.elements, dtype=bucket.dtype)
            for index, view in bucket.views(flat):
                view.copy_(gradients[index])
            flats.append(flat)
        out = torch.empty_like(flats[0])
        for number in range(ests):
            low, high = number * chunk, min((number + 1) * chunk, bucket.elements)
            if low >= high:
                continue
            first, *rest = canonical_order(number, ests)
            acc = flats[first][low:high].clone()
            for rank in rest:
                acc = flats[rank][low:high] + acc
            out[low:high] = acc
        found.update((index, view.clone()) for index, view in bucket.views(out))
    return found


@pytest.mark.parametrize("order", [None, [7, 1, 0, 2, 6, 4, 3, 5]], ids=["first", "rebuilt"])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float32, torch.bfloat16, torch.float64)])
@pytest.mark.parametrize(
    ("replicas", "shadows", "ests"),
    [
        ((0,), (), 4),
        ((0,), (2, 1), 3),
        ((2, 0), (1,), 4),
        ((0, 1, 2), (), 4),
        ((1, 0, 2), (3,), 2),
        ((0,), (1,), 1),
    ],
)
def test_sums_are_those_of_the_whole_buckets(monkeypatch, order, dtypes, replicas, shadows, ests):
    monkeypatch.setattr(stage_sums, "PIECE_ELEMENTS", 1000)
    layout = _layout(order, dtypes)
    held = frozenset({0, 2, 3, 4, 6, 7})
    torch.manual_seed(1)
    by_est = [
        {
            place.index: torch.randn(place.shape).to(bucket.dtype)
            for bucket in layout
            for place in bucket.places
        }
        for _ in range(ests)
    ]
    expected = _expected(layout, by_est)
    hub, members, running = LocalHub(), [], []
    holders = Holders(replicas, shadows, ests)
    for me in (*replicas, *shadows):
        local = [est for est in range(ests) if replicas[holders.replica_of(est)] == me]
        memory = GradientMemory(groups_of(layout, held, ests), local, torch.device("cpu"))
        links = hub.links(me)
        sums = StageSums(holders, me, memory, links)
        members.append(memory)

        def step(memory=memory, sums=sums, local=local):
            sums.begin()
            for est in local:
                for index, view in memory.views[memory.slot_of[est]].items():
                    view.copy_(by_est[est][index])
                sums.send_gradients(est)
            for number in sums.finish():
                yield RowsWait(number)

        running.append((links, step))
    for _ in range(2):  # again in the same memory
        run_together([(links, step()) for links, step in running], random.Random(3).choice)
        for memory in members:
            assert set(memory.averages) == held
            for index, average in memory.averages.items():
                assert average.dtype == expected[index].dtype
                assert torch.equal(average, expected[index]), index
        assert not any(hub.rows.values()), "something was sent that nobody took"


def test_a_stretch_is_of_one_chunk_and_as_long_as_can_be():
    layout = _layout()
    (group,) = groups_of(layout, frozenset(range(len(SHAPES))), 4)
    assert [stretch.chunk for stretch in group.stretches] == [0, 1, 2, 3]
    assert [s.low for s in group.stretches[1:]] == [s.high for s in group.stretches[:-1]]
    assert group.stretches[-1].high == group.elements == layout[0].elements
    assert groups_of(layout, frozenset(), 4) == []


def test_owners_share_all_elements():
    for owners, count in itertools.product(range(1, 5), (0, 1, 63, 64, 65, 1000, 600_000)):
        parts = [piece for owner in range(owners) for piece in pieces_of([count, 7], owners, owner)]
        for group, elements in enumerate([count, 7]):
            bounds = sorted((piece.low, piece.high) for piece in parts if piece.group == group)
            assert sum(high - low for low, high in bounds) == elements
            assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))


def test_sums_take_the_first_est_s_memory():
    memory = GradientMemory(groups_of(_layout(), frozenset(range(8)), 4), [0, 2], torch.device("cpu"))
    assert memory.sums[0] is memory.rows[0][0]
    assert memory.nbytes == 2 * memory.groups[0].elements * 4
