"""Shared parts of the GPU benchmarks: the device, one run of each side, memory in use.

All processes of a run use the first GPU. Stock DDP runs over gloo with CUDA tensors, because Elastane
reproduces gloo's order of additions, and because NCCL refuses two ranks on one GPU unless each poses as a
host of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import torch

from elastane_cli.rehearse.cluster import ClusterError, local_cluster
from elastane_cli.rehearse.stock_run import StockRunError, run_stock_ddp
from elastane_common.determinism import DEFAULT_LEVEL, process_environment
from elastane_proto.v1 import job_pb2, shard_pb2

SCRIPT: Final = str(Path(__file__).with_name("train_script.py"))
#: Exit codes of the benchmarks: equal or measured, different, wrong arguments, no such device.
EXIT_OK, EXIT_DIFFERENT, EXIT_USAGE, EXIT_NO_DEVICE = 0, 1, 2, 3
_POLL_SECONDS: Final = 0.02
_MIB: Final = 1 << 20


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all GPU benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit codes: 0 done (and equal, where bits are compared), 1 different, 2 wrong arguments,"
        " 3 no CUDA device here",
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a dry run of the same code"
    )
    parser.add_argument("--picture-size", type=int, default=64, help="pixels a side")
    parser.add_argument("--batch-size", type=int, default=32, help="of one logical worker")
    parser.add_argument("--steps", type=int, default=20, help="global steps of a run")
    parser.add_argument("--data-workers", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    return parser


def device_or_exit(name: str) -> torch.device:
    """Return the device; if it is missing, print why and exit with EXIT_NO_DEVICE."""
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        sys.stderr.write(
            f"no CUDA device here (torch {torch.__version__}, {built}).\n"
            "Run this on a machine with an NVIDIA GPU, or try the code with --device cpu.\n"
        )
        raise SystemExit(EXIT_NO_DEVICE)
    return torch.device("cuda", 0)


def facts(device: torch.device) -> dict[str, Any]:
    """Describe the machine on which the figures were taken."""
    found: dict[str, Any] = {"torch": torch.__version__, "cpus": os.cpu_count(), "device": device.type}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_mib": properties.total_memory // _MIB,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


@dataclass(frozen=True)
class Run:
    """Results of one run of either side."""

    #: The measurements of each process (see train_script.py), the leader's first.
    processes: list[dict[str, Any]]
    #: Folder of the fingerprints, for compare_runs.
    reports: Path
    history: list[shard_pb2.AuditEntry] = field(default_factory=list)
    #: Peak of memory in use by all processes, in bytes, as the device reports it; on CPU the resident set.
    peak_device_bytes: int = 0

    @property
    def step_seconds(self) -> list[float]:
        """Seconds of each step, without the first three, in which libraries warm up and buckets are built."""
        return list(self.processes[0]["step_seconds"])[3:]

    def peak_bytes(self, kind: str) -> int:
        """Return the sum of the processes' own peaks in bytes. kind: rss, allocated or reserved."""
        return sum(int(process[f"peak_{kind}_bytes"]) for process in self.processes)


class Runner:
    """Runs the script on each side with the same arguments."""

    def __init__(self, args: argparse.Namespace, device: torch.device, folder: Path) -> None:
        self._args, self._device, self._folder = args, device, folder
        self.steps: int = args.steps

    def script(self, out: Path, model: str, *more: str) -> list[str]:
        """Return the command line of the training script, without the interpreter."""
        args = self._args
        command = [SCRIPT, "--device", args.device, "--model", model, "--out", str(out)]
        command += ["--picture-size", str(args.picture_size), "--batch-size", str(args.batch_size)]
        return [*command, "--steps", str(self.steps), "--data-workers", str(args.data_workers), *more]

    def elastic(self, model: str, ests: int) -> Run:
        """Run all logical workers time-sliced in one process. Raises ClusterError."""
        folder = self._new_folder()
        settings = job_pb2.JobSettings(ests=ests, workers_min=1, workers_max=1, audit_samples=True)
        script = self.script(folder / "measured", model)
        with local_cluster(folder / "cluster", settings, script) as cluster:
            before = set(psutil.Process().children(recursive=True))
            with MemoryInUse(self._device, excluded=before) as memory:
                cluster.add_worker()
                job = cluster.wait_for_end(timeout_seconds=900.0)
            if job.phase != job_pb2.JOB_PHASE_SUCCEEDED:
                raise RuntimeError(f"the elastic run ended: {job.reason}\n{cluster.last_lines()}")
            history = list(cluster.client.audit_log(cluster.job))
            return Run(_measured(folder), cluster.reports, history, memory.peak_bytes)

    def stock(self, model: str, processes: int, backend: str = "gloo") -> Run:
        """Run stock DDP in `processes` processes. backend: "gloo" or "nccl". Raises StockRunError."""
        folder = self._new_folder()
        more = ["--share-gpu"] if backend == "nccl" else []
        script = self.script(folder / "measured", model, *more)
        with MemoryInUse(self._device) as memory:
            reports = run_stock_ddp(
                folder,
                script,
                processes=processes,
                environment={"ELASTANE_DDP_BACKEND": backend},
                timeout_seconds=900.0,
            )
        return Run(_measured(folder), reports, peak_device_bytes=memory.peak_bytes)

    def accumulation(self, model: str, mini_batches: int) -> Run:
        """Run a plain process that accumulates `mini_batches` for each step. Raises CalledProcessError."""
        folder = self._new_folder()
        script = self.script(folder / "measured", model, "--accumulate", str(mini_batches))
        variables = {**os.environ, **process_environment(DEFAULT_LEVEL, 1), "ELASTANE_MODE": "plain"}
        with MemoryInUse(self._device) as memory:
            subprocess.run([sys.executable, *script], check=True, env=variables, timeout=900.0)
        return Run(_measured(folder), folder, peak_device_bytes=memory.peak_bytes)

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))


def _measured(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (folder / "measured").glob("*.json")]
    return sorted(found, key=lambda process: not process["leader"])


def attempt(run: Callable[[], Run]) -> tuple[Run | None, str]:
    """Return the run, or None and the reason if memory ran out, which is a result; raise anything else."""
    try:
        return run(), ""
    except (ClusterError, StockRunError) as error:
        if "out of memory" not in str(error).lower():
            raise
        return None, "out of memory"


class MemoryInUse:
    """Peak of memory in use on the device inside the block, above what was in use before it.

    On a GPU that is all memory in use, CUDA contexts and caches of all processes included; on the CPU the
    resident memory of this program's children except those in `excluded`.
    """

    def __init__(self, device: torch.device, excluded: set[psutil.Process] | None = None) -> None:
        self._device, self._excluded = device, excluded or set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-in-use", daemon=True)
        self._base = 0
        self.peak_bytes = 0

    def __enter__(self) -> MemoryInUse:
        self._base = self._used()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            self.peak_bytes = max(self.peak_bytes, self._used() - self._base)

    def _used(self) -> int:
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            return total - free
        used = 0
        for process in set(psutil.Process().children(recursive=True)) - self._excluded:
            try:
                used += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue  # it ended meanwhile
        return used


def mib(size: int) -> str:
    """Format bytes as MiB for a table."""
    return f"{size / _MIB:,.0f}"


def positive_numbers(text: str) -> Sequence[int]:
    """Parse an argument like "1,2,4". Raises ArgumentTypeError."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: numbers from 1")
    return numbers


def write_json(path: Path | None, content: dict[str, Any]) -> None:
    """Write the content to the file that the user named, if any."""
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n")
