"""Data worker: a forked process that makes the batches of one stream of every EST.

A stock DataLoader gives each rank W worker processes, newly forked and seeded each epoch. Here W processes
serve all ESTs of a worker: process j makes batches j, j + W, j + 2W, ... of each EST, and before each of them
restores the generators of stream j of that EST. So, as in stock, a process has one worker id throughout, and
a stream's batches are made one after the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import threading
from typing import Any

import torch

from elastane.data import transfer
from elastane.data.batch_maker import AttributeChange, BatchMaker, DataWork, StreamTask, wrapped
from elastane.rng import Parts

_PR_SET_PDEATHSIG = 1
# loaded before the fork: loading it later could wait for a lock held at the fork
_libc = ctypes.CDLL(None, use_errno=True)


class SessionCell:
    """Number of the current session, in memory shared with the data workers.

    Tasks of older sessions are obsolete; a data worker checks the number before it starts one.
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
    """Run the process of stream `number` until the trainer closes its end or dies.

    inherited: the trainer's ends of all connections, closed here, since otherwise no connection would ever
    end.
    """
    for other in inherited:
        other.close()
    _prepare_process(trainer_pid, bind_to_thread)
    maker = BatchMaker(number, work)
    while (message := _next_message(connection)) is not None:
        task = message.load()
        if isinstance(task, AttributeChange):
            maker.change_attributes(task)
        elif task.session >= session.get():
            payload = maker.make(task)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the trainer is gone
                transfer.send(connection, _pack(task, payload, number), wait=True)


def _next_message(connection: socket.socket) -> transfer.Message | None:
    """Return the trainer's next message, or None if it closed its end, or died with unread answers."""
    try:
        return transfer.receive(connection, wait=True)
    except ConnectionResetError:
        return None


def _prepare_process(trainer_pid: int, bind_to_thread: bool) -> None:
    torch._C._set_worker_signal_handlers()  # report SIGBUS and SIGSEGV, as stock
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if bind_to_thread:
        # The kernel sends the signal when the forking thread ends, so bind only to a thread that lives long
        # enough.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != trainer_pid:
            os._exit(0)
    torch.multiprocessing._set_thread_name("ela_data_worker")
    torch.multiprocessing.set_sharing_strategy("file_descriptor")  # required by `transfer`
    torch.set_num_threads(1)


def _pack(task: StreamTask, payload: tuple[Any, Parts | None], number: int) -> transfer.Packet:
    try:
        return transfer.pack(task.session, task.rank, task.batch, payload)
    except Exception:  # noqa: BLE001  # pickling runs the batch's own code, which may raise anything
        return transfer.pack(task.session, task.rank, task.batch, (wrapped(number), None))


def thread_outlives_pool() -> bool:
    """True if data workers may be bound to the life of the calling thread."""
    return threading.current_thread() is threading.main_thread()
