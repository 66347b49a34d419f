"""What elastic training costs when nothing happens: seconds per step beside stock PyTorch, in turn.

    python benchmarks/steady_step.py [--quick] [--json FILE]

1. P = N: two workers with one EST each beside stock DDP(gloo) of two processes.
2. P < N: one worker with k ESTs beside one stock process that accumulates k micro-batches.

Each pair runs in turn, several times; printed are medians over runs, their range and the ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from elastane.agent.cluster import local_cluster
from elastane.agent.reference import run_stock_ddp
from elastane_proto.v1 import job_pb2

SCRIPT = str(Path(__file__).with_name("steady_script.py"))


def script(folder: Path, model: str, batch: int, steps: int, *more: str) -> tuple[list[str], Path]:
    out = folder / "times.json"
    return [
        SCRIPT,
        "--model",
        model,
        "--batch-size",
        str(batch),
        "--steps",
        str(steps),
        "--out",
        str(out),
        *more,
    ], out


def median_step(out: Path) -> float:
    return statistics.median(json.loads(out.read_text())[5:])


def run_elastic(model: str, batch: int, steps: int, *, ests: int, workers: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command, out = script(folder, model, batch, steps)
        # All workers in the first ring: the steady state is measured, not the joining.
        settings = job_pb2.JobSettings(ests=ests, workers_min=workers, workers_max=workers)
        with local_cluster(folder / "cluster", settings, command) as cluster:
            for _ in range(workers):
                cluster.add_worker()
            cluster.wait_for_end()
        return median_step(out)


def run_ddp(model: str, batch: int, steps: int, *, processes: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command, out = script(folder, model, batch, steps)
        run_stock_ddp(folder, command, processes=processes)
        return median_step(out)


def run_accumulation(model: str, batch: int, steps: int, *, k: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        command, out = script(Path(name), model, batch, steps, "--accumulate", str(k))
        environment = {**os.environ, "ELASTANE_MODE": "plain"}
        subprocess.run([sys.executable, *command], check=True, env=environment)
        return median_step(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one run each, fewer steps")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    args = parser.parse_args()
    repeats = 1 if args.quick else 3
    console = Console()
    cases = [
        ("digits, P = N = 2, batch 32", "digits", 32, 60, 2, 2),
        ("digits, P = N = 2, batch 256", "digits", 256, 40, 2, 2),
        ("25 M parameters, P = N = 2, batch 64", "25m", 64, 20, 2, 2),
        ("digits, 4 ESTs on 1 worker, batch 32", "digits", 32, 60, 4, 1),
        ("digits, 4 ESTs on 1 worker, batch 256", "digits", 256, 30, 4, 1),
        ("25 M parameters, 4 ESTs on 1 worker, batch 64", "25m", 64, 15, 4, 1),
    ]
    table = Table(title="seconds per step: median over runs [range]")
    for column in ("case", "Elastane", "stock", "ratio"):
        table.add_column(column)
    results = []
    for title, model, batch, steps, ests, workers in cases:
        ours, theirs = [], []
        for _ in range(repeats):
            with console.status(title):
                ours.append(run_elastic(model, batch, steps, ests=ests, workers=workers))
                if workers == ests:
                    theirs.append(run_ddp(model, batch, steps, processes=ests))
                else:
                    theirs.append(run_accumulation(model, batch, steps, k=ests))
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        results.append({"case": title, "elastane": ours, "stock": theirs, "ratio": ratio})
        cells = [f"{statistics.median(v):.4f} [{min(v):.4f}-{max(v):.4f}]" for v in (ours, theirs)]
        table.add_row(title, *cells, f"{ratio:.2f}")
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
