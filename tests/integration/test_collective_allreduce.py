"""The bits of `CanonicalAllreduce` against gloo's own all-reduce of N ranks.

gloo runs for real: N groups in threads of this process (`GlooOracle`), and in
`test_several_ranks_a_process` several groups of N ranks in each of P processes.
"""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import TCPStore

from elastane.collective.additions import BLOCK_ELEMENTS
from elastane.collective.allreduce import CanonicalAllreduce, way_for
from elastane.collective.order import SEGMENT_BYTES_MAX
from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.ring_errors import RingAborted
from elastane.collective.shared_memory import own_arena
from elastane.collective.ways import PIECE_BYTES, Ring, Scatter
from integration.multi_group_run import DTYPES, bits, member, vectors
from integration.ring_threads import GlooOracle, canonical_allreduce, form_ring, in_threads
from slow import slow, slow_except

#: Virtual ranks that are tried; up to EXHAUSTIVE every contiguous mapping, beyond it a sample.
RANKS = [2, 3, 4, 5, 6, 7, 8]
EXHAUSTIVE, SAMPLE = 5, 6


def mappings(ranks):
    """Contiguous ranges of virtual ranks for every number of hosts, every way to cut them or a sample."""
    cuts = [inner for size in range(ranks) for inner in combinations(range(1, ranks), size)]
    if ranks > EXHAUSTIVE:
        cuts = random.Random(ranks).sample(cuts, SAMPLE)
    return [list(pairwise([0, *inner, ranks])) for inner in cuts]


class _Rings:
    """The ring of P hosts, formed when it is first wanted; its mapping of ranks is the caller's."""

    def __init__(self, store):
        self._store, self._rings = store, {}

    def __getitem__(self, hosts):
        if hosts not in self._rings:
            self._rings[hosts] = form_ring(self._store, f"hosts-{hosts}", hosts)
        return self._rings[hosts]


class _Oracles:
    """gloo's sums of the test vectors, remembered."""

    def __init__(self):
        self._oracles, self._sums = {}, {}

    def oracle(self, ranks):
        if ranks not in self._oracles:
            self._oracles[ranks] = GlooOracle(ranks)
        return self._oracles[ranks]

    def sum(self, ranks, elements, dtype):
        key = (ranks, elements, dtype)
        if key not in self._sums:
            self._sums[key] = self.oracle(ranks).sum(vectors(ranks, elements, dtype))
        return self._sums[key]


@pytest.fixture(scope="module")
def rings():
    store = RendezvousStore("127.0.0.1")
    yield _Rings(store)
    store.close()


@pytest.fixture(scope="module")
def oracles():
    return _Oracles()


def _ways(ranges):
    return ["local"] if len(ranges) == 1 else ["shared", "direct", "scatter", "ring"]


def _sums(transports, ranges, inputs, way):
    """What each host gets."""
    outs = [torch.full_like(inputs[0], float("nan")) for _ in ranges]

    def run(host):
        start, end = ranges[host]
        canonical_allreduce(inputs[start:end], outs[host], ranges, transports[host], 1, way)

    in_threads(len(ranges), run)
    return outs


def _check(rings, ranges, inputs, expected, way):
    for out in _sums(rings[len(ranges)], ranges, inputs, way):
        assert torch.equal(bits(out), bits(expected)), (way, ranges, expected.numel(), expected.dtype)


def _local(ranks, inputs):
    """The canonical sum where all vectors are at hand; no ring of its own."""
    out = torch.empty_like(inputs[0])
    plan = CanonicalAllreduce(len(out), out.dtype, [(0, ranks)], 0, _memory(out.dtype))
    for slot, vector in zip(plan.slots, inputs, strict=True):
        slot.copy_(vector)
    plan._sum.run()
    return plan.out


def _memory(dtype):
    def take(elements, *, shared=False):
        return own_arena().empty(elements, dtype) if shared else torch.empty(elements, dtype=dtype)

    return take


# ---------------------------------------------------------------- the order itself, by size and dtype


@pytest.mark.parametrize("ranks", slow_except(RANKS, 2, 5, further=(4, 6, 7)))
def test_chunks_of_every_small_size_are_gloos(oracles, ranks):
    """From one element to past the second multiple of the 2 N segments; chunks run short and empty."""
    for dtype in DTYPES:
        for elements in range(1, 4 * ranks + 3):
            inputs = vectors(ranks, elements, dtype)
            assert torch.equal(bits(_local(ranks, inputs)), bits(oracles.oracle(ranks).sum(inputs))), (
                elements,
                dtype,
            )


