"""Rings whose members are threads of this process, and gloo's own all-reduce as the oracle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from elastane.collective.allreduce import CanonicalAllreduce, Way
from elastane.collective.order import Ranges
from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.transport import RingTransport

WAIT_SECONDS = 60


def form_ring(store: RendezvousStore, prefix: str, size: int, **options: Any) -> list[RingTransport]:
    """The transports of a ring of `size` members."""

    def form(rank: int) -> RingTransport:
        return RingTransport.form(
            store_address=store.address,
            prefix=prefix,
            rank=rank,
            size=size,
            cancel=threading.Event(),
            timeout_seconds=WAIT_SECONDS,
            **options,
        )

    return in_threads(size, form)


def canonical_allreduce(
    slots: Sequence[torch.Tensor],
    out: torch.Tensor,
    ranges: Ranges,
    transport: RingTransport,
    tag: int,
    way: Way | None = None,
) -> None:
    """All-reduce vectors in any memory once: `CanonicalAllreduce` with a copy in and a copy out.

    slots: this host's scaled vectors in rank order, 1-d, of one length and dtype; out: the same shape.
    """
    members = transport.members if out.device.type == "cpu" else None

    def memory(elements: int, *, shared: bool = False) -> torch.Tensor:
        if shared and members is not None:
            return members.own.empty(elements, out.dtype)
        return torch.empty(elements, dtype=out.dtype, device=out.device)

    plan = CanonicalAllreduce(out.numel(), out.dtype, ranges, transport.rank, memory, way, members)
    for mine, slot in zip(plan.slots, slots, strict=True):
        mine.copy_(slot)
    plan.run(transport, tag)
    plan.settle()
    out.copy_(plan.out)


def in_threads(count: int, run: Callable[[int], Any]) -> list[Any]:
    """run(0) .. run(count-1), at once; raises the first one's error."""
    with ThreadPoolExecutor(count) as pool:
        return [future.result(WAIT_SECONDS) for future in [pool.submit(run, i) for i in range(count)]]


class GlooOracle:
    """N gloo process groups, one a thread: what stock gloo makes of N vectors."""

    def __init__(self, ranks: int) -> None:
        store = dist.HashStore()

        def form(rank: int) -> dist.ProcessGroupGloo:
            options = dist.ProcessGroupGloo._Options()
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = timedelta(seconds=WAIT_SECONDS)
            return dist.ProcessGroupGloo(store, rank, ranks, options)

        self.ranks = ranks
        self._groups = in_threads(ranks, form)

    def sum(self, vectors: list[torch.Tensor]) -> torch.Tensor:
        """The all-reduced vector; all ranks get the same bits."""
        copies = [vector.clone() for vector in vectors]
        in_threads(self.ranks, lambda rank: self._groups[rank].allreduce([copies[rank]]).wait())
        assert all(torch.equal(copies[0].view(torch.uint8), copy.view(torch.uint8)) for copy in copies)
        return copies[0]
