"""Code archives at the service's artifact URL: there when a run is submitted, removed when no run needs them.

Archives are named by their content, so runs share them, and whoever submits uploads only what is missing. An
archive that no run needs any more is removed in the second sweep that finds it so: it may have been uploaded
for a run that is about to be submitted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import structlog

from elastane_common import layout
from elastane_common.artifacts import ArtifactError
from elastane_common.errors import ElastaneError
from elastane_common.storage import Folder
from elastane_master.decisions.events import Rejection

logger = structlog.get_logger(__name__)


class CodeArchives:
    """The archives of one service. Used from one event loop; storage is asked in threads.

    url: of the folder of the service; empty: there are none. used: digests that runs refer to.
    """

    def __init__(self, url: str, used: Callable[[], Collection[str]]) -> None:
        self._url = url
        self._used = used
        self._present: set[str] = set()  # seen, and not removed since
        self._submitting: Counter[str] = Counter()
        self._submitted: set[str] = set()  # since the last sweep began
        self._unused: set[str] = set()  # in the last sweep
        self._removing = asyncio.Lock()

    @asynccontextmanager
    async def submitting(self, digest: str) -> AsyncIterator[None]:
        """Keep an archive while a run that needs it is submitted. Raises Rejection if it is not there."""
        self._submitting[digest] += 1
        try:
            if self._url and digest not in self._present:
                async with self._removing:  # what is being removed now must not be found
                    await self._require(digest)
                    self._present.add(digest)
            yield
        finally:
            self._submitted.add(digest)
            self._submitting[digest] -= 1
            if not self._submitting[digest]:
                del self._submitting[digest]

    async def _require(self, digest: str) -> None:
        name = layout.code_archive(digest)
        try:
            size = await asyncio.to_thread(lambda: Folder(self._url, ArtifactError).size(name))
        except ElastaneError as error:
            raise Rejection(
                "store_unavailable", f"the code archive cannot be looked up: {error}", hint=error.hint
            ) from error
        if size is None:
            raise Rejection(
                "invalid_argument",
                f"there is no code archive {name} at the artifact URL",
                hint="upload it first, as elastane submit does",
                field="spec.code.archive_sha256",
            )

    async def sweep(self, confirm: Callable[[], Awaitable[None]]) -> None:
        """Remove archives that no run needs, and none needed at the last sweep.

        confirm: returns once the runs known here are known to be all of them, and raises if another master
        may have accepted some: theirs may need what these do not. Asked before each removal. Raises what it
        raises, and ArtifactError.
        """
        if not self._url:
            return
        folder = Folder(layout.join(self._url, layout.CODE), ArtifactError)
        names = await asyncio.to_thread(folder.files)
        there = {digest for name, _ in names if (digest := layout.archive_digest(name)) is not None}
        await confirm()
        self._submitted.clear()
        unused = there.difference(self._used())
        for digest in sorted(unused & self._unused):
            async with self._removing:
                if digest in self._submitted or digest in self._submitting:
                    continue
                await confirm()
                self._present.discard(digest)
                await asyncio.to_thread(folder.remove_file, f"{digest}.zip")
                logger.info("code archive removed", sha256=digest, reason="no run needs it")
        self._unused = unused
