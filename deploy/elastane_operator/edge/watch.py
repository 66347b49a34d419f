"""Watch on a job at its master, so that its decisions are carried out at once instead of at the next look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elastane_operator.edge.masters import Access, Masters
from elastane_proto.v1 import job_pb2

PAUSE_SECONDS = 2.0


class MasterWatch:
    """Follows a job until `close`. on_change: called when its phase, sizes, generation or workers change."""

    def __init__(self, masters: Masters, access: Access, name: str, *, on_change: Callable[[], None]) -> None:
        self.access = access
        self._masters = masters
        self._name = name
        self._on_change = on_change
        self._task = asyncio.create_task(self._follow(), name=f"watch {name}")

    def close(self) -> None:
        """Stop following."""
        self._task.cancel()

    async def _follow(self) -> None:
        before: object = None
        while True:
            try:
                async for job in self._masters.changes(self.access, self._name):
                    seen = _essence(job)
                    if before is not None and seen != before:
                        self._on_change()
                    before = seen
            except Exception:  # noqa: BLE001 - what is wrong with the master is told by each look
                pass
            await asyncio.sleep(PAUSE_SECONDS)


def _essence(job: job_pb2.Job) -> object:
    """The fields that a look could act on; the step number is not one of them."""
    workers = tuple(sorted((each.worker_id, each.state) for each in job.workers))
    return job.phase, job.reason, job.settings.workers_min, job.settings.workers_max, job.generation, workers
