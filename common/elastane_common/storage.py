"""Folders on any fsspec URL, with atomic writes.

A checkpoint must survive a kill between any two instructions. On a local disk a file is therefore written
under a temporary name, synced, and renamed; on an object store a put is atomic, and an upload that fails is
abandoned. OSErrors of the storage are translated to CheckpointError, or to the error that the owner of the
folder names.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from elastane_common.atomic_writes import PARTIAL, atomic_file
from elastane_common.errors import EXIT_REFUSED, ElastaneError

Chunk = bytes | memoryview
#: Bytes read at a time.
CHUNK_BYTES: Final = 1 << 20


class CheckpointError(ElastaneError):
    """A checkpoint could not be written, read or listed; training state is unchanged."""

    code = "ELA311"


class Folder:
    """A folder of a URL, e.g. "s3://bucket/job", "file:///data/job", "/data/job", "memory://job".

    error: class of the errors that its methods raise.
    """

    def __init__(self, url: str, error: type[ElastaneError] = CheckpointError) -> None:
        self.url = url
        self._error = error
        try:
            self._fs, path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as cause:
            missing = error(
                f"no storage for the URL {url!r}: {cause}",
                hint="install the fsspec package of its protocol, e.g. s3fs or gcsfs",
                url=url,
            )
            missing.exit_code = EXIT_REFUSED
            raise missing from cause
        self._root = str(path).rstrip("/") or "/"
        self._local = isinstance(self._fs, LocalFileSystem)

    def within(self, name: str) -> Folder:
        """Return a subfolder, which need not exist."""
        return Folder(f"{self.url.rstrip('/')}/{name}", self._error)

    def subfolders(self) -> list[str]:
        """Return the names of direct subfolders; [] if this folder does not exist."""
        with self._translated("list"):
            # Other workers write to the same folder, and fsspec caches listings.
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
        names = (str(e["name"]).rstrip("/").rsplit("/", 1)[-1] for e in entries if e["type"] == "directory")
        return sorted(names)

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, None if it does not exist. `name` may contain folders."""
        with self._translated("look at", name):
            try:
                return int(self._fs.size(self._path(name)))
            except FileNotFoundError:
                return None

    def files(self) -> list[tuple[str, int]]:
        """Return all files below this folder, sorted: name relative to it, and size in bytes."""
        with self._translated("list"):
            self._fs.invalidate_cache()
            found = self._fs.find(self._root, detail=True)
        names = (
            (str(path)[len(self._root) :].lstrip("/"), int(entry["size"])) for path, entry in found.items()
        )
        return sorted((name, size) for name, size in names if not _is_partial(name))

    def read(self, name: str, *, bytes_max: int) -> bytes | None:
        """Return the content of a file, None if it does not exist. Raises also if it is larger."""
        size = self.size(name)
        if size is None:
            return None
        if size > bytes_max:
            raise self._error(f"{self.url}/{name} has {size} bytes; {bytes_max} are allowed", url=self.url)
        with self.reading(name) as file:
            return bytes(file.read(bytes_max))

    def sha256(self, name: str) -> tuple[int, str] | None:
        """Read a file, and return its size in bytes and its sha256 in hex; None if it does not exist."""
        if self.size(name) is None:
            return None
        digest, size = hashlib.sha256(), 0
        with self.reading(name) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        return size, digest.hexdigest()

    @contextmanager
    def reading(self, name: str) -> Iterator[Any]:
        """Open the file for reading bytes. Raises this folder's error, also while it is read."""
        with self._translated("read", name), self._fs.open(self._path(name), "rb") as file:
            yield file

    def write(self, name: str, chunks: Iterable[Chunk]) -> None:
        """Write a file atomically: durable when this returns, absent if it raises."""
        with self._translated("write", name):
            if self._local:
                _write_local(Path(self._path(name)), chunks)
            else:
                self._write_remote(self._path(name), chunks)

    def appending(self, name: str) -> FileIO | None:
        """Open a new file for unbuffered appends; None if the storage writes only whole files.

        What was written survives the death of the process, not that of the machine.
        """
        if not self._local:
            return None
        with self._translated("write", name):
            path = Path(self._path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("xb", buffering=0)

    def remove_file(self, name: str) -> None:
        """Remove a file durably; no error if it does not exist."""
        with self._translated("remove", name), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))
            if self._local:
                _sync_folder(Path(self._path(name)).parent)

    def remove_subfolder(self, name: str) -> None:
        """Remove a folder with its contents; no error if it does not exist."""
        with self._translated("remove", name), suppress(FileNotFoundError):
            if self._local:
                shutil.rmtree(self._path(name))
            else:
                self._fs.rm(self._path(name), recursive=True)

    def remove_partial_files(self, name: str) -> None:
        """Remove from a subfolder what killed writers have left there. Only local disks keep such files."""
        if self._local:
            with self._translated("clean", name):
                for path in Path(self._path(name)).rglob(f".*{PARTIAL}"):
                    path.unlink(missing_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _translated(self, verb: str, name: str = "") -> Iterator[None]:
        url = self.url
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = f"{url.rstrip('/')}/{name}" if name else url
            refused = self._error(
                f"cannot {verb} {what}: {error.strerror or error}",
                hint="the storage is full: free space, or keep fewer checkpoints" if full else "",
                url=url,
                errno=error.errno,
            )
            if isinstance(error, PermissionError | NotADirectoryError) or error.errno == errno.EROFS:
                refused.exit_code = EXIT_REFUSED  # the next worker would meet the same error
            raise refused from error

    def _write_remote(self, path: str, chunks: Iterable[Chunk]) -> None:
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        file = self._fs.open(path, "wb")
        try:
            for chunk in chunks:
                file.write(chunk)
            file.close()
        except BaseException:
            # Closing the file would complete the upload, and so would the garbage collector.
            with suppress(Exception):
                file.discard()
            if isinstance(file, AbstractBufferedFile):
                file.closed = True
            with suppress(Exception):
                self._fs.rm_file(path)
            raise


def _is_partial(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith(".") and base.endswith(PARTIAL)


def _write_local(path: Path, chunks: Iterable[Chunk]) -> None:
    there = next(folder for folder in path.parent.parents if folder.is_dir())
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, durable=True) as file:
        for chunk in chunks:
            file.write(chunk)
    # Its folders may be new as well, and each is durable only once its parent is synced.
    for folder in path.parents:
        _sync_folder(folder)
        if folder == there:
            break


def _sync_folder(path: Path) -> None:
    """Make renames and removals in the folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
