"""Cost of switching between logical workers on one GPU, by the time of a mini-batch.

    python benchmarks/gpu/context_switch.py [--counts 1,2,4,8,16] [--models resnet50,vit] [--device cpu]
        [--json FILE]

For each k it measures alternately: k logical workers in one process; a plain process that accumulates k
mini-batches (the difference is switches, gradients set aside and added in order, and the control plane); k
processes of stock DDP that share the GPU. A mini-batch's time is a step's divided by k. The switch alone,
which saves and restores all generators and resets the buffers, is timed separately. It prints medians and the
range over the repeats, and reports processes that do not fit the device.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import (
    EXIT_OK,
    Runner,
    argument_parser,
    attempt,
    device_or_exit,
    facts,
    positive_numbers,
    write_json,
)
from models import MODELS
from rich.console import Console
from rich.table import Table

from elastane.rng import Generators, seed_all

SWITCHES = 200


def main() -> int:
    """Entry point: measure every model and k."""
    parser = argument_parser(__doc__)
    parser.add_argument("--counts", type=positive_numbers, default=[1, 2, 4, 8, 16], help="k, e.g. 1,2,4")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", default="resnet50,vit", help=", ".join(MODELS))
    args = parser.parse_args()
    models = args.models.split(",")
    if unknown := set(models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    if args.repeats < 1 or args.steps < 5:
        parser.error("--repeats from 1, --steps from 5")
    device = device_or_exit(args.device)
    table = Table("model", "k", "accumulation", "Elastane", "more, %", "range", "switch alone", "k of DDP")
    table.title = "ms a mini-batch"
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(args, device, Path(name))
        for model in models:
            alone = switch_seconds(MODELS[model](args.picture_size, 10).to(device), device)
            for count in args.counts:
                case = measure(runner, model, count, args.repeats)
                case["switch_seconds"] = alone
                case["switch_percent"] = 100 * alone / case["accumulation_seconds"]
                cases.append(case)
                stock = case["stock_seconds"]
                table.add_row(
                    model,
                    str(count),
                    f"{1e3 * case['accumulation_seconds']:.2f}",
                    f"{1e3 * case['elastic_seconds']:.2f}",
                    f"{case['percent']:+.1f}",
                    f"{case['percent_range'][0]:+.1f} .. {case['percent_range'][1]:+.1f}",
                    f"{1e3 * alone:.3f} ({case['switch_percent']:.1f} %)",
                    case["stock_failed"] if stock is None else f"{1e3 * stock:.2f}",
                )
    Console().print(table)
    write_json(args.json, {"facts": facts(device), "batch_size": args.batch_size, "cases": cases})
    return EXIT_OK


def measure(runner: Runner, model: str, ests: int, repeats: int) -> dict[str, Any]:
    """Measure the seconds of a mini-batch on all sides, alternately."""
    pairs, stock_seconds, why_not = [], [], ""
    for _ in range(repeats):
        plain = statistics.median(runner.accumulation(model, ests).step_seconds) / ests
        elastic = statistics.median(runner.elastic(model, ests).step_seconds) / ests
        pairs.append((plain, elastic))
        if not why_not:
            stock, why_not = attempt(lambda: runner.stock(model, ests))
            if stock is not None:
                stock_seconds.append(statistics.median(stock.step_seconds) / ests)
    percents = [100 * (elastic / plain - 1) for plain, elastic in pairs]
    return {
        "model": model,
        "k": ests,
        "accumulation_seconds": statistics.median(plain for plain, _ in pairs),
        "elastic_seconds": statistics.median(elastic for _, elastic in pairs),
        "percent": statistics.median(percents),
        "percent_range": [min(percents), max(percents)],
        "stock_seconds": statistics.median(stock_seconds) if stock_seconds and not why_not else None,
        "stock_failed": why_not,
    }


def switch_seconds(model: torch.nn.Module, device: torch.device) -> float:
    """Return the median seconds of one switch: save and restore generators, reset buffers to EST 0's."""
    generators = Generators(device)
    states = []
    for seed in (1, 2):
        seed_all(seed)
        states.append(generators.capture())
    buffers = list(model.buffers())
    bases = [buffer.clone() for buffer in buffers]
    times = []
    for number in range(SWITCHES):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        generators.exchange(states[number % 2])
        if buffers:
            with torch.no_grad():
                torch._foreach_copy_(buffers, bases)  # as Rank0Buffers does
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    raise SystemExit(main())
