"""Reconciliation loop: one task per ElasticJob looks, decides by `decisions.reconcile`, and acts.

A wake-up (an event of the object or its pods, a change at its master, a timer) only triggers a new look; the
state is read anew each time. Looks at one job never overlap.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import structlog

from elastane_operator import KIND
from elastane_operator.decisions.actions import (
    Action,
    AddFinalizer,
    AskMaster,
    CreateObject,
    CreatePod,
    DeleteObject,
    DeletePod,
    Note,
    RemoveFinalizer,
)
from elastane_operator.decisions.observed import MasterView, Objects, Observed, PoolView
from elastane_operator.decisions.pod_labels import CAPACITY_ON_DEMAND, LABEL_JOB
from elastane_operator.decisions.pods import PodView, read_pod
from elastane_operator.decisions.pool_spec import DeviceType, read_pool_spec
from elastane_operator.decisions.pool_status import read_pool_status
from elastane_operator.decisions.reconcile import Decision, reconcile, refuse
from elastane_operator.decisions.reconciliation import FINALIZER
from elastane_operator.decisions.spec import (
    Identity,
    InvalidSpecError,
    JobSpec,
    job_name,
    read_identity,
    read_spec,
)
from elastane_operator.decisions.status import read_status, write_status
from elastane_operator.edge import events
from elastane_operator.edge.access import master_access
from elastane_operator.edge.kube import KubeClient, KubeError
from elastane_operator.edge.masters import (
    Access,
    MasterAwayError,
    MasterRefusedError,
    Masters,
    MasterWatch,
)
from elastane_operator.edge.patches import merge_patch
from elastane_operator.manifests.master import MasterDefaults, master_address, master_objects
from elastane_operator.manifests.pods import server_pod, worker_container, worker_pod
from elastane_operator.settings import OperatorSettings, own_namespace

Key = tuple[str, str]
"""Namespace and name of an ElasticJob."""

AGAIN_SECONDS = 0.5
"""Delay before the next look after actions: their effects show soon, and the master is not polled nonstop."""

REFUSED_SECONDS = 30.0
"""A request refused by the master is repeated after this time, or when the spec has changed."""

NAME_TAKEN = "NameTaken"
_BACKOFF_SECONDS_MAX = 30.0
_log = structlog.get_logger(__name__)


class _Desk:
    """In-memory state of one job; it may be lost without harm."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.watch: MasterWatch | None = None
        self.refused: tuple[str, str, float, int] | None = None  # what, words, until, generation
        self.failures = 0
        self.told = ""


