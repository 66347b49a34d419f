"""Pools: one task per ElasticPool looks, decides by `decisions.pools`, and writes the pool's status.

It changes no pod and no job: jobs read their share from the status written here. Every change of a pool, its
jobs or its pods triggers a look; looks at one pool never overlap.

A plan for many jobs takes a second of computation, so it is made in a thread, without blocking the election
and the jobs. It is written only if nobody has changed the pool since it was read, so a late plan, or that of
an operator that no longer leads, changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from elastane_common.bounded_thread import BoundedThread, TooSlow
from elastane_common.cancellation import end_all
from elastane_operator.decisions.pod_labels import LABEL_POOL
from elastane_operator.decisions.pool_jobs import PoolJob, PoolPod, pool_of, read_pool_job, read_pool_pod
from elastane_operator.decisions.pool_spec import PoolSpec, read_pool_spec
from elastane_operator.decisions.pool_status import PoolStatus, read_pool_status, write_pool_status
from elastane_operator.decisions.pools import look_at_pool, refuse_pool
from elastane_operator.decisions.spec import InvalidSpecError
from elastane_operator.edge.kube import KubeClient, KubeError
from elastane_operator.edge.patches import merge_patch
from elastane_operator.settings import OperatorSettings

PAUSE_SECONDS = 0.2
"""Changes that follow each other this fast are looked at together."""

PLAN_SECONDS_MAX = 30.0
"""A plan that takes longer is given up: the pool's jobs keep what they have until one is made."""

_BACKOFF_SECONDS_MAX = 30.0
_log = structlog.get_logger(__name__)


class _Desk:
    """In-memory state of one pool; it may be lost without harm."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.failures = 0
        self.plan: BoundedThread[PoolStatus] = BoundedThread("plan of a pool", PLAN_SECONDS_MAX)


class PoolKeeper:
    """All pools of an operator. Call `wake` on every event and `close` at the end.

    on_share: called with namespace and name of a job whose share has changed.
    """

    def __init__(
        self, kube: KubeClient, settings: OperatorSettings, *, on_share: Callable[[str, str], None]
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._on_share = on_share
        self._desks: dict[str, _Desk] = {}
        self._pools: dict[tuple[str, str], str] = {}

    def wake(self, name: str) -> None:
        """Trigger a look at a pool. Call it from the event loop."""
        desk = self._desks.get(name)
        if desk is None:
            desk = self._desks[name] = _Desk()
            desk.task = asyncio.create_task(self._serve(name, desk), name=f"pool {name}")
        desk.wake.set()

    def job_changed(self, namespace: str, name: str, pool: str) -> None:
        """Wake the pool of a changed job, and its previous pool. pool: empty: none.

        A deleted job may be reported without its spec.
        """
        before = self._pools.pop((namespace, name), "")
        if pool:
            self._pools[namespace, name] = pool
        for each in {before, pool} - {""}:
            self.wake(each)

    async def close(self) -> None:
        """Stop looking at pools."""
        desks, self._desks = list(self._desks.values()), {}
        await end_all([desk.task for desk in desks if desk.task is not None])

    async def _serve(self, name: str, desk: _Desk) -> None:
        while True:
            desk.wake.clear()
            try:
                await self._look(name, desk)
                desk.failures, after = 0, self._settings.look_seconds
            except _GoneError:
                break
            except KubeError as error:
                after = self._failed(name, desk, error)
            except TooSlow as error:
                after = self._failed(name, desk, error)
            except Exception as error:  # noqa: BLE001 - one pool's trouble must not end the others'
                _log.exception("look_failed", pool=name)
                after = self._failed(name, desk, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(desk.wake.wait(), after)
            await asyncio.sleep(PAUSE_SECONDS)
        if self._desks.get(name) is desk:
            del self._desks[name]
            if desk.wake.is_set():  # recreated under its name meanwhile
                self.wake(name)

    def _failed(self, name: str, desk: _Desk, error: Exception) -> float:
        if isinstance(error, KubeError) and error.conflict:
            return 0.05  # another writer was faster: look again
        desk.failures += 1
        wait = min(0.5 * 2.0 ** min(desk.failures - 1, 10), _BACKOFF_SECONDS_MAX)
        _log.warning("look_again", pool=name, error=str(error), wait_seconds=wait)
        return wait

    async def _look(self, name: str, desk: _Desk) -> None:
        """Look, decide and write. Raises KubeError, TooSlow, _GoneError."""
        try:
            body = await self._kube.get("ElasticPool", "", name)
        except KubeError as error:
            if error.not_found:
                raise _GoneError from None
            raise
        status, now = read_pool_status(body), datetime.now(UTC).replace(microsecond=0)
        generation = int(body["metadata"].get("generation", 1))
        try:
            spec = read_pool_spec(body)
        except InvalidSpecError as error:
            await self._write(name, body, refuse_pool(status, error.problems, now, generation))
            return
        # Jobs before pods: pods created after a job was read are within its acknowledged share.
        jobs = await self._jobs(name, spec)
        pods = await self._pods(name)
        after = await desk.plan.run(lambda: look_at_pool(spec, status, jobs, pods, now, generation))
        if not await self._write(name, body, after):
            return
        before = {share.uid: share for share in status.shares}
        for share in after.shares:
            if before.get(share.uid) != share:
                _log.info("share", pool=name, job=f"{share.namespace}/{share.name}", reason=share.reason)
                self._on_share(share.namespace, share.name)

    async def _jobs(self, name: str, spec: PoolSpec) -> list[PoolJob]:
        found: list[PoolJob] = []
        for namespace in self._settings.served_namespaces() or ("",):
            bodies = await self._kube.list("ElasticJob", namespace)
            found += [read_pool_job(body, spec) for body in bodies if pool_of(body) == name]
        return found

    async def _pods(self, name: str) -> list[PoolPod]:
        found: list[PoolPod] = []
        for namespace in self._settings.served_namespaces() or ("",):
            bodies = await self._kube.list("Pod", namespace, f"{LABEL_POOL}={name}")
            read = [read_pool_pod(body) for body in bodies]
            found += [pod for pod in read if pod is not None]
        return found

    async def _write(self, name: str, body: Mapping[str, Any], status: PoolStatus) -> bool:
        """Write the status if it has changed; return whether it was written.

        KubeError `conflict` if another writer has changed the pool.
        """
        patch = merge_patch(body.get("status") or {}, write_pool_status(status))
        if not patch:
            return False
        whole = {"metadata": {"resourceVersion": body["metadata"]["resourceVersion"]}, "status": patch}
        await self._kube.patch("ElasticPool", "", name, whole, subresource="status")
        return True


class _GoneError(Exception):
    """The ElasticPool no longer exists."""
