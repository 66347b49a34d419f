"""What goes wrong around data workers: each ends in an error that says so, never in a hang."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

import patience
from elastane.context import ContextError, EstContext
from elastane.data import BatchSource, DataWorkerError
from elastane.data.batch_maker import DataWork, StreamTask
from elastane.data.pool import DataWorkerPool
from elastane.rng import Generators, seed_all
from elastane_common.errors import UnsupportedError
from slow import slow_except
from unit.data.loader_runs import (
    DrawingDataset,
    Record,
    initial_contexts,
    run_ests,
    run_stock,
)

Start = Callable[..., BatchSource]


@pytest.fixture
def start() -> Iterator[Start]:
    """Builds and starts sources, and closes them afterwards."""
    sources: list[BatchSource] = []

    def build(loader: DataLoader[Any], num_ests: int) -> BatchSource:
        sources.append(BatchSource(loader, num_ests))
        sources[-1].start()
        return sources[-1]

    yield build
    for source in sources:
        source.close()


class Broken(Dataset[int]):
    """Does `harm` when sample 5 is asked for."""

    def __init__(self, harm: Callable[[], Any]) -> None:
        self.harm = harm

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.harm()
        return index


def run_all(source: BatchSource, ests: int = 1) -> None:
    contexts = initial_contexts(ests)
    source.position(contexts, 0)
    run_ests(source, contexts, source.steps_per_epoch, {})


def raise_value_error() -> None:
    raise ValueError("sample 5 is bad")


def raise_local() -> None:
    class LocalError(Exception):
        pass

    raise LocalError("of a class that cannot be pickled")


def test_exception_of_the_dataset_keeps_its_traceback(start: Start) -> None:
    source = start(DataLoader(Broken(raise_value_error), batch_size=2, num_workers=2), 1)
    with pytest.raises(
        ValueError, match=r"worker process 0[\s\S]*in raise_value_error[\s\S]*sample 5 is bad"
    ):
        run_all(source)


def test_exception_that_cannot_be_pickled_still_tells(start: Start) -> None:
    source = start(DataLoader(Broken(raise_local), batch_size=2, num_workers=2), 1)
    with pytest.raises(RuntimeError, match="of a class that cannot be pickled"):
        run_all(source)


def test_batch_that_cannot_be_pickled_is_an_error(start: Start) -> None:
    loader = DataLoader(Broken(int), batch_size=2, num_workers=1, collate_fn=lambda samples: lambda: samples)
    with pytest.raises(Exception, match=r"Can't pickle|Can't get local"):
        run_all(start(loader, 1))


def init_fails(number: int) -> None:
    raise OSError("no such archive")


def test_failing_worker_init_fn_is_raised(start: Start) -> None:
    source = start(DataLoader(Broken(int), batch_size=2, num_workers=2, worker_init_fn=init_fails), 1)
    for _ in range(2):
        with pytest.raises(OSError, match="no such archive"):
            run_all(source)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_data_worker_is_an_error_with_the_signal(start: Start) -> None:
    source = start(DataLoader(Broken(kill_self), batch_size=2, num_workers=2), 1)
    with pytest.raises(DataWorkerError, match=r"data worker 0 \(pid \d+\) was killed by SIGKILL") as caught:
        run_all(source)
    assert caught.value.facts["stream"] == 0 and "memory" in caught.value.hint


def test_exiting_data_worker_is_an_error(start: Start) -> None:
    source = start(DataLoader(Broken(lambda: os._exit(3)), batch_size=2, num_workers=2), 1)
    with pytest.raises(DataWorkerError, match="exit code 3"):
        run_all(source)


def test_data_worker_killed_while_idle_is_noticed(start: Start) -> None:
    source = start(DataLoader(Broken(int), batch_size=2, num_workers=2), 1)
    run_all(source)
    victim = source._pool.pids[1]
    os.kill(victim, signal.SIGKILL)
    source._pool._workers[1].process.join()
    with pytest.raises(DataWorkerError, match=f"data worker 1 .pid {victim}"):
        run_all(source)


def test_timeout_of_the_loader_is_kept(start: Start) -> None:
    loader = DataLoader(Broken(threading.Event().wait), batch_size=2, num_workers=1, timeout=0.2)
    with pytest.raises(DataWorkerError, match=r"returned no batch within 0\.2 s"):
        run_all(start(loader, 1))


class Gated(DrawingDataset):
    """Each sample says that it is being made; until the gate is open it waits for a permit."""

    def __init__(self, workers: int) -> None:
        super().__init__(size=30)
        self.arrived = [multiprocessing.Semaphore(0) for _ in range(workers)]
        self.permits = [multiprocessing.Semaphore(0) for _ in range(workers)]
        self.open = multiprocessing.Event()

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        self.arrived[info.id].release()
        if not self.open.is_set():
            self.permits[info.id].acquire()
        return super().__getitem__(index)

    def wait_for(self, samples: int) -> None:
        """Until each data worker has begun so many more samples."""
        for semaphore in self.arrived * samples:
            semaphore.acquire()

    def allow(self, samples: int) -> None:
        for semaphore in self.permits * samples:
            semaphore.release()


def test_positioning_drops_what_is_in_flight(start: Start) -> None:
    """Answers to tasks of before come for the same ESTs and batches, and must not be taken."""
    ests, batch_size, workers = 2, 2, 2
    plain = DataLoader(DrawingDataset(size=30), batch_size=batch_size, shuffle=True, num_workers=workers)
    stock = run_stock(plain, ests, 1)
    before = start(plain, ests)
    contexts = initial_contexts(ests)
    before.position(contexts, 0)
    at_two, _ = run_ests(before, contexts, 2, {})

    gated = Gated(workers)
    source = start(DataLoader(gated, batch_size=batch_size, shuffle=True, num_workers=workers), ests)
    other = {name: part for name, part in at_two[1].parts.items() if name.startswith("stream/")}
    source.position({rank: EstContext(rank, 2, {**at_two[rank].parts, **other}) for rank in at_two}, 2)
    gated.wait_for(1)  # every data worker is in a batch, and has tasks behind it
    source.position(at_two, 2)
    gated.allow(batch_size)  # the batches of before come to their end
    gated.wait_for(batch_size)  # and the first ones of now are being made
    source._pool._exchange(0.0)
    assert not source._pool._received
    gated.open.set()
    gated.allow(1)
    records: dict[int, Record] = {}
    left = source.steps_per_epoch - 2
    run_ests(source, at_two, left, records)
    for rank, record in records.items():
        record.assert_equals(stock[rank], start=2)
    more = 0
    for semaphore in gated.arrived:
        while semaphore.acquire(block=False):
            more += 1
    samples = sum(len(batch[1]) for record in records.values() for batch in record.batches)
    assert more == samples - workers  # of the tasks of before, none was made that had not begun


def test_discarded_answers_are_dropped_before_and_after_they_come() -> None:
    """A later task of the same number is another one."""
    work = DataWork(DrawingDataset(), list, None, False, 1)
    pool = DataWorkerPool(work)
    pool.start()
    try:

        def ask(batch: int, index: int) -> None:
            pool.submit(0, StreamTask(pool.session, 0, batch, [index], base_seed=3, follows=batch > 0))

        def taken(batch: int) -> int:
            samples, _ = pool.take(0, 0, batch, None).load()
            return int(samples[0][1])

        for number in (0, 1, 2, 3):
            ask(number, number)
        pool.discard(0, 1)  # mostly not there yet
        assert taken(0) == 0 and taken(2) == 2
        ask(1, 11)
        assert taken(3) == 3 and taken(1) == 11
        ask(4, 4), ask(5, 5)
        assert taken(5) == 5
        pool.discard(0, 4)  # there already
        ask(4, 14)
        assert taken(4) == 14
        assert not pool._received and not pool._unwanted
    finally:
        pool.close()


def test_positioning_leaves_no_descriptors_open(start: Start) -> None:
    loader = DataLoader(DrawingDataset(size=40, floats=20_000), batch_size=4, num_workers=2)
    source = start(loader, 2)
    counts = []
    for _ in range(12):
        contexts = initial_contexts(2)
        source.position(contexts, 0)
        run_ests(source, contexts, 1, {})
        source.position({}, 0)
        source._pool._exchange(0.0)
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[-1] <= counts[2] + 2


ORPHANS = """
import os, signal, sys, threading
import torch
from torch.utils.data import DataLoader
from elastane.data import BatchSource
from unit.data.loader_runs import initial_contexts

