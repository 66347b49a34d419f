"""A parameter server that stands still at a moment, and says so by the file HALT_FILE; it is killed there.

HALT_AT: "snapshot": in the middle of its sixth snapshot; "move out", "move in": once it has sent, or taken,
the first part of a slot that moves; "read": where it reads snapshots. "full" is none: its disk is full while
HALT_FILE is there.
"""

import errno
import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from elastane.slots.frames import CopyPart
from elastane_common import storage
from elastane_ps.copying import Receiving
from elastane_ps.links import PeerLink
from elastane_ps.process import main
from elastane_ps.saving import Saving

AT, FILE = os.environ["HALT_AT"], Path(os.environ["HALT_FILE"])
FROM = 5
_files = itertools.count()
_write, _send, _part, _restore = storage._write_local, PeerLink.send, Receiving._part, Saving.restore


def halt() -> None:
    FILE.touch()
    threading.Event().wait()


def write(path: Path, chunks: Iterable[storage.Chunk]) -> None:
    if AT == "full" and FILE.exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    number = next(_files)

    def halting() -> Iterator[storage.Chunk]:
        for count, chunk in enumerate(chunks):
            if AT == "snapshot" and number >= FROM and count == 2:
                halt()
            yield chunk

    _write(path, halting())


def send(self: PeerLink, header: Any, *arguments: Any) -> None:
    _send(self, header, *arguments)
    if AT == "move out" and isinstance(header, CopyPart):
        halt()


def part(self: Receiving, header: CopyPart, body: memoryview) -> None:
    _part(self, header, body)
    if AT == "move in":
        halt()


def restore(self: Saving, *arguments: Any) -> Any:
    if AT == "read":
        halt()
    return _restore(self, *arguments)


storage._write_local = write
PeerLink.send, Receiving._part, Saving.restore = send, part, restore  # type: ignore[assignment, method-assign]
os._exit(main())
