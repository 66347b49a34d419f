"""The bits of `CanonicalAllreduce` against gloo's own all-reduce of N ranks."""

from __future__ import annotations

import pytest
import torch

from elastane.collective.additions import BLOCK_ELEMENTS
from elastane.collective.allreduce import canonical_allreduce, way_for
from elastane.collective.transport import RendezvousStore, RingAborted
from elastane.collective.ways import PIECE_BYTES, Ring, Scatter
from integration.ring_threads import GlooOracle, form_ring, in_threads

SEGMENT_ELEMENTS = (1 << 20) // 4


@pytest.fixture(scope="module")
def store():
    store = RendezvousStore("127.0.0.1")
    yield store
    store.close()


def _vectors(ranks, elements, dtype):
    """Magnitudes far apart, so that nearly every order of additions has its own bits."""
    generator = torch.Generator().manual_seed(ranks * 1_000_003 + elements)
    scale = torch.randn(elements, generator=generator).mul_(3).clamp_(max=7).exp_()
    return [(torch.randn(elements, generator=generator) * scale).to(dtype) for _ in range(ranks)]


def _bits(tensor):
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _check(transports, ranges, vectors, expected, way, tag=1):
    outs = [torch.full_like(expected, float("nan")) for _ in ranges]

    def run(host):
        start, end = ranges[host]
        canonical_allreduce(vectors[start:end], outs[host], ranges, transports[host], tag, way)

    in_threads(len(ranges), run)
    for out in outs:
        assert torch.equal(_bits(out), _bits(expected)), (way, ranges, expected.numel())


# Around every boundary: fewer elements than segments, segment counts, blocks, pieces.
SMALL = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 65, 100, 127, 1000, 4095, BLOCK_ELEMENTS + 1]
LARGE = [PIECE_BYTES // 4 + 1, SEGMENT_ELEMENTS * 2 - 1, SEGMENT_ELEMENTS * 6 + 1]

MAPPINGS = [
    [(0, 2)],
    [(0, 1), (1, 2)],
    [(0, 3)],
    [(0, 2), (2, 3)],
    [(0, 1), (1, 2), (2, 3)],
    [(0, 4)],
    [(0, 2), (2, 4)],
    [(0, 1), (1, 4)],
    [(0, 2), (2, 3), (3, 4)],
    [(0, 1), (1, 2), (2, 3), (3, 4)],
    [(0, 3), (3, 5)],
    [(0, 5), (5, 6), (6, 7)],
    [(0, 4), (4, 8)],
    [(0, 2), (2, 4), (4, 6), (6, 8)],
    [(0, 1), (1, 5), (5, 6), (6, 8)],
]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7, 8])
def test_all_ways_have_gloos_bits(store, ranks):
    oracle = GlooOracle(ranks)
    for ranges in (mapping for mapping in MAPPINGS if mapping[-1][1] == ranks):
        transports = form_ring(store, f"bits-{ranges}", len(ranges))
        ways = ["local"] if len(ranges) == 1 else ["direct", "scatter", "ring"]
        for elements in SMALL + LARGE:
            vectors = _vectors(ranks, elements, torch.float32)
            expected = oracle.sum(vectors)
            for way in ways:
                _check(transports, ranges, vectors, expected, way)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_round_at_every_addition(store, dtype):
    oracle = GlooOracle(5)
    for ranges in ([(0, 5)], [(0, 3), (3, 5)], [(0, 1), (1, 2), (2, 5)]):
        transports = form_ring(store, f"{dtype}-{ranges}", len(ranges))
        for elements in (1, 17, 1023, 40_001, 600_011):
            vectors = _vectors(5, elements, dtype)
            expected = oracle.sum(vectors)
            for way in ["local"] if len(ranges) == 1 else ["direct", "scatter", "ring"]:
                _check(transports, ranges, vectors, expected, way)


def test_plain_rank_order_has_other_bits():
    """The oracle can tell: adding in rank order, the obvious way, does not pass."""
    vectors = _vectors(5, 1023, torch.float32)
    plain = vectors[0].clone()
    for vector in vectors[1:]:
        plain += vector
    assert not torch.equal(plain, GlooOracle(5).sum(vectors))


@pytest.mark.parametrize("ranges", [[(0, 2), (2, 5)], [(0, 1), (1, 4), (4, 5)]])
def test_rounds_without_pipelining_have_the_same_bits(store, ranges, monkeypatch):
    monkeypatch.setattr(Ring, "run", Ring.run_in_rounds)
    monkeypatch.setattr(Scatter, "run", Scatter.run_in_rounds)
    oracle = GlooOracle(5)
    transports = form_ring(store, f"rounds-{ranges}", len(ranges))
    for elements in (1, 9, 1000, 300_001):
        vectors = _vectors(5, elements, torch.float32)
        expected = oracle.sum(vectors)
        for way in ("ring", "scatter"):
            _check(transports, ranges, vectors, expected, way)


def test_a_ring_of_one_rank_returns_the_vector(store):
    (transport,) = form_ring(store, "one", 1)
    vector = torch.randn(100)
    out = torch.empty(100)
    canonical_allreduce([vector], out, [(0, 1)], transport, 1)
    assert torch.equal(out, vector)


def test_an_aborted_ring_of_one_is_fenced_too(store):
    (transport,) = form_ring(store, "fenced", 1)
    transport.abort()
    with pytest.raises(RingAborted):
        canonical_allreduce([torch.zeros(3)], torch.empty(3), [(0, 1)], transport, 1)


def test_all_hosts_choose_the_same_way_by_size():
    ranges = [(0, 1), (1, 4)]
    assert way_for(100, 4, [(0, 4)]) == "local"
    assert way_for(100, 4, ranges) == "direct"
    assert way_for(300_000, 4, ranges) == "scatter"
    assert way_for(10_000_000, 4, ranges) == "ring"
