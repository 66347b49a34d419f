"""Rings whose members are threads of this process, and gloo's own all-reduce as the oracle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

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
