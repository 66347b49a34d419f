"""Time that a store is without a master: two masters, one standing by, beside one that is started again.

    python benchmarks/succession.py [--rounds 5] [--lease 3] [--quick] [--json [FILE]]

The time runs from the signal to the leader until a client gets its answer (JobService.Get of a job). DLRover
has no standby master and a restarted one forgets its jobs, so there is no peer.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import Report, Row, Series, run_benchmark

from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common.client import MasterClient
from elastane_master.store.embedded import EmbeddedStore
from elastane_proto.v1 import job_pb2


def gap(addresses: str, fault: Callable[[], None]) -> float:
    """Return the seconds from a fault until a job can be read again."""
    with MasterClient(addresses, timeout_seconds=60.0) as client:
        client.get_job("j")
        began = time.monotonic()
        fault()
        client.get_job("j")
        return time.monotonic() - began


def terminate(master: EmbeddedMaster) -> None:
    """Send SIGTERM without waiting for the end."""
    assert master._process is not None
    master._stopping = True
    master._process.signal(signal.SIGTERM)


def restart(master: EmbeddedMaster, *, kill: bool) -> None:
    """End the master and restart it at once, as an ideal supervisor would."""
    if kill:
        master.sigkill()
    else:
        terminate(master)
    master.wait()
    master.start()


def measure(rounds: int, lease_seconds: float) -> dict[str, list[float]]:
    """Return the measured seconds by case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = EmbeddedStore(folder / "store")
        asyncio.run(store.start())
        arguments = ["--store", store.url, "--leader-lease-seconds", str(lease_seconds)]
        masters = [EmbeddedMaster(folder / letter, arguments=arguments) for letter in "ab"]
        found: dict[str, list[float]] = {}
        try:
            first, second = masters
            first.start()
            with MasterClient(first.address) as client:
                client.create_job("j", job_pb2.JobSettings(ests=1))
            for _ in range(rounds):
                for kill in (True, False):
                    signal_name = "SIGKILL" if kill else "SIGTERM"
                    took = gap(first.address, lambda kill=kill: restart(first, kill=kill))
                    found.setdefault(f"one master, {signal_name} and started again", []).append(took)
            second.start()
            addresses = f"{first.address},{second.address}"
            for _ in range(rounds):
                for name, fault in (("SIGTERM", terminate), ("SIGKILL", EmbeddedMaster.sigkill)):
                    took = gap(addresses, lambda fault=fault: fault(masters[0]))
                    found.setdefault(f"standby, {name} of the leader", []).append(took)
                    masters[0].wait()
                    masters[0].start()
                    masters.reverse()
        finally:
            for master in masters:
                master.stop()
            asyncio.run(store.stop())
        return found


def benchmark(args: argparse.Namespace, report: Report) -> None:
    rounds = args.rounds or (2 if args.quick else 5)
    for case, seconds in measure(rounds, args.lease).items():
        note = (
            f"the lease of {args.lease:g} s has to run out first" if case.startswith("standby, SIGK") else ""
        )
        report.rows.append(Row(case, Series(seconds, "s"), note=note))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=0, help="of each case; default 5, quick 2")
    parser.add_argument("--lease", type=float, default=3.0, help="of the leader, in seconds")


if __name__ == "__main__":
    run_benchmark("succession", __doc__, benchmark, options)
