"""Peak memory of k logical workers in one process beside k processes of stock DDP, on one GPU.

    python benchmarks/gpu/memory.py [--counts 1,2,4,8,16] [--models resnet50] [--device cpu] [--json FILE]

For each case it prints the peak of memory that the device reports for all processes (CUDA contexts included),
and the sum of the processes' own peaks by torch's allocator. A worker shares weights, optimizer state and
activations among its logical workers and keeps one flat copy of the gradients for each of them; that
part is printed too. A case that does not fit the device is reported.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from common import (
    EXIT_OK,
    Run,
    Runner,
    argument_parser,
    attempt,
    device_or_exit,
    facts,
    mib,
    positive_numbers,
    write_json,
)
from models import MODELS
from rich.console import Console
from rich.table import Table

GRADIENT_BYTES = 4


def main() -> int:
    """Entry point: measure all counts of every model."""
    parser = argument_parser(__doc__)
    parser.add_argument("--counts", type=positive_numbers, default=[1, 2, 4, 8, 16], help="k, e.g. 1,2,4")
    parser.add_argument("--models", default="resnet50", help=", ".join(MODELS))
    parser.set_defaults(steps=8)
    args = parser.parse_args()
    models = args.models.split(",")
    if unknown := set(models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    device = device_or_exit(args.device)
    own = "reserved" if device.type == "cuda" else "rss"
    console = Console()
    table = Table("model", "k", "device", "own peak", "gradients", "DDP: device", "own peaks")
    table.title = f"MiB at the peak, batch {args.batch_size}: one process with k logical workers, k of DDP"
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(args, device, Path(name))
        for model in models:
            for count in args.counts:
                elastic, why_not_elastic = attempt(lambda m=model, k=count: runner.elastic(m, k))
                stock, why_not_stock = attempt(lambda m=model, k=count: runner.stock(m, k))
                gradients = 0
                if elastic is not None:
                    gradients = count * GRADIENT_BYTES * elastic.processes[0]["parameters"]
                table.add_row(
                    model,
                    str(count),
                    *columns(elastic, own, why_not_elastic),
                    mib(gradients),
                    *columns(stock, own, why_not_stock),
                )
                cases.append(
                    {
                        "model": model,
                        "k": count,
                        "gradient_bytes": gradients,
                        "elastic": figures(elastic, why_not_elastic),
                        "stock": figures(stock, why_not_stock),
                    }
                )
    console.print(table)
    write_json(args.json, {"facts": facts(device), "batch_size": args.batch_size, "cases": cases})
    return EXIT_OK


def columns(run: Run | None, own: str, why_not: str) -> tuple[str, str]:
    """Format memory on the device and the processes' own peaks for the table."""
    if run is None:
        return why_not, ""
    return mib(run.peak_device_bytes), mib(run.peak_bytes(own))


def figures(run: Run | None, why_not: str) -> dict[str, Any]:
    """Return the same figures for the file, in bytes."""
    if run is None:
        return {"failed": why_not}
    return {
        "device_bytes": run.peak_device_bytes,
        **{f"{kind}_bytes": run.peak_bytes(kind) for kind in ("allocated", "reserved", "rss")},
    }


if __name__ == "__main__":
    raise SystemExit(main())
