"""References to datasets: ready, being prepared, missing or refused, with the reason in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastane_common.datasets import DatasetError, DatasetRef, ManifestResolver, Readiness
from elastane_common.file_manifest import FileEntry, content_hash
from unit.artifacts.storages import KINDS, folder_url, put

FILES = {"train/0.bin": b"zero", "train/1.bin": b"one"}
ENTRIES = [FileEntry(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in FILES.items()]
HASH = content_hash(ENTRIES)


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield from folder_url(request.param, tmp_path)


def prepare(url: str, state: str = "ready", **more: Any) -> None:
    """Writes the dataset's files and its manifest."""
    files = [{"path": e.path, "size": e.size_bytes, "sha256": e.sha256} for e in ENTRIES]
    for path, data in FILES.items():
        put(f"{url}/{path}", data)
    put(f"{url}/manifest.json", json.dumps({"state": state, "files": files, **more}).encode())


def resolve(root: str, version_hash: str = HASH, **more: Any) -> tuple[Readiness, str, str]:
    ref = DatasetRef(**{"id": "digits", "version_hash": version_hash, **more})
    found = ManifestResolver(root).resolve(ref)
    assert found.reason and (found.url != "") == (found.readiness is Readiness.READY)
    return found.readiness, found.url, found.reason


def test_a_dataset_is_missing_then_prepared_then_ready(root: str) -> None:
    url = f"{root}/digits/{HASH}"
    state, _, reason = resolve(root)
    assert state is Readiness.MISSING and f"no manifest.json in {url}" in reason
    put(f"{url}/manifest.json", b'{"state": "preparing"}')
    assert resolve(root)[0] is Readiness.PREPARING
    prepare(url)
    assert resolve(root)[:2] == (Readiness.READY, url)


@pytest.mark.parametrize(
    "id", ["../digits", "a/b", "", ".", "..", "-x", "a b", "a\n", "é", "a" * 129, "%2e%2e"]
)
def test_an_id_that_would_leave_the_folder_is_refused(tmp_path: Path, id: str) -> None:
    prepare(str(tmp_path / "digits" / HASH))
    root = tmp_path / "root"
    prepare(str(root / "a" / "b" / HASH))
    state, _, reason = resolve(str(root), id=id)
    assert state is Readiness.MISSING and "is not allowed" in reason


@pytest.mark.parametrize("version", ["../x", "..", "/etc", "a b", "a\0", "h" * 129])
def test_a_hash_that_is_none_is_refused(root: str, version: str) -> None:
    state, _, reason = resolve(root, version)
    assert state is Readiness.MISSING and "is not allowed" in reason


def test_a_hash_that_differs_from_the_manifest_is_refused(root: str) -> None:
    other = "0" * 64
    prepare(f"{root}/digits/{other}")  # the folder's name is no proof of its content
    state, _, reason = resolve(root, other)
    assert state is Readiness.MISSING and f"has the version {HASH}, not {other}" in reason


def test_the_manifest_may_name_its_version(root: str) -> None:
    prepare(f"{root}/digits/hash%2FBA==", version_hash="hash/BA==")
    assert resolve(root, "hash/BA==")[0] is Readiness.READY
    prepare(f"{root}/digits/{HASH}", version_hash="hash/BA==")
    assert resolve(root)[0] is Readiness.MISSING
    prepare(f"{root}/digits/{HASH}", "preparing", version_hash="hash/BA==")
    assert resolve(root)[0] is Readiness.MISSING


def test_files_are_checked_where_asked(root: str) -> None:
    url = f"{root}/digits/{HASH}"
    prepare(url)
    assert resolve(root, verify_files=True)[0] is Readiness.READY
    put(f"{url}/train/1.bin", b"two")
    assert resolve(root)[0] is Readiness.READY
    state, _, reason = resolve(root, verify_files=True)
    assert state is Readiness.MISSING and "train/1.bin has the sha256" in reason


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"state": "done"}',
        b'{"state": "ready", "files": [{"path": "../../x", "size": 1, "sha256": "%s"}]}' % (b"0" * 64),
        b'{"state": "ready", "files": [{"path": "x", "size": -1, "sha256": "%s"}]}' % (b"0" * 64),
        b'{"state": "ready", "files": [{"path": "x", "size": 1, "sha256": "%s"}]}' % (b"G" * 64),
    ],
)
def test_a_damaged_manifest_is_missing(root: str, manifest: bytes) -> None:
    put(f"{root}/digits/{HASH}/manifest.json", manifest)
    state, _, reason = resolve(root)
    assert state is Readiness.MISSING and "is damaged" in reason


def test_urls_are_taken_below_allowed_folders_only(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    prepare(str(root / "mine"))
    prepare(str(other / "digits"))
    resolver = ManifestResolver(str(root), url_prefixes=[f"{other}/"])
    for url in (root / "mine", other / "digits"):
        found = resolver.resolve(DatasetRef(id="digits", url=str(url)))
        assert (found.readiness, found.url, found.version_hash) == (Readiness.READY, str(url), HASH)
    assert resolve(str(root), "1" * 64, url=str(root / "mine"))[0] is Readiness.MISSING
    for bad in (
        str(other / "digits"),
        f"{root}/../other/digits",
        f"{root}-other/digits",
        f"simplecache::{root}/mine",
        f"{root}/simplecache::file:///etc",
        "http://127.0.0.1/latest",
    ):
        state, _, reason = resolve(str(root), url=bad)
        assert state is Readiness.MISSING and "is not in a folder of datasets" in reason


def test_what_names_no_version_and_no_url_is_missing(root: str) -> None:
    assert "neither a version hash nor a URL" in resolve(root, "")[2]
    assert "has no URL" in resolve("")[2]


def test_a_storage_that_does_not_answer_says_nothing_about_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "digits").write_bytes(b"a file where the folder should be")
    with pytest.raises(DatasetError, match="cannot"):
        resolve(str(tmp_path))
