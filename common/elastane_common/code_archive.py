"""Code archives of the training service: a folder as a zip whose digest depends on its contents alone.

This module makes and uploads archives; `elastane_runner.archive` unpacks them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elastane_common import layout
from elastane_common.errors import ElastaneError
from elastane_common.storage import Folder

#: Folders of version control and of tools, whose contents are not code of a run. A virtual environment, which
#: has a file `pyvenv.cfg`, is left out under any name.
IGNORED_FOLDERS: Final = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".ipynb_checkpoints",
    }
)
_VIRTUAL_ENVIRONMENT: Final = "pyvenv.cfg"
_FIXED_TIME: Final = (1980, 1, 1, 0, 0, 0)
_CHUNK_BYTES: Final = 1 << 20
_SMALLER: Final = "leave data and results out of the folder of code, or name a smaller one with --code"


class ArchiveError(ElastaneError):
    """A folder that cannot be made into a code archive, or an archive that runners would refuse."""

    code = "ELA450"


@dataclass(frozen=True)
class CodeLimits:
    """Limits of a folder of code: files, and bytes in all of them."""

    entries: int = 20_000
    total_bytes: int = 512 * 1024 * 1024


def pack(folder: Path, target: Path, limits: CodeLimits | None = None) -> str:
    """Write the files of `folder` to the zip `target`; return its sha256 as 64 hexadecimal digits.

    Equal contents and execute permissions give equal bytes with one version of zlib. `target` must be outside
    of the folder. Raises ArchiveError for a link, a device, or more than the limits, and OSError.
    """
    if target.resolve().is_relative_to(folder.resolve()):
        raise ArchiveError(
            f"the archive {target} would be inside of the folder {folder} that it is made from",
            hint="write it elsewhere",
        )
    names = _checked_names(folder, limits or CodeLimits())
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in names:
            path = folder / name
            entry = zipfile.ZipInfo(name, _FIXED_TIME)
            entry.create_system = 3  # Unix, on any system: the permissions below are its own
            executable = path.stat().st_mode & stat.S_IXUSR
            entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            with path.open("rb") as source, archive.open(entry, "w") as packed:
                shutil.copyfileobj(source, packed, _CHUNK_BYTES)
    return digest_of(target)


def digest_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal digits."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def store(archive: Path, digest: str, artifact_url: str, *, bytes_max: int = 0) -> bool:
    """Upload an archive below the artifact URL, unless it exists; return True if it was written.

    bytes_max: most bytes that runners unpack; 0: no limit. Raises ArchiveError for a larger archive, and
    CheckpointError of the storage.
    """
    size = archive.stat().st_size
    if bytes_max and size > bytes_max:
        raise ArchiveError(
            f"the code archive has {size} bytes, and runners take at most {bytes_max}", hint=_SMALLER
        )
    folder, name = Folder(artifact_url), layout.code_archive(digest)
    if folder.size(name) == size:
        return False
    folder.write(name, _chunks(archive))
    return True


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk


def _checked_names(folder: Path, limits: CodeLimits) -> list[str]:
    """Return the files' paths below the folder, sorted. Stops at the limits: it may be a whole home."""
    names: list[str] = []
    total_bytes = 0
    for name in _names(folder):
        names.append(name)
        total_bytes += (folder / name).stat().st_size
        if len(names) > limits.entries:
            raise ArchiveError(f"the folder {folder} has more than {limits.entries} files", hint=_SMALLER)
        if total_bytes > limits.total_bytes:
            raise ArchiveError(
                f"the files of the folder {folder} have more than {limits.total_bytes} bytes", hint=_SMALLER
            )
    return sorted(names)


def _names(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder, onerror=_raise):
        here = Path(parent)
        folders[:] = [name for name in folders if not _is_ignored(here / name)]
        for name in [*folders, *files]:
            path = here / name
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ArchiveError(
                    f"{path} is not a plain file or folder",
                    hint="replace it by what it points to, or name another folder with --code",
                )
        yield from ((here / name).relative_to(folder).as_posix() for name in files)


def _is_ignored(folder: Path) -> bool:
    return folder.name in IGNORED_FOLDERS or (folder / _VIRTUAL_ENVIRONMENT).is_file()


def _raise(error: OSError) -> None:
    raise error
