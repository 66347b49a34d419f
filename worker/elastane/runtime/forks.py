"""Objects of a training process that its forks must not destroy.

A loader that the script makes itself, as for a validation, forks its data workers while this process has
gRPC's connections and gloo's groups. A child has a copy of each such object and none of the threads that
serve it: destroying one there waits for ever, or ends the child with SIGSEGV or SIGABRT (gloo: "epoll_ctl: No
such file or directory", when the parent destroyed its own first). It reaches the parent too, as sockets and
epoll sets are shared. The script does not destroy any in a child, but Python's cyclic garbage collector does:
those that were garbage when the process was forked. A group that failed to form is, since the traceback of
its error holds it.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import Final

_lock: Final = threading.RLock()
#: Whether the collector was on, of each fork under way; more than one only if a signal's handler forks too.
_was_on: Final[list[bool]] = []
_installed = False


def keep_parents_objects() -> None:
    """Keep children of `os.fork` from collecting objects inherited from this process. Idempotent.

    The collector goes on in the child for objects that are made there. Children of children are treated
    alike.
    """
    global _installed
    if not _installed:
        _installed = True
        os.register_at_fork(before=_pause, after_in_parent=_go_on, after_in_child=_freeze)


def _pause() -> None:
    """Handlers that were registered earlier run in the child before ours: they must not set off a
    collection."""
    _lock.acquire()
    _was_on.append(gc.isenabled())
    gc.disable()


def _freeze() -> None:
    gc.freeze()
    _go_on()


def _go_on() -> None:
    if _was_on.pop():
        gc.enable()
    _lock.release()
