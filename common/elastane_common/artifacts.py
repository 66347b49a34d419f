"""Artifacts: folders of files on any fsspec URL; readers see a complete folder or none.

    URL/manifest.json        version, folder, and of each file path, size, sha256, kind
    URL/launches/FENCE.json  the same, of the launch of a service with this fence
    URL/FOLDER/...           the files; FOLDER begins the hash of their content, and ends with the fence

The manifest is put in place last, by one rename or put. Files that it names are never written to: other
content goes to another folder, so a reader sees the old files or the new ones, and a writer that dies leaves
the old ones. Writing the same content again changes nothing. One URL has one writer at a time; a second one
may win, but never mixes its files with the first one's. A folder that a killed writer leaves is named by no
manifest; it goes with the run.

An abandoned launch may still run and write at any time. It is refused once a later launch has
written. Storage cannot check and write in one step, so its manifest may still be written after that of the
later launch. This is harmless: no launch touches the folder or the manifest of a later one, readers use the
manifest with the highest fence, and a writer that has overwritten manifest.json restores that one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from elastane_common import layout, run_record
from elastane_common.errors import EXIT_REFUSED, ElastaneError
from elastane_common.file_manifest import FileEntry, content_hash, file_faults, list_fault, path_fault
from elastane_common.run_record import RunRecord
from elastane_common.storage import CHUNK_BYTES, Folder

_log = structlog.get_logger(__name__)

MANIFEST: Final = "manifest.json"
#: Subfolder of the manifests of a service's launches.
LAUNCHES: Final = "launches"
#: Grows when readers of the previous version would misunderstand a manifest.
VERSION: Final = 1
MANIFEST_BYTES_MAX: Final = 64 << 20
RECORD_BYTES_MAX: Final = 64 << 20
#: Number of digits of the content hash in a folder's name.
_FOLDER_DIGITS: Final = 16
_FAULTS_SHOWN: Final = 5


class ArtifactError(ElastaneError):
    """Artifacts could not be written, read or listed, or differ from their manifest."""

    code = "ELA460"


class ArtifactManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one folder of artifacts; unknown fields are ignored.

    folder: subfolder with the files. fence: of the launch that wrote them; 0: no launch of a service.
    """

    version: int
    folder: str
    files: tuple[FileEntry, ...]
    fence: int = 0

    @property
    def content_hash(self) -> str:
        """Hash of the files' paths and contents, equal for equal files wherever they are."""
        return content_hash(self.files)

    def located(self) -> Iterator[FileEntry]:
        """Yield the files with paths relative to the manifest."""
        for entry in self.files:
            yield msgspec.structs.replace(entry, path=f"{self.folder}/{entry.path}")


_decoder: Final = msgspec.json.Decoder(ArtifactManifest)


def local_files(path: Path) -> dict[str, Path]:
    """Return the files to upload for a file or a folder, by their path in the artifacts.

    Raises ArtifactError if there is none, and for links to folders, sockets and the like.
    """
    if path.is_file():
        return {path.name: path}
    if not path.is_dir():
        raise _refused(f"{path} is neither a file nor a folder", "write it before it is uploaded")
    found = {}
    for folder, folders, names in os.walk(path):
        for name in sorted([*names, *(name for name in folders if (Path(folder) / name).is_symlink())]):
            file = Path(folder) / name
            if not file.is_file():
                raise _refused(f"{file} is not a regular file", "a model has files and folders only")
            found[file.relative_to(path).as_posix()] = file
    if not found:
        raise _refused(f"the folder {path} is empty", "write the files before they are uploaded")
    return found


def manifest_of(files: Mapping[str, Path], *, kind: str = "model", fence: int = 0) -> ArtifactManifest:
    """Return the manifest that the upload of local files writes. Raises ArtifactError."""
    for path in files:
        if fault := path_fault(path):
            raise _refused(f"the path {path[:80]!r} {fault}", "rename the file")
    entries = tuple(_entry(path, files[path], kind) for path in sorted(files))
    folder = content_hash(entries)[:_FOLDER_DIGITS]
    if fence:
        folder = f"{folder}-{fence}"
    return ArtifactManifest(version=VERSION, folder=folder, files=entries, fence=fence)


