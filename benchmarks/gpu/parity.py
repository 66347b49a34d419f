"""Logical workers time-sliced on one GPU against stock DDP of as many processes on the same GPU: same bits?

    python benchmarks/gpu/parity.py [--ests 2,4] [--models resnet50,vit] [--stock-backend nccl]
        [--device cpu] [--json FILE]

Trains the same script both ways, with dropout on the device, BatchNorm and augmentation, and compares
sha256 of weights, optimizer state and buffers and the loss of every step and rank.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from common import (
    EXIT_DIFFERENT,
    EXIT_OK,
    Runner,
    argument_parser,
    device_or_exit,
    facts,
    positive_numbers,
    write_json,
)
from models import MODELS
from rich.console import Console
from rich.table import Table

from elastane_cli.rehearse.results import compare_outcomes, read_elastic, read_stock

TITLE = "k logical workers in one process beside k processes"


def main() -> int:
    """Entry point: run both sides of every case; return 0 if all bits are equal."""
    parser = argument_parser(__doc__)
    parser.add_argument("--ests", type=positive_numbers, default=[2, 4], help="logical workers, e.g. 2,4")
    parser.add_argument("--models", default="resnet50,vit", help=", ".join(MODELS))
    parser.add_argument(
        "--stock-backend",
        choices=["gloo", "nccl"],
        default="gloo",
        help="of stock DDP; nccl adds in another order with more than two ranks",
    )
    args = parser.parse_args()
    models = args.models.split(",")
    if unknown := set(models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    device = device_or_exit(args.device)
    console = Console()
    table = Table("model", "k", "sha256 of", "Elastane", "stock DDP", "equal", title=TITLE)
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(args, device, Path(name))
        for model in models:
            for ests in args.ests:
                elastic, stock = runner.elastic(model, ests), runner.stock(model, ests, args.stock_backend)
                found = read_elastic(elastic.reports, elastic.history, ests, steps_per_epoch=args.steps)
                comparison = compare_outcomes(read_stock(stock.reports, ests), found)
                for row in comparison.rows:
                    verdict = "yes" if row.equal else "NO"
                    table.add_row(model, str(ests), row.name, row.found[:16], row.reference[:16], verdict)
                cases.append(
                    {
                        "model": model,
                        "ests": ests,
                        "equal": comparison.equal,
                        "losses_compared": comparison.values,
                        "sha256": {row.name: [row.found, row.reference] for row in comparison.rows},
                        "audit": list(comparison.violations),
                    }
                )
    console.print(table)
    equal = all(case["equal"] for case in cases)
    console.print("all bits equal" if equal else "the bits differ")
    write_json(args.json, {"facts": facts(device), "equal": equal, "cases": cases})
    return EXIT_OK if equal else EXIT_DIFFERENT


if __name__ == "__main__":
    raise SystemExit(main())
