"""What independence of the number of workers costs: the canonical all-reduce beside stock gloo.

P processes hold N = P * k vectors. The canonical all-reduce sums all N in gloo's order for N ranks.
Beside it, in the same run and on the same vectors: gloo over P processes after each has added its k
vectors up (what plain gradient accumulation does, with other bits for every P), and a plain gloo
all-reduce of one vector. Times are the slowest process's, medians of the repeats.

    python benchmarks/allreduce.py [--quick] [--json FILE] [--ways direct,scatter,ring] [--shapes 2x4,4x1]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from elastane.collective.allreduce import CanonicalAllreduce, way_for
from elastane.collective.transport import RendezvousStore, RingTransport

SIZES = [1_000, 30_000, 250_000, 1_000_000, 6_553_600]
QUICK_SIZES = [1_000, 250_000, 1_000_000]
SHAPES = [(1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2)]


def main() -> None:
    """Run every shape in its own processes; print a table, write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats, about 20 s")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--ways", default="", help="direct,scatter,ring: these instead of the chosen one")
    parser.add_argument("--shapes", default="", help="PxK, separated by commas: these instead of the table")
    parser.add_argument("--sizes", default="", help="elements, separated by commas, likewise")
    arguments = parser.parse_args()
    sizes = QUICK_SIZES if arguments.quick else SIZES
    repeats = 9 if arguments.quick else 25
    shapes = [(2, 1), (2, 2)] if arguments.quick else SHAPES
    if arguments.shapes:
        shapes = [
            (int(hosts), int(k)) for hosts, _, k in (s.partition("x") for s in arguments.shapes.split(","))
        ]
    if arguments.sizes:
        sizes = [int(size) for size in arguments.sizes.split(",")]
    ways = [way for way in arguments.ways.split(",") if way]
    rows: list[dict[str, Any]] = []
    print(f"{'P':>2} {'k':>2} {'elements':>9} {'way':>7} {'ms':>8} {'gloo+sums':>9} {'ratio':>6} {'gloo':>8}")
    for hosts, per_host in shapes:
        for row in measure(hosts, per_host, sizes, repeats, ways):
            rows.append(row)
            print(
                f"{hosts:2} {per_host:2} {row['elements']:9} {row['way']:>7} {row['canonical_ms']:8.3f}"
                f" {row['accumulated_ms']:9.3f} {row['ratio']:6.2f} {row['gloo_ms']:8.3f}"
            )
    if arguments.json:
        facts = {"cpus": os.cpu_count(), "torch": torch.__version__, "repeats": repeats}
        arguments.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1))


def measure(
    hosts: int, per_host: int, sizes: list[int], repeats: int, ways: list[str]
) -> list[dict[str, Any]]:
    """The rows of one shape."""
    store = RendezvousStore("127.0.0.1")
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    mp.spawn(_member, (hosts, per_host, sizes, repeats, ways, store.address, queue), nprocs=hosts)
    samples: dict[tuple[int, str], list[dict[str, list[float]]]] = {}
    for _ in range(hosts):
        for key, times in queue.get():
            samples.setdefault(key, []).append(times)
    rows = []
    for (elements, way), by_host in samples.items():
        slowest = {
            kind: statistics.median(max(step) for step in zip(*(t[kind] for t in by_host), strict=True))
            for kind in by_host[0]
        }
        rows.append(
            {
                "hosts": hosts,
                "ests": hosts * per_host,
                "elements": elements,
                "way": way,
                **{f"{kind}_ms": round(seconds * 1e3, 4) for kind, seconds in slowest.items()},
                "ratio": round(slowest["canonical"] / slowest["accumulated"], 3),
            }
        )
    return rows


def _member(
    host: int,
    hosts: int,
    per_host: int,
    sizes: list[int],
    repeats: int,
    ways: list[str],
    address: str,
    queue: Any,
) -> None:
    torch.set_num_threads(1)
    transport = RingTransport.form(
        store_address=address, prefix=f"{hosts}", rank=host, size=hosts, cancel=threading.Event()
    )
    group: Any = transport._group
    ranges = [(i * per_host, (i + 1) * per_host) for i in range(hosts)]
    found = []
    for elements in sizes:
        for way in ways if hosts > 1 and ways else [way_for(elements, 4, ranges)]:
            plan = CanonicalAllreduce(elements, torch.float32, ranges, host, torch.empty, way)
            for slot in plan.slots:
                slot.copy_(torch.randn(elements))
            total = torch.empty(elements)
            kinds = {
                "canonical": lambda plan=plan: plan.run(transport, 1),
                "accumulated": lambda plan=plan, total=total: _accumulate(plan.slots, total, group),
                "gloo": lambda total=total: _gloo(total, group),
            }
            found.append(((elements, plan.way), _times(kinds, repeats, group)))
    queue.put(found)


def _accumulate(slots: list[torch.Tensor], total: torch.Tensor, group: Any) -> None:
    if len(slots) == 1:
        total.copy_(slots[0])  # a bucket is reduced in place; DDP fills it for every step
    else:
        torch.add(slots[0], slots[1], out=total)
    for slot in slots[2:]:
        total.add_(slot)
    _gloo(total, group)


def _gloo(total: torch.Tensor, group: Any) -> None:
    if group is not None:
        group.allreduce([total]).wait()


def _times(kinds: dict[str, Callable[[], None]], repeats: int, group: Any) -> dict[str, list[float]]:
    """Seconds of each kind, taken in turn so that a busy machine hits all alike."""
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for repeat in range(repeats + 2):
        for kind, run in kinds.items():
            if group is not None:
                group.barrier().wait()
            start = time.perf_counter()
            run()
            if repeat >= 2:
                times[kind].append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