def write_artifacts(
    url: str, files: Mapping[str, Path], *, kind: str = "model", fence: int = 0
) -> ArtifactManifest:
    """Upload local files, by their path in the artifacts, and return the manifest.

    If it returns, they are durable and replace what was at `url`; if it raises ArtifactError, they do not.
    The files must not change meanwhile. fence: of the writer's launch; what a later launch wrote stays.
    """
    manifest = manifest_of(files, kind=kind, fence=fence)
    folder = Folder(url, ArtifactError)
    before = _newest_manifest(folder)
    is_stored = before is not None and before.files == manifest.files and _is_whole(folder, before)
    if before is not None and is_stored and before.fence >= fence:
        return before
    _refuse_stale(url, before, fence)
    for entry, located in zip(manifest.files, manifest.located(), strict=True):
        folder.write(located.path, _unchanged(files[entry.path], entry))
    folder.remove_partial_files(manifest.folder)
    if fence:
        _refuse_stale(url, _newest_manifest(folder), fence)  # one may have been written meanwhile
        folder.write(_of_launch(fence), [_encoded(manifest)])
    folder.write(MANIFEST, [_encoded(manifest)])
    if fence:
        _refuse_stale(url, _put_newest(folder), fence)
        _remove_replaced(folder, fence)
    if before is not None and before.folder != manifest.folder and before.fence <= fence:
        _remove(folder, before.folder)
    return manifest


def _is_whole(folder: Folder, manifest: ArtifactManifest) -> bool:
    return all(folder.size(entry.path) == entry.size_bytes for entry in manifest.located())


def _refuse_stale(url: str, there: ArtifactManifest | None, fence: int) -> None:
    if there is not None and there.fence > fence > 0:
        raise _refused(
            f"a later launch of the run has written to {url} (fence {there.fence}, own {fence})",
            "this process was given up by the service; nothing is to be done",
        )


def read_manifest(url: str) -> ArtifactManifest | None:
    """Return the manifest at `url`; None if there are no artifacts. Raises ArtifactError."""
    return _newest_manifest(Folder(url, ArtifactError))


def settle(url: str) -> ArtifactManifest | None:
    """Return the manifest at `url`, restoring it first if an abandoned launch has overwritten it.

    None if there are no artifacts. Raises ArtifactError.
    """
    return _put_newest(Folder(url, ArtifactError))


def list_artifacts(url: str) -> list[FileEntry]:
    """Return the files at `url`, with paths relative to it; [] if there are none. Raises ArtifactError."""
    manifest = read_manifest(url)
    return [] if manifest is None else list(manifest.located())


def verify(url: str) -> ArtifactManifest:
    """Read all files at `url` and compare them with the manifest.

    Raises ArtifactError, which names those that are missing or differ.
    """
    folder = Folder(url, ArtifactError)
    manifest = _newest_manifest(folder)
    if manifest is None:
        raise _refused(
            f"there are no artifacts at {url}", "their manifest is written last; was the upload complete?"
        )
    if faults := list(file_faults(folder, manifest.located())):
        more = f" and {len(faults) - _FAULTS_SHOWN} more" if len(faults) > _FAULTS_SHOWN else ""
        raise _refused(
            f"artifacts at {url} differ from their manifest: {'; '.join(faults[:_FAULTS_SHOWN])}{more}",
            "they were changed after they were uploaded; upload them again",
        )
    return manifest


# ---------------------------------------------------------------- the folder of a run


def write_record(run_url: str, record: RunRecord) -> None:
    """Write the record of a run. Raises ArtifactError."""
    Folder(run_url, ArtifactError).write(layout.RECORD, [run_record.encode(record)])


def read_record(run_url: str) -> RunRecord | None:
    """Return the record of a run, None if there is none. Raises ArtifactError, RunRecordError."""
    data = Folder(run_url, ArtifactError).read(layout.RECORD, bytes_max=RECORD_BYTES_MAX)
    return None if data is None else run_record.decode(data)


