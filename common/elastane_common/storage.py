"""Folders on any fsspec URL, with atomic writes.

A checkpoint must survive a kill between any two instructions. On a local disk a file is therefore written
under a temporary name, synced, and renamed; on an object store a put is atomic, and an upload that fails is
abandoned. OSErrors of the storage are translated to CheckpointError.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from elastane_common.errors import EXIT_REFUSED, ElastaneError

Chunk = bytes | memoryview


class CheckpointError(ElastaneError):
    """A checkpoint could not be written, read or listed; training state is unchanged."""

    code = "ELA311"


class Folder:
    """A folder of a URL, e.g. "s3://bucket/job", "file:///data/job", "/data/job", "memory://job"."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._fs, path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            missing = CheckpointError(
                f"no storage for the URL {url!r}: {error}",
                hint="install the fsspec package of its protocol, e.g. s3fs or gcsfs",
                url=url,
            )
            missing.exit_code = EXIT_REFUSED
            raise missing from error
        self._root = str(path).rstrip("/") or "/"
        self._local = isinstance(self._fs, LocalFileSystem)

    def subfolders(self) -> list[str]:
        """Return the names of direct subfolders; [] if this folder does not exist."""
        with _translated(self.url, "list"):
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
        with _translated(self.url, "look at", name):
            try:
                return int(self._fs.size(self._path(name)))
            except FileNotFoundError:
                return None

    @contextmanager
    def reading(self, name: str) -> Iterator[Any]:
        """Open the file for reading bytes. Raises CheckpointError, also for errors while it is read."""
        with _translated(self.url, "read", name), self._fs.open(self._path(name), "rb") as file:
            yield file

    def write(self, name: str, chunks: Iterable[Chunk]) -> None:
        """Write a file atomically: durable when this returns, absent if it raises."""
        with _translated(self.url, "write", name):
            if self._local:
                _write_local(Path(self._path(name)), chunks)
            else:
                self._write_remote(self._path(name), chunks)

    def remove_file(self, name: str) -> None:
        """Remove a file durably; no error if it does not exist."""
        with _translated(self.url, "remove", name), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))
            if self._local:
                _sync_folder(Path(self._path(name)).parent)

    def remove_subfolder(self, name: str) -> None:
        """Remove a folder with its contents; no error if it does not exist."""
        with _translated(self.url, "remove", name), suppress(FileNotFoundError):
            if self._local:
                shutil.rmtree(self._path(name))
            else:
                self._fs.rm(self._path(name), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

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


def _write_local(path: Path, chunks: Iterable[Chunk]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with beside.open("wb", buffering=0) as file:
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_folder(path.parent)
        # The shard's folder may be new as well, and is durable only once its parent is synced.
        _sync_folder(path.parent.parent)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _sync_folder(path: Path) -> None:
    """Make renames and removals in the folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(url: str, verb: str, name: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"{url.rstrip('/')}/{name}" if name else url
        refused = CheckpointError(
            f"cannot {verb} {what}: {error.strerror or error}",
            hint="the storage is full: free space or keep fewer checkpoints" if full else "",
            url=url,
            errno=error.errno,
        )
        if isinstance(error, PermissionError | NotADirectoryError) or error.errno == errno.EROFS:
            refused.exit_code = EXIT_REFUSED  # the next worker would meet the same error
        raise refused from error