def _segment_boundaries(ranks, dtype):
    """Where the number of segments grows from 2 N to 3 N, where a segment grows by one element, and
    where the last chunk becomes empty: each with its neighbours."""
    most = 2 * ranks * SEGMENT_BYTES_MAX // dtype.itemsize
    for boundary in (most, 2 * ranks * 1000, (2 * ranks - 2) * 1000):
        yield from (boundary - 1, boundary, boundary + 1)


@pytest.mark.parametrize("ranks", slow_except(RANKS, 2, 5, further=(4, 6, 7)))
def test_chunks_around_every_segment_boundary_are_gloos(oracles, ranks):
    # float32 for every N; the element sizes of the others take turns, the rule knows only sizes.
    for dtype in {torch.float32, DTYPES[ranks % len(DTYPES)]}:
        sizes = list(_segment_boundaries(ranks, dtype))
        longest = vectors(ranks, max(sizes), dtype)
        for elements in sizes:
            inputs = [vector[:elements] for vector in longest]
            assert torch.equal(bits(_local(ranks, inputs)), bits(oracles.oracle(ranks).sum(inputs))), (
                elements,
                dtype,
            )


def test_three_segments_a_rank_and_more(oracles):
    """Past 3 N MiB there are 4 N segments; beyond the tables of the other tests."""
    for ranks, elements in ((2, 6 * 2**18 + 1), (3, 5_000_011), (2, 9 * 2**18)):
        inputs = vectors(ranks, elements, torch.float32)
        assert torch.equal(bits(_local(ranks, inputs)), bits(oracles.oracle(ranks).sum(inputs))), elements


def test_plain_rank_order_has_other_bits(oracles):
    """The oracle can tell: adding in rank order, the obvious way, does not pass."""
    for ranks in RANKS[1:]:
        inputs = vectors(ranks, 1023, torch.float32)
        plain = inputs[0].clone()
        for vector in inputs[1:]:
            plain += vector
        assert not torch.equal(plain, oracles.sum(ranks, 1023, torch.float32))


# ---------------------------------------------------------------- every mapping, every way