def list_run(run_url: str) -> list[FileEntry]:
    """Return all artifacts of a run, with paths relative to its folder: model, logs, record, others.

    A file of the model is listed once the model is whole. Digests of logs are those of the record; before
    that is written they are empty. Raises ArtifactError, RunRecordError.
    """
    folder = Folder(run_url, ArtifactError)
    model = [
        msgspec.structs.replace(entry, path=layout.join(layout.MODEL, entry.path), kind="model")
        for entry in list_artifacts(layout.model_url(run_url))
    ]
    record = read_record(run_url)
    known = {entry.path: entry for entry in record.artifacts} if record is not None else {}
    others = []
    for path, size_bytes in folder.files():
        kind = layout.kind_of(path)
        if kind == "model":
            continue
        sha256 = ""
        if kind == "record":
            size_bytes, sha256 = folder.sha256(path) or (size_bytes, "")
        elif path in known and known[path].size_bytes == size_bytes:
            sha256 = known[path].sha256
        others.append(FileEntry(path, size_bytes, sha256, kind))
    return sorted(model + others, key=lambda entry: entry.path)


# ---------------------------------------------------------------- parts


def _newest_manifest(folder: Folder) -> ArtifactManifest | None:
    """Return the valid manifest: that of the launch with the highest fence, or one written by no launch."""
    there = _read_manifest(folder, MANIFEST)
    if there is not None and not there.fence:
        return there
    newest = max(_fences(folder), default=0)
    if there is not None and there.fence >= newest:
        return there
    return (_read_manifest(folder, _of_launch(newest)) if newest else None) or there


def _put_newest(folder: Folder) -> ArtifactManifest | None:
    """Return the valid manifest, and restore it if an abandoned launch has overwritten it."""
    while True:
        newest, there = _newest_manifest(folder), _read_manifest(folder, MANIFEST)
        if newest is None or newest == there:
            return newest
        folder.write(MANIFEST, [_encoded(newest)])


def _fences(folder: Folder) -> list[int]:
    """Return the fences of the launches that have written."""
    names = (name.removesuffix(".json") for name, _ in folder.within(LAUNCHES).files())
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def _of_launch(fence: int) -> str:
    return f"{LAUNCHES}/{fence}.json"


def _remove_replaced(folder: Folder, fence: int) -> None:
    """Remove what earlier launches have written."""
    for older in _fences(folder):
        if older < fence and (manifest := _read_manifest(folder, _of_launch(older))) is not None:
            _remove(folder, manifest.folder)
            folder.remove_file(_of_launch(older))


def _encoded(manifest: ArtifactManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def _read_manifest(folder: Folder, name: str) -> ArtifactManifest | None:
    data = folder.read(name, bytes_max=MANIFEST_BYTES_MAX)
    if data is None:
        return None
    try:
        manifest = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(f"{folder.url}/{name} is damaged: {error}", "upload the artifacts again") from error
    if manifest.version > VERSION:
        raise _refused(
            f"{folder.url}/{name} has version {manifest.version}; this release reads up to {VERSION}",
            "use the release that wrote it, or a newer one",
        )
    if fault := path_fault(manifest.folder) or list_fault(manifest.files):
        raise _refused(f"{folder.url}/{name} is damaged: {fault}", "upload the artifacts again")
    return manifest


def _entry(path: str, file: Path, kind: str) -> FileEntry:
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in _chunks(file):
        digest.update(chunk)
        size_bytes += len(chunk)
    return FileEntry(path, size_bytes, digest.hexdigest(), kind)


def _unchanged(file: Path, entry: FileEntry) -> Iterator[bytes]:
    """Yield a file's content. Raises ArtifactError at its end if it is not the one of `entry`."""
    digest = hashlib.sha256()
    for chunk in _chunks(file):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != entry.sha256:
        raise ArtifactError(f"{file} changed while it was uploaded", hint="upload it when it is complete")


def _chunks(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise ArtifactError(f"cannot read {file}: {error.strerror or error}") from error


def _remove(folder: Folder, name: str) -> None:
    """Remove replaced files, ignoring errors: files that stay only cost space."""
    try:
        folder.remove_subfolder(name)
    except ArtifactError as error:
        _log.warning("replaced artifacts stay", url=folder.url, folder=name, reason=str(error))


def _refused(text: str, hint: str) -> ArtifactError:
    error = ArtifactError(text, hint=hint)
    error.exit_code = EXIT_REFUSED
    return error
