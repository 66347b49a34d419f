"""Parameter servers beside that of PyTorch's RPC tutorials: rates, faults, moves, memory.

    python benchmarks/parameter_servers.py [--quick] [--json [FILE]]

The peer is one server and one trainer over tensorpipe (peer_scripts/rpc_parameter_server.py), as is ours. It
has no failover and no scaling: what a trainer does after its server's death is up to the script.

The samples per second measure different work. The tutorial computes the model on the server: a step sends ids
and returns scores, and neither weights nor row gradients are transferred. Elastane leases each task from a
master, which records it durably; pulls the task's rows and all dense weights; computes in the worker; and
pushes gradients to all 64 or 8 slots, each of which checks and records the task's name. Model, samples, batch
and optimizer are the same. A second peer uses the same calls of torch RPC, but transfers what Elastane does:
a step pulls the rows of its ids and all dense weights, and pushes their gradients. The same work in one
process, with nothing exchanged, tells how much there is to be gained.

In pushes per second, both send one gradient of the given size and wait for the answer; Elastane's is divided
among 64 slots.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from harness import Report, Row, Series, in_turn, run_benchmark

from elastane.slots.access import PushedTask, PushOutcome, Wanted
from elastane.slots.map_watch import MapWatch
from elastane.slots.slot_client import SlotClient
from elastane.tables.by_slot import TaskGradients
from elastane.tables.layout import PushPart, RowGradients, slots_of
from elastane.tables.rates import packed
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.spec import DenseTensor, ModelSpec, RowTable
from elastane.tables.spec_proto import to_proto
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common.client import MasterClient
from elastane_common.logs import configure_logs
from elastane_proto.v1 import job_pb2, ps_pb2, ps_pb2_grpc
from elastane_slots.applied import AppliedSet
from elastane_slots.pushes import Pulled
from elastane_slots.tasks import TaskRun

SCRIPTS = Path(__file__).parent / "peer_scripts"
DIGEST = b"d" * 32
JOB = "bench"
KIB, MIB, GIB = 2**10, 2**20, 2**30
WAIT_SECONDS = 60.0
RATES = [packed("sgd", lr=0.01, momentum=0.0, weight_decay=0.0, nesterov=0)]
NOISE = 1.6
"""Factor by which ratios of repeated runs differed on a shared machine with two cores."""


# ---------------------------------------------------------------------- parameter servers of this benchmark


class Servers:
    """A master, parameter servers, and a client that pushes tasks with names of its own."""

    def __init__(self, ending: ExitStack, folder: Path, spec: ModelSpec, count: int, replicas: int) -> None:
        self.spec, self.lease, self.task = spec, 1, 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._master = EmbeddedMaster(folder / "state")
        self._master.start()
        ending.callback(self._master.stop)
        self._client = ending.enter_context(MasterClient(self._master.address, timeout_seconds=WAIT_SECONDS))
        ending.callback(self._end_all)
        settings = job_pb2.JobSettings(
            ests=1, ps_replicas=replicas, ps_slots=spec.slots, checkpoint_url=str(folder / "slots")
        )
        settings.ps_snapshot.FromSeconds(5)
        settings.ps_return.FromMilliseconds(500)
        self._client.create_job(JOB, settings)
        for number in range(count):
            self.start(f"ps-{number}")
        model = to_proto(spec, dense_digest=DIGEST)
        request = ps_pb2.RegisterModelRequest(job=JOB, worker_id="w", model=model)
        answer = self._client.call(ps_pb2_grpc.SlotServiceStub, "RegisterModel", request)
        self.access = SlotClient(
            spec,
            MapWatch(self._client, JOB, "w", answer.map),
            digest=DIGEST,
            initial=self._zeros,
            timeout_seconds=WAIT_SECONDS,
            encrypted=False,
        )
        ending.callback(self.access.close)
        self.settled(count, copies=1 + replicas)

    def start(self, ps_id: str) -> None:
        own = {"ELASTANE_MASTER": self._master.address, "ELASTANE_JOB": JOB, "ELASTANE_PS_ID": ps_id}
        self._processes[ps_id] = subprocess.Popen(
            [sys.executable, "-m", "elastane_ps"],
            env={**os.environ, **own, "ELASTANE_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1"},
        )

    def kill(self, ps_id: str) -> None:
        self._processes[ps_id].kill()

    def slots(self) -> ps_pb2.SlotMap:
        return self._client.get_slots(JOB).map

    def settled(self, count: int, copies: int) -> None:
        """Wait until every parameter server has slots and every slot its copies."""
        until = time.monotonic() + 10 * WAIT_SECONDS
        while time.monotonic() < until:
            places = self.slots().places
            whole = all(p.owner and not p.restoring and not p.target for p in places)
            kept = copies == 1 or all(p.backup for p in places)
            if places and whole and kept and len({p.owner for p in places}) == count:
                return
            time.sleep(0.02)
        raise TimeoutError(f"slots did not settle at {count} parameter servers")

    def saved(self) -> None:
        """Wait until there is a snapshot of every slot."""
        self._client.checkpoint_slots(JOB)

    def pull(self, *, dense: bool = True) -> dict[int, Pulled]:
        """Pull, and return what was seen of each slot. Repeated if a slot's life ended meanwhile."""
        while True:
            slots = range(self.spec.slots)
            found = self.access.pull(self.lease, 0, Wanted(slots, slots if dense else ()))
            if not found.returned:
                return found.seen
            self.lease += 1_000_000

    def push(self, parts: TaskGradients, seen: dict[int, Pulled]) -> PushOutcome:
        """Push one more task."""
        self.lease += 1
        self.task += 1
        return self.access.push(
            PushedTask("d", 0, self.task, 1, self.lease, 0, RATES * len(self.spec.rules), parts, seen)
        )

    def push_until_done(self, parts: TaskGradients, seen: dict[int, Pulled]) -> dict[int, Pulled]:
        """Push, and while the task is given back pull and push again; return what was seen last."""
        while self.push(parts, seen).kind != "done":
            self.lease += 1_000_000
            seen = self.pull(dense=False)
        return seen

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _zeros(self, slot: int) -> list[memoryview]:
        return [memoryview(bytearray(size)) for size in self.spec.layout(slot).initial_sections]