class Controller:
    """All jobs of an operator. Call `wake` on every event and `close` at the end."""

    def __init__(
        self,
        kube: KubeClient,
        masters: Masters,
        settings: OperatorSettings,
        *,
        on_scheduling: Callable[[str], None] = lambda _: None,
    ) -> None:
        """on_scheduling: called with the pool of a job whose share has changed."""
        self._kube = kube
        self._on_scheduling = on_scheduling
        self._masters = masters
        self._settings = settings
        self._defaults = MasterDefaults(settings.master_image, settings.cluster_domain, own_namespace())
        self._desks: dict[Key, _Desk] = {}
        self._looks = asyncio.Semaphore(settings.looks_max)

    def wake(self, namespace: str, name: str) -> None:
        """Trigger a look at a job: it, its pods or its master changed. Call it from the event loop."""
        key = (namespace, name)
        desk = self._desks.get(key)
        if desk is None:
            desk = self._desks[key] = _Desk()
            desk.task = asyncio.create_task(self._serve(key, desk), name=f"{namespace}/{name}")
        desk.wake.set()

    async def close(self) -> None:
        """Stop looking at jobs, and close all watches."""
        desks, self._desks = list(self._desks.values()), {}
        for desk in desks:
            if desk.task is not None:
                desk.task.cancel()
            if desk.watch is not None:
                desk.watch.close()
        await asyncio.gather(*(desk.task for desk in desks if desk.task is not None), return_exceptions=True)

    async def _serve(self, key: Key, desk: _Desk) -> None:
        while True:
            # Cleared before the look, so that an event during it triggers another one.
            desk.wake.clear()
            try:
                async with self._looks:
                    after = await self._look(key, desk)
                desk.failures = 0
            except _GoneError:
                break
            except KubeError as error:
                after = self._failed(key, desk, error)
            except Exception as error:  # noqa: BLE001 - one job's trouble must not end the others'
                _log.exception("look_failed", job="/".join(key))
                after = self._failed(key, desk, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(desk.wake.wait(), after)
        if desk.watch is not None:
            desk.watch.close()
        if self._desks.get(key) is desk:
            del self._desks[key]
            if desk.wake.is_set():  # recreated under its name meanwhile
                self.wake(*key)

    def _failed(self, key: Key, desk: _Desk, error: Exception) -> float:
        if isinstance(error, KubeError) and error.conflict:
            return 0.05  # another writer was faster: look again
        desk.failures += 1
        wait = min(0.5 * 2.0 ** min(desk.failures - 1, 10), _BACKOFF_SECONDS_MAX)
        _log.warning("look_again", job="/".join(key), error=str(error), wait_seconds=wait)
        return wait

    # ------------------------------------------------------------------ one look

    async def _look(self, key: Key, desk: _Desk) -> float | None:
        """Look, decide and act; return the seconds until the next look. Raises KubeError, _GoneError."""
        try:
            body = await self._kube.get("ElasticJob", *key)
        except KubeError as error:
            if error.not_found:
                raise _GoneError from None
            raise
        identity, status, now = read_identity(body), read_status(body), datetime.now(UTC)
        try:
            spec = read_spec(body)
        except InvalidSpecError as error:
            decision = refuse(identity, status, error.problems, now)
            await self._carry_out(identity, None, None, body, decision, desk)
            return None
        # Pods first: the master's answer must not be older than the pod ends that it explains.
        pods, objects = await self._pods(identity, spec), await self._objects(identity, spec)
        access, view = await self._ask_master(identity, spec, desk, wanted=not status.settled)
        address = master_address(identity, spec, self._defaults)
        pool, devices = await self._pool(identity, spec)
        autoscalers, unknown = await self._autoscalers(identity, view)
        observed = Observed(
            pods,
            view,
            objects,
            master_address=address,
            trouble=desk.told,
            pool=pool,
            autoscalers=autoscalers,
            autoscalers_error=unknown,
        )
        decision = reconcile(identity, spec, status, observed, now)
        self._follow_master(key, desk, identity, spec, access, follow=not decision.status.settled)
        return await self._carry_out(identity, spec, access, body, decision, desk, devices)

    async def _pool(
        self, identity: Identity, spec: JobSpec
    ) -> tuple[PoolView | None, Mapping[str, DeviceType]]:
        """Return the job's share of its pool, and the pool's device types by name. Raises KubeError."""
        if spec.scheduling is None:
            return None, {}
        name = spec.scheduling.pool
        try:
            body = await self._kube.get("ElasticPool", "", name)
            types = {each.name: each for each in read_pool_spec(body).types}
        except KubeError as error:
            if not error.not_found:
                raise
            return PoolView(error=f"there is no ElasticPool {name}"), {}
        except InvalidSpecError as error:
            return PoolView(error=f"ElasticPool {name} is invalid: {error}"), {}
        return PoolView(read_pool_status(body).share_of(identity.uid)), types

    async def _autoscalers(self, identity: Identity, view: MasterView) -> tuple[tuple[str, ...], str]:
        """Return the HorizontalPodAutoscalers of a job that scales by itself, and why they are unknown.

        Raises KubeError, except if access to them is denied, or the cluster does not have the kind.
        """
        if view.job is None or view.job.targets is None:
            return (), ""
        try:
            found = await self._kube.list("HorizontalPodAutoscaler", identity.namespace)
        except KubeError as error:
            if error.status not in (403, 404):
                raise
            return (), str(error)
        targets = [
            (each["metadata"]["name"], (each.get("spec") or {}).get("scaleTargetRef") or {}) for each in found
        ]
        wanted = {"kind": KIND, "name": identity.name}
        return tuple(sorted(name for name, target in targets if target.items() >= wanted.items())), ""

    async def _pods(self, identity: Identity, spec: JobSpec) -> tuple[PodView, ...]:
        container = worker_container(spec)
        found = await self._kube.list("Pod", identity.namespace, f"{LABEL_JOB}={identity.name}")
        views = [
            read_pod(pod, container)
            for pod in found
            if (pod["metadata"].get("labels") or {}).get(LABEL_JOB) == identity.name
        ]
        return tuple(view for view in views if view.index >= 0)

    async def _objects(self, identity: Identity, spec: JobSpec) -> Objects:
        present, missing, foreign = [], [], []
        for body in master_objects(identity, spec, self._defaults):
            kind, name = body["kind"], body["metadata"]["name"]
            try:
                there = await self._kube.get(kind, identity.namespace, name)
            except KubeError as error:
                if not error.not_found:
                    raise
                missing.append(body)
            else:
                if _is_of(there, identity):
                    present.append((kind, name))
                else:
                    foreign.append(f"{kind} {name}")
        return Objects(tuple(present), tuple(missing), tuple(foreign))

    async def _ask_master(
        self, identity: Identity, spec: JobSpec, desk: _Desk, *, wanted: bool
    ) -> tuple[Access | None, MasterView]:
        if not wanted:
            return None, MasterView(False, error="not asked: the job is over")
        try:
            access = await master_access(
                self._kube, identity, spec, self._defaults, self._settings.trusted_masters()
            )
            view = await self._masters.view(
                access,
                job_name(identity, spec),
                measured=spec.scheduling is not None,
                tasks=spec.parameter_servers is not None,
            )
        except MasterAwayError as error:
            return None, MasterView(False, error=str(error))
        if desk.refused is not None and view.reachable:
            what, words, until, generation = desk.refused
            if generation == identity.generation and asyncio.get_running_loop().time() < until:
                return access, MasterView(True, view.job, refused=words, refused_what=what)
            desk.refused = None
        return access, view

    def _follow_master(
        self, key: Key, desk: _Desk, identity: Identity, spec: JobSpec, access: Access | None, *, follow: bool
    ) -> None:
        if desk.watch is not None and (not follow or desk.watch.access != access):
            desk.watch.close()
            desk.watch = None
        if follow and desk.watch is None and access is not None:
            desk.watch = MasterWatch(
                self._masters, access, job_name(identity, spec), on_change=lambda: self.wake(*key)
            )

    # ------------------------------------------------------------------ what was decided

    async def _carry_out(
        self,
        identity: Identity,
        spec: JobSpec | None,
        access: Access | None,
        body: Mapping[str, Any],
        decision: Decision,
        desk: _Desk,
        devices: Mapping[str, DeviceType] = MappingProxyType({}),
    ) -> float | None:
        """Write the status, then carry the actions out in order until one fails. Raises KubeError."""
        # The status first: it records pod ends that the actions may erase (see `reconcile`).
        version = await self._write_status(identity, body, decision)
        now = datetime.now(UTC)
        for note in decision.notes:
            _log.info("decided", job=identity.full_name, reason=note.reason, message=note.message)
            await events.post(self._kube, identity, note, now)
        done: dict[tuple[str, str], list[str]] = {}
        taken: KubeError | None = None
        try:
            for action in decision.actions:
                try:
                    version = await self._act(identity, spec, access, action, version, desk, devices)
                except KubeError as error:
                    if error.reason != NAME_TAKEN:
                        raise
                    taken = error  # one place cannot be filled; the others can
                    await self._tell_failure(identity, action, error, desk, now)
                    continue
                reason, what = _what(action)
                if reason:
                    done.setdefault((reason, getattr(action, "reason", "")), []).append(what)
        except KubeError as error:
            if not error.conflict:
                await self._tell_failure(identity, action, error, desk, now)
            raise
        finally:
            for (reason, why), names in done.items():
                message = f"{', '.join(name for name in names if name)}: {why}".removeprefix(": ")
                _log.info("done", job=identity.full_name, reason=reason, message=message)
                await events.post(self._kube, identity, Note("Normal", reason, message), now)
        if taken is not None:
            raise taken
        desk.told = ""
        if decision.status.finished:
            return decision.next_look
        usual = self._settings.look_seconds if not decision.actions else AGAIN_SECONDS
        return usual if decision.next_look is None else min(usual, max(decision.next_look, 0.05))

    async def _write_status(self, identity: Identity, body: Mapping[str, Any], decision: Decision) -> str:
        """Write the status; return the new resourceVersion.

        KubeError `conflict` if the object has changed.
        """
        patch = merge_patch(body.get("status") or {}, write_status(decision.status))
        if not patch:
            return identity.resource_version
        whole: dict[str, Any] = {"status": patch}
        if identity.resource_version:
            whole["metadata"] = {"resourceVersion": identity.resource_version}
        new = await self._kube.patch(
            "ElasticJob", identity.namespace, identity.name, whole, subresource="status"
        )
        scheduling = decision.status.scheduling
        if scheduling is not None and patch.keys() & {"phase", "scheduling"}:
            self._on_scheduling(scheduling.pool)
        return str((new.get("metadata") or {}).get("resourceVersion") or "")

    async def _act(
        self,
        identity: Identity,
        spec: JobSpec | None,
        access: Access | None,
        action: Action,
        version: str,
        desk: _Desk,
        devices: Mapping[str, DeviceType],
    ) -> str:
        """Carry out one action; return the object's resourceVersion afterwards. Raises KubeError."""
        kube, namespace = self._kube, identity.namespace
        match action:
            case AddFinalizer():
                return await self._set_finalizers(identity, (*identity.finalizers, FINALIZER), version)
            case RemoveFinalizer():
                kept = tuple(each for each in identity.finalizers if each != FINALIZER)
                return await self._set_finalizers(identity, kept, version)
            case CreatePod(index=index, role="ps"):
                assert spec is not None and access is not None
                await self._create(identity, "Pod", server_pod(identity, spec, index, access.address))
            case CreatePod(index=index, device_type=kind):
                assert spec is not None and access is not None
                is_on_demand = spec.scheduling is None and kind == CAPACITY_ON_DEMAND
                if kind and not is_on_demand and kind not in devices:
                    raise KubeError(422, "NoDeviceType", f"the job's pool has no device type {kind} now")
                pod = worker_pod(
                    identity, spec, index, access.address, devices.get(kind), on_demand=is_on_demand
                )
                await self._create(identity, "Pod", pod)
            case CreateObject(kind=kind, body=body):
                await self._create(identity, kind, body)
            case DeletePod(name=name, uid=uid):
                await kube.delete("Pod", namespace, name, uid=uid)
            case DeleteObject(kind=kind, name=name):
                await kube.delete(kind, namespace, name)
            case AskMaster(what=what):
                assert spec is not None and access is not None
                await self._ask(identity, spec, access, what, desk)
        return version

    async def _ask(self, identity: Identity, spec: JobSpec, access: Access, what: str, desk: _Desk) -> None:
        try:
            await self._masters.ask(access, what, job_name(identity, spec), spec)
        except MasterRefusedError as error:
            until = asyncio.get_running_loop().time() + REFUSED_SECONDS
            desk.refused = (what, str(error), until, identity.generation)
            _log.warning("master_refused", job=identity.full_name, what=what, error=str(error))
            await events.post(
                self._kube, identity, Note("Warning", "MasterRefused", f"{what}: {error}"), datetime.now(UTC)
            )
        except MasterAwayError as error:
            _log.warning("master_away", job=identity.full_name, what=what, error=str(error))

    async def _create(self, identity: Identity, kind: str, body: Mapping[str, Any]) -> None:
        """Create the object, or accept an existing one that belongs to this job."""
        name = body["metadata"]["name"]
        try:
            await self._kube.create(kind, identity.namespace, body)
        except KubeError as error:
            if not error.conflict:
                raise
            # An earlier attempt may have created it although its answer was lost.
            there = await self._kube.get(kind, identity.namespace, name)
            if not _is_of(there, identity):
                raise KubeError(422, NAME_TAKEN, f"{kind} {name} is there and not of this job") from None

    async def _set_finalizers(self, identity: Identity, finalizers: tuple[str, ...], version: str) -> str:
        metadata: dict[str, Any] = {"finalizers": list(finalizers)}
        if version:
            metadata["resourceVersion"] = version
        try:
            new = await self._kube.patch(
                "ElasticJob", identity.namespace, identity.name, {"metadata": metadata}
            )
        except KubeError as error:
            # Already deleted: there is no finalizer left to remove.
            if error.not_found and identity.deleted is not None:
                return version
            raise
        return str((new.get("metadata") or {}).get("resourceVersion") or "")

    async def _tell_failure(
        self, identity: Identity, action: Action, error: KubeError, desk: _Desk, now: datetime
    ) -> None:
        """Post a failure once: the action is retried and would repeat it."""
        said = f"{type(action).__name__}: {error}"
        if desk.told != said:
            desk.told = said
            await events.post(self._kube, identity, Note("Warning", "ActionFailed", said), now)


class _GoneError(Exception):
    """The ElasticJob no longer exists."""


def _what(action: Action) -> tuple[str, str]:
    """Reason and subject of the Event for an action that was carried out."""
    match action:
        case CreatePod(index=index, role=role):
            return "PodsCreated", f"{role} {index}"
        case DeletePod(name=name):
            return "PodsDeleted", name
        case CreateObject(kind=kind):
            return "MasterCreated", kind
        case DeleteObject(kind=kind):
            return "MasterDeleted", kind
        case AskMaster(what=what):
            return f"Master{what}", ""
    return "", ""


def _is_of(body: Mapping[str, Any], identity: Identity) -> bool:
    """True if an object belongs to a job."""
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == identity.uid for owner in owners)
