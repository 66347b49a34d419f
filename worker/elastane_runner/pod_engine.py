"""Ranks as Pods, which outlive their runner and are found again by the next one.

The cluster starts them, ends them and keeps exit codes; a finalizer keeps a pod that was deleted until its
end is recorded. All pods of a launch run, or it is taken back. A log that does not end says nothing of a node
that is gone, so the state of pods is polled as well.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from elastane_runner.engine import EngineError
from elastane_runner.labelled_engine import LabelledEngine, RankContainer, RankKey
from elastane_runner.pod_client import PodClient

LOOK_SECONDS: Final = 2.0


class PodEngine(LabelledEngine):
    """Runs ranks as pods of one namespace.

    root: see `LabelledEngine`. client: closed with the engine. look_seconds: between two looks at the pods.
    Raises EngineError if another engine uses the folder.
    """

    def __init__(self, root: Path, client: PodClient, *, look_seconds: float = LOOK_SECONDS) -> None:
        super().__init__(root, runner=client.runner, client=client)
        self._pods = client
        self._look_seconds = look_seconds
        self._looking: asyncio.Task[None] | None = None

    def _watch(self, key: RankKey, container: RankContainer) -> None:
        super()._watch(key, container)
        if self._looking is None or self._looking.done():
            self._looking = self._task(self._look())

    async def _look(self) -> None:
        """Notify the threads of ranks that no longer run."""
        while self._watched:
            await asyncio.sleep(self._look_seconds)
            try:
                running = await asyncio.to_thread(self._pods.running)
            except EngineError:
                continue
            for watched in list(self._watched.values()):
                if watched.container not in running:
                    watched.log.interrupt()
