"""Code archives: a folder as a zip whose digest depends on its contents alone, and its safe unpacking."""

import hashlib
import os
import shutil
import stat
import tempfile
import unicodedata
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from elastane_common.errors import ElastaneError

IGNORED_FOLDERS = frozenset({".git", "__pycache__"})
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_SMALLER = "leave data and results out of the folder of code"
_CHUNK_BYTES = 64 * 1024
_RATIO_FLOOR_BYTES = 1024 * 1024  # small files of zeros or spaces are no bombs


class ArchiveError(ElastaneError):
    """An archive that is damaged, is not what its digest says or must not be unpacked."""

    code = "ELA450"


@dataclass(frozen=True)
class ArchiveLimits:
    """What an archive may hold at most: entries, bytes unpacked, and bytes unpacked for each byte packed."""

    entries: int = 20_000
    total_bytes: int = 512 * 1024 * 1024
    ratio: int = 100


def pack(folder: Path, target: Path) -> str:
    """Write the files of ``folder`` to the zip ``target``; return its sha256. Raises ArchiveError for a link.

    Equal contents and execute permissions give equal bytes with one version of zlib. ``target`` must be
    outside of the folder.
    """
    if target.resolve().is_relative_to(folder.resolve()):
        raise ArchiveError(
            f"the archive {target} would be inside of the folder {folder} that it is made from",
            hint="write it elsewhere",
        )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(_names(folder)):
            path = folder / name
            entry = zipfile.ZipInfo(name, _FIXED_TIME)
            entry.create_system = 3  # Unix, on any system: the permissions below are its own
            entry.external_attr = (
                stat.S_IFREG | (0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
            ) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            with path.open("rb") as source, archive.open(entry, "w") as packed:
                shutil.copyfileobj(source, packed, _CHUNK_BYTES)
    return digest_of(target)


def digest_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal digits."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def unpack(archive_path: Path, digest: str, target: Path, limits: ArchiveLimits | None = None) -> None:
    """Unpack an archive into the new folder ``target``, whole or not at all. Raises ArchiveError or OSError.

    The files are written to a temporary folder beside the target, which is renamed at the end.
    """
    if digest_of(archive_path) != digest:
        raise ArchiveError(f"the archive's sha256 is not {digest}", hint="send it again")
    if target.exists():
        raise ArchiveError(f"{target} is there already", hint="unpack into a new folder")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with zipfile.ZipFile(archive_path) as archive:
            _unpack_entries(archive, unfinished, limits or ArchiveLimits())
        unfinished.rename(target)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        UnicodeError,
    ) as error:
        raise ArchiveError(f"the archive cannot be read: {error}", hint="pack and send it again") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def checked_name(entry: zipfile.ZipInfo) -> str:
    """Return the relative path of an entry. Raises ArchiveError if it leads out or is no plain file."""
    name = entry.orig_filename
    parts = name.removesuffix("/").split("/")
    if (
        "\\" in name
        or ":" in name
        or not name.isprintable()
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise ArchiveError(f"the archive names a path that is not allowed: {name!r}")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
        raise ArchiveError(f"the archive holds something that is not a plain file or folder: {name!r}")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # a read inflates others whole
        raise ArchiveError(f"the archive packs {name!r} by another method than deflate")
    return "/".join(parts)


def _names(folder: Path) -> list[str]:
    names = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
        for name in [*folders, *files]:
            path = Path(parent) / name
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ArchiveError(
                    f"{path} is not a plain file or folder", hint="replace links by copies, or remove them"
                )
        names += [(Path(parent) / name).relative_to(folder).as_posix() for name in files]
    return names


def _unpack_entries(archive: zipfile.ZipFile, folder: Path, limits: ArchiveLimits) -> None:
    entries = archive.infolist()
    if len(entries) > limits.entries:
        raise ArchiveError(
            f"the archive holds {len(entries)} entries, more than {limits.entries}", hint=_SMALLER
        )
    seen: set[str] = set()
    left_bytes = limits.total_bytes
    for entry in entries:
        name = checked_name(entry)
        folded = unicodedata.normalize("NFC", name).casefold()  # one file on some file systems
        if folded in seen:
            raise ArchiveError(f"the archive holds a path twice: {name!r}")
        seen.add(folded)
        path = folder / name
        try:
            if entry.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ArchiveError(f"the archive has a file and a folder of one name: {name!r}") from error
        with archive.open(entry) as packed, path.open("xb") as unpacked:
            left_bytes -= _copy(
                packed,
                unpacked,
                name,
                left_bytes,
                max(entry.compress_size * limits.ratio, _RATIO_FLOOR_BYTES),
            )
        path.chmod(0o755 if entry.external_attr >> 16 & stat.S_IXUSR else 0o644)


def _copy(packed: IO[bytes], unpacked: IO[bytes], name: str, left_bytes: int, most_bytes: int) -> int:
    """Copy one file and return its size, counted as it is read: an archive's headers may be false."""
    size = 0
    while chunk := packed.read(_CHUNK_BYTES):
        size += len(chunk)
        if size > left_bytes:
            raise ArchiveError(f"the archive is larger unpacked than allowed, at {name!r}", hint=_SMALLER)
        if size > most_bytes:
            raise ArchiveError(f"{name!r} of the archive is packed more tightly than code is")
        unpacked.write(chunk)
    return size
