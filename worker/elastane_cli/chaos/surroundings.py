"""Faults of the processes' surroundings: network, disks, files, ports, clocks; and a poison task."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastane.state.checkpoint import list_checkpoints
from elastane_agent.supervisor.master_process import MasterStartError
from elastane_cli.chaos.cluster import WAIT_SECONDS, ChaosCluster
from elastane_cli.chaos.faults import SILENT_SECONDS, kill_workers
from elastane_cli.rehearse.faults import ActiveFault, Fault
from elastane_common.client import MasterClient
from elastane_common.errors import ElastaneError
from elastane_proto.v1 import shard_pb2

_CONNECTIONS = 100
_DESCRIPTORS_LEFT = 8
_JUMP_SECONDS = 7200

# ---------------------------------------------------------------------- network


@contextmanager
def reset_connection(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    victim = c.pick(rng)
    at = time.monotonic()
    c.relays[victim].reset()
    yield ActiveFault(
        at, f"connections of {victim} to the master reset", changes_ring=True, expects=("worker_lost",)
    )


@contextmanager
def half_open(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """Drop the worker's data on its way to the master, without notifying either side."""
    victim = c.pick(rng)
    at = time.monotonic()
    c.relays[victim].up.cut = True
    try:
        yield ActiveFault(
            at, f"{victim} is not heard by the master", changes_ring=True, hold_seconds=SILENT_SECONDS,
            expects=("worker_lost",),
        )  # fmt: skip
    finally:
        c.relays[victim].heal()
        c.relays[victim].reset()


