"""Artifacts and stored logs of runs, at the service's artifact URL. Storage is read in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import structlog

from elastane_common import layout
from elastane_common.artifact_mark import make_mark
from elastane_common.artifacts import ArtifactError, list_run
from elastane_common.errors import ElastaneError
from elastane_common.file_manifest import FileEntry
from elastane_common.storage import Folder
from elastane_master.decisions.events import Rejection

logger = structlog.get_logger(__name__)

CHUNK_BYTES = 64 * 1024
MARK_SECONDS = 5.0
READ_BYTES = 1024 * 1024
"""Read from storage at once."""


class RunArtifacts:
    """Artifacts of all runs. url: of the service's folder; empty: nothing is stored."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._marking: asyncio.Task[str] | None = None

    def run_url(self, run_id: int) -> str:
        """Folder of a run's artifacts; empty if nothing is stored."""
        return layout.join(self.url, layout.run_folder(run_id)) if self.url else ""

    def checkpoint_url(self, run_id: int) -> str:
        """Folder of an elastic run's checkpoints; empty if nothing is stored."""
        return layout.join(self.run_url(run_id), "checkpoints") if self.url else ""

    async def mark(self) -> str:
        """Return the mark of the folder (see `artifact_mark`); empty if there is none to compare.

        Also empty if storage does not answer within MARK_SECONDS: that keeps no runner from attending.
        """
        if self._marking is None or self._marking.done():
            self._marking = asyncio.create_task(asyncio.to_thread(make_mark, self.url))
        try:
            async with asyncio.timeout(MARK_SECONDS):
                return await asyncio.shield(self._marking)
        except (ElastaneError, TimeoutError) as error:
            logger.warning("the artifact URL has no mark", reason=str(error) or "storage does not answer")
            return ""

    async def list(self, run_id: int) -> list[FileEntry]:
        """Return the artifacts of a run. Raises Rejection if storage cannot be read."""
        if not self.url:
            return []
        try:
            return await asyncio.to_thread(list_run, self.run_url(run_id))
        except ElastaneError as error:
            raise _unreadable(error) from error

    async def remove(self, run_id: int) -> None:
        """Remove all artifacts of a run. Raises Rejection if storage cannot be written."""
        if not self.url:
            return
        parent, _, name = self.run_url(run_id).rpartition("/")
        try:
            await asyncio.to_thread(lambda: Folder(parent, ArtifactError).remove_subfolder(name))
        except ElastaneError as error:
            raise _unreadable(error) from error

    async def remove_logs(self, run_id: int) -> None:
        """Remove the logs of a run; its model and record stay. Raises Rejection."""
        if not self.url:
            return
        folder = self.run_url(run_id)
        try:
            await asyncio.to_thread(lambda: Folder(folder, ArtifactError).remove_subfolder(layout.ATTEMPTS))
        except ElastaneError as error:
            raise _unreadable(error) from error

    async def read_log(
        self, run_id: int, attempt: int, rank: int, offset: int
    ) -> AsyncGenerator[tuple[int, bytes]]:
        """Yield a stored log in chunks of at most CHUNK_BYTES, each with its offset.

        offset: where to begin; negative: counted from the end. Raises Rejection, also if the log is
        not stored.
        """
        name = layout.rank_log(attempt, rank)
        try:
            size = await asyncio.to_thread(self._size, run_id, name)
            if size is None:
                raise Rejection(
                    "not_found",
                    f"the log of rank {rank} in attempt {attempt} of run {run_id} is not stored",
                    hint="its runner stores it when the attempt is over: try again in a moment",
                )
            at = offset if offset >= 0 else max(0, size + offset)
            while at < size:
                block = await asyncio.to_thread(self._block, run_id, name, at)
                if not block:
                    return
                for start in range(0, len(block), CHUNK_BYTES):
                    yield at + start, block[start : start + CHUNK_BYTES]
                at += len(block)
        except ElastaneError as error:
            raise _unreadable(error) from error

    def _size(self, run_id: int, name: str) -> int | None:
        return Folder(self.run_url(run_id), ArtifactError).size(name) if self.url else None

    def _block(self, run_id: int, name: str, offset: int) -> bytes:
        with Folder(self.run_url(run_id), ArtifactError).reading(name) as file:
            file.seek(offset)
            return bytes(file.read(READ_BYTES))


def _unreadable(error: ElastaneError) -> Rejection:
    return Rejection("store_unavailable", f"the artifacts cannot be reached: {error}", hint=error.hint)
