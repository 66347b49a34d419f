"""Sequential additions in a given order, in blocks that stay in the cache.

bfloat16 and float16 round at every addition, as in gloo. The bits do not depend on the number of
threads: additions are element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from elastane.collective.order import RingOrder

#: Elements of an addition on CPU: three blocks of float32 fit a common L2 cache, and torch does not
#: split an operation of this size among threads (`at::internal::GRAIN_SIZE`), which backward needs.
BLOCK_ELEMENTS: Final = 32768


class OrderedSum:
    """out = v_last + (.. + (v1 + (v0 [+ out if started]))), block by block; 1-d, of one length.

    Run once a step on the same memory: the views of the blocks are made in the first run and kept,
    because making them takes as long as a quarter of the additions (benchmarks/allreduce.py).
    """

    def __init__(self, vectors: Sequence[Tensor], out: Tensor, *, started: bool) -> None:
        assert all(len(vector) == len(out) for vector in vectors)
        self._vectors, self._out, self._started = list(vectors), out, started
        self._additions: list[tuple[Tensor, Tensor, Tensor]] | None = None

    def run(self) -> None:
        """Add what the vectors hold now."""
        if not self._vectors:
            return
        if not self._started and len(self._vectors) == 1:
            self._out.copy_(self._vectors[0])
            return
        if self._additions is None:
            self._additions = self._cut()
        add = torch.add
        for added, partial, block in self._additions:
            add(added, partial, out=block)

    def _cut(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(added, partial sum, where the sum goes) in the order in which they are done."""
        out = self._out
        block_elements = BLOCK_ELEMENTS if out.device.type == "cpu" else max(1, len(out))
        columns = [vector.split(block_elements) for vector in self._vectors]
        additions = []
        for number, block in enumerate(out.split(block_elements)):
            partial = block if self._started else columns[0][number]
            for column in columns if self._started else columns[1:]:
                additions.append((column[number], partial, block))
                partial = block
        return additions


class LocalSum:
    """The canonical sum of the rows of a matrix (N, N * chunk) into a vector of N * chunk elements.

    A short one is done for all chunks at once: what the k-th addition adds to chunk c lies in row
    c - k, so that for neighbouring chunks it lies on a diagonal of the matrix, a strided view. What
    is added beyond `elements` is never looked at.
    """

    def __init__(self, matrix: Tensor, out: Tensor, elements: int, chunk: int) -> None:
        self._matrix, self._out = matrix, out
        ranks, width = matrix.shape
        segments = RingOrder(elements, matrix.element_size(), [(0, ranks)], elements).local_segments()
        self._sums = [
            OrderedSum(
                [matrix[rank, segment.low : segment.high] for rank in segment.ranks],
                out[segment.low : segment.high],
                started=False,
            )
            for segment in segments
        ]
        self._diagonals: list[tuple[Tensor, Tensor]] = []
        if width > BLOCK_ELEMENTS and out.device.type == "cpu":
            return
        chunks = out.view(ranks, chunk)
        for hop in range(1, ranks + 1):
            wrapped = min(hop, ranks)
            for start, end, row in ((0, wrapped, ranks - hop), (wrapped, ranks, 0)):
                if start < end:
                    offset = matrix.storage_offset() + row * width + start * chunk
                    added = matrix.as_strided((end - start, chunk), (width + chunk, 1), offset)
                    self._diagonals.append((added, chunks[start:end]))

    def run(self) -> None:
        """Add."""
        if not self._diagonals:
            for ordered in self._sums:
                ordered.run()
            return
        starts = 1 if len(self._matrix) == 1 else 2
        for added, chunks in self._diagonals[:starts]:
            chunks.copy_(added)
        for added, chunks in self._diagonals[starts:]:
            torch.add(added, chunks, out=chunks)
