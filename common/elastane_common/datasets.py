"""Resolution of a run's dataset reference to a URL, or to the reason why it is not available yet.

A dataset's version is a folder on any fsspec URL, `ROOT/ID/HASH`, with its files and `manifest.json`:

    {"state": "ready", "files": [{"path": "train/0.parquet", "size": 1024, "sha256": "..."}, ...]}

The program that prepares it writes {"state": "preparing"} first, then the files, then the full manifest.
HASH is the content hash of the files (see `file_manifest`), unless the manifest has a `version_hash`: a data
service may name its versions as it likes. A reference whose hash differs from the manifest's is never
resolved. Calls block; event loops must run them in a thread.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from elastane_common import layout
from elastane_common.errors import ElastaneError
from elastane_common.file_manifest import FileEntry, content_hash, file_faults, list_fault
from elastane_common.storage import Folder

MANIFEST: Final = "manifest.json"
#: About half a million files.
MANIFEST_BYTES_MAX: Final = 64 << 20
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: Also what base64 gives, as in the hashes of some data services.
_HASH: Final = re.compile(r"[A-Za-z0-9+=_-][A-Za-z0-9+/=._-]{0,127}")
_FAULTS_SHOWN: Final = 3


class DatasetError(ElastaneError):
    """The storage of a dataset cannot be read now; the same call may succeed later."""

    code = "ELA461"


@dataclass(frozen=True, kw_only=True)
class DatasetRef:
    """Names the data of a run, as DatasetRef of training.proto.

    url: of its folder, if it is not below the resolver's root. verify_files: compare each file's sha256.
    """

    id: str
    version_hash: str = ""
    url: str = ""
    verify_files: bool = False


class Readiness(enum.StrEnum):
    """READY: may be read. PREPARING: ask again later. MISSING: somebody has to create it first."""

    READY = "ready"
    PREPARING = "preparing"
    MISSING = "missing"


@dataclass(frozen=True)
class Resolution:
    """Answer to a reference. url and version_hash: of a READY one. reason: in words, for the run."""

    readiness: Readiness
    reason: str
    url: str = ""
    version_hash: str = ""


class DatasetManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a dataset's manifest. Unknown fields are ignored."""

    state: Literal["ready", "preparing"]
    files: tuple[FileEntry, ...] = ()
    version_hash: str = ""


_decoder: Final = msgspec.json.Decoder(DatasetManifest)


class ManifestResolver:
    """Datasets on one storage, each version with its manifest.

    root: URL of the folder of all datasets; "": only references with a URL are resolved. url_prefixes:
    folders outside of root that references may name in `url`; other URLs are refused, since they would be
    read with the rights of the service.
    """

    def __init__(self, root: str = "", *, url_prefixes: Sequence[str] = ()) -> None:
        self._root = root
        self._prefixes = [f"{prefix.rstrip('/')}/" for prefix in (root, *url_prefixes) if prefix]

    def resolve(self, ref: DatasetRef) -> Resolution:
        """Return where the dataset is, from its manifest, and from the files if `ref.verify_files`.

        Blocks. Raises DatasetError if the storage does not answer.
        """
        if fault := self._fault_of(ref):
            return Resolution(Readiness.MISSING, fault)
        url = ref.url or layout.join(self._root, ref.id, _folder_of(ref.version_hash))
        folder = Folder(url, DatasetError)
        data = folder.read(MANIFEST, bytes_max=MANIFEST_BYTES_MAX)
        if data is None:
            return Resolution(Readiness.MISSING, f"dataset {ref.id} is not there: no {MANIFEST} in {url}")
        try:
            manifest = _decoder.decode(data)
            fault = list_fault(manifest.files)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            fault = str(error)
        if fault:
            return Resolution(Readiness.MISSING, f"the manifest of dataset {ref.id} is damaged: {fault}")
        return _judged(ref, url, folder, manifest)

    def _fault_of(self, ref: DatasetRef) -> str:
        """Return why a reference is refused before anything is read; "" if it is not."""
        if not _ID.fullmatch(ref.id):
            return (
                f"the dataset id {ref.id[:80]!r} is not allowed: at most 128 letters, digits, '.', '_', '-'"
            )
        if ref.version_hash and not _HASH.fullmatch(ref.version_hash):
            return f"the version hash {ref.version_hash[:80]!r} of dataset {ref.id} is not allowed"
        if not ref.url:
            if not self._root:
                return f"dataset {ref.id} has no URL, and the service has no folder of datasets"
            return "" if ref.version_hash else f"dataset {ref.id} has neither a version hash nor a URL"
        beneath = any(ref.url.startswith(prefix) for prefix in self._prefixes)
        if not beneath or ".." in ref.url.split("/") or "::" in ref.url or "%" in ref.url:
            return f"the URL {ref.url[:200]!r} of dataset {ref.id} is not in a folder of datasets"
        return ""


def _judged(ref: DatasetRef, url: str, folder: Folder, manifest: DatasetManifest) -> Resolution:
    preparing = manifest.state == "preparing"
    found = manifest.version_hash or ("" if preparing else content_hash(manifest.files))
    if found and ref.version_hash not in ("", found):
        return Resolution(
            Readiness.MISSING, f"dataset {ref.id} at {url} has the version {found}, not {ref.version_hash}"
        )
    if preparing:
        return Resolution(Readiness.PREPARING, f"dataset {ref.id} is being prepared")
    if ref.verify_files:
        faults = list(itertools.islice(file_faults(folder, manifest.files), _FAULTS_SHOWN))
        if faults:
            return Resolution(Readiness.MISSING, f"dataset {ref.id} is damaged: {'; '.join(faults)}")
    return Resolution(Readiness.READY, f"dataset {ref.id} is ready", url, found)


def _folder_of(version_hash: str) -> str:
    """Return the name of a version's folder: the hash, with "/" written as %2F."""
    return quote(version_hash, safe="+=")