@contextmanager
def servers(spec: ModelSpec, count: int, *, replicas: int = 0) -> Iterator[Servers]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ending:
        yield Servers(ending, Path(folder), spec, count, replicas)


def dense(size: int, slots: int = 64) -> ModelSpec:
    """Return the specification of a dense tensor of this size in bytes."""
    return ModelSpec((DenseTensor("weight", (size // 4,), rule="sgd"),), slots=slots)


def gradients(spec: ModelSpec) -> TaskGradients:
    """Return a push of all blocks; slots without blocks get the task's name only."""
    return TaskGradients(
        {
            slot: {i: torch.full((block.end - block.start,), 1e-6) for i, block in enumerate(layout.blocks)}
            for slot, layout in enumerate(spec.layouts)
        }
    )


# ---------------------------------------------------------------------- the cases


def pushes_per_second(size: int, seconds: float) -> float:
    """Measure pushes to one parameter server, one after the other."""
    spec = dense(size)
    with servers(spec, 1) as found:
        parts, seen = gradients(spec), found.pull()
        for _ in range(20):
            found.push(parts, seen)
        count, began = 0, time.monotonic()
        while time.monotonic() < began + seconds:
            found.push(parts, seen)
            count += 1
        return count / (time.monotonic() - began)


def our_samples(slots: int, samples: int, batch: int, rows: int, width: int) -> float:
    """Measure samples per second, with sixteen tasks leased ahead: about four per message to the master."""
    script = [str(SCRIPTS / "push_clicks.py"), *map(str, (samples, batch, rows, width, 16))]
    options = ["--ests", "1", "--ps", "1", "--slots", str(slots)]
    return _figure([sys.executable, "-m", "elastane_cli", "run", *options, *script], "samples_per_second")


def peer(kind: str, figure: str, *arguments: float) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = str(SCRIPTS / "rpc_parameter_server.py")
    command = [sys.executable, "-W", "ignore", script, kind, *map(str, (port, *arguments))]
    return _figure(command, figure)


def local(*arguments: float) -> float:
    """Measure the same work in one process."""
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / "local_clicks.py"), *map(str, arguments)]
    return _figure(command, "samples_per_second")


def _figure(command: Sequence[str], name: str) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    for line in done.stdout.splitlines():
        if line.find(f'{{"{name}"') >= 0:
            return float(json.loads(line[line.index("{") :])[name])
    raise RuntimeError(f"{command} printed no figure:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def seconds_until_next_push(replicas: int, rounds: int) -> list[float]:
    """Measure from SIGKILL of an owner until a push to all slots succeeds; restart it between rounds."""
    spec, found_seconds = dense(8 * MIB), []
    with servers(spec, 3, replicas=replicas) as found:
        parts = gradients(spec)
        seen = found.pull()
        for number in range(rounds):
            seen = found.push_until_done(parts, seen)
            found.saved()
            victim = f"ps-{number % 3}"
            began = time.monotonic()
            found.kill(victim)
            seen = found.push_until_done(parts, seen)
            found_seconds.append(time.monotonic() - began)
            found.start(victim)
            found.settled(3, 1 + replicas)
            seen = found.pull(dense=False)
    return found_seconds


def longest_stall(size: int) -> tuple[float, float]:
    """Return the longest push of names to all slots while a third server joins, and the move's seconds."""
    spec = dense(size)
    names = TaskGradients()
    with servers(spec, 2) as found:
        seen = found.pull(dense=False)
        found.push(names, seen)
        longest, stop = [0.0], threading.Event()

        def pushing() -> None:
            while not stop.is_set():
                began = time.monotonic()
                found.push_until_done(names, seen)
                longest[0] = max(longest[0], time.monotonic() - began)

        thread = threading.Thread(target=pushing)
        thread.start()
        found.start("ps-2")
        joined = False
        while not joined:
            joined = any("ps-2" in (place.owner, place.target) for place in found.slots().places)
            time.sleep(0.01)
        began = time.monotonic()
        found.settled(3, 1)
        moved = time.monotonic() - began
        stop.set()
        thread.join()
    return longest[0], moved


def bytes_of_applied_sets(epochs: int, tasks: int) -> int:
    """Return the bytes of 64 slots' applied sets: whole epochs but for FAILED tasks, some in flight."""
    generator, total = np.random.default_rng(0), 0
    failed = {epoch: np.sort(generator.choice(tasks, 10, replace=False)) for epoch in range(epochs)}
    in_flight = np.arange(tasks - 500, tasks)
    for slot in range(64):
        applied = AppliedSet()
        for epoch in range(epochs):
            # a FAILED task was applied in half of the slots
            gaps = [task for task in failed[epoch] if (int(task) + slot) % 2]
            if epoch == epochs - 1:
                gaps = sorted({*gaps, *in_flight[generator.random(500) < 0.5]})
            start = 0
            for gap in [*map(int, gaps), tasks]:
                if gap > start:
                    applied.add_run(TaskRun("clicks", epoch, start, gap))
                start = gap + 1
        total += len(applied.encode())
    return total


def memory_of_rows(count: int, width: int) -> float:
    """Return the memory of rows with row-wise Adagrad, in multiples of the size of their values."""
    table = RowTable("users", 2**40, width, rule="rowwise_adagrad", distribution="uniform")
    spec = ModelSpec(tables=(table,))
    slots = [SlotWeights(spec, slot) for slot in range(spec.slots)]
    generator, made = np.random.default_rng(0), 0
    rates = [packed("rowwise_adagrad", lr=0.1, initial_accumulator_value=0.0, eps=1e-10)]
    while made < count:
        ids = np.unique(generator.integers(0, 2**40, min(100_000, count - made)))
        where = slots_of(spec.layout(0).tables[0].placement, ids)
        for slot, weights in enumerate(slots):
            own = ids[where == slot]
            part = PushPart({}, (RowGradients(0, own, torch.ones(len(own), width)),))
            weights.apply(weights.prepare(part, rates), rates)
        made = sum(weights.bytes.rows for weights in slots)
    return sum(weights.bytes.total for weights in slots) / (made * width * 4)


# ---------------------------------------------------------------------- the report


def benchmark(args: argparse.Namespace, report: Report) -> None:
    torch.set_num_threads(1)
    configure_logs("error")
    repeats, seconds = (2, 1.0) if args.quick else (5, 3.0)
    samples, batch, rows, width = (40_000 if args.quick else 200_000), 256, 100_000, 16
    report.facts["model"] = f"EmbeddingBag of {rows} x {width}, 8 ids a sample, two layers; tasks of {batch}"
    ours, few, theirs, of_rows, alone = in_turn(
        repeats,
        lambda: our_samples(64, samples, batch, rows, width),
        lambda: our_samples(8, samples, batch, rows, width),
        lambda: peer("train", "samples_per_second", samples, batch, rows, width),
        lambda: peer("rows", "samples_per_second", samples, batch, rows, width),
        lambda: local(samples, batch, rows, width),
    )
    bound = statistics.median(alone) / statistics.median(theirs)
    cause = (
        "messages, and what is checked and recorded of each slot; one process with the table in its own"
        f" memory, which exchanges nothing, has {statistics.median(alone):,.0f} samples/s, {bound:.2f} times"
        " the tutorial's"
    )
    case, fewer = "samples a second, 1 worker and 1 parameter server", "8 slots in place of 64"
    like = "peer with rows and gradients on the wire"
    report.rows.append(_beside(case, ours, theirs, "samples/s", 5.0, cause))
    report.rows.append(_beside(f"{case}, {fewer}", few, theirs, "samples/s", 5.0, cause))
    report.rows.append(_beside(f"{case}, {like}", ours, of_rows, "samples/s", 5.0, cause))
    report.rows.append(_beside(f"{case}, {fewer}, {like}", few, of_rows, "samples/s", 5.0, cause))
    for size, name in ((64 * KIB, "64 KiB"), (MIB, "1 MiB")):
        ours, theirs = in_turn(
            repeats,
            lambda size=size: pushes_per_second(size, seconds),
            lambda size=size: peer("push", "pushes_per_second", size, seconds),
        )
        row = _beside(f"pushes of {name} a second, one after the other", ours, theirs, "pushes/s", 5.0)
        report.rows.append(row)
    report.rows.append(
        Row(
            "gradients in pushes of 1 MiB",
            Series([value * MIB / 1e9 for value in ours], "GB/s"),
            better="higher",
            target=1.0,
        )
    )
    for replicas, target in ((1, 0.3), (0, 2.0)):
        found = seconds_until_next_push(replicas, 2 if args.quick else 6)
        case = f"a parameter server of 3 is killed, {replicas} replicas: until the next push is done"
        report.rows.append(Row(case, Series(found, "s"), target=target))
    size = 256 * MIB if args.quick else GIB
    stalls = [longest_stall(size) for _ in range(1 if args.quick else 3)]
    report.rows.append(
        Row(
            f"2 to 3 parameter servers of {size // MIB} MiB: longest push meanwhile",
            Series([stall for stall, _ in stalls], "s"),
            target=0.5,
        )
    )
    report.facts["seconds of these moves"] = round(statistics.median(moved for _, moved in stalls), 2)
    sets = bytes_of_applied_sets(100, 10**6) / MIB
    report.rows.append(Row("applied sets of 64 slots after 10^8 tasks", Series([sets], "MiB"), target=1.0))
    count = 10**6 if args.quick else 10**7
    memory = memory_of_rows(count, 16)
    report.rows.append(
        Row(f"memory of {count:.0e} rows of 16, of their values", Series([memory], "x"), target=1.3)
    )


def _beside(
    case: str, ours: list[float], theirs: list[float], unit: str, target: float, cause: str = ""
) -> Row:
    """Return a row. cause: why the target is missed, if it is."""
    row = Row(case, Series(ours, unit), Series(theirs, unit), "torch RPC", "higher", target, noise=NOISE)
    return row if row.met is not False else replace(row, note=cause)


if __name__ == "__main__":
    run_benchmark("parameter_servers", __doc__ or "", benchmark)
