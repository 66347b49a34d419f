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
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork: loading after it may take a held lock


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
    maker = BatchMaker(number, work)
    while (message := _next_message(connection)) is not None:
        task = message.load()
        if isinstance(task, AttributeChange):
            maker.change_attributes(task)
        elif task.session >= session.get():
            payload = maker.make(task)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then the trainer is gone
                transfer.send(connection, _pack(task, payload, number), wait=True)


def _next_message(connection: socket.socket) -> transfer.Message | None:
    """What the trainer sent; None when it has closed its end, or died with answers unread."""
    try:
        return transfer.receive(connection, wait=True)
    except ConnectionResetError:
        return None


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
        return transfer.pack(task.session, task.rank, task.batch, (wrapped(number), None))


def thread_outlives_pool() -> bool:
    """Whether data workers may be bound to the life of the calling thread."""
    return threading.current_thread() is threading.main_thread()
