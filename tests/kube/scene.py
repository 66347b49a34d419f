"""Set-up of a scenario: a namespace of an API, a master, an operator, a kubelet, and one ElasticJob."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

import patience
from elastane_proto.v1 import job_pb2, job_pb2_grpc
from kube.api import CORE, JOBS, ApiError, Object
from kube.gateway import Cut
from kube.kubelet import Kubelet
from kube.mirror import Mirror
from kube.operator_process import Cluster, OperatorProcess
from kube.trainer import Script

JOB = "train"
FINISHED = ("Succeeded", "Failed", "Cancelled", "MaxWaitTimeExceeded")


@dataclass
class Scene:
    """One scenario's namespace, with actions of a user and waits for their effects."""

    cluster: Cluster
    namespace: str
    mirror: Mirror
    kubelet: Kubelet
    operator: OperatorProcess
    master_address: str
    jobs: job_pb2_grpc.JobServiceStub
    script: Script = field(default_factory=Script)

    async def survive(
        self,
        cut: Cut,
        act: Callable[[], Awaitable[object]],
        reached: Callable[[], bool],
        what: str,
        seconds: float,
    ) -> bool:
        """Act, and wait until `reached`; the operator is killed and started again where the cut says.

        Returns whether the change had that write.
        """
        self.operator.gateway.cut = cut
        await act()
        reaching = asyncio.create_task(self.wait(reached, f"{what}, cut {cut.side} write {cut.at}", seconds))
        dying = asyncio.create_task(cut.done.wait())
        await asyncio.wait({reaching, dying}, return_when=asyncio.FIRST_COMPLETED)
        self.operator.gateway.cut = None
        dying.cancel()
        if cut.done.is_set():
            await self.operator.ended()
            self.operator.start()
        await reaching
        return cut.done.is_set()

    # ------------------------------------------------------------------ what a user does

    def body(self, name: str = JOB, **spec: Any) -> Object:
        """Return an ElasticJob with all required fields; `spec` overrides them."""
        base: Object = {
            "ests": 4,
            "workers": {"min": 1, "max": 2},
            "master": {"address": self.master_address},
            "restartBackoffSeconds": 0,
            "template": {
                "spec": {
                    # A real scheduler ignores these pods: the test's kubelet binds them.
                    "schedulerName": "elastane-test",
                    "terminationGracePeriodSeconds": 10,
                    "containers": [{"name": "worker", "image": "registry.invalid/worker:1"}],
                }
            },
        }
        metadata = {"name": name, "namespace": self.namespace}
        return {
            "apiVersion": "elastane.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": metadata,
            "spec": base | spec,
        }

    async def apply(self, **spec: Any) -> Object:
        """Create the job, as `kubectl create` does. Raises ApiError."""
        if "ests" in spec:
            self.script.ests = spec["ests"]
        job = await self.cluster.api.create(self._path(), self.body(**spec))
        self.mirror.jobs[JOB] = job
        return job

    async def change(self, **spec: Any) -> Object:
        """Patch the job's spec, as `kubectl patch` does."""
        return await self.cluster.api.patch(self._path(JOB), {"spec": spec})

    async def scale(self, replicas: int) -> Object:
        """Scale by a PUT to the scale subresource, as `kubectl scale` and an HPA do."""
        path = f"{self._path(JOB)}/scale"
        while True:
            scale = await self.cluster.api.get(path)
            scale["spec"]["replicas"] = replicas
            try:
                return await self.cluster.api.replace(path, scale)
            except ApiError as error:
                if error.status != 409:  # conflict with a write of the operator; kubectl retries too
                    raise

    async def delete(self) -> None:
        """Delete the job without waiting, as `kubectl delete --wait=false` does."""
        await self.cluster.api.delete(self._path(JOB))

    def _path(self, name: str = "") -> str:
        path = f"{JOBS}/namespaces/{self.namespace}/elasticjobs"
        return f"{path}/{name}" if name else path

    # ------------------------------------------------------------------ what is there

    @property
    def job(self) -> Object:
        return self.mirror.jobs.get(JOB, {})

    @property
    def status(self) -> Object:
        return dict(self.job.get("status") or {})

    @property
    def pods(self) -> dict[str, Object]:
        """Pods that have not ended and are not being deleted, by name."""
        return self.mirror.live_pods()

    def condition(self, kind: str) -> Object:
        """Return a condition of the job by type; empty if it has none."""
        return next((each for each in self.status.get("conditions", []) if each["type"] == kind), {})

    def events(self, reason: str = "") -> list[Object]:
        """Return the job's events, of one reason or all ("")."""
        return [
            event
            for event in self.mirror.events.values()
            if event["involvedObject"]["name"] == JOB and reason in ("", event["reason"])
        ]

    async def at_master(self) -> job_pb2.Job:
        """Return the job as known to its master."""
        request = job_pb2.JobServiceGetRequest(name=self.status["jobName"])
        return (await self.jobs.Get(request, wait_for_ready=True, timeout=20)).job

    def attending(self) -> list[str]:
        """Return the pods whose worker is connected to the master and has received a generation."""
        return [
            name
            for name, trainer in self.kubelet.trainers.items()
            if name in self.pods and trainer.protocol.generation > 0
        ]

    # ------------------------------------------------------------------ waiting

    async def wait(self, condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
        """Wait until the condition is true, and return its value.

        Raises AssertionError after `seconds`, with job, pods, events and the operator's log.
        """
        return await self.mirror.wait(condition, what, seconds, self.describe)

    async def eventually(
        self,
        look: Callable[[], Awaitable[Any]],
        condition: Callable[[Any], Any],
        what: str,
        seconds: float = 20.0,
    ) -> Any:
        """Poll `look` until the condition is true, for states without a watch; return what was found."""
        found: Any = None
        try:
            async with patience.within(seconds):
                while not condition(found := await look()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not within {seconds} s: {what}: {found}\n{self.describe()}") from None
        return found

    async def wait_phase(self, *phases: str, seconds: float = 20.0) -> Object:
        """Wait until the job is in one of these phases; return its status."""
        await self.wait(lambda: self.status.get("phase") in phases, f"phase {' or '.join(phases)}", seconds)
        return self.status

    async def wait_ready(self, count: int, seconds: float = 20.0) -> None:
        """Wait until the job runs with exactly `count` pods, whose workers are all ready."""

        def holds() -> bool:
            workers = self.status.get("workers", {})
            same = workers.get("ready") == workers.get("attending") == len(self.pods) == count
            return same and self.status.get("phase") == "Running"

        await self.wait(holds, f"{count} workers ready", seconds)

    async def wait_event(self, reason: str) -> Object:
        """Wait until the job has an event of that reason; return the latest one."""
        found = await self.wait(lambda: self.events(reason), f"an event {reason}")
        return dict(found[-1])

    async def wait_quiet(self, seconds: float) -> None:
        """Wait until the operator has written nothing for `seconds`."""
        await self.mirror.wait_quiet(lambda: len(self.operator.gateway.writes), seconds, self.describe)

    async def wait_gone(self, seconds: float = 20.0) -> None:
        """Wait until the job and its pods are deleted."""
        await self.wait(lambda: not self.job and not self.mirror.pods, "the job and its pods gone", seconds)

    def describe(self) -> str:
        """Describe job, pods, events and the operator's log, for error messages."""
        pods = [
            f"{name} {pod['status'].get('phase')} {pod['status'].get('reason', '')}"
            f" node={pod['spec'].get('nodeName')} deleted={pod['metadata'].get('deletionTimestamp')}"
            for name, pod in self.mirror.pods.items()
        ]
        events = [f"{event['type']} {event['reason']}: {event['message']}" for event in self.events()]
        writes = [f"{w.method} {w.path} {w.status} {w.body}" for w in self.operator.gateway.writes[-15:]]
        return "\n".join(
            [
                f"status: {json.dumps(self.status, indent=1)}",
                f"metadata: {self.job.get('metadata')}",
                "pods:",
                *pods,
                "events:",
                *events,
                f"in a ring: {self.attending()}",
                "the operator's last writes:",
                *writes,
                f"refused: {self.operator.gateway.refused[-3:]}",
                f"the operator said:\n{self.operator.said()}",
            ]
        )


@contextlib.asynccontextmanager
async def new_scene(cluster: Cluster, operator: OperatorProcess, master_address: str) -> AsyncIterator[Scene]:
    """Create a namespace for one scenario; remove it with all its objects afterwards."""
    namespace = f"elastane-test-{uuid.uuid4().hex[:8]}"
    api, script = cluster.api, Script()
    await api.create(f"{CORE}/namespaces", {"metadata": {"name": namespace}})
    try:
        async with (
            grpc.aio.insecure_channel(master_address) as channel,
            Mirror(api, namespace) as mirror,
            Kubelet(api, mirror, cluster.node, script) as kubelet,
        ):
            stub = job_pb2_grpc.JobServiceStub(channel)
            scene = Scene(cluster, namespace, mirror, kubelet, operator, master_address, stub, script)
            try:
                yield scene
            finally:
                await _clear(scene)
    finally:
        await api.delete(f"{CORE}/namespaces/{namespace}")


async def _clear(scene: Scene) -> None:
    """Remove all jobs, pods and finalizers, whatever state the scenario ended in."""
    api = scene.cluster.api
    path = f"{JOBS}/namespaces/{scene.namespace}/elasticjobs"
    for job in (await api.get(path))["items"]:
        own = f"{path}/{job['metadata']['name']}"
        with contextlib.suppress(ApiError):
            await api.delete(own)
            await api.patch(own, {"metadata": {"finalizers": None}})
    pods = f"{CORE}/namespaces/{scene.namespace}/pods"
    for pod in (await api.get(pods))["items"]:
        with contextlib.suppress(ApiError):
            await api.delete(f"{pods}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
