"""What lists and events mean: changes, deletions that were missed, where the next watch starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastane_operator.decisions.watching import Change, ListAgainError, WatchState, job_essence
from unit.deploy.elastic_jobs import job_body


def thing(name: str, version: int, *, uid: str = "", **fields: Any) -> dict[str, Any]:
    metadata = {"namespace": "ml", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, **fields}}


def listing(version: int, *items: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(items)}


def event(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def names(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.type, change.object["metadata"]["name"]) for change in changes]


def test_a_list_delivers_every_object_and_the_version_from_which_to_watch() -> None:
    state = WatchState()
    assert state.resource_version == ""
    assert names(state.listed(listing(7, thing("a", 3), thing("b", 5)))) == [("ADDED", "a"), ("ADDED", "b")]
    assert state.resource_version == "7"


def test_an_empty_list_may_have_no_items_at_all() -> None:
    state = WatchState()
    assert state.listed({"metadata": {"resourceVersion": "7"}, "items": None}) == []
    assert state.resource_version == "7"


def test_events_are_delivered_and_move_the_version() -> None:
    state = WatchState()
    state.listed(listing(7, thing("a", 3)))
    for kind, name, version in (("ADDED", "b", 8), ("MODIFIED", "a", 9), ("DELETED", "b", 10)):
        change = state.received(event(kind, thing(name, version)))
        assert change == Change(kind, thing(name, version))  # type: ignore[arg-type]
        assert state.resource_version == str(version)


def test_a_bookmark_moves_the_version_and_is_no_change() -> None:
    state = WatchState()
    state.listed(listing(7))
    assert state.received(event("BOOKMARK", {"metadata": {"resourceVersion": "99"}})) is None
    assert state.resource_version == "99"


def test_what_is_missing_in_a_later_list_was_deleted() -> None:
    state = WatchState()
    state.listed(listing(7, thing("a", 3, labels={"job": "x"}), thing("b", 5)))
    state.received(event("ADDED", thing("c", 8)))
    state.received(event("DELETED", thing("b", 9)))
    state.expire()
    assert state.resource_version == ""
    changes = state.listed(listing(20, thing("c", 8)))
    assert names(changes) == [("DELETED", "a"), ("MODIFIED", "c")], "b was seen deleted; a was not"
    assert changes[0].object["metadata"] == {
        "namespace": "ml",
        "name": "a",
        "uid": "uid-a",
        "labels": {"job": "x"},
    }


def test_an_object_that_was_made_again_between_two_lists_is_another() -> None:
    state = WatchState()
    state.listed(listing(7, thing("a", 3)))
    changes = state.listed(listing(20, thing("a", 18, uid="another")))
    assert [(change.type, change.object["metadata"]["uid"]) for change in changes] == [
        ("DELETED", "uid-a"),
        ("ADDED", "another"),
    ]


def test_objects_of_one_name_in_two_namespaces_are_two() -> None:
    state = WatchState()
    other = thing("a", 4)
    other["metadata"]["namespace"] = "other"
    assert len(state.listed(listing(7, thing("a", 3), other))) == 2
    assert names(state.listed(listing(8, other))) == [("DELETED", "a"), ("MODIFIED", "a")]


def test_an_error_needs_a_list_and_says_why() -> None:
    state = WatchState()
    state.listed(listing(7))
    status = {
        "kind": "Status",
        "code": 410,
        "reason": "Expired",
        "message": "too old resource version: 7 (90)",
    }
    with pytest.raises(ListAgainError, match=r"410 Expired too old resource version: 7 \(90\)"):
        state.received(event("ERROR", status))
    assert state.resource_version == ""


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "ADDED", "object": {"metadata": {"name": "a", "resou',
        b"upstream connect error\n",
        b"[]\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "ADDED", "object": {"metadata": {"name": "a"}}}\n',
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "9"}}}\n',
        b'{"type": "RENAMED", "object": {"metadata": {"name": "a", "resourceVersion": "9"}}}\n',
        b'{"type": "ERROR", "object": null}\n',
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_event_needs_a_list(line: bytes) -> None:
    state = WatchState()
    state.listed(listing(7))
    with pytest.raises(ListAgainError):
        state.received(line)
    assert state.resource_version == ""
    assert state.listed(listing(8)) == [], "nothing of it is known"


@pytest.mark.parametrize("answer", [{}, {"metadata": {}}, {"message": "hello"}, listing(1, {"metadata": {}})])
def test_what_is_no_list_changes_nothing(answer: dict[str, Any]) -> None:
    state = WatchState()
    state.listed(listing(7, thing("a", 3)))
    state.expire()
    with pytest.raises(ListAgainError, match="not a list"):
        state.listed(answer)
    assert state.resource_version == ""
    assert names(state.listed(listing(9))) == [("DELETED", "a")]


# ---------------------------------------------------------------- what counts of a job


def job(version: int, **fields: Any) -> dict[str, Any]:
    body = job_body()
    body["metadata"] |= {"resourceVersion": str(version)} | fields
    return body


def test_a_jobs_status_is_no_change_but_moves_the_version() -> None:
    state = WatchState(job_essence)
    state.listed(listing(7, job(3)))
    assert state.received(event("MODIFIED", job(8) | {"status": {"phase": "Running"}})) is None
    assert state.resource_version == "8"


@pytest.mark.parametrize(
    "fields", [{"generation": 2}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"finalizers": ["f"]}]
)
def test_what_users_do_to_a_job_is_a_change_once(fields: dict[str, Any]) -> None:
    state = WatchState(job_essence)
    state.listed(listing(7, job(3)))
    assert state.received(event("MODIFIED", job(8, **fields))) is not None
    assert state.received(event("MODIFIED", job(9, **fields))) is None


def test_a_job_is_always_a_change_when_it_is_listed_deleted_or_made_again() -> None:
    state = WatchState(job_essence)
    state.listed(listing(7, job(3)))
    assert len(state.listed(listing(7, job(3)))) == 1
    assert state.received(event("DELETED", job(8))) is not None
    assert state.received(event("ADDED", job(9))) is not None
    assert state.received(event("ADDED", job(10, uid="another"))) is not None