#: Around the blocks of the additions and the pieces of the messages, for chunks as for whole vectors.
SIZES = [1, 2, 7, 17, 63, 100, 1000, 4095, BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS + 1]
LARGE = [PIECE_BYTES // 4 + 1, 3 * PIECE_BYTES // 4]


@pytest.mark.parametrize(
    "ranks", slow_except([2, 3, 4, 5, 7], 2, 5, further=(3, 4, 7))
)  # the mappings of 8 ranks take a minute
def test_all_ways_have_gloos_bits(rings, oracles, ranks):
    for number, ranges in enumerate(mappings(ranks)):
        for index, elements in enumerate(SIZES):
            dtype = DTYPES[(number + index) % len(DTYPES)]
            for way in _ways(ranges):
                inputs = vectors(ranks, elements, dtype)
                _check(rings, ranges, inputs, oracles.sum(ranks, elements, dtype), way)


@pytest.mark.parametrize("ranks", slow_except([2, 5, 8], 5, further=(2, 8)))
def test_vectors_of_several_pieces_have_gloos_bits(rings, oracles, ranks):
    for ranges in [*random.Random(ranks).sample(mappings(ranks), 2), [(0, 1), (1, ranks)]]:
        for elements in LARGE:
            for way in _ways(ranges):
                inputs = vectors(ranks, elements, torch.float32)
                _check(rings, ranges, inputs, oracles.sum(ranks, elements, torch.float32), way)


@st.composite
def _rings_of_ranks(draw):
    ranks = draw(st.sampled_from(RANKS))
    cuts = draw(st.sets(st.integers(1, ranks - 1), max_size=5))
    return list(pairwise([0, *sorted(cuts), ranks]))


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(
    ranges=_rings_of_ranks(),
    elements=st.one_of(st.integers(1, 300), st.integers(1, 140_000)),
    dtype=st.sampled_from(DTYPES),
    choice=st.integers(0, 3),
)
def test_any_mapping_size_and_dtype_has_gloos_bits(rings, oracles, ranges, elements, dtype, choice):
    ranks = ranges[-1][1]
    inputs = vectors(ranks, elements, dtype)
    ways = _ways(ranges)
    expected = oracles.oracle(ranks).sum(inputs)
    _check(rings, ranges, inputs, expected, ways[choice % len(ways)])


@pytest.mark.parametrize("ranges", [[(0, 2), (2, 5)], [(0, 1), (1, 4), (4, 5)]])
def test_rounds_without_pipelining_have_the_same_bits(rings, oracles, ranges, monkeypatch):
    monkeypatch.setattr(Ring, "run", Ring.run_in_rounds)
    monkeypatch.setattr(Scatter, "run", Scatter.run_in_rounds)
    for elements in (1, 9, 1000, 300_001):
        inputs = vectors(5, elements, torch.float32)
        for way in ("ring", "scatter"):
            _check(rings, ranges, inputs, oracles.sum(5, elements, torch.float32), way)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_infinities_and_subnormals_have_gloos_bits(rings, oracles, dtype):
    """What optimizers never see in a healthy run, and GradScaler lives on."""
    smallest, largest = torch.finfo(dtype).smallest_normal / 4, torch.finfo(dtype).max
    special = torch.tensor(
        [0.0, -0.0, float("inf"), -float("inf"), smallest, -smallest, largest, -largest, 1.0], dtype=dtype
    )
    generator = torch.Generator().manual_seed(3)
    inputs = [special[torch.randint(0, len(special), (2000,), generator=generator)] for _ in range(5)]
    inputs[0][::7] = -0.0
    expected = oracles.oracle(5).sum(inputs)
    numbers = ~expected.isnan()
    assert 100 < numbers.sum() < 2000
    for ranges in ([(0, 5)], [(0, 2), (2, 5)], [(0, 1), (1, 4), (4, 5)]):
        for way in _ways(ranges):
            for out in _sums(rings[len(ranges)], ranges, inputs, way):
                assert torch.equal(bits(out)[numbers], bits(expected)[numbers]), (way, ranges)
                assert torch.equal(out.isnan(), ~numbers), (way, ranges)


# ---------------------------------------------------------------- real processes


@slow
def test_several_ranks_a_process(tmp_path):
    """Three processes whose shares of eight ranks change; each holds a gloo group for each of its ranks."""
    shares = [[(0, 3), (3, 4), (4, 8)], [(0, 1), (1, 7), (7, 8)], [(0, 2), (2, 5), (5, 8)]]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.start_processes(member, (store.port, shares, tmp_path), nprocs=3, start_method="forkserver")
    checked = [int((tmp_path / f"checked-{host}").read_text()) for host in range(3)]
    assert checked == [checked[0]] * 3
    assert checked[0] >= len(shares) * len(DTYPES) * 3


# ---------------------------------------------------------------- the plan as an object


@pytest.mark.parametrize("way", ["shared", "direct", "scatter", "ring"])
def test_a_plan_is_run_again_on_new_vectors(rings, oracles, way):
    """Step after step on the same memory: what was made for the first run fits the next ones."""
    ranges, elements = [(0, 2), (2, 5)], BLOCK_ELEMENTS * 3 + 5
    plans = [
        CanonicalAllreduce(
            elements, torch.float32, ranges, me, _memory(torch.float32), way, rings[2][me].members
        )
        for me in (0, 1)
    ]
    for step in range(3):
        inputs = [vector * (step + 1) for vector in vectors(5, elements, torch.float32)]
        for plan, (start, end) in zip(plans, ranges, strict=True):
            for slot, vector in zip(plan.slots, inputs[start:end], strict=True):
                slot.copy_(vector)
        in_threads(2, lambda me: plans[me].run(rings[2][me], 1))
        expected = oracles.oracle(5).sum(inputs)
        for plan in plans:
            assert torch.equal(bits(plan.out), bits(expected)), step


def test_a_ring_of_one_rank_returns_the_vector(rings):
    vector = torch.randn(100)
    out = torch.empty(100)
    canonical_allreduce([vector], out, [(0, 1)], rings[1][0], 1)
    assert torch.equal(out, vector)


def test_an_aborted_ring_of_one_is_fenced_too():
    store = RendezvousStore("127.0.0.1")
    (transport,) = form_ring(store, "fenced", 1)
    transport.abort()
    with pytest.raises(RingAborted):
        canonical_allreduce([torch.zeros(3)], torch.empty(3), [(0, 1)], transport, 1)
    store.close()


def test_all_hosts_choose_the_same_way_by_size():
    ranges = [(0, 1), (1, 4)]
    assert way_for(100, 4, [(0, 4)]) == "local"
    assert way_for(100, 4, ranges) == "direct"
    assert way_for(250_000, 4, ranges) == "scatter"
    assert way_for(10_000_000, 4, ranges) == "ring"
    assert way_for(100, 4, [(0, 4)], shared=True) == "local"
    assert {way_for(elements, 4, ranges, shared=True) for elements in (1, 10_000_000)} == {"shared"}
