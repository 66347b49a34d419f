"""Files that are replaced as a whole: a reader finds the old content or the new one, never a part.

Used for every small file that one process writes and another may read, and for files of any size that a kill
must not leave torn. What runs without the other packages has its own: `elastane_reference`, and
`process_records` of the shims.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

PARTIAL: Final = ".tmp"
"""Ends the names of files that are being written, which begin with a dot; a killed writer leaves one."""


@contextmanager
def atomic_file(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` when the block ends; if it raises, `path` is unchanged.

    durable: the content is on the disk before it takes that place, so that no crash of the machine leaves an
    empty file. Raises OSError.
    """
    # Random, and not the process id: threads, and processes of two containers, may write a file at once.
    beside = path.with_name(f".{path.name}.{os.urandom(8).hex()}{PARTIAL}")
    try:
        with beside.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace the content of `path`, whose folder exists. durable: as of `atomic_file`. Raises OSError."""
    with atomic_file(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)
