"""Pays for what the first group of a process costs while the script builds its model.

Libraries, threads and name look-ups take tens of milliseconds, on a busy machine hundreds. A newcomer
would take part so much later if they began with its wait for the ring.
"""

from __future__ import annotations

import atexit
import threading
from concurrent.futures import Future

from elastane.collective.transport import warm_up

_lock = threading.Lock()
_warmed: Future[None] | None = None


def begin() -> Future[None]:
    """Start to warm up, behind the script; once a process, further calls change nothing."""
    global _warmed
    with _lock:
        if _warmed is None:
            _warmed = Future()
            thread = threading.Thread(target=_run, args=(_warmed,), name="elastane-warm-up", daemon=True)
            thread.start()
            # Threads of C++ that are torn down with the interpreter abort the process.
            atexit.register(thread.join)
        return _warmed


def finish() -> None:
    """Return when the process is warm. Raises what went wrong meanwhile."""
    begin().result()


def _run(warmed: Future[None]) -> None:
    try:
        warm_up()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the script's thread raises it
        warmed.set_exception(error)
    else:
        warmed.set_result(None)
