"""The stage of a scenario: a namespace of an API, a master, an operator, a kubelet, and one ElasticJob."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from elastane_proto.v1 import job_pb2, job_pb2_grpc
from kube.api import CORE, JOBS, ApiError, Object
from kube.kubelet import Kubelet
from kube.mirror import Mirror
from kube.operator_process import Cluster, OperatorProcess
from kube.trainer import Script

JOB = "train"
FINISHED = ("Succeeded", "Failed", "Cancelled", "MaxWaitTimeExceeded")


@dataclass
class Scene:
    """One test's part of the cluster."""

    cluster: Cluster
    namespace: str
    mirror: Mirror
    kubelet: Kubelet
    operator: OperatorProcess
    master_address: str
    jobs: job_pb2_grpc.JobServiceStub
    script: Script = field(default_factory=Script)

    # ------------------------------------------------------------------ what a user does

    def body(self, name: str = JOB, **spec: Any) -> Object:
        """An ElasticJob with what the schema wants; `spec` goes over it."""
        base: Object = {
            "ests": 4,
            "workers": {"min": 1, "max": 2},
            "master": {"address": self.master_address},
            "restartBackoffSeconds": 0,
            "template": {
                "spec": {
                    # A real scheduler leaves these pods alone: the test's kubelet binds them.
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
        """kubectl create. Raises ApiError."""
        if "ests" in spec:
            self.script.ests = spec["ests"]
        job = await self.cluster.api.create(self._path(), self.body(**spec))
        self.mirror.jobs[JOB] = job
        return job

    async def change(self, **spec: Any) -> Object:
        """kubectl patch."""
        return await self.cluster.api.patch(self._path(JOB), {"spec": spec})

    async def scale(self, replicas: int) -> Object:
        """What kubectl scale and an HPA do: a PUT to the scale subresource."""
        path = f"{self._path(JOB)}/scale"
        while True:
            scale = await self.cluster.api.get(path)
            scale["spec"]["replicas"] = replicas
            try:
                return await self.cluster.api.replace(path, scale)
            except ApiError as error:
                if error.status != 409:  # the operator wrote the status in between; kubectl tries again too
                    raise

    async def delete(self) -> None:
        """kubectl delete --wait=false."""
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
        """Those that work or will."""
        return self.mirror.live_pods()

    def condition(self, kind: str) -> Object:
        """A condition of the job; empty without it."""
        return next((each for each in self.status.get("conditions", []) if each["type"] == kind), {})

    def events(self, reason: str = "") -> list[Object]:
        """Events of the job, of one reason or all."""
        return [
            event
            for event in self.mirror.events.values()
            if event["involvedObject"]["name"] == JOB and reason in ("", event["reason"])
        ]

    async def at_master(self) -> job_pb2.Job:
        """The job as its master has it."""
        request = job_pb2.JobServiceGetRequest(name=self.status["jobName"])
        return (await self.jobs.Get(request, wait_for_ready=True, timeout=20)).job

    def attending(self) -> list[str]:
        """Pods whose worker is in the ring, or stands by, and has entered it."""
        return [
            name
            for name, trainer in self.kubelet.trainers.items()
            if name in self.pods and trainer.protocol.generation > 0
        ]

    # ------------------------------------------------------------------ waiting

    async def wait(self, condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
        """Until it holds. Raises AssertionError that shows job, pods, events and the operator's log."""
        return await self.mirror.wait(condition, what, seconds, self.describe)

    async def eventually(
        self,
        look: Callable[[], Awaitable[Any]],
        condition: Callable[[Any], Any],
        what: str,
        seconds: float = 20.0,
    ) -> Any:
        """Looks again and again, where nothing tells of a change."""
        found: Any = None
        try:
            async with asyncio.timeout(seconds):
                while not condition(found := await look()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not within {seconds} s: {what}: {found}\n{self.describe()}") from None
        return found

    async def wait_phase(self, *phases: str, seconds: float = 20.0) -> Object:
        """Until the job is in one of these phases."""
        await self.wait(lambda: self.status.get("phase") in phases, f"phase {' or '.join(phases)}", seconds)
        return self.status

    async def wait_ready(self, count: int, seconds: float = 20.0) -> None:
        """Until so many workers are ready, no more pods are there, and the job runs."""

        def holds() -> bool:
            workers = self.status.get("workers", {})
            same = workers.get("ready") == workers.get("attending") == len(self.pods) == count
            return same and self.status.get("phase") == "Running"

        await self.wait(holds, f"{count} workers ready", seconds)

    async def wait_event(self, reason: str) -> Object:
        """Until the job has an event of that reason."""
        found = await self.wait(lambda: self.events(reason), f"an event {reason}")
        return dict(found[-1])

    async def wait_quiet(self, seconds: float) -> None:
        """Until the operator has written nothing for so long."""
        await self.mirror.wait_quiet(lambda: len(self.operator.gateway.writes), seconds, self.describe)

    async def wait_gone(self, seconds: float = 20.0) -> None:
        """Until the job and its pods are gone."""
        await self.wait(lambda: not self.job and not self.mirror.pods, "the job and its pods gone", seconds)

    def describe(self) -> str:
        """Everything one would ask for."""
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
    """A namespace of its own; all that is in it is gone afterwards."""
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
    """No job, pod or finalizer stays, whatever state the scenario ended in."""
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
