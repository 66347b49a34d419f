"""The operator process: leader election, the watches, the controller, and an orderly shutdown.

Watches of ElasticJobs and their pods wake the controller, which reads the state anew: nothing depends on
having seen an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import structlog
from aiohttp import web

from elastane_operator import GROUP, VERSION
from elastane_operator.decisions.pod_labels import LABEL_JOB, LABEL_POOL
from elastane_operator.decisions.pool_jobs import pool_of
from elastane_operator.decisions.watching import Change, job_essence
from elastane_operator.edge.controller import Controller
from elastane_operator.edge.election import Election
from elastane_operator.edge.kube import KubeClient, KubeError
from elastane_operator.edge.masters import Masters
from elastane_operator.edge.pools import PoolKeeper
from elastane_operator.edge.watches import Watch
from elastane_operator.settings import OperatorSettings
from elastane_proto import log_lines

CODE_OK, CODE_FAILED = 0, 1
LOG_LINES_PER_SECOND_MAX = 100
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = structlog.get_logger(__name__)


class CannotStartError(Exception):
    """The cluster does not meet the operator's requirements; the text says what to do."""


async def serve(settings: OperatorSettings) -> int:
    """Run until stopped or until the lease is lost; return the exit code. Raises CannotStartError."""
    try:
        kube = await KubeClient.open(settings.kubeconfig, timeout_seconds=settings.api_timeout_seconds)
    except Exception as error:
        raise CannotStartError(
            f"no cluster: {error} (set --kubeconfig or KUBECONFIG, or run in a cluster)"
        ) from error
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    election = _election(kube, settings)
    masters = Masters(settings.master_timeout_seconds)
    pools = PoolKeeper(kube, settings, on_share=lambda namespace, name: controller.wake(namespace, name))
    controller = Controller(kube, masters, settings, on_scheduling=pools.wake)
    try:
        async with _health(settings.health, election):
            await _check_cluster(kube, settings)
            if election is not None and not await _unless(stop, election.acquire()):
                return CODE_OK
            return await _work(controller, pools, kube, settings, election, stop)
    finally:
        await pools.close()
        await controller.close()
        await masters.close()
        if election is not None:
            await election.release()
        await kube.close()


async def _work(
    controller: Controller,
    pools: PoolKeeper,
    kube: KubeClient,
    settings: OperatorSettings,
    election: Election | None,
    stop: asyncio.Event,
) -> int:
    namespaces = settings.served_namespaces()
    watches = [
        watch for namespace in namespaces or ("",) for watch in _watches(controller, pools, kube, namespace)
    ]
    watches.append(_pool_watch(pools, kube))
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(watch.run()) for watch in watches]
    waits.append(asyncio.create_task(stop.wait()))
    if election is not None:
        waits.append(asyncio.create_task(election.hold()))
    _log.info("works", namespaces=", ".join(namespaces) or "all", identity=settings.identity)
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    lost = election is not None and not election.leads
    for task in waits:
        task.cancel()
    await pools.close()
    await controller.close()
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for error in errors:
        _log.error("work_failed", exc_info=error)
    return CODE_FAILED if lost or errors else CODE_OK


def _pool_watch(pools: PoolKeeper, kube: KubeClient) -> Watch:
    """Return the watch of the cluster's pools. If their CRD is missing, it retries at long intervals."""

    def pool_changed(change: Change) -> None:
        pools.wake(change.object["metadata"]["name"])

    return Watch(kube, "ElasticPool", on_change=pool_changed, essence=job_essence)


def _watches(
    controller: Controller, pools: PoolKeeper, kube: KubeClient, namespace: str
) -> tuple[Watch, Watch]:
    """Watches of one namespace (empty: all) that wake the controller."""

    def job_changed(change: Change) -> None:
        metadata = change.object["metadata"]
        controller.wake(metadata["namespace"], metadata["name"])
        pools.job_changed(metadata["namespace"], metadata["name"], pool_of(change.object))

    def pod_changed(change: Change) -> None:
        metadata = change.object["metadata"]
        controller.wake(metadata["namespace"], metadata["labels"][LABEL_JOB])
        if pool := metadata["labels"].get(LABEL_POOL):
            pools.wake(pool)

    return (
        Watch(kube, "ElasticJob", namespace, on_change=job_changed, essence=job_essence),
        Watch(kube, "Pod", namespace, on_change=pod_changed, labels=LABEL_JOB),
    )


async def _check_cluster(kube: KubeClient, settings: OperatorSettings) -> None:
    namespace = (*settings.served_namespaces(), settings.election_namespace())[0]
    while True:
        try:
            await kube.list("ElasticJob", namespace)
            return
        except KubeError as error:
            if error.not_found:
                raise CannotStartError(
                    f"the cluster does not know ElasticJobs ({GROUP}/{VERSION}): "
                    "run kubectl apply -k deploy/kubernetes/crd first"
                ) from error
            if error.status in (401, 403):
                raise CannotStartError(f"the API server refuses: {error}") from error
            _log.warning("waits_for_api_server", error=str(error))
            await asyncio.sleep(1.0)


def _election(kube: KubeClient, settings: OperatorSettings) -> Election | None:
    if not settings.leader_election:
        return None
    return Election(
        kube,
        namespace=settings.election_namespace(),
        name=settings.lease_name,
        identity=settings.identity,
        lease_seconds=settings.lease_seconds,
        monotonic=time.monotonic,
    )


async def _unless(stop: asyncio.Event, work: Any) -> bool:
    """Wait for `work` until `stop` is set; True if the work finished."""
    task, stopped = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return False


@contextlib.asynccontextmanager
async def _health(address: str, election: Election | None) -> AsyncIterator[None]:
    """Serve GET /healthz. It succeeds on leader and standby alike, as long as the process answers."""
    if not address:
        yield
        return

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"leads": election is None or election.leads})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host, _, port = address.rpartition(":")
    try:
        await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
    except (OSError, ValueError) as error:
        await runner.cleanup()
        raise CannotStartError(f"cannot listen on {address} (--health HOST:PORT): {error}") from error
    try:
        yield
    finally:
        await runner.cleanup()


def configure_logs(level: str, form: Literal["text", "json"]) -> None:
    """Log to stderr in the format of a master's lines; the libraries' own messages from warnings on."""
    log_lines.configure(
        level,
        "json" if form == "json" else "console",
        lines_per_second=LOG_LINES_PER_SECOND_MAX,
        whole_process=True,
    )
