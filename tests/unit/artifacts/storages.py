"""Folders on each kind of storage, for tests of what is stored."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec

KINDS = ("path", "file", "memory")


def folder_url(kind: str, tmp_path: Path) -> Iterator[str]:
    """Yields the URL of a folder that does not exist yet."""
    if kind == "memory":
        root = f"/{uuid.uuid4().hex}"
        yield f"memory:/{root}/deep/folder"
        memory = fsspec.filesystem("memory")
        if memory.exists(root):
            memory.rm(root, recursive=True)
    else:
        yield ("file://" if kind == "file" else "") + str(tmp_path / "deep" / "folder")


def put(url: str, data: bytes) -> None:
    """Writes a file as another program would."""
    fs, path = fsspec.core.url_to_fs(url)
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    fs.pipe_file(path, data)


def remove(url: str) -> None:
    fs, path = fsspec.core.url_to_fs(url)
    fs.rm_file(path)


def names(url: str) -> list[str]:
    """All files below a folder, relative to it."""
    fs, path = fsspec.core.url_to_fs(url)
    return sorted(found[len(path) :].lstrip("/") for found in fs.find(path))
