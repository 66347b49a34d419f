"""The ring's geometry against a simulation that knows only gloo's rule, element by element."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.collective.order import Action, RingOrder, canonical_order, check_ranges, chunk_elements


@st.composite
def rings(draw: st.DrawFn) -> list[tuple[int, int]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    bounds = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return list(pairwise(bounds))


def _simulate(order: RingOrder) -> list[list[list[int]]]:
    """Run all hosts' actions over FIFO links; per host and element, the ranks added, in order."""
    sums: list[list[list[int]]] = [[[] for _ in range(order.elements)] for _ in range(order.hosts)]
    links: list[deque[tuple[Action, list[list[int]]]]] = [deque() for _ in range(order.hosts)]
    pending = [deque(order.actions(host)) for host in range(order.hosts)]
    while any(pending):
        progress = False
        for host, actions in enumerate(pending):
            while actions and (not actions[0].receive or links[host]):
                action = actions.popleft()
                progress = True
                if action.receive:
                    sent, values = links[host].popleft()
                    assert (sent.low, sent.high, sent.round + 1) == (action.low, action.high, action.round)
                    sums[host][action.low : action.high] = values
                for segment in action.segments:
                    assert action.low <= segment.low < segment.high <= action.high
                    for element in range(segment.low, segment.high):
                        if not action.receive and segment.ranks:
                            sums[host][element] = []
                        sums[host][element] = sums[host][element] + list(segment.ranks)
                if action.send:
                    links[(host - 1) % order.hosts].append((action, sums[host][action.low : action.high]))
        assert progress, "the ring deadlocks"
    assert not any(links), "a message nobody receives"
    return sums


@settings(max_examples=120, deadline=None)
@given(
    ranges=rings(),
    elements=st.integers(1, 400),
    element_size=st.sampled_from([2, 4, 8]),
    piece=st.integers(1, 60),
)
def test_every_host_ends_with_the_canonical_order(ranges, elements, element_size, piece):
    order = RingOrder(elements, element_size, ranges, piece)
    expected = [canonical_order(element // order.chunk, order.ranks) for element in range(elements)]
    if order.hosts == 1:
        local = [list(s.ranks) for s in order.local_segments() for _ in range(s.low, s.high)]
        assert local == expected
        return
    for sums in _simulate(order):
        assert sums == expected


def test_a_host_adds_only_its_own_ranks():
    order = RingOrder(1000, 4, [(0, 3), (3, 4), (4, 8)], 64)
    for host, (first, last) in enumerate(order.ranges):
        added = {rank for action in order.actions(host) for s in action.segments for rank in s.ranks}
        assert added == set(range(first, last))


@pytest.mark.parametrize("ranges", [[(0, 4), (4, 8)], [(0, 2), (2, 4), (4, 6), (6, 8)]])
def test_traffic_is_that_of_a_ring_of_hosts_and_the_hop_home(ranges):
    order = RingOrder(8 * 2**20, 4, ranges, 2**18)
    hosts, ranks = order.hosts, order.ranks
    sent = sum(action.high - action.low for action in order.actions(0) if action.send)
    assert sent / order.elements == pytest.approx((ranks - 1) / ranks + (hosts - 1) / hosts)


@pytest.mark.parametrize(
    ("elements", "element_size", "ranks", "chunk"),
    [
        (1, 4, 8, 2),  # 16 segments of one element
        (16, 4, 8, 2),
        (17, 4, 8, 4),
        (2**18 * 4, 4, 2, 2**19),  # exactly 4 segments of 1 MiB
        (2**18 * 4 + 1, 4, 2, 524289),  # 5 -> 6 segments of 699,052 bytes
        (5_000_011, 4, 3, 1666672),
        (7, 2, 1, 7),
    ],
)
def test_chunk_sizes_follow_the_segments(elements, element_size, ranks, chunk):
    assert chunk_elements(elements, element_size, ranks) == chunk
    assert chunk * ranks >= elements


def test_ranges_must_be_contiguous():
    assert check_ranges([(0, 2), (2, 3)]) == 3
    with pytest.raises(AssertionError):
        check_ranges([(0, 2), (3, 4)])
