"""Which code archives a master keeps at the artifact URL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from elastane_common import layout
from elastane_common.storage import Folder
from elastane_master.decisions.events import Rejection
from elastane_master.runs.code_archives import CodeArchives

DIGESTS = ["a" * 64, "b" * 64]


def stored(url: Path) -> set[str]:
    return {name for name, _ in Folder(str(url)).files()}


async def confirmed() -> None: ...


def archives(url: Path, used: set[str]) -> CodeArchives:
    for digest in DIGESTS:
        Folder(str(url)).write(layout.code_archive(digest), [b"zip"])
    Folder(str(url)).write("code/notes.txt", [b"not ours"])
    return CodeArchives(str(url), lambda: used)


async def test_an_archive_that_no_run_needs_goes_in_the_second_sweep(tmp_path: Path) -> None:
    kept = archives(tmp_path, {DIGESTS[0]})
    await kept.sweep(confirmed)
    assert len(stored(tmp_path)) == 3
    await kept.sweep(confirmed)
    assert stored(tmp_path) == {layout.code_archive(DIGESTS[0]), "code/notes.txt"}


async def test_an_archive_that_is_submitted_meanwhile_stays(tmp_path: Path) -> None:
    kept = archives(tmp_path, set())
    await kept.sweep(confirmed)
    async with kept.submitting(DIGESTS[0]):
        await kept.sweep(confirmed)
        assert stored(tmp_path) == {layout.code_archive(DIGESTS[0]), "code/notes.txt"}
    await kept.sweep(confirmed)  # it was submitted since the last one began
    await kept.sweep(confirmed)
    await kept.sweep(confirmed)
    assert stored(tmp_path) == {"code/notes.txt"}


async def test_what_is_being_removed_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = archives(tmp_path, {DIGESTS[1]})
    await kept.sweep(confirmed)
    remove, asked, go_on = Folder.remove_file, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(folder: Folder, name: str) -> None:
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        remove(folder, name)

    monkeypatch.setattr(Folder, "remove_file", slow)
    sweep = asyncio.create_task(kept.sweep(confirmed))
    await asked.wait()

    async def submit() -> None:
        async with kept.submitting(DIGESTS[0]):
            pass

    submission = asyncio.create_task(submit())
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(Rejection, match="there is no code archive"):
        await submission
    await sweep


async def test_nothing_is_removed_unless_these_are_known_to_be_all_runs(tmp_path: Path) -> None:
    kept = archives(tmp_path, set())
    answers = [True, True, False]

    async def confirm() -> None:
        if not answers.pop(0):
            raise Rejection("not_leading", "another master may lead")

    await kept.sweep(confirm)
    with pytest.raises(Rejection):
        await kept.sweep(confirm)
    assert answers == [] and len(stored(tmp_path)) == 3


async def test_without_an_artifact_url_nothing_is_looked_up() -> None:
    kept = CodeArchives("", lambda: ())
    async with kept.submitting(DIGESTS[0]):
        await kept.sweep(confirmed)
