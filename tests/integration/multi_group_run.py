"""The multi-group oracle in real processes: k gloo groups of N ranks in a process that hosts k of them.

Run by `test_collective_allreduce.py` in spawned processes. Each process takes part in gloo's own
all-reduce once for every virtual rank it hosts, and in the canonical all-reduce once as a host; both
must give the same bits. The test's vectors live here, because every process makes them for itself.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from elastane.collective.order import Ranges
from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.transport import RingTransport
from integration.ring_threads import canonical_allreduce

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SIZES = [1, 15, 1000, 131_075]
WAIT_SECONDS = 60


def vectors(ranks: int, elements: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Magnitudes far apart, so that nearly every order of additions has its own bits."""
    generator = torch.Generator().manual_seed(ranks * 1_000_003 + elements)
    scale = torch.randn(elements, generator=generator).mul_(3).clamp_(max=7).exp_()
    return [(torch.randn(elements, generator=generator) * scale).to(dtype) for _ in range(ranks)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: tells 0.0 from -0.0, and a NaN is equal to itself."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def member(host: int, port: int, shares: list[Ranges], folder: Path) -> None:
    """Process `host`: all mappings of `shares`, one after the other; leaves the number of sums it checked."""
    torch.set_num_threads(1)
    meeting = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=WAIT_SECONDS))
    if host == 0:
        own = RendezvousStore("127.0.0.1")
        meeting.set("address", own.address)
    address = meeting.get("address").decode()
    checked = 0
    for number, ranges in enumerate(shares):
        transport = RingTransport.form(
            store_address=address,
            prefix=f"ring-{number}",
            rank=host,
            size=len(ranges),
            cancel=threading.Event(),
            timeout_seconds=WAIT_SECONDS,
        )
        groups = _Groups(port, f"oracle-{number}", ranges, host)
        for dtype in DTYPES:
            for elements in SIZES:
                inputs = vectors(ranges[-1][1], elements, dtype)
                expected = groups.sum(inputs)
                start, end = ranges[host]
                for way in ("shared", "direct", "scatter", "ring"):
                    out = torch.full_like(expected, float("nan"))
                    canonical_allreduce(inputs[start:end], out, ranges, transport, 1, way)
                    assert torch.equal(bits(out), bits(expected)), (way, ranges, elements, dtype)
                    checked += 1
        groups.close()
        transport.close()
    (folder / f"checked-{host}").write_text(str(checked))
    meeting.add("done", 1)
    if host == 0:
        while meeting.add("done", 0) < len(shares[0]):
            threading.Event().wait(0.01)  # the store must outlive its users


class _Groups:
    """One gloo group of N ranks for each virtual rank of this host, each driven by a thread."""

    def __init__(self, port: int, prefix: str, ranges: Ranges, host: int) -> None:
        self._ranks = range(*ranges[host])
        self._pool = ThreadPoolExecutor(len(self._ranks))
        ranks = ranges[-1][1]
        self._groups = list(self._pool.map(lambda rank: _group(port, prefix, rank, ranks), self._ranks))

    def sum(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """gloo's all-reduce of the vectors, as the first of this host's ranks has it."""
        copies = [inputs[rank].clone() for rank in self._ranks]
        works = self._pool.map(
            lambda pair: pair[0].allreduce([pair[1]]).wait(), zip(self._groups, copies, strict=True)
        )
        assert all(works)
        assert all(torch.equal(copies[0], copy) for copy in copies)
        return copies[0]

    def close(self) -> None:
        """Drop the groups."""
        self._groups.clear()
        self._pool.shutdown()


def _group(port: int, prefix: str, rank: int, ranks: int) -> dist.ProcessGroupGloo:
    # A client of its own: one that waits for another rank would keep the others of this process waiting.
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=WAIT_SECONDS))
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=WAIT_SECONDS)
    return dist.ProcessGroupGloo(PrefixStore(prefix, store), rank, ranks, options)
