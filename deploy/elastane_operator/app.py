"""The operator process: leader election, kopf's watches, the controller, and an orderly shutdown.

kopf lists and watches ElasticJobs and their pods, restarts failed watches, and handles signals. Only raw
event handlers are registered: kopf's progress is never written to an object, so nothing depends on having
seen an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import kopf
import structlog
from aiohttp import web

from elastane_operator import GROUP, PLURAL, VERSION
from elastane_operator.decisions.pods import LABEL_JOB
from elastane_operator.edge.controller import Controller
from elastane_operator.edge.election import Election
from elastane_operator.edge.kube import KubeClient, KubeError
from elastane_operator.edge.masters import Masters
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
    if settings.kubeconfig:
        os.environ["KUBECONFIG"] = settings.kubeconfig  # kopf reads it from there
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
    controller = Controller(kube, masters, settings)
    try:
        async with _health(settings.health, election):
            await _check_cluster(kube, settings)
            if election is not None and not await _unless(stop, election.acquire()):
                return CODE_OK
            return await _work(controller, kube, settings, election, stop)
    finally:
        await controller.close()
        await masters.close()
        if election is not None:
            await election.release()
        await kube.close()


async def _work(
    controller: Controller,
    kube: KubeClient,
    settings: OperatorSettings,
    election: Election | None,
    stop: asyncio.Event,
) -> int:
    namespaces = settings.served_namespaces()
    watching = asyncio.create_task(
        kopf.operator(
            registry=_registry(controller, kube),
            settings=_kopf_settings(),
            standalone=True,  # the lease decides who works
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
        )
    )
    waits: list[asyncio.Task[Any]] = [watching]
    if election is not None:
        waits.append(asyncio.create_task(election.hold()))
    _log.info("works", namespaces=", ".join(namespaces) or "all", identity=settings.identity)
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    lost = election is not None and not election.leads
    await controller.close()
    stop.set()
    for task in waits[1:]:
        task.cancel()
    # kopf's task ends by cancelling itself, which must not count as a failure.
    outcome = (await asyncio.gather(*waits, return_exceptions=True))[0]
    if isinstance(outcome, Exception):
        _log.error("watches_failed", error=str(outcome))
        return CODE_FAILED
    return CODE_FAILED if lost else CODE_OK


def _registry(controller: Controller, kube: KubeClient) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    seen: dict[tuple[str, str], str] = {}

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await kube.connection()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def job_event(event: Mapping[str, Any], **_: Any) -> None:
        metadata = event["object"]["metadata"]
        key = (metadata["namespace"], metadata["name"])
        # The operator's own status updates come back as events; reacting to them would never end.
        essence = json.dumps(
            [
                metadata.get("uid"),
                metadata.get("generation"),
                metadata.get("deletionTimestamp"),
                metadata.get("finalizers"),
                event["object"].get("spec"),
            ],
            sort_keys=True,
            default=str,
        )
        if event.get("type") == "DELETED":
            seen.pop(key, None)
        elif event.get("type") is not None and seen.get(key) == essence:
            return
        else:
            seen[key] = essence
        controller.wake(*key)

    @kopf.on.event("v1", "pods", labels={LABEL_JOB: kopf.PRESENT}, registry=registry)
    async def pod_event(event: Mapping[str, Any], **_: Any) -> None:
        metadata = event["object"]["metadata"]
        controller.wake(metadata["namespace"], metadata["labels"][LABEL_JOB])

    return registry


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # `edge.events` posts ours
    settings.scanning.disabled = True  # needs no right to watch all definitions and namespaces
    settings.watching.label_selectors["v1", "pods"] = LABEL_JOB
    # Pods are deleted within seconds; batching of events would delay the reaction and gain nothing.
    settings.watching.reconnect_backoff = 0.5
    # A server that restarted while a watch was being opened may never answer it; these bound the silence.
    settings.watching.connect_timeout = 5
    settings.watching.server_timeout = 20
    settings.watching.inactivity_timeout = 30
    settings.networking.request_timeout = 60
    return settings


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
                    "apply deploy/kubernetes/crd/elasticjob.yaml first"
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
    """Log to stderr in the format of a master's lines; kopf's own messages from warnings on."""
    log_lines.configure(
        level,
        "json" if form == "json" else "console",
        lines_per_second=LOG_LINES_PER_SECOND_MAX,
        whole_process=True,
    )
