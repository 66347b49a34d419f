"""The operator's plans of pools: made beside the event loop, and written only where nothing has changed."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from elastane_operator.edge import pools
from elastane_operator.edge.kube import KubeClient, KubeError
from elastane_operator.edge.pools import PoolKeeper
from elastane_operator.settings import OperatorSettings
from unit.deploy.pool_worlds import pool_body


class Cluster:
    """An API server with one pool and no jobs. written: statuses, in their order."""

    def __init__(self) -> None:
        self.body = pool_body()
        self.body["metadata"]["resourceVersion"] = "1"
        self.written: list[dict[str, Any]] = []
        self.conflicts = 0

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return copy.deepcopy(self.body)

    async def list(self, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        return []

    async def patch(self, kind: str, namespace: str, name: str, body: Any, subresource: str) -> None:
        if body["metadata"]["resourceVersion"] != self.body["metadata"]["resourceVersion"]:
            self.conflicts += 1
            raise KubeError(409, "Conflict", "the object has been modified")
        self.written.append(body["status"])
        self.body["status"] = self.body.get("status", {}) | body["status"]
        self.change()

    def change(self) -> None:
        """Somebody writes the pool."""
        self.body["metadata"]["resourceVersion"] += "1"


class Slow:
    """A plan that takes until `go`. begun: plans; threads: where they were made."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = 0
        self.threads: list[threading.Thread] = []
        self._plan = pools.look_at_pool

    def __call__(self, *arguments: Any) -> Any:
        self.begun += 1
        self.threads.append(threading.current_thread())
        self.go.wait()
        return self._plan(*arguments)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    plan = Slow()
    monkeypatch.setattr(pools, "look_at_pool", plan)
    monkeypatch.setattr(pools, "PAUSE_SECONDS", 0.0)
    return plan


def keeper_of(cluster: Cluster) -> PoolKeeper:
    settings = OperatorSettings()
    return PoolKeeper(cast("KubeClient", cluster), settings, on_share=lambda namespace, name: None)


async def test_a_plan_does_not_hold_the_event_loop_up(slow: Slow) -> None:
    cluster = Cluster()
    keeper = keeper_of(cluster)
    keeper.wake("shared")
    await eventually(lambda: slow.begun == 1)  # this loop goes on
    assert slow.threads[0] is not threading.main_thread() and slow.threads[0].daemon
    assert not cluster.written
    slow.go.set()
    await eventually(lambda: len(cluster.written) == 1)
    assert cluster.written[0]["offered"] == {"a": 4, "b": 4}
    await keeper.close()


async def test_a_plan_about_a_pool_that_has_changed_meanwhile_is_made_again(slow: Slow) -> None:
    cluster = Cluster()
    keeper = keeper_of(cluster)
    keeper.wake("shared")
    await eventually(lambda: slow.begun == 1)
    cluster.body["spec"]["types"][0]["quota"] = 2
    cluster.change()
    slow.go.set()
    await eventually(lambda: bool(cluster.written))
    assert cluster.conflicts == 1 and slow.begun == 2
    assert [one["offered"] for one in cluster.written] == [{"a": 2, "b": 4}]
    await keeper.close()


async def test_a_plan_that_comes_too_late_is_not_written_and_none_is_begun_beside_it(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "PLAN_SECONDS_MAX", 0.05)
    cluster = Cluster()
    keeper = keeper_of(cluster)
    keeper.wake("shared")
    await eventually(lambda: slow.begun == 1)
    await asyncio.sleep(0.3)
    keeper.wake("shared")
    await asyncio.sleep(0.3)
    assert slow.begun == 1 and not cluster.written
    monkeypatch.setattr(pools, "look_at_pool", slow._plan)
    slow.go.set()
    slow.threads[0].join()
    keeper.wake("shared")
    await eventually(lambda: bool(cluster.written))
    assert len(cluster.written) == 1, "what came late was dropped"
    await keeper.close()


async def test_an_operator_that_stops_writes_no_plan(slow: Slow) -> None:
    cluster = Cluster()
    keeper = keeper_of(cluster)
    keeper.wake("shared")
    await eventually(lambda: slow.begun == 1)
    await keeper.close()
    slow.go.set()
    slow.threads[0].join()
    await asyncio.sleep(0.05)
    assert not cluster.written
