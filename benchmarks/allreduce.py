"""Cost of independence from the number of workers: the canonical all-reduce beside stock gloo.

P processes hold N = P * k vectors. The canonical all-reduce sums all N in gloo's order for N ranks. The peer
adds up each process's k vectors and has gloo all-reduce the P sums, as plain gradient accumulation does, with
different bits for every P. "shared memory" is the transport of workers on one machine, "sockets" that of
workers on several machines, here over loopback. Times are those of the slowest process. With more processes
than cores both sides wait for the scheduler.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.multiprocessing as mp
from harness import Plot, Report, Row, Series, run_benchmark

from elastane.collective.allreduce import CanonicalAllreduce, way_for
from elastane.collective.gloo import gloo_group
from elastane.collective.order import Ranges
from elastane.collective.rendezvous import MemberStore, RendezvousStore
from elastane.collective.transport import RingTransport

SMALL, LARGE = [1_000, 30_000, 250_000], [1_000_000, 25_000_000]
HOSTS, PER_HOST = [2, 3, 4], [1, 2, 4]
TARGET = 1.1
PEER_SECONDS = 600.0
KINDS = {"shared": "shared memory", "sockets": "sockets"}

#: Milliseconds of one process by (k, elements, way, kind), one value per repeat.
Times = dict[tuple[int, int, str, str], list[float]]


def options(parser: argparse.ArgumentParser) -> None:
    """Add options that select other cases than those of the table."""
    parser.add_argument("--ways", default="", help="shared,direct,scatter,ring: instead of the chosen ones")
    parser.add_argument("--shapes", default="", help="PxK, separated by commas: these instead of the table")
    parser.add_argument("--sizes", default="", help="elements, separated by commas, likewise")
    parser.add_argument("--repeats", type=int, default=0, help="measurements of each case")


def measure(args: argparse.Namespace, report: Report) -> None:
    """Start each number of processes once, and measure all its cases."""
    shapes = [(hosts, k) for hosts in HOSTS for k in PER_HOST]
    if args.shapes:
        shapes = [(int(hosts), int(k)) for hosts, _, k in (s.partition("x") for s in args.shapes.split(","))]
    sizes = [int(size) for size in args.sizes.split(",")] if args.sizes else SMALL + LARGE
    ways = [way for way in args.ways.split(",") if way]
    seconds = 0.3 if args.quick else 1.5
    report.facts["processes beyond the number of cores wait for one another"] = f"{os.cpu_count()} cores"
    lines: dict[str, list[tuple[float, float]]] = {}
    for hosts in dict.fromkeys(hosts for hosts, _ in shapes):
        counts = [k for h, k in shapes if h == hosts]
        for (k, elements, way, kind), series, peer in _ring(
            hosts, counts, sizes, ways, seconds, args.repeats
        ):
            row = _row(hosts, k, elements, way, kind, series, peer)
            report.rows.append(row)
            assert row.ratio is not None
            lines.setdefault(f"P={hosts} k={k}, {KINDS[kind]}", []).append((elements, row.ratio))
    report.plots.append(
        Plot(
            "allreduce",
            "Canonical all-reduce beside gloo plus local sums",
            "floats",
            "time, multiple of the peer's",
            lines,
            log_x=True,
        )
    )


def _row(
    hosts: int, k: int, elements: int, way: str, kind: str, series: list[float], peer: list[float]
) -> Row:
    large = elements >= 1_000_000
    note = "" if way == "shared" else f"way: {way}"
    row = Row(
        f"P={hosts} k={k} {_count(elements)} floats, {KINDS[kind]}",
        Series(series, "ms"),
        Series(peer, "ms"),
        "gloo + local sums",
        target=TARGET if large else None,
        # The time for small vectors is a few wake-ups, so it depends on the scheduler.
        noise=1.5 if large and hosts <= 2 else 2.5,
        note=note,
    )
    if row.met is False:
        row.note += (
            "; to add in gloo's order for N ranks, partial sums make 2P-1 hops instead of 2(P-1), with"
            " (N-1)/N + (P-1)/P of the vector sent instead of 2(P-1)/P"
        )
    return row


def _count(elements: int) -> str:
    return f"{elements // 1_000_000} M" if elements >= 1_000_000 else f"{elements // 1000} k"


def _ring(
    hosts: int, counts: list[int], sizes: list[int], ways: list[str], seconds: float, repeats: int
) -> list[tuple[tuple[int, int, str, str], list[float], list[float]]]:
    """Return (case, our times, the peer's times) of all cases with one number of processes."""
    store = RendezvousStore("127.0.0.1")
    queue = mp.get_context("spawn").SimpleQueue()
    context = mp.spawn(
        _member,
        (hosts, counts, sizes, ways, seconds, repeats, store.address, queue),
        nprocs=hosts,
        join=False,
    )
    found: list[Times] = [queue.get() for _ in range(hosts)]
    while not context.join():
        pass
    store.close()

    def slowest(key: tuple[int, int, str, str]) -> list[float]:
        return [max(values) for values in zip(*(times[key] for times in found), strict=True)]

    return [
        (key, slowest(key), slowest((*key[:3], f"beside {key[3]}")))
        for key in found[0]
        if not key[3].startswith("beside")
    ]


def _member(
    host: int,
    hosts: int,
    counts: list[int],
    sizes: list[int],
    ways: list[str],
    seconds: float,
    repeats: int,
    address: str,
    queue: Any,
) -> None:
    torch.set_num_threads(1)
    transport = RingTransport.form(
        store_address=address, prefix=f"{hosts}", rank=host, size=hosts, cancel=threading.Event()
    )
    host_name, _, port = address.rpartition(":")
    store = MemberStore(host_name, int(port), f"{hosts} gloo", b"", PEER_SECONDS)
    group: Any = gloo_group(store, host, hosts, timedelta(seconds=PEER_SECONDS), host_name).torch_group
    times: Times = {}
    for k in counts:
        ranges = [(i * k, (i + 1) * k) for i in range(hosts)]
        for elements in sizes:
            chosen = {(way, "shared" if way == "shared" else "sockets") for way in ways}
            if not ways:
                sockets, shared = (way_for(elements, 4, ranges, there) for there in (False, True))
                chosen = {(sockets, "sockets"), (shared, "shared")}
            for way, kind in sorted(chosen, key=lambda pair: pair[1]):
                ours, peers = _beside(way, elements, ranges, transport, group, seconds, repeats)
                times[k, elements, way, kind] = ours
                times[k, elements, way, f"beside {kind}"] = peers
    queue.put(times)
    transport.close()


def _beside(
    way: Any,
    elements: int,
    ranges: Ranges,
    transport: RingTransport,
    group: Any,
    seconds: float,
    repeats: int,
) -> tuple[list[float], list[float]]:
    """Return our times and gloo's, measured alternately. repeats: 0: as many as fit into `seconds`."""
    members = transport.members

    def memory(elements: int, *, shared: bool = False) -> torch.Tensor:
        if shared:
            assert members is not None, "these processes cannot share memory"
            return members.own.empty(elements, torch.float32)
        return torch.empty(elements)

    plan = CanonicalAllreduce(elements, torch.float32, ranges, transport.rank, memory, way, members)
    for slot in plan.slots:
        slot.normal_()
    total = torch.empty(elements)

    def canonical() -> None:
        plan.run(transport, 1)
        plan.settle()

    pair = (canonical, lambda: _accumulate(plan.slots, total, group))
    for run in pair:
        run()  # makes views, touches pages
    once = sum(_times(pair, 1, group)[0]) + sum(_times(pair, 1, group)[1])
    # All members must make the same number of repeats; the first one's clock decides.
    number = torch.tensor([repeats or min(200, max(5, round(seconds / (once / 1e3 / 2))))])
    group.broadcast([number], _root(0)).wait()
    ours, peers = _times(pair, int(number), group)
    return ours, peers


def _root(rank: int) -> Any:
    options = torch.distributed.BroadcastOptions()
    options.rootRank = rank
    return options


def _accumulate(slots: list[torch.Tensor], total: torch.Tensor, group: Any) -> None:
    if len(slots) == 1:
        total.copy_(slots[0])  # a bucket is reduced in place; DDP fills it for every step
    else:
        torch.add(slots[0], slots[1], out=total)
    for slot in slots[2:]:
        total.add_(slot)
    group.allreduce([total]).wait()


def _times(pair: tuple[Callable[[], None], ...], repeats: int, group: Any) -> list[list[float]]:
    """Return the milliseconds of each, measured alternately so that other load affects all alike."""
    times: list[list[float]] = [[] for _ in pair]
    for _ in range(repeats):
        for run, values in zip(pair, times, strict=True):
            group.barrier().wait()
            start = time.perf_counter()
            run()
            values.append((time.perf_counter() - start) * 1e3)
    return times


if __name__ == "__main__":
    assert __doc__ is not None
    run_benchmark("allreduce", __doc__, measure, options)
