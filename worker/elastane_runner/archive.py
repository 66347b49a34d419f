"""Safe unpacking of code archives, which `elastane_common.code_archive` makes."""

import shutil
import stat
import tempfile
import unicodedata
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from elastane_common.code_archive import ArchiveError, digest_of

_SMALLER = "leave data and results out of the folder of code"
_CHUNK_BYTES = 64 * 1024
_RATIO_FLOOR_BYTES = 1024 * 1024  # small files of zeros or spaces are no bombs


@dataclass(frozen=True)
class ArchiveLimits:
    """Limits of an archive: entries, bytes unpacked, and bytes unpacked for each byte packed."""

    entries: int = 20_000
    total_bytes: int = 512 * 1024 * 1024
    ratio: int = 100


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
