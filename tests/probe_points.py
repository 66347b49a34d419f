"""Workers that stop at points of their steps until a test lets them go on, or has killed them.

For a test in which one worker must have come to a place when another one dies: without it, which of them is
faster decides what is tested. Their script imports `probed`.
"""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator

Reached = Callable[[str, str, int], None]
"""Called with worker, point and step (`elastane.runtime.probes`), in a thread for each worker, which goes on
when it returns."""


@contextlib.contextmanager
def probe_points(reached: Reached) -> Iterator[dict[str, str]]:
    """Yields the variables of workers whose points are told to `reached`."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                worker, point, step = line.decode().split()
                reached(worker, point, int(step))
                self.wfile.write(b"\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: object) -> None:
            """A worker has died before it was answered."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, name="probe-points", daemon=True).start()
        yield {"PROBE_POINTS": "{}:{}".format(*server.server_address)}
        server.shutdown()
