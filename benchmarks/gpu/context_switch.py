"""What it costs to switch between logical workers on one GPU, in percent of a mini-batch.

    python benchmarks/gpu/context_switch.py [--ests 8] [--models resnet50,vit] [--device cpu] [--json FILE]

Two figures. The whole: k logical workers in one process beside a plain process that accumulates k
mini-batches; the difference is switches, gradients set aside and added in order, and the control plane.
The switch alone: saving and restoring all generators and resetting the buffers, timed by itself.
Runs of both sides take turns; printed are medians and the range over the repeats.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import EXIT_OK, Runner, argument_parser, device_or_exit, facts, write_json
from models import MODELS
from rich.console import Console
from rich.table import Table

from elastane.rng import Generators, seed_all

SWITCHES = 200


def main() -> int:
    """Both figures for every model."""
    parser = argument_parser(__doc__)
    parser.add_argument("--ests", type=int, default=8, help="k")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", default="resnet50,vit", help=", ".join(MODELS))
    args = parser.parse_args()
    models = args.models.split(",")
    if unknown := set(models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    if args.ests < 1 or args.repeats < 1 or args.steps < 5:
        parser.error("--ests and --repeats from 1, --steps from 5")
    device = device_or_exit(args.device)
    table = Table("model", "k", "accumulation", "Elastane", "more, %", "range", "switch alone", "%")
    table.title = "ms a mini-batch"
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(args, device, Path(name))
        for model in models:
            case = measure(runner, model, args.ests, args.repeats)
            alone = switch_seconds(MODELS[model](args.picture_size, 10).to(device), device)
            case["switch_seconds"] = alone
            case["switch_percent"] = 100 * alone / case["accumulation_seconds"]
            cases.append(case)
            table.add_row(
                model,
                str(args.ests),
                f"{1e3 * case['accumulation_seconds']:.2f}",
                f"{1e3 * case['elastic_seconds']:.2f}",
                f"{case['percent']:+.1f}",
                f"{case['percent_range'][0]:+.1f} .. {case['percent_range'][1]:+.1f}",
                f"{1e3 * alone:.3f}",
                f"{case['switch_percent']:.1f}",
            )
    Console().print(table)
    write_json(args.json, {"facts": facts(device), "batch_size": args.batch_size, "cases": cases})
    return EXIT_OK


def measure(runner: Runner, model: str, ests: int, repeats: int) -> dict[str, Any]:
    """Seconds of a mini-batch on both sides, in turn."""
    pairs = []
    for _ in range(repeats):
        plain = statistics.median(runner.accumulation(model, ests).step_seconds) / ests
        elastic = statistics.median(runner.elastic(model, ests).step_seconds) / ests
        pairs.append((plain, elastic))
    percents = [100 * (elastic / plain - 1) for plain, elastic in pairs]
    return {
        "model": model,
        "k": ests,
        "accumulation_seconds": statistics.median(plain for plain, _ in pairs),
        "elastic_seconds": statistics.median(elastic for _, elastic in pairs),
        "percent": statistics.median(percents),
        "percent_range": [min(percents), max(percents)],
    }


def switch_seconds(model: torch.nn.Module, device: torch.device) -> float:
    """Median seconds of one switch: generators out and in, EST 0's buffers copied over the module's."""
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
        with torch.no_grad():
            for buffer, base in zip(buffers, bases, strict=True):
                buffer.copy_(base)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    raise SystemExit(main())
