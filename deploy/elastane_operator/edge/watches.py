"""Follows the objects of one kind: a list, then consecutive watches, without end.

A failed watch is reopened at its position; `decisions.watching` decides when a list is needed first. No
failure is final: the API server may be down for any time, and rights may be fixed while the operator runs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import structlog

from elastane_common.backoff import backoff_seconds
from elastane_operator.decisions.watching import Change, ListAgainError, Object, WatchState
from elastane_operator.edge.kube import KubeClient, KubeError

#: Bounds of the time after which the server ends a watch normally. Drawn for each watch, so that watches
#: opened together do not all end at once.
SERVER_SECONDS = (20.0, 30.0)
#: A watch that is silent beyond its duration at the server is dead. A server that restarted while the watch
#: was being opened may never answer it.
SILENCE_SECONDS = 5.0
#: A watch that lasts this long works, even without events.
SETTLED_SECONDS = 1.0
#: After an outage of this length the server may have come back with an older state.
LIST_AGAIN_SECONDS = 10.0
RETRY_AFTER_SECONDS_MAX = 60.0
_log = structlog.get_logger(__name__)


class Watch:
    """Calls `on_change` for all objects of a kind, and for every later change of one.

    namespace: empty for all. labels: a selector. essence: see `WatchState`. server_seconds, silence_seconds,
    settled_seconds: see the constants.
    """

    def __init__(
        self,
        kube: KubeClient,
        kind: str,
        namespace: str = "",
        *,
        on_change: Callable[[Change], None],
        labels: str = "",
        essence: Callable[[Object], object] | None = None,
        server_seconds: tuple[float, float] = SERVER_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        settled_seconds: float = SETTLED_SECONDS,
    ) -> None:
        self._kube = kube
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._on_change = on_change
        self._state = WatchState(essence)
        self._server_seconds = server_seconds
        self._silence_seconds = silence_seconds
        self._settled_seconds = settled_seconds
        self._log = _log.bind(kind=kind, namespace=namespace or "all")
        self._failing_since: float | None = None
        self._reported: set[str] = set()

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        while True:
            try:
                if not self._state.resource_version:
                    await self._list()
                await self._follow()
            except (KubeError, ListAgainError) as error:
                await asyncio.sleep(self._failed(error))

    async def _list(self) -> None:
        answer = await self._kube.list_answer(self._kind, self._namespace, self._labels)
        for change in self._state.listed(answer):
            self._on_change(change)

    async def _follow(self) -> None:
        """Deliver the changes of one watch until the server ends it. Raises KubeError, ListAgainError."""
        server_seconds = random.uniform(*self._server_seconds)
        async with self._kube.watch(
            self._kind,
            self._namespace,
            self._labels,
            resource_version=self._state.resource_version,
            server_seconds=server_seconds,
            silence_seconds=server_seconds + self._silence_seconds,
        ) as lines:
            opened, worked = time.monotonic(), False
            settled = asyncio.get_running_loop().call_later(self._settled_seconds, self._worked)
            try:
                async for line in lines:
                    change = self._state.received(line)
                    worked = True
                    self._worked()
                    if change is not None:
                        self._on_change(change)
            finally:
                settled.cancel()
        if not worked and time.monotonic() - opened < self._settled_seconds:
            raise KubeError(0, "Closed", "the API server ended the watch as soon as it was open")

    def _worked(self) -> None:
        if self._failing_since is not None:
            self._log.info("watch_resumed", away_seconds=round(time.monotonic() - self._failing_since, 1))
        self._failing_since = None
        self._reported.clear()

    def _failed(self, error: KubeError | ListAgainError) -> float:
        """Record a failure; return the seconds to wait before the next attempt."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        away_seconds = now - self._failing_since
        reason = error.reason if isinstance(error, KubeError) else "Expired"
        if reason not in self._reported:
            self._reported.add(reason)
            self._log.warning("watch_interrupted", reason=reason, error=str(error))
        if away_seconds > LIST_AGAIN_SECONDS or (isinstance(error, KubeError) and not _goes_on(error)):
            self._state.expire()
        asked_seconds = error.retry_after_seconds if isinstance(error, KubeError) else 0.0
        return max(backoff_seconds(away_seconds), min(asked_seconds, RETRY_AFTER_SECONDS_MAX))


def _goes_on(error: KubeError) -> bool:
    """True if the same watch may succeed later; False if the server rejects this version."""
    return error.status in (0, 401, 403, 429) or error.status >= 500