@contextmanager
def partition(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    yield from _cut(c, rng, outward=True, inward=True)


@contextmanager
def one_way_out(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    yield from _cut(c, rng, outward=True, inward=False)


@contextmanager
def one_way_in(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    yield from _cut(c, rng, outward=False, inward=True)


def _cut(c: ChaosCluster, rng: random.Random, *, outward: bool, inward: bool) -> Iterator[ActiveFault]:
    assert c.namespace is not None
    victim = _far_member(c, rng)
    what = " and ".join(word for word, cut in (("from", outward), ("to", inward)) if cut)
    at = time.monotonic()
    c.namespace.outward.cut, c.namespace.inward.cut = outward, inward
    try:
        yield ActiveFault(
            at, f"no packet {what} {victim}", changes_ring=True, hold_seconds=None, expects=("worker_lost",),
        )  # fmt: skip
    finally:
        c.namespace.heal()


def _far_member(c: ChaosCluster, rng: random.Random) -> str:
    """Return the worker behind the link, once it is in the ring (it may be standby, or still starting)."""
    c.replenish()
    c.until(lambda seen: any(c.is_far(name) for name in c.members()))
    return c.pick(rng, far=True)


@contextmanager
def slow_network(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    assert c.namespace is not None
    _far_member(c, rng)
    at = time.monotonic()
    for direction in (c.namespace.outward, c.namespace.inward):
        direction.delay_seconds, direction.loss = 0.01, 0.02
    try:
        yield ActiveFault(at, "a link with 2 % loss and 5 to 15 ms each way", hold_seconds=5.0)
    finally:
        c.namespace.heal()


# ---------------------------------------------------------------------- disks and files


@contextmanager
def full_store_disk(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """Fill the store's disk; begins once the store has noticed, ends once the master had the file
    rewritten."""
    rewrites = c.store.rewrites
    c.store_disk.fill()

    def check() -> str:
        if not noticed:
            return "the store did not notice that its disk was full"
        deadline = time.monotonic() + WAIT_SECONDS
        while c.store.rewrites == rewrites and time.monotonic() < deadline:
            time.sleep(0.01)
        return "" if c.store.rewrites > rewrites else "the store's file was not written anew"

    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (noticed := c.store.writes_fail) and time.monotonic() < deadline:
            time.sleep(0.01)  # polled: the server notifies nobody
        yield ActiveFault(
            time.monotonic(), "no byte left for the append-only file", hold_seconds=3.0, check=check
        )
    finally:
        c.store_disk.free()


@contextmanager
def full_checkpoint_disk(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    at = time.monotonic()
    c.checkpoint_disk.fill()
    try:
        said = ""
        try:
            c.client.checkpoint_job(c.job, wait_seconds=WAIT_SECONDS)
        except ElastaneError as error:
            said = str(error)
        yield ActiveFault(
            at, "no byte left for checkpoints", expects=("checkpoint_failed",),
            check=lambda: "" if "space" in said.lower() else f"the full disk was not named: {said!r}",
        )  # fmt: skip
    finally:
        c.checkpoint_disk.free()


@contextmanager
def damaged_checkpoint(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """Damage the newest of two checkpoints, and kill all workers that hold the weights."""
    url = str(c.checkpoint_disk.folder)
    for _ in range(2):
        c.client.checkpoint_job(c.job, wait_seconds=WAIT_SECONDS)
    at = time.monotonic()
    kill_workers(c)
    newest = [checkpoint for checkpoint in list_checkpoints(url) if checkpoint.complete][-1]
    folder = Path(url) / newest.name
    shard, manifest = sorted(folder.glob("shard-*"))[0], folder / "manifest.json"
    how = rng.choice(("a bit is flipped", "a shard is missing", "the manifest is cut short"))
    if how == "a bit is flipped":
        content = bytearray(shard.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        shard.write_bytes(content)
    elif how == "a shard is missing":
        shard.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:-20])
    newcomers = frozenset(c.replenish())
    yield ActiveFault(
        at, f"in {newest.name} {how}; kill -9 every worker", changes_ring=True, newcomers=newcomers,
        may_rewind=True,
        expects=("checkpoint_rejected", "checkpoint_loaded"),
    )  # fmt: skip


@contextmanager
def cut_store_file(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """Truncate the store's file while the master is alive, which writes the lost data again."""
    bytes_cut = rng.randint(1, 40)
    at = time.monotonic()
    c.store.kill()
    c.store.cut(bytes_cut)
    c.store.start()
    yield ActiveFault(at, f"kill -9 the store, cut {bytes_cut} bytes off its file")


@contextmanager
def cut_store_file_and_kill_master(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """Truncate the store's file and kill the master: only the workers remember the last writes."""
    bytes_cut = rng.choice((rng.randint(1, 40), rng.randint(1, 4096)))
    at = time.monotonic()
    c.master.sigkill()
    c.master.wait()
    c.store.kill()
    c.store.cut(bytes_cut)
    c.store.start()
    c.master.start()
    yield ActiveFault(
        at, f"kill -9 both, cut {bytes_cut} bytes off the store's file", may_rewind=True, may_forget=True,
        expects=("master_recovered",),
    )  # fmt: skip


# ---------------------------------------------------------------------- the master's surroundings


@contextmanager
def stolen_port(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """Kill the master, and let another process listen on its port during the restart."""
    host, _, port = c.master.address.rpartition(":")
    at = time.monotonic()
    c.master.sigkill()
    c.master.wait()
    said = ""
    with socket.create_server((host, int(port))):
        try:
            c.master.start()
        except MasterStartError as error:
            said = str(error)
    c.master.start()
    yield ActiveFault(
        at, "the master's port is taken when it is started again", expects=("master_recovered",),
        check=lambda: "" if "cannot listen" in said else f"the taken port was not named: {said!r}",
    )  # fmt: skip


@contextmanager
def descriptors_used_up(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    pid = c.master.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    host, _, port = c.master.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        stack.callback(resource.prlimit, pid, resource.RLIMIT_NOFILE, before)
        at = time.monotonic()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + _DESCRIPTORS_LEFT, before[1]))
        for _ in range(_CONNECTIONS):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex((host, int(port)))

        def answers_again() -> str:
            try:
                with MasterClient(c.master.address, timeout_seconds=WAIT_SECONDS) as client:
                    client.get_job(c.job)
            except ElastaneError as error:
                return f"no new connection once there were descriptors again: {error}"
            return ""

        yield ActiveFault(
            at, f"{_CONNECTIONS} connections and {_DESCRIPTORS_LEFT} descriptors left", hold_seconds=3.0,
            check=answers_again,
        )  # fmt: skip


@contextmanager
def clock_jump(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    def commit_times() -> list[float]:
        return [entry.committed.ToSeconds() for entry in c.client.audit_log(c.job)]

    before = max(commit_times())

    def jumped() -> str:
        """Check that commit times did not jump: the same clock judges deadlines."""
        seconds = max(commit_times()) - before
        return f"the master's decisions saw {seconds:.0f} s pass" if seconds > _JUMP_SECONDS / 2 else ""

    at = time.monotonic()
    c.clock.set(_JUMP_SECONDS)
    try:
        yield ActiveFault(
            at,
            f"the master's wall clock is set {_JUMP_SECONDS} s forth and back",
            hold_seconds=3.0,
            check=jumped,
        )
    finally:
        c.clock.set(0)


# ---------------------------------------------------------------------- poison


@contextmanager
def poison_task(c: ChaosCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """Create a dynamic dataset in the job, with a task that fails in every worker."""
    tasks, poisoned = 12, rng.randrange(12)
    name = f"poison-{time.monotonic_ns()}"
    settings = shard_pb2.DatasetSettings(
        range=shard_pb2.RangeSource(size=tasks), task_size=1, epochs=1, max_attempts=3
    )
    settings.lease.seconds = 30
    at = time.monotonic()
    c.client.create_dataset(c.job, name, settings)
    reports: list[shard_pb2.TaskReport] = []
    while True:
        request = shard_pb2.LeaseTasksRequest(
            job=c.job, dataset=name, worker_id="chaos", completed=reports, max_tasks=4
        )
        request.wait.seconds = 1
        reply = c.client.lease_tasks(request)
        if reply.complete:
            break
        reports = [
            shard_pb2.TaskReport(
                epoch=task.epoch, index=task.index, attempt=task.attempt,
                error="poison" if task.index == poisoned else "",
            )
            for task in reply.tasks
        ]  # fmt: skip

    def parked() -> str:
        progress = c.client.get_progress(c.job, name)[0]
        failed = list(c.client.list_tasks(c.job, name, shard_pb2.TASK_STATE_FAILED))
        if (progress.done, progress.failed, progress.todo) != (tasks - 1, 1, 0):
            return f"{progress.done} done, {progress.failed} failed, {progress.todo} to do of {tasks}"
        if [task.index for task in failed] != [poisoned]:
            return f"the poisoned task {poisoned} is not the one that failed: {failed}"
        return ""

    yield ActiveFault(at, f"task {poisoned} of {tasks} fails whoever takes it", check=parked)


def _no_namespace(c: ChaosCluster) -> str:
    return c.namespace_missing


SURROUNDING_FAULTS: tuple[Fault[ChaosCluster], ...] = (
    Fault("reset-connection", "a worker's connections to the master are reset", reset_connection),
    Fault("half-open", "the master does not hear a worker, and no connection breaks", half_open),
    Fault("partition", "a node is cut off, both ways", partition, _no_namespace),
    Fault("one-way-out", "no packet leaves a node", one_way_out, _no_namespace),
    Fault("one-way-in", "no packet reaches a node", one_way_in, _no_namespace),
    Fault("slow-network", "packets of a node are late and get lost", slow_network, _no_namespace),
    Fault("full-store-disk", "the disk of the store is full for a while", full_store_disk,
          lambda c: c.store_disk.missing),
    Fault("full-checkpoint-disk", "the disk of the checkpoints is full for a while", full_checkpoint_disk,
          lambda c: c.checkpoint_disk.missing),
    Fault("damaged-checkpoint", "the newest checkpoint is damaged, then every worker gets SIGKILL",
          damaged_checkpoint),
    Fault("cut-store-file", "the store gets SIGKILL and its file loses its end", cut_store_file),
    Fault("cut-store-file-kill-master", "the same while the master is dead too",
          cut_store_file_and_kill_master),
    Fault("stolen-port", "the master dies and its port is taken", stolen_port),
    Fault("descriptors-used-up", "the master has no file descriptors left for new connections",
          descriptors_used_up),
    Fault("clock-jump", "the master's wall clock is set two hours forth, then back", clock_jump,
          lambda c: c.clock.missing),
    Fault("poison-task", "a dynamic task fails whoever takes it", poison_task),
)  # fmt: skip
