"""Resolves the dataset of a run, in a thread: storage may be slow or unreachable."""

from __future__ import annotations

import asyncio

import structlog

from elastane_common.datasets import DatasetError, ManifestResolver
from elastane_common.datasets import DatasetRef as StoredDataset
from elastane_master.decisions.runs.events import DataVerdict
from elastane_master.decisions.runs.spec import DatasetRef
from elastane_master.runs.data_service import DataService

logger = structlog.get_logger(__name__)

POLL_SECONDS = 5.0
AT_ONCE = 8


class Datasets:
    """The datasets of one service.

    root: fsspec URL of the folder of all; empty: references name theirs. service: asked instead for those
    that name no URL.
    """

    def __init__(
        self, root: str = "", poll_seconds: float = POLL_SECONDS, *, service: DataService | None = None
    ) -> None:
        self.poll_seconds = poll_seconds
        self._service = service
        self._resolver = ManifestResolver(root)
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def resolve(self, reference: DatasetRef) -> tuple[DataVerdict, str, str]:
        """Return whether the dataset is ready, its URL, and the reason in words.

        Storage that cannot be read now counts as a dataset that is being prepared: it is asked again.
        """
        if self._service is not None and not reference.url:
            async with self._at_once:
                return await self._service.resolve(reference)
        wanted = StoredDataset(
            id=reference.id,
            version_hash=reference.version_hash,
            url=reference.url,
            verify_files=reference.verify_files,
        )
        async with self._at_once:
            try:
                found = await asyncio.to_thread(self._resolver.resolve, wanted)
            except DatasetError as error:
                logger.warning("a dataset cannot be looked up", dataset=reference.id, error=str(error))
                return "preparing", "", str(error)
        return found.readiness.value, found.url, found.reason

    async def close(self) -> None:
        """Close the connection to the data service; the next call opens another."""
        if self._service is not None:
            await self._service.close()
