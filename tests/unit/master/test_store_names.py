"""Names and formats the store depends on: job names, keys, URLs, format numbers."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec
import pytest

from elastane_master.store.connection import checked_store_url, without_password
from elastane_master.store.errors import BadJobName, BadStoreUrl, StoreFormatUnknown
from elastane_master.store.format import (
    EMPTY,
    FORMAT,
    Place,
    decode_batch,
    decode_snapshot,
    encode_batch,
    encode_snapshot,
)
from elastane_master.store.history import is_history_token
from elastane_master.store.keys import JOB_PATTERN, RUNS, JobKeys, checked_job_name


@pytest.mark.parametrize("name", ["a", "mnist-1", "A.b_c-9", "x" * 63])
def test_good_job_names(name: str) -> None:
    assert checked_job_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 64, "a b", "a{b}", "a:b", "ä", "a/b", "a\n", ".", "..", "-a", ".hidden"]
)
def test_bad_job_names(name: str) -> None:
    with pytest.raises(BadJobName) as refused:
        JobKeys.of(name)
    assert "1 to 63" in refused.value.hint


def test_all_keys_of_a_job_share_one_hash_tag() -> None:
    keys = JobKeys.of("j")
    for key in (keys.fence, keys.log, keys.snapshot, keys.history, keys.events):
        assert key.startswith("elastane:{j}:")


def test_no_job_can_have_the_keys_of_the_runs() -> None:
    keys = JobKeys.of(RUNS)
    assert len({key.partition("}")[0] for key in keys.all}) == 1
    assert not any(fnmatchcase(key, JOB_PATTERN) for key in keys.all)
    with pytest.raises(BadJobName):
        checked_job_name(RUNS)


@pytest.mark.parametrize("url", ["redis://h:6379/0", "rediss://u:p@h:6380", "unix:///run/store.sock"])
def test_good_urls(url: str) -> None:
    assert checked_store_url(url) == url


@pytest.mark.parametrize("url", ["http://h", "h:6379", "redis://", "unix://", "redis://h:port"])
def test_bad_urls(url: str) -> None:
    with pytest.raises(BadStoreUrl) as refused:
        checked_store_url(url)
    assert "redis://" in refused.value.hint


def test_a_password_is_never_shown() -> None:
    assert without_password("redis://u:s3cret@h:1/0") == "redis://u:***@h:1/0"
    assert without_password("redis://:s3@cret@h:1/0") == "redis://:***@h:1/0"
    assert without_password("redis://h:1/0?db=1&password=s3cret&x=2") == "redis://h:1/0?db=1&password=***&x=2"
    assert without_password("redis://h:1/0") == "redis://h:1/0"


def test_formats_round_trip() -> None:
    stored, chain = encode_snapshot("j", Place(7, 1, 0), EMPTY, b"state")
    snapshot = decode_snapshot(stored)
    assert (snapshot.sequence, snapshot.state) == (7, b"state")
    batch = decode_batch(encode_batch("j", Place(9, 1, 2), chain, (b"a", b"b"))[0])
    assert batch.records == (b"a", b"b")
    assert batch.link is not None and batch.link.previous == 7 and batch.link.before == chain.checksum


@pytest.mark.parametrize(
    "payload", [msgspec.msgpack.encode([FORMAT + 1, 7, b"state"]), b"\xc1", b"", msgspec.msgpack.encode({})]
)
def test_unknown_formats_are_refused(payload: bytes) -> None:
    with pytest.raises(StoreFormatUnknown):
        decode_snapshot(payload)


def test_history_tokens() -> None:
    assert is_history_token("") and is_history_token("1700000000000-12")
    assert not is_history_token("+") and not is_history_token("(1-1") and not is_history_token("12")
