"""Emulates scheduler and kubelet of the pods of runs: each container is a process of this machine.

Paths of mounts are replaced by those of folders of the test, names of ranks by the loopback. Logs are served
as a kubelet does, so that the API server, emulated or real, passes them on.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import signal
import ssl
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp.web
import trustme

from kube.api import CORE, Api, ApiError, Object

POLL_SECONDS = 0.03
MISSING, SLOW = "missing", "slow"
#: Of every image.
DIGEST = f"sha256:{'3f' * 32}"


@dataclass
class Pod:
    """A pod on the node. process: of its rank; None: not started, or its node is lost."""

    name: str
    uid: str
    folder: Path
    process: asyncio.subprocess.Process | None = None
    has_ended: bool = False
    is_lost: bool = False
    was_told: bool = False
    task: asyncio.Task[None] | None = None
    statuses: dict[str, Any] = field(default_factory=dict)


class ProcessKubelet:
    """The node of all pods of a namespace. capacity: of pods that run at a time; others stay Pending.
    clock_behind: what its clock lacks.

    Images whose name begins with "missing" cannot be pulled; those with "slow" are, once `pulled` is set.
    """

    def __init__(self, api: Api, namespace: str, node: str, folder: Path) -> None:
        self.api, self.namespace, self.node, self.folder = api, namespace, node, folder
        self.capacity = 1000
        self.clock_behind = timedelta()
        self.pulled = asyncio.Event()
        self.pods: dict[str, Pod] = {}
        self.started = 0
        self._pods_path = f"{CORE}/namespaces/{namespace}/pods"
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> ProcessKubelet:
        server = aiohttp.web.Server(self._serve)
        runner = aiohttp.web.ServerRunner(server, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        await aiohttp.web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        await self.api.patch(f"{CORE}/nodes/{self.node}/status", {"status": status})
        loop = asyncio.create_task(self._work())
        self._stack.callback(loop.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        for pod in self.pods.values():
            self.kill(pod)
            if pod.task is not None:
                pod.task.cancel()
        await self._stack.aclose()

    def kill(self, pod: Pod, number: int = signal.SIGKILL) -> None:
        """Signal all processes of a pod."""
        if pod.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pod.process.pid, number)

    async def lose(self, name: str) -> None:
        """Lose the node of a pod, with its processes: nobody reports its end, and its log is not served."""
        pod = next(one for one in self.pods.values() if one.name == name)
        pod.is_lost = True
        self.kill(pod)
        await self.api.delete(f"{self._pods_path}/{name}", {"gracePeriodSeconds": 0})

    async def evict(self, name: str) -> None:
        """End a pod as a node does whose memory runs out."""
        pod = next(one for one in self.pods.values() if one.name == name)
        message = "The node was low on resource: memory. "
        await self._patch(name, {"phase": "Failed", "reason": "Evicted", "message": message})
        self.kill(pod)

    async def disrupt(self, name: str, reason: str, message: str) -> None:
        """Delete a pod for a reason of the cluster's, as a drain or the scheduler does."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        await self._patch(name, {"conditions": [target | {"lastTransitionTime": at}]})
        await self.api.delete(f"{self._pods_path}/{name}", {"gracePeriodSeconds": 5})

    # ------------------------------------------------------------------ its work

    async def _work(self) -> None:
        while True:
            with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
                found = await self.api.get(self._pods_path)
                for item in found["items"]:
                    await self._look(item)
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self, item: Object) -> None:
        metadata = item["metadata"]
        pod = self.pods.get(metadata["uid"])
        if pod is None:
            if "deletionTimestamp" in metadata:
                return
            live = sum(1 for one in self.pods.values() if not one.has_ended and not one.is_lost)
            if live >= self.capacity:
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                condition["message"] = "0/1 nodes are available"
                if not item.get("status", {}).get("conditions"):
                    await self._patch(metadata["name"], {"conditions": [condition]})
                return
            pod = Pod(metadata["name"], metadata["uid"], self.folder / metadata["uid"])
            self.pods[pod.uid] = pod
            pod.task = asyncio.create_task(self._run(pod, item))
        elif "deletionTimestamp" in metadata and not pod.is_lost:
            await self._end(pod, metadata)

    async def _end(self, pod: Pod, metadata: Object) -> None:
        if pod.has_ended:
            if metadata.get("deletionGracePeriodSeconds"):
                await self._delete(pod)
            return
        if pod.process is None:
            if pod.task is not None:
                pod.task.cancel()
            pod.has_ended = True
            await self._patch(pod.name, {"phase": "Failed"})
            await self._delete(pod)
            return
        if not pod.was_told:
            pod.was_told = True
            self.kill(pod, signal.SIGTERM)
        due = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp()
        if time.time() >= due:
            self.kill(pod)

    async def _delete(self, pod: Pod) -> None:
        with contextlib.suppress(ApiError):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
            await self.api.delete(f"{self._pods_path}/{pod.name}", options)

    async def _run(self, pod: Pod, item: Object) -> None:
        pod.folder.mkdir()
        (pod.folder / "empty").mkdir()
        spec = item["spec"]
        binding = {"metadata": {"name": pod.name}, "target": {"kind": "Node", "name": self.node}}
        await self.api.create(
            f"{self._pods_path}/{pod.name}/binding", {"apiVersion": "v1", "kind": "Binding", **binding}
        )
        for container in spec.get("initContainers", []):
            if not await self._pulled(pod, container, "initContainerStatuses"):
                return
            process = await self._start(pod, item, container)
            code = await process.wait()
            message = (pod.folder / f"{container['name']}.log").read_text()[-2000:]
            ended = {"terminated": {"exitCode": code, "message": message}}
            pod.statuses["initContainerStatuses"] = [_status(container, ended)]
            if code:
                pod.has_ended = True
                await self._patch(pod.name, {"phase": "Failed"} | pod.statuses)
                return
        (container,) = spec["containers"]
        if not await self._pulled(pod, container, "containerStatuses"):
            return
        started = self._now()
        self.started += 1
        pod.process = await self._start(pod, item, container)
        running = {"containerStatuses": [_status(container, {"running": {"startedAt": started}})]}
        await self._patch(pod.name, {"phase": "Running"} | pod.statuses | running)
        code = await pod.process.wait()
        self.kill(pod)
        if pod.is_lost:
            return
        code = code if code >= 0 else 128 - code
        ended = {"terminated": {"exitCode": code, "startedAt": started, "finishedAt": self._now()}}
        phase = "Failed" if code else "Succeeded"
        await self._patch(
            pod.name, {"phase": phase, "containerStatuses": [_status(container, ended)]} | pod.statuses
        )
        pod.has_ended = True

    async def _pulled(self, pod: Pod, container: Object, where: str) -> bool:
        if container["image"].startswith(SLOW):
            creating = {"waiting": {"reason": "ContainerCreating"}}
            ready = {"type": "PodReadyToStartContainers", "status": "True"}
            await self._patch(pod.name, {"conditions": [ready], where: [_status(container, creating)]})
            await self.pulled.wait()
        if not container["image"].startswith(MISSING):
            return True
        waiting = {"waiting": {"reason": "ErrImagePull", "message": f"{container['image']}: not found"}}
        await self._patch(pod.name, {where: [_status(container, waiting)]})
        return False

    async def _start(self, pod: Pod, item: Object, container: Object) -> asyncio.subprocess.Process:
        places = {"/elastane/fetched": str(pod.folder)}
        for mount in container["volumeMounts"]:
            if mount["name"] == "code" and mount["mountPath"] == "/elastane/code":
                places["/elastane/code"] = str(pod.folder / mount.get("subPath", "empty"))

        def real(text: str) -> str:
            text = text.replace("$$", "$")
            for path, place in places.items():
                text = text.replace(path, place)
            return re.sub(rf"rank-[0-9]+\.[a-z0-9-]+\.{self.namespace}\.svc", "127.0.0.1", text)

        environment = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        for one in container.get("env", []):
            if (ref := one.get("valueFrom", {}).get("secretKeyRef")) is not None:
                path = f"{CORE}/namespaces/{self.namespace}/secrets/{ref['name']}"
                secret = await self.api.get(path)
                environment[one["name"]] = base64.b64decode(secret["data"][ref["key"]]).decode()
            else:
                environment[one["name"]] = real(one.get("value", ""))
        with (pod.folder / f"{container['name']}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *map(real, container["command"]),
                env=environment,
                cwd=real(container["workingDir"]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _now(self) -> str:
        return (datetime.now(UTC) - self.clock_behind).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def _patch(self, name: str, status: Object) -> None:
        with contextlib.suppress(ApiError):
            await self.api.patch(f"{self._pods_path}/{name}/status", {"status": status})

    # ------------------------------------------------------------------ logs

    async def _serve(self, request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        name, container = request.path.split("/")[3:5]
        pod = next((one for one in self.pods.values() if one.name == name), None)
        path = None if pod is None else pod.folder / f"{container}.log"
        if pod is None or path is None or not path.exists():
            return aiohttp.web.Response(status=400, text="the container is waiting to start")
        if pod.is_lost:
            return aiohttp.web.Response(status=500, text="the node is lost")
        response = aiohttp.web.StreamResponse()
        await response.prepare(request)
        follows = request.query.get("follow") in ("true", "1")
        with path.open("rb") as log:
            while True:
                has_ended = pod.has_ended or not follows
                if data := log.read():
                    await response.write(data)
                elif has_ended:
                    return response
                else:
                    await asyncio.sleep(POLL_SECONDS)


def _status(container: Object, state: Object) -> Object:
    return {
        "name": container["name"], "image": container["image"], "ready": False,
        "imageID": f"registry.test/{container['image'].partition(':')[0]}@{DIGEST}",
        "restartCount": 0, "state": state,
    }  # fmt: skip
