"""The mark of a service's folder, as the master hands it out."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from elastane_common.artifact_mark import make_mark
from elastane_master.runs import artifacts
from elastane_master.runs.artifacts import RunArtifacts


async def test_runners_that_attend_at_once_get_the_same_mark(tmp_path: Path) -> None:
    folder = RunArtifacts(tmp_path.as_uri())
    marks = {*await asyncio.gather(*(folder.mark() for _ in range(8)))}
    assert marks == {make_mark(tmp_path.as_uri())} and marks != {""}


async def test_storage_that_does_not_answer_keeps_no_runner_from_attending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(artifacts, "MARK_SECONDS", 0.05)
    monkeypatch.setattr(artifacts, "make_mark", lambda url: answers.wait(60) and make_mark(url))
    folder = RunArtifacts(tmp_path.as_uri())
    assert await folder.mark() == ""
    answers.set()
    monkeypatch.setattr(artifacts, "MARK_SECONDS", 60.0)
    assert await folder.mark() == make_mark(tmp_path.as_uri())


@pytest.mark.parametrize(("url", "has_one"), [("folder/below", True), ("", False), ("s3://bucket", False)])
def test_folders_without_a_scheme_are_local(
    url: str, has_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bool(make_mark(url)) is has_one
