"""Sequential additions in a given order, in blocks that stay in the cache.

bfloat16 and float16 round at every addition, as in gloo. Additions are element by element, so the bits do not
depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from elastane.collective.order import RingOrder

#: Elements of one addition on CPU: three blocks of float32 fit a common L2 cache, and torch does not split an
#: operation of this size among threads (`at::internal::GRAIN_SIZE`), so that the cores are left to backward.
BLOCK_ELEMENTS: Final = 32768


class OrderedSum:
    """out = v_last + (.. + (v1 + (v0 [+ out if started]))), block by block; all 1-d and of one length.

    Runs once a step on the same memory: the views of the blocks are created in the first run and kept,
    because creating them takes a quarter of the time of the additions (benchmarks/allreduce.py).
    """

    def __init__(self, vectors: Sequence[Tensor], out: Tensor, *, started: bool) -> None:
        assert all(len(vector) == len(out) for vector in vectors)
        self._vectors, self._out, self._started = list(vectors), out, started
        self._additions: list[tuple[Tensor, Tensor, Tensor]] | None = None

    def run(self) -> None:
        """Add the current contents of the vectors."""
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
        """Return (added, partial sum, destination) in the order of execution."""
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
    """Canonical sum of the rows of a matrix (N, N * chunk) into a vector of N * chunk elements.

    A short vector is summed for all chunks at once: the k-th addition to chunk c takes row c - k, so that for
    neighbouring chunks the operands lie on a diagonal of the matrix, which is a strided view. Results beyond
    `elements` are never read.
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
            # Addition `hop` takes row (c - hop) mod N: chunks below `hop` wrap around to the last rows, so
            # the diagonal consists of two views. Each view advances by one row and one chunk per element of
            # its first dimension.
            for start, end, row in ((0, wrapped, ranks - hop), (wrapped, ranks, 0)):
                if start < end:
                    offset = matrix.storage_offset() + row * width + start * chunk
                    added = matrix.as_strided((end - start, chunk), (width + chunk, 1), offset)
                    self._diagonals.append((added, chunks[start:end]))

    def run(self) -> None:
        """Compute the sum."""
        if not self._diagonals:
            for ordered in self._sums:
                ordered.run()
            return
        starts = 1 if len(self._matrix) == 1 else 2
        for added, chunks in self._diagonals[:starts]:
            chunks.copy_(added)
        for added, chunks in self._diagonals[starts:]:
            torch.add(added, chunks, out=chunks)
