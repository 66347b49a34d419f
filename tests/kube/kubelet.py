"""Emulates scheduler and kubelet: binds pods, reports them as running, runs a trainer in each, ends them.

A pod's trainer is started with the environment that the operator gave its container, so with a wrong or
missing variable the worker never connects to the master.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from datetime import UTC, datetime

import aiohttp

from kube.api import CORE, Api, ApiError, Object
from kube.mirror import Mirror
from kube.trainer import EXIT_KILLED, Script, Trainer


class Kubelet:
    """Scheduler and kubelets of all pods of one namespace.

    capacity: number of pods that fit; others stay Pending. script: what containers run. attends: if False,
    containers run but their workers never connect to the master. scripts: of single jobs, by
    name, in place of `script`.
    """

    def __init__(self, api: Api, mirror: Mirror, node: str, script: Script) -> None:
        self.api, self.mirror, self.node, self.script = api, mirror, node, script
        self.scripts: dict[str, Script] = {}
        self.capacity = 1000
        self.attends = True
        #: While it is clear, pods that are being deleted run on: their nodes are slow.
        self.ends = asyncio.Event()
        self.ends.set()
        self.trainers: dict[str, Trainer] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._bound: set[str] = set()
        #: Uids of pods whose trainer has ended or was killed.
        self._out: set[str] = set()
        self._ended: dict[str, Object] = {}
        self._loop: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Kubelet:
        self._loop = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [
            task for task in (self._loop, *self._runs.values(), *self._ends.values()) if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ what happens to pods

    async def exit(self, name: str, code: int, reason: str = "Error") -> None:
        """Let the container of a pod exit by itself, at once."""
        pod = self._take_out(name)
        await self._over(pod, code, reason)

    async def evict(self, name: str) -> None:
        """Evict the pod, as a kubelet does when the node runs short of a resource."""
        pod = self._take_out(name)
        status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        await self._patch_status(pod, status)

    async def preempt(self, name: str) -> None:
        """Preempt the pod as the scheduler does: condition DisruptionTarget, then deletion with grace."""
        pod = self.mirror.pods[name]
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": "preempting to accommodate a higher priority pod",
            "lastTransitionTime": _now(),
        }
        conditions = [*pod["status"].get("conditions", []), condition]
        with contextlib.suppress(ApiError):
            await self._patch_status(pod, {"conditions": conditions})
        await self.api.delete(self._path(name))

    async def lose_node_of(self, name: str) -> None:
        """Lose the pod's node with all its processes; the pod is deleted by force."""
        pod = self._take_out(name)
        await self.api.delete(self._path(name), {"gracePeriodSeconds": 0, **_only(pod)})

    def _take_out(self, name: str) -> Object:
        """Kill the pod's trainer; return the pod as it was."""
        pod = self.mirror.pods[name]
        uid = pod["metadata"]["uid"]
        self._out.add(uid)
        if run := self._runs.pop(uid, None):
            run.cancel()
        return pod

    # ------------------------------------------------------------------ its work

    async def _work(self) -> None:
        while True:
            try:
                self._look()
                await self.mirror.wait(self._news, "news of pods", 3600)
            except AssertionError:
                continue

    def _news(self) -> bool:
        return any(True for _ in self._due())

    def _due(self) -> list[tuple[str, Object]]:
        """Return the actions that are due now, as (action, pod)."""
        due: list[tuple[str, Object]] = []
        there = {pod["metadata"]["uid"] for pod in self.mirror.pods.values()}
        running = sum(1 for uid in self._bound if uid in there and uid not in self._ended)
        for pod in self.mirror.pods.values():
            uid = pod["metadata"]["uid"]
            is_leaving = bool(pod["metadata"].get("deletionTimestamp"))
            if is_leaving:
                if uid not in self._ends:
                    due.append(("end", pod))
            elif uid not in self._bound and running < self.capacity:
                running += 1
                due.append(("start", pod))
        for uid in [uid for uid in self._runs if uid not in there]:
            due.append(("gone", {"metadata": {"uid": uid}}))
        return due

    def _look(self) -> None:
        for what, pod in self._due():
            uid = pod["metadata"]["uid"]
            match what:
                case "start":
                    self._bound.add(uid)
                    self._runs[uid] = asyncio.create_task(self._run(pod))
                case "end":
                    self._ends[uid] = asyncio.create_task(self._end(pod))
                case "gone":
                    self._runs.pop(uid).cancel()

    async def _run(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        with contextlib.suppress(ApiError, aiohttp.ClientError):
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": self.node},
            }
            await self.api.create(self._path(name, "binding"), binding)
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": _now()}
            container = pod["spec"]["containers"][0]
            state = {"running": {"startedAt": _now()}}
            statuses = [_container(container, state, is_ready=True)]
            status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}
            await self._patch_status(pod, status | {"containerStatuses": statuses})
            pod = pod | {"status": status}
        environment = await self._environment(pod)
        is_server = "ELASTANE_PS_ID" in environment  # no trainer plays a parameter server
        if is_server or not self.attends or "ELASTANE_MASTER" not in environment:
            await asyncio.Event().wait()
        self.trainers[name] = trainer = Trainer(
            environment["ELASTANE_MASTER"],
            environment["ELASTANE_JOB"],
            self.worker_id(environment, pod),
            self.scripts.get(pod["metadata"]["labels"].get("elastane.io/job-name", ""), self.script),
        )
        code = await trainer.run()
        if uid not in self._out:
            self._out.add(uid)
            await self._over(pod, code, "Completed" if code == 0 else "Error")

    @staticmethod
    def worker_id(environment: dict[str, str], pod: Object) -> str:
        """Return the id that `elastane run` gives the pod's only worker, from host (the pod) and a number."""
        return environment.get("ELASTANE_WORKER_ID", f"{pod['metadata']['name']}-7-0")

    async def _end(self, pod: Object) -> None:
        """End a pod that is being deleted: SIGTERM, the grace period, SIGKILL; then remove it."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        grace = float(pod["metadata"].get("deletionGracePeriodSeconds", 30))
        await self.ends.wait()
        run, trainer = self._runs.get(uid), self.trainers.get(name)
        if run is not None and not run.done():
            if trainer is not None:
                trainer.leave("SIGTERM", grace)
                await asyncio.wait({run}, timeout=grace)
            run.cancel()
        with contextlib.suppress(ApiError):
            await self.api.delete(self._path(name), {"gracePeriodSeconds": 0, **_only(pod)})

    async def _over(self, pod: Object, code: int, reason: str) -> None:
        container = pod["spec"]["containers"][0]
        ended = {"exitCode": code, "reason": reason, "startedAt": _now(), "finishedAt": _now()}
        if code == EXIT_KILLED:
            ended["signal"] = 9
        # A merge patch replaces the list, but a kubelet keeps the conditions that others have set.
        now = self.mirror.pods.get(pod["metadata"]["name"], pod)
        known = now if now["metadata"]["uid"] == pod["metadata"]["uid"] else pod
        kept = [each for each in known["status"].get("conditions", []) if each["type"] != "Ready"]
        status = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "conditions": [*kept, {"type": "Ready", "status": "False", "lastTransitionTime": _now()}],
            "containerStatuses": [_container(container, {"terminated": ended}, is_ready=False)],
        }
        self._ended[pod["metadata"]["uid"]] = status
        with contextlib.suppress(ApiError):
            await self._patch_status(pod, status)
        await self.mirror.changed()

    async def _patch_status(self, pod: Object, status: Object) -> None:
        # The uid in the patch is a precondition, so that a later pod of the same name is never patched.
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self.api.patch(self._path(pod["metadata"]["name"], "status"), body)

    async def _environment(self, pod: Object) -> dict[str, str]:
        """Return the variables of the first container, with references resolved."""
        found: dict[str, str] = {}
        for entry in pod["spec"]["containers"][0].get("env", []):
            source = entry.get("valueFrom", {})
            if "fieldRef" in source:
                value = pod
                for part in source["fieldRef"]["fieldPath"].split("."):
                    value = value[part]
                found[entry["name"]] = str(value)
            elif "secretKeyRef" in source:
                ref = source["secretKeyRef"]
                secret = await self.api.get(
                    f"{CORE}/namespaces/{self.mirror.namespace}/secrets/{ref['name']}"
                )
                found[entry["name"]] = base64.b64decode(secret["data"][ref["key"]]).decode()
            else:
                found[entry["name"]] = entry.get("value", "")
        return found

    def _path(self, name: str, subresource: str = "") -> str:
        path = f"{CORE}/namespaces/{self.mirror.namespace}/pods/{name}"
        return f"{path}/{subresource}" if subresource else path


def _container(container: Object, state: Object, *, is_ready: bool) -> Object:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": is_ready,
        "restartCount": 0,
        "state": state,
    }


def _only(pod: Object) -> Object:
    return {"preconditions": {"uid": pod["metadata"]["uid"]}}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
