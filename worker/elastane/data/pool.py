"""The data workers of one worker: forked before any gRPC channel exists, shared by all its ESTs.

The trainer never blocks on sending (tasks that do not fit wait in an outbox here), so it and a data worker
cannot deadlock on each other's full socket. The death of a data worker shows as the end of its connection,
whatever it was doing, and is an error that says how it ended.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkProcess
from typing import Any, Final, Protocol

from elastane.data import transfer
from elastane.data.batch_maker import AttributeChange, DataWork, StreamTask
from elastane.data.data_worker import SessionCell, run, thread_outlives_pool
from elastane_common.errors import ElastaneError

CLOSE_SECONDS: Final = 1.0


class DataWorkerError(ElastaneError):
    """A data worker ended, or did not answer in time."""

    code = "ELA305"


class Answer(Protocol):
    """A finished batch waiting to be taken; exactly one of the two methods is called."""

    def load(self) -> Any: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _DataWorker:
    number: int
    process: ForkProcess
    connection: socket.socket
    outbox: deque[transfer.Packet] = field(default_factory=deque)
    ended: bool = False


class DataWorkerPool:
    """W data workers; number j makes the batches of stream j.

    Used by one thread, the one that trains. A session is the time between two positionings: answers to tasks
    of earlier sessions are dropped.
    """

    def __init__(
        self, work: DataWork, receive: Callable[[transfer.Message], Answer] = lambda message: message
    ) -> None:
        """receive: called with each answer as soon as it arrives (pinning starts there)."""
        self._work = work
        self._receive = receive
        self._workers: list[_DataWorker] = []
        self._poll = select.poll()
        self._by_descriptor: dict[int, _DataWorker] = {}
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._cell = SessionCell(self._memory)
        self._session = 0
        self._received: dict[tuple[int, int], Answer] = {}
        self._unwanted: set[tuple[int, int]] = set()

    @property
    def session(self) -> int:
        return self._session

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid or 0 for worker in self._workers]

    @property
    def started(self) -> bool:
        return bool(self._workers)

    def start(self) -> None:
        """Fork the data workers. Must come before gRPC: a fork with a live channel can hang.

        If called in the main thread, they are killed with this process at once, even in the middle of a
        batch.
        """
        assert not self._workers, "the data workers were already started"
        context = multiprocessing.get_context("fork")
        ends: list[socket.socket] = []
        for number in range(self._work.num_workers):
            ours, theirs = transfer.pair()
            # Later children inherit the earlier ends; `run` closes them, or a connection would never end.
            ends.append(ours)
            process = context.Process(
                target=run,
                args=(
                    number,
                    self._work,
                    theirs,
                    list(ends),
                    self._cell,
                    os.getpid(),
                    thread_outlives_pool(),
                ),
                name=f"elastane-data-{number}",
                daemon=True,
            )
            process.start()
            theirs.close()
            worker = _DataWorker(number, process, ours)
            self._workers.append(worker)
            self._by_descriptor[ours.fileno()] = worker
            self._poll.register(ours, select.POLLIN)

    def close(self) -> None:
        """End the data workers; those still in a batch after CLOSE_SECONDS are killed."""
        self.new_session()
        for worker in self._workers:
            if not worker.ended:
                self._poll.unregister(worker.connection)
                # close() alone would not end the connection while another child of this process has a copy.
                worker.connection.shutdown(socket.SHUT_RDWR)
            for packet in worker.outbox:
                packet.close()
            worker.connection.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._workers = []
        self._by_descriptor = {}

    def new_session(self) -> None:
        """Discard all pending tasks and finished batches."""
        self._session += 1
        self._cell.set(self._session)
        for answer in self._received.values():
            answer.close()
        self._received.clear()
        self._unwanted.clear()

    def submit(self, stream: int, task: StreamTask) -> None:
        """Queue a task for data worker `stream`, after its earlier tasks."""
        self._post(self._workers[stream], transfer.pack(task.session, task.rank, task.batch, task))

    def discard(self, rank: int, batch: int) -> None:
        """Discard the answer to this task; a later task may have the same number."""
        answer = self._received.pop((rank, batch), None)
        if answer is None:
            self._unwanted.add((rank, batch))
        else:
            answer.close()

    def change_attributes(self, change: AttributeChange) -> None:
        """Change the dataset of every data worker, before any task submitted from now on."""
        for worker in self._workers:
            self._post(worker, transfer.pack(self._session, -1, -1, change))

    def take(self, stream: int, rank: int, batch: int, timeout_seconds: float | None) -> Answer:
        """Wait for the answer to a submitted task. Raises DataWorkerError if it cannot come."""
        wanted = (rank, batch)
        worker = self._workers[stream]
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._exchange(0.0)
        while wanted not in self._received:
            if worker.ended:
                raise self._ended_error(worker)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise DataWorkerError(
                    f"data worker {stream} returned no batch within {timeout_seconds} s",
                    hint="increase the DataLoader's timeout, or find out what its dataset waits for",
                    stream=stream,
                    pid=worker.process.pid,
                    virtual_rank=rank,
                )
            self._exchange(left)
        return self._received.pop(wanted)

    def _exchange(self, timeout_seconds: float | None) -> None:
        """Send and receive without blocking; waits up to `timeout_seconds` for a first event."""
        timeout = None if timeout_seconds is None else timeout_seconds * 1000
        for descriptor, events in self._poll.poll(timeout):
            worker = self._by_descriptor[descriptor]
            if events & select.POLLOUT:
                self._flush(worker)
            if events & ~select.POLLOUT and not worker.ended:
                self._receive_all(worker)

    def _receive_all(self, worker: _DataWorker) -> None:
        while True:
            try:
                message = transfer.receive(worker.connection, wait=False)
            except BlockingIOError:
                return
            except ConnectionResetError:
                message = None
            if message is None:
                self._note_end(worker)
                return
            if (message.rank, message.batch) in self._unwanted and message.session == self._session:
                self._unwanted.discard((message.rank, message.batch))
                message.close()
            elif message.session == self._session:
                self._received[message.rank, message.batch] = self._receive(message)
            else:
                message.close()

    def _post(self, worker: _DataWorker, packet: transfer.Packet) -> None:
        if worker.ended:
            packet.close()
            return
        worker.outbox.append(packet)
        if len(worker.outbox) == 1:
            self._flush(worker)

    def _flush(self, worker: _DataWorker) -> None:
        try:
            while worker.outbox and transfer.send(worker.connection, worker.outbox[0], wait=False):
                worker.outbox.popleft()
        except (BrokenPipeError, ConnectionResetError):
            self._receive_all(worker)  # answers sent before its end still count
            return
        self._poll.modify(worker.connection, select.POLLIN | (select.POLLOUT if worker.outbox else 0))

    def _note_end(self, worker: _DataWorker) -> None:
        worker.ended = True
        self._poll.unregister(worker.connection)
        for packet in worker.outbox:
            packet.close()
        worker.outbox.clear()

    def _ended_error(self, worker: _DataWorker) -> DataWorkerError:
        worker.process.join(CLOSE_SECONDS)  # its connection is closed, so it is ending
        code = worker.process.exitcode
        how, hint = _explain(code)
        facts: dict[str, Any] = {"stream": worker.number, "pid": worker.process.pid, "exit_code": code}
        return DataWorkerError(
            f"data worker {worker.number} (pid {worker.process.pid}) {how}", hint=hint, **facts
        )


def _explain(exit_code: int | None) -> tuple[str, str]:
    """Return how a data worker ended, and advice for the user."""
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}", "the dataset must not call exit"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hints = {
        "SIGKILL": "out of memory? Use fewer data workers or a smaller prefetch_factor",
        "SIGBUS": "shared memory is full: enlarge /dev/shm (docker: --shm-size)",
        "SIGSEGV": "native code of the dataset crashed; try num_workers=0 to see where",
    }
    return f"was killed by {name}", hints.get(name, "")
