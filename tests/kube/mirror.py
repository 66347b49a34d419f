"""A live copy of a namespace's objects, kept up to date by watches, with methods to wait for conditions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import aiohttp

import patience
from kube.api import CORE, JOBS, Api, ApiError, Object

OVER = ("Succeeded", "Failed")
SAY_AFTER_SECONDS = 20.0


class Mirror:
    """Jobs, pods and events of one namespace. `wait` wakes at every change of any of them."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.jobs: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.events: dict[str, Object] = {}
        #: All pods ever seen, in order, by uid.
        self.pods_seen: dict[str, Object] = {}
        #: Highest number of pods that had not ended at the same time.
        self.pods_most = 0
        #: Highest number of pods of each device type that had not ended, those that terminate included.
        self.devices_most: dict[str, int] = {}
        self._condition = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Mirror:
        places = [(f"{JOBS}/namespaces", "elasticjobs", self.jobs), (f"{CORE}/namespaces", "pods", self.pods)]
        places.append((f"{CORE}/namespaces", "events", self.events))
        for prefix, plural, objects in places:
            path = f"{prefix}/{self.namespace}/{plural}"
            version = await self._list(path, objects)
            self._tasks.append(asyncio.create_task(self._follow(path, version, objects)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _list(self, path: str, objects: dict[str, Object]) -> str:
        found = await self.api.get(path)
        objects.clear()
        objects.update({item["metadata"]["name"]: item for item in found["items"]})
        return str(found["metadata"]["resourceVersion"])

    async def _follow(self, path: str, version: str, objects: dict[str, Object]) -> None:
        while True:
            # The API server may be killed by the test: list and watch again once it is back.
            with contextlib.suppress(aiohttp.ClientError, ApiError, ValueError, TimeoutError):
                async for change in self.api.watch(path, version):
                    if change["type"] == "ERROR":
                        break
                    self._take(change["type"], change["object"], objects)
                    version = change["object"]["metadata"]["resourceVersion"]
                    await self.changed()
            await asyncio.sleep(0.1)
            with contextlib.suppress(aiohttp.ClientError, ApiError, TimeoutError):
                version = await self._list(path, objects)
                await self.changed()

    def _take(self, kind: str, item: Object, objects: dict[str, Object]) -> None:
        name = item["metadata"]["name"]
        if kind == "DELETED":
            objects.pop(name, None)
        else:
            objects[name] = item
        if objects is self.pods:
            self.pods_seen[item["metadata"]["uid"]] = item
            self.pods_most = max(self.pods_most, len(self.live_pods()))
            kinds = [
                self.device_type(pod) for pod in self.pods.values() if pod["status"].get("phase") not in OVER
            ]
            for kind in kinds:
                self.devices_most[kind] = max(self.devices_most.get(kind, 0), kinds.count(kind))

    async def changed(self) -> None:
        """Wake all waits, because a condition may have become true."""
        async with self._condition:
            self._condition.notify_all()

    # ------------------------------------------------------------------ questions

    @staticmethod
    def device_type(pod: Object) -> str:
        """Return the device type of a pod; empty: it has none."""
        return str(pod["metadata"].get("labels", {}).get("elastane.io/device-type", ""))

    def live_pods(self) -> dict[str, Object]:
        """Return the pods that have not ended and are not being deleted."""
        return {
            name: pod
            for name, pod in self.pods.items()
            if pod["status"].get("phase") not in OVER and not pod["metadata"].get("deletionTimestamp")
        }

    async def wait(
        self,
        condition: Callable[[], Any],
        what: str,
        seconds: float = SAY_AFTER_SECONDS,
        why: Callable[[], str] = str,
    ) -> Any:
        """Wait until the condition is true, and return its value.

        Raises AssertionError after `seconds`, with the state that was found instead. what: names the
        condition.
        """
        try:
            async with patience.within(seconds), self._condition:
                found = None

                def holds() -> bool:
                    nonlocal found
                    found = condition()
                    return bool(found)

                await self._condition.wait_for(holds)
                return found
        except TimeoutError:
            raise AssertionError(f"not within {seconds} s: {what}\n{why()}") from None

    async def wait_quiet(
        self, count: Callable[[], int], seconds: float, why: Callable[[], str] = str
    ) -> None:
        """Wait until a count has not changed for `seconds`."""
        last = -1
        for _ in range(20):
            if last == (last := count()):
                return
            await asyncio.sleep(seconds)
        raise AssertionError(f"it never was quiet for {seconds} s\n{why()}")
