"""How long a store is without a master: two masters, one standing by, beside one that is started again.

    python benchmarks/succession.py [--rounds 5] [--lease 3] [--json]

From the signal to the leader until a client has its answer (JobService.Get of a job with a dataset).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import tempfile
import time
from pathlib import Path

from elastane.agent.master_process import EmbeddedMaster
from elastane.client import MasterClient
from elastane_master.store.embedded import EmbeddedStore
from elastane_proto.v1 import job_pb2


def gap(addresses: str, fault: object) -> float:
    """Seconds from a fault until a job can be read again."""
    assert callable(fault)
    with MasterClient(addresses, timeout_seconds=60.0) as client:
        client.get_job("j")
        began = time.monotonic()
        fault()
        client.get_job("j")
        return time.monotonic() - began


def terminate(master: EmbeddedMaster) -> None:
    """SIGTERM, without waiting for its end."""
    assert master._process is not None
    master._stopping = True
    master._process.signal(signal.SIGTERM)


def restart(master: EmbeddedMaster, *, kill: bool) -> None:
    """What a supervisor does at best: starts it anew as soon as it has ended."""
    if kill:
        master.sigkill()
    else:
        terminate(master)
    master.wait()
    master.start()


def measure(rounds: int, lease_seconds: float) -> dict[str, list[float]]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lease", type=float, default=3.0, help="seconds")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    arguments = parser.parse_args()
    found = measure(arguments.rounds, arguments.lease)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, seconds in found.items():
        middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
        print(f"{name:<44} {middle:6.2f} s  [{least:.2f}-{most:.2f}]")


if __name__ == "__main__":
    main()
