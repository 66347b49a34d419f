"""The data worker: a forked process that makes the batches of one stream of every EST.

A stock DataLoader gives each rank W worker processes of its own, newly forked and seeded each epoch.
Here W processes serve all ESTs of a worker: process j makes batches j, j + W, j + 2W, ... of each EST,
and before each of them puts its generators where stream j of that EST has them. So the process has, as
a stock one, one worker id for ever, and a stream's batches are made one after the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import random
import signal
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, _utils
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.worker import WorkerInfo, _generate_state

from elastane.data import transfer
from elastane.data.dataset_attributes import Path, apply
from elastane.data.own_generators import OwnGenerators
from elastane.rng import HAS_NUMPY, Generators, Parts

if HAS_NUMPY:
    import numpy as np

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork: loading after it may take a held lock


@dataclass(frozen=True, slots=True)
class DataWork:
    """What a data worker does to make a batch; inherited through the fork, never pickled."""

    dataset: Dataset[Any]
    collate_fn: Callable[[list[Any]], Any]
    init_fn: Callable[[int], None] | None
    drop_last: bool
    num_workers: int


@dataclass(frozen=True, slots=True)
class StreamTask:
    """One batch to make. Where its stream starts from: `start` holds states "rng/...", or is None
    for a stream newly seeded from base_seed; with `follows` the stream goes on from its last batch."""

    session: int
    rank: int
    batch: int
    samples: tuple[int, ...]
    base_seed: int
    follows: bool
    start: Parts | None = None


@dataclass(frozen=True, slots=True)
class AttributeChange:
    """The script changed plain attributes of the dataset: path of names -> new value."""

    values: dict[Path, Any]


class SessionCell:
    """The number of the present session, in memory shared with the data workers.

    A task of an older session is not worth making; a data worker looks here before it starts one.
    """

    _layout = struct.Struct("@q")  # native: written and read in one piece

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def set(self, session: int) -> None:
        self._layout.pack_into(self._memory, 0, session)

    def get(self) -> int:
        return int(self._layout.unpack_from(self._memory, 0)[0])


def run(
    number: int,
    work: DataWork,
    connection: socket.socket,
    inherited: list[socket.socket],
    session: SessionCell,
    trainer_pid: int,
    bind_to_thread: bool,
) -> None:
    """Body of the process of stream `number`; ends when the trainer closes its end or dies.

    inherited: the trainer's ends of all connections, closed here, else none would ever be at its end.
    """
    for other in inherited:
        other.close()
    _prepare_process(trainer_pid, bind_to_thread)
    maker = _BatchMaker(number, work)
    while (message := transfer.receive(connection, wait=True)) is not None:
        task = message.load()
        if isinstance(task, AttributeChange):
            maker.change_attributes(task)
        elif task.session >= session.get():
            payload = maker.make(task)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then the trainer is gone
                transfer.send(connection, _pack(task, payload, number), wait=True)


def _prepare_process(trainer_pid: int, bind_to_thread: bool) -> None:
    torch._C._set_worker_signal_handlers()  # a message for SIGBUS and SIGSEGV, as stock
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if bind_to_thread:
        # The kernel sends it when the thread that forked ends, so only for a thread that lives as long.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != trainer_pid:
            os._exit(0)
    torch.multiprocessing._set_thread_name("ela_data_worker")
    torch.multiprocessing.set_sharing_strategy("file_descriptor")  # what `transfer` sends
    torch.set_num_threads(1)


def _pack(task: StreamTask, payload: tuple[Any, Parts | None], number: int) -> transfer.Packet:
    try:
        return transfer.pack(task.session, task.rank, task.batch, payload)
    except Exception:  # noqa: BLE001  # pickling runs the batch's own code, which may raise anything
        return transfer.pack(task.session, task.rank, task.batch, (_wrapped(number), None))


def _wrapped(number: int) -> ExceptionWrapper:
    """The exception being handled, as stock sends it; of a class the trainer surely knows."""
    wrapper = ExceptionWrapper(where=f"in DataLoader worker process {number}")
    try:
        pickle.dumps(wrapper)
    except (pickle.PicklingError, AttributeError, TypeError):
        wrapper.exc_type = RuntimeError
    return wrapper


class _BatchMaker:
    """Makes batches; keeps where each EST's stream stands after the last one made."""

    def __init__(self, number: int, work: DataWork) -> None:
        self._number = number
        self._work = work
        self._generators = Generators()
        self._fetcher = _MapDatasetFetcher(work.dataset, True, work.collate_fn, work.drop_last)
        self._own = OwnGenerators(work.dataset)
        self._initialised = False
        self._states: dict[int, Parts] = {}
        self._failures: dict[int, ExceptionWrapper] = {}
        self._last: int | None = None  # the EST whose states the generators hold

    def make(self, task: StreamTask) -> tuple[Any, Parts | None]:
        """The batch (or the wrapped exception) and the stream's states after it."""
        try:
            self._start(task)
        except Exception:  # noqa: BLE001  # worker_init_fn is the script's code
            self._failures[task.rank] = _wrapped(self._number)
        failure = self._failures.get(task.rank)
        if failure is not None:
            return failure, None
        try:
            batch = self._fetcher.fetch(list(task.samples))
            self._own.check()
        except Exception:  # noqa: BLE001  # the dataset is the script's code
            batch = _wrapped(self._number)
        self._states[task.rank] = self._generators.capture()
        self._last = task.rank
        return batch, self._states[task.rank]

    def change_attributes(self, change: AttributeChange) -> None:
        apply(self._work.dataset, change.values)

    def _start(self, task: StreamTask) -> None:
        """Puts generators and worker info where the stream has them."""
        if not task.follows:
            self._failures.pop(task.rank, None)
            self._begin_stream(task)
        elif self._last != task.rank and task.rank not in self._failures:
            self._generators.restore(self._states[task.rank])
        _utils.worker._worker_info = self._info(task)

    def _begin_stream(self, task: StreamTask) -> None:
        if task.start is None or (self._work.init_fn is not None and not self._initialised):
            self._seed(task)
        if task.start is not None:
            # worker_init_fn has just run if this process had not run it; its draws are in these states.
            self._generators.restore(task.start)
            self._states[task.rank] = task.start
        self._last = task.rank

    def _seed(self, task: StreamTask) -> None:
        """As torch's `_worker_loop` seeds worker `number`, then the script's worker_init_fn."""
        self._last = None
        random.seed(task.base_seed + self._number)
        torch.manual_seed(task.base_seed + self._number)
        if HAS_NUMPY:
            np.random.seed(_generate_state(task.base_seed, self._number))
        _utils.worker._worker_info = self._info(task)
        if self._work.init_fn is not None:
            self._initialised = True
            self._work.init_fn(self._number)
            self._own = OwnGenerators(self._work.dataset)

    def _info(self, task: StreamTask) -> WorkerInfo:
        return WorkerInfo(
            id=self._number,
            num_workers=self._work.num_workers,
            seed=task.base_seed + self._number,
            dataset=self._work.dataset,
        )


def thread_outlives_pool() -> bool:
    """Whether data workers may be bound to the life of the calling thread."""
    return threading.current_thread() is threading.main_thread()
