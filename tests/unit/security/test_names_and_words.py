"""Names that become keys or paths, and words that end on somebody's terminal."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastane.registry import Registry, RegistryError
from elastane.state.checkpoint import (
    MANIFEST,
    CheckpointError,
    NoUsableCheckpointError,
    load_newest,
    write_shard,
)
from elastane_cli.commands.run import default_job_name
from elastane_master.decisions.events import Rejection
from elastane_master.servers.translate import checked_name, shown
from elastane_master.servers.translate_session import attend_event, hello
from elastane_master.servers.translate_shard import tasks_requested
from elastane_master.store.errors import BadJobName
from elastane_master.store.keys import checked_job_name
from elastane_proto.v1 import ring_pb2, shard_pb2
from unit.state.checkpoints import ESTS, save

TRAVERSALS = [
    "..",
    ".",
    "../x",
    "a/../../b",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "~root",
    "-rf",
    "a\0b",
    "a\nb",
    "%2e%2e",
]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_name_leads_out_of_its_place(name: str) -> None:
    with pytest.raises(BadJobName):
        checked_job_name(name)
    with pytest.raises(Rejection):
        checked_name(name, "dataset")
    with pytest.raises(Rejection):
        hello(ring_pb2.Hello(job="j", worker_id=name, role=ring_pb2.WORKER_ROLE_RING), "s")
    with pytest.raises(Rejection):
        tasks_requested(shard_pb2.LeaseTasksRequest(job="j", dataset=name, worker_id="w"))
    with pytest.raises(Rejection):
        tasks_requested(shard_pb2.LeaseTasksRequest(job="j", dataset="d", worker_id=name))


@given(st.text(max_size=80))
@example("../..")
def test_what_is_let_through_is_one_plain_component_of_a_path(name: str) -> None:
    for check, refusal in ((checked_job_name, BadJobName), (lambda text: checked_name(text, "x"), Rejection)):
        try:
            check(name)
        except refusal:
            continue
        assert Path(name).parts == (name,)
        assert name.isascii() and name.isprintable() and not name.startswith((".", "-"))


@pytest.mark.parametrize("name", ["w0", "host.example-1f", "gpu_3:1", "user@host", "_w", "a" * 253])
def test_plain_names_pass(name: str) -> None:
    assert checked_name(name, "worker_id") == name


@pytest.mark.parametrize("script", ["_train.py", "../../..", "x" * 100 + ".py", "a b/c d.py"])
def test_a_scripts_own_name_always_makes_a_job(script: str) -> None:
    checked_job_name(default_job_name(script, module=False))


def test_items_of_the_registry_cannot_be_paths() -> None:
    for name in ("../x", "a/b", "", "a b"):
        with pytest.raises(RegistryError):
            Registry().register(name, object())


@pytest.mark.parametrize("name", ["../x", "step-1-g1/../../x", "step-000000000001-g000001-../x", "step-1"])
def test_names_of_checkpoints_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint name"):
        write_shard(str(tmp_path), name, 0, 1, None)  # type: ignore[arg-type]  # not looked at


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    """A manifest with a right checksum that points to another checkpoint's (right) shard beside it."""
    name, other = save(str(tmp_path), 1, shards=1), save(str(tmp_path / "other"), 1, shards=1)
    path = tmp_path / name / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["shards"][0] |= json.loads((tmp_path / "other" / other / MANIFEST).read_text())["shards"][0]
    manifest["shards"][0]["file"] = f"../other/{other}/{manifest['shards'][0]['file']}"
    manifest["sha256"] = ""
    manifest["sha256"] = hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()
    path.write_text(json.dumps(manifest))
    with pytest.raises(NoUsableCheckpointError, match="not a shard name"):
        load_newest(str(tmp_path), num_ests=ESTS)


@given(st.text())
def test_words_of_a_worker_cannot_steer_a_terminal(text: str) -> None:
    cleaned = shown(text)
    assert len(cleaned) == len(text)
    for before, after in zip(text, cleaned, strict=True):
        assert after == before or after == "\N{REPLACEMENT CHARACTER}"
        assert after.isprintable() or after in "\n\t" or ord(after) >= 0xA0


def test_all_words_of_a_session_are_cleaned() -> None:
    words = "\x1b[2Jgone"
    messages = [
        ring_pb2.AttendRequest(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FAILED, message=words)),
        ring_pb2.AttendRequest(leaving=ring_pb2.Leaving(reason=words)),
        ring_pb2.AttendRequest(ring_broken=ring_pb2.RingBroken(error=words)),
        ring_pb2.AttendRequest(saved=ring_pb2.Saved(error=words)),
        ring_pb2.AttendRequest(loaded=ring_pb2.Loaded(checkpoint=words, rejected=[words])),
    ]
    for message in messages:
        event = attend_event(message, "w", "s")
        assert "gone" in str(event)
        assert "\\x1b" not in repr(event) and "\x1b" not in str(event)
    joined = hello(ring_pb2.Hello(job="j", worker_id="w", role=ring_pb2.WORKER_ROLE_RING, host=words), "s")
    assert "\x1b" not in joined.host
