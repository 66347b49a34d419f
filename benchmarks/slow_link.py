"""A slow connection to a master: a TCP proxy on loopback that delays what it carries.

Used by benchmarks and tests in place of a master on another continent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque

_CHUNK_BYTES = 1 << 16


class SlowLink:
    """Proxy to `target`, "host:port". seconds: delay in each direction; 0: none."""

    def __init__(self, target: str, seconds: float) -> None:
        host, _, port = target.rpartition(":")
        self._target = host.strip("[]"), int(port)
        self._seconds = seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._upward: list[_Pump] = []
        self._is_closed = False
        threading.Thread(target=self._accept, name="slow-link", daemon=True).start()

    @property
    def address(self) -> str:
        """Address of the proxy, for workers."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def lose_all(self) -> None:
        """Lose whatever workers send, from now on, on the connections that are open. Idempotent."""
        with self._lock:
            upward = list(self._upward)
        for pump in upward:
            pump.lose_all()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self._lock:
            self._is_closed = True
            ending = [self._listener, *self._open]
        for one in ending:
            _end(one)

    def _accept(self) -> None:
        while True:
            try:
                worker, _ = self._listener.accept()
                master = socket.create_connection(self._target)
            except OSError:
                if self._is_closed:
                    return
                _end(worker)  # the master is down
                continue
            for one in (worker, master):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {worker, master}
                self._upward.append(_Pump(worker, master, self._seconds))
            _Pump(master, worker, self._seconds)


class _Pump:
    """One direction of a connection: a thread that reads, and one that writes what is due."""

    def __init__(self, source: socket.socket, sink: socket.socket, seconds: float) -> None:
        self._source, self._sink, self._seconds = source, sink, seconds
        self._loses_all = False
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._changed = threading.Condition()
        for run in (self._read, self._write):
            threading.Thread(target=run, name="slow-link", daemon=True).start()

    def lose_all(self) -> None:
        """Carry nothing any more but the end of the connection."""
        with self._changed:
            self._loses_all = True
            self._waiting.clear()

    def _read(self) -> None:
        data = b"-"
        while data:
            try:
                data = self._source.recv(_CHUNK_BYTES)
            except OSError:
                data = b""
            with self._changed:
                if data and self._loses_all:
                    continue
                self._waiting.append((time.monotonic() + self._seconds, data))
                self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                due, _ = self._waiting[0]
            if (left := due - time.monotonic()) > 0:
                # The delay itself: data that is lost meanwhile is no longer there afterwards.
                time.sleep(left)
            with self._changed:
                if not self._waiting:
                    continue
                _, data = self._waiting.popleft()
            if not data:
                _end(self._source)
                _end(self._sink)
                return
            with contextlib.suppress(OSError):
                self._sink.sendall(data)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