TRAINER = os.getpid()

class Stuck:
    def __len__(self): return 8
    def __getitem__(self, index):
        sys.stdout.write("x"); sys.stdout.flush()
        os.kill(TRAINER, signal.SIGKILL)
        threading.Event().wait()

source = BatchSource(DataLoader(Stuck(), batch_size=2, num_workers=2, multiprocessing_context="fork"), 1)
if sys.argv[1] == "thread":
    thread = threading.Thread(target=source.start); thread.start(); thread.join()
else:
    source.start()
    source.position(initial_contexts(1), 0)
    source.begin(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", slow_except(["thread", "in a batch"], "in a batch"))
def test_data_workers_end_with_their_trainer(how: str) -> None:
    """Their copies of stdout keep this pipe open for as long as they live."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = patience.run(
        [sys.executable, "-c", ORPHANS, how], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert bool(done.stdout) == (how == "in a batch")


QUIET = """
import os, signal, sys, threading
import torch
from torch.utils.data import DataLoader
from elastane.data import BatchSource
from unit.data.loader_runs import initial_contexts, DrawingDataset

source = BatchSource(DataLoader(DrawingDataset(400), batch_size=2, num_workers=2), 2)
thread = threading.Thread(target=source.start)  # so that the data workers are not killed with the trainer
thread.start(); thread.join()
for fail in range(20):
    contexts = initial_contexts(2)
    source.position(contexts, 0)
    for rank in contexts:
        source.begin(rank)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_data_workers_say_nothing_when_their_trainer_dies() -> None:
    """They have answers unread and tasks to come: their connection is reset, which is no error of theirs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = patience.run(
        [sys.executable, "-c", QUIET], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL and done.stderr == "", done.stderr


def test_data_workers_outlive_the_thread_that_started_them() -> None:
    source = BatchSource(DataLoader(DrawingDataset(), batch_size=4, num_workers=2), 1)
    thread = threading.Thread(target=source.start)
    thread.start()
    thread.join()
    try:
        run_all(source)
    finally:
        source.close()


def test_close_ends_a_data_worker_in_the_middle_of_a_batch(start: Start) -> None:
    gated = Gated(1)
    source = start(DataLoader(gated, batch_size=2, num_workers=1, timeout=0.05), 1)
    with pytest.raises(DataWorkerError):
        run_all(source)
    pids = source._pool.pids
    source.close()
    source.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_close_needs_no_force_beside_other_children(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children forked later hold copies of the connections, which must not keep the data workers alive."""
    first = start(DataLoader(DrawingDataset(), batch_size=4, num_workers=2), 1)
    start(DataLoader(DrawingDataset(), batch_size=4, num_workers=1), 1)
    monkeypatch.setattr("elastane.data.pool.CLOSE_SECONDS", 20.0)
    monkeypatch.setattr(ForkProcess, "kill", lambda process: pytest.fail(f"{process.name} would not end"))
    first.close()


class HoldsGenerator(DrawingDataset):
    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.parts = [{"rng": np.random.default_rng(3)}]
        self.draws = draws

    def __getitem__(self, index: int) -> Any:
        extra = self.parts[0]["rng"].random() if self.draws else 0.0
        return super().__getitem__(index), extra


@pytest.mark.parametrize("workers", [0, 2])
def test_drawing_from_a_generator_of_the_dataset_is_refused(start: Start, workers: int) -> None:
    run_all(start(DataLoader(HoldsGenerator(False), batch_size=4, num_workers=workers), 1))
    with pytest.raises(UnsupportedError, match=r"draws from its own generator, dataset\.parts"):
        run_all(start(DataLoader(HoldsGenerator(True), batch_size=4, num_workers=workers), 1))


AROUND = np.random.default_rng(5)
OF_THE_SYSTEM = random.SystemRandom()
"""It has no state that could be compared."""


def with_noise(samples: list[Any]) -> Any:
    return default_collate(samples), AROUND.random()


def test_drawing_from_a_global_generator_in_a_data_worker_is_refused(start: Start) -> None:
    run_all(start(DataLoader(DrawingDataset(), batch_size=4, num_workers=2), 1))
    loader = DataLoader(DrawingDataset(), batch_size=4, num_workers=2, collate_fn=with_noise)
    with pytest.raises(UnsupportedError, match=r"draws from its own generator, AROUND.*\"AROUND\", AROUND"):
        run_all(start(loader, 1))


def set_offset(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.offset = 100 + number  # type: ignore[attr-defined]
    torch.rand(number + 1)


def test_worker_init_fn_has_run_in_a_worker_that_joins_in_the_middle(start: Start) -> None:
    """What it does to the dataset is done there too; what it draws is in the states already."""
    loader = DataLoader(DrawingDataset(), batch_size=4, num_workers=2, worker_init_fn=set_offset)
    stock = run_stock(loader, 2, 1)
    contexts = initial_contexts(2)
    source = start(loader, 2)
    source.position(contexts, 0)
    contexts, _ = run_ests(source, contexts, 2, {})
    newcomer = start(loader, 2)
    newcomer.position(contexts, 2)
    records: dict[int, Record] = {}
    run_ests(newcomer, contexts, newcomer.steps_per_epoch - 2, records)
    for rank, record in records.items():
        record.assert_equals(stock[rank], start=2)


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_plain_values_set_between_epochs_reach_the_data_workers_as_in_stock(
    start: Start, options: dict[str, Any]
) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(DrawingDataset(), batch_size=4, num_workers=2, **options)

    stock = loader()
    expected = []
    seed_all(100)
    for epoch in range(3):
        stock.dataset.offset = 10 * epoch  # type: ignore[attr-defined]
        for batch in stock:
            expected.append(batch[0])
    del stock
    ours = loader()
    source = start(ours, 1)
    contexts = initial_contexts(1)
    source.position(contexts, 0)
    got = []
    generators = Generators()
    for step in range(3 * source.steps_per_epoch):
        if step % source.steps_per_epoch == 0:
            ours.dataset.offset = 10 * (step // source.steps_per_epoch)  # type: ignore[attr-defined]
        generators.restore(contexts[0].rng)
        got.append(source.begin(0)[0][0])
        contexts[0] = contexts[0].next(source.finish(0), generators.capture())
        if step in (4, 14):  # a newcomer positions before its script has set the value
            newcomer = loader()
            source = start(newcomer, 1)
            source.position(contexts, step + 1)
            newcomer.dataset.offset = ours.dataset.offset  # type: ignore[attr-defined]
            ours = newcomer
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize(("before", "after"), [([1, 2], [2, 1]), (None, torch.nn.Identity())])
def test_replacing_an_object_of_the_dataset_is_refused(start: Start, before: Any, after: Any) -> None:
    dataset = DrawingDataset()
    dataset.table = before  # type: ignore[attr-defined]
    source = start(DataLoader(dataset, batch_size=4, num_workers=1), 1)
    contexts = initial_contexts(1)
    source.position(contexts, 0)
    contexts, _ = run_ests(source, contexts, source.steps_per_epoch, {})
    dataset.table = after  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match=r"dataset\.table was replaced"):
        source.begin(0)


def test_contexts_of_another_step_or_setting_are_refused(start: Start) -> None:
    source = start(DataLoader(DrawingDataset(), batch_size=4, num_workers=2), 1)
    contexts = initial_contexts(1)
    with pytest.raises(ContextError, match="expected step 1"):
        source.position(contexts, 1)
    source.position(contexts, 0)
    contexts, _ = run_ests(source, contexts, 3, {})
    more = start(DataLoader(DrawingDataset(), batch_size=4, num_workers=3), 1)
    with pytest.raises(ContextError, match="has no states of data-worker stream 2"):
        more.position(contexts, 3)
    with pytest.raises(ContextError, match="no loader position"):
        source.position({0: EstContext(0, 0, {})}, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches_are_pinned_by_one_thread_of_the_trainer(
    start: Start, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pretended accelerator: every batch handed out is pinned once, the states stay as they are."""
    pinned_in: list[str] = []

    def pretend_to_pin(batch: Any, kind: str) -> Any:
        assert kind == "pretended"
        pinned_in.append(threading.current_thread().name)
        return ["pinned", *batch]

    accelerator = type("Accelerator", (), {"type": "pretended"})
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", accelerator)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: pinned_in.append(f"on {index}"))
    monkeypatch.setattr("elastane.data.pinning.pin_memory", pretend_to_pin)
    loader = DataLoader(DrawingDataset(), batch_size=4, num_workers=workers, pin_memory=True)
    source = start(loader, 1)
    contexts = initial_contexts(1)
    source.position(contexts, 0)
    records: dict[int, Record] = {}
    contexts, _ = run_ests(source, contexts, 3, records)
    source.position(contexts, 3)  # drops what is being pinned
    run_ests(source, contexts, source.steps_per_epoch - 3, records)
    assert all(batch[0] == "pinned" and batch[1] != "pinned" for batch in records[0].batches)
    if workers:
        assert pinned_in.pop(0) == "on 3" and {name[:12] for name in pinned_in} == {"elastane-pin"}
    plain = DataLoader(DrawingDataset(), batch_size=4, num_workers=workers)
    assert records[0].states == run_stock(plain, 1, 1)[0].states
