"""Kills workers at chosen moments of their script, without its cooperation.

The scripts run in forks of a server that has adapted torch: at the beginning and the end of every backward
pass, where a module is put into evaluation mode, and before it joins a job, a process says so over a socket
and waits for the answer. `Kills` answers, some with SIGKILL; after that nobody else is answered until the
one that takes the dead one's place is about to join. Nothing waits for a time, so a slow machine kills at
the same moments as a fast one, and the job is not over before the newcomer comes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any

VARIABLE = "RECIPES_KILLS"
_GO_ON = b"."
_JOINS = "before joining"


class Kills:
    """Context manager: SIGKILLs the process at each visit whose number (from 1) is in `at`.

    Attributes: path (of the socket; its name goes into the environment of the scripts as VARIABLE), visits
    (so far), struck (what each of the killed was about to do).
    """

    def __init__(self, path: Path, at: Collection[int] = ()) -> None:
        self.path = path
        self.visits = 0
        self.killed: list[str] = []
        self._at = frozenset(at)
        self._away = 0
        self._joined: set[int] = set()
        self._held: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._answer_all, name="kills", daemon=True)

    def __enter__(self) -> Kills:
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _answer_all(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                break  # shut down
            point, pid = visitor.recv(64).decode(), _pid_of(visitor)
            self.visits += 1
            if self.visits in self._at:
                os.kill(pid, signal.SIGKILL)
                visitor.close()
                self.killed.append(point)
                self._away += pid in self._joined  # else the place is one that is waited for already
                self._joined.discard(pid)
                continue
            if point == _JOINS:
                self._joined.add(pid)
                self._away = max(0, self._away - 1)
                self._let_go([visitor])
            elif self._away and pid in self._joined:
                self._held.append(visitor)
            else:
                self._let_go([visitor])
            if not self._away:
                self._let_go(self._held)
        self._let_go(self._held)

    def _let_go(self, visitors: list[socket.socket]) -> None:
        while visitors:
            with visitors.pop() as visitor, contextlib.suppress(OSError):  # it may be dead
                visitor.sendall(_GO_ON)


def _pid_of(visitor: socket.socket) -> int:
    credentials = visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def adapt() -> None:
    """Make every script of this process report its visits."""
    import torch

    from elastane.runtime.trainer import Trainer

    _around(Trainer, "join", _JOINS, "")
    _around(torch.Tensor, "backward", "before backward", "after backward")
    _around(torch.nn.Module, "eval", "at eval", "")


def _around(owner: type, name: str, before: str, after: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        _visit(before)
        result = original(*args, **kwargs)
        _visit(after)
        return result

    setattr(owner, name, method)


def _visit(point: str) -> None:
    path = os.environ.get(VARIABLE)
    if not path or not point:
        return
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(point.encode())
        line.recv(1)


if __name__ == "__main__":
    from integration import forkserver

    forkserver.main(adapt)
