"""Pay the one-time costs of a process's first group while the script builds its model.

Libraries, threads and name look-ups take tens of milliseconds, on a busy machine hundreds. A joining worker
would start later by this time if they began when it waits for the ring.
"""

from __future__ import annotations

import atexit
import threading
from concurrent.futures import Future

from elastane.collective.cpu_group import warm_up
from elastane_common.process_tls import own_tls

_lock = threading.Lock()
_warmed: Future[None] | None = None


def begin(encrypted: bool = False) -> Future[None]:
    """Start to warm up in the background; once a process, further calls have no effect.

    encrypted: the process's rings will be; its key is made as well.
    """
    global _warmed
    with _lock:
        if _warmed is None:
            _warmed = Future()
            thread = threading.Thread(
                target=_run, args=(_warmed, encrypted), name="elastane-warm-up", daemon=True
            )
            thread.start()
            # C++ threads that are still running at interpreter shutdown abort the process.
            atexit.register(thread.join)
        return _warmed


def finish() -> None:
    """Wait until the process is warm. Raises the error of the warm-up."""
    begin().result()


def _run(warmed: Future[None], encrypted: bool) -> None:
    try:
        warm_up(own_tls() if encrypted else None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the script's thread raises it
        warmed.set_exception(error)
    else:
        warmed.set_result(None)
