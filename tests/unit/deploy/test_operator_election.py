"""Which of several operators works, on a lease in memory; what is posted as events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from elastane_operator.decisions.actions import Note
from elastane_operator.edge import election as elections
from elastane_operator.edge import events
from elastane_operator.edge.election import Election
from elastane_operator.edge.kube import KubeError
from unit.deploy.elastic_jobs import START, identity


class Objects:
    """An API server that has objects by kind and name, and knows versions."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 0
        self.is_away = False

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        self._check()
        if (kind, name) not in self.objects:
            raise KubeError(404, "NotFound", f"{name} is not there")
        return self.objects[kind, name]

    async def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check()
        name = body["metadata"]["name"]
        if (kind, name) in self.objects:
            raise KubeError(409, "AlreadyExists", f"{name} is there")
        return self._keep(kind, name, body)

    async def replace(self, kind: str, namespace: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check()
        there = self.objects[kind, name]["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion") != there:
            raise KubeError(409, "Conflict", "it has changed")
        return self._keep(kind, name, body)

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        self._check()
        return self._keep(kind, name, {**self.objects[kind, name], **patch})

    def _keep(self, kind: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.version += 1
        kept = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        self.objects[kind, name] = kept
        return kept

    def _check(self) -> None:
        if self.is_away:
            raise KubeError(0, "Unreachable", "the API server does not answer")


class Clock:
    """Sleeping moves it, and lets others run."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await _yield()


async def _yield() -> None:
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(elections.asyncio, "sleep", clock.sleep)
    return clock


def candidate(kube: Objects, name: str, clock: Clock) -> Election:
    return Election(
        kube,  # type: ignore[arg-type]
        namespace="elastane",
        name="elastane-operator",
        identity=name,
        lease_seconds=15,
        monotonic=clock,
    )


async def test_one_leads_and_another_follows_when_the_lease_has_run_out(clock: Clock) -> None:
    kube = Objects()
    first, second = candidate(kube, "a", clock), candidate(kube, "b", clock)
    await first.acquire()
    assert first.leads and not await second._try()
    since = clock.now
    await second.acquire()  # the first is frozen
    assert second.leads and clock.now - since >= 15
    assert kube.objects["Lease", "elastane-operator"]["spec"]["leaseTransitions"] == 1
    await first.hold()
    assert not first.leads, "a frozen leader went on"


async def test_a_lease_that_is_given_back_is_taken_at_once(clock: Clock) -> None:
    kube = Objects()
    first, second = candidate(kube, "a", clock), candidate(kube, "b", clock)
    await first.acquire()
    await first.release()
    since = clock.now
    await second.acquire()
    assert clock.now - since < 15


async def test_who_cannot_renew_stops_before_another_may_begin(clock: Clock) -> None:
    kube = Objects()
    first = candidate(kube, "a", clock)
    await first.acquire()
    since = clock.now
    kube.is_away = True
    await first.hold()
    assert not first.leads and clock.now - since < 15


async def test_an_event_that_is_posted_again_is_counted() -> None:
    kube = Objects()
    note = Note("Warning", "Preempted", "digits-worker-1 was taken away")
    for seconds in (0, 5):
        await events.post(kube, identity(), note, START + timedelta(seconds=seconds))  # type: ignore[arg-type]
    await events.post(kube, identity(), Note("Normal", "Running", "all there"), START)  # type: ignore[arg-type]
    first, second = kube.objects.values()
    assert (first["count"], first["lastTimestamp"], second["count"]) == (2, "2026-01-01T00:00:05Z", 1)
    assert first["involvedObject"]["uid"] == identity().uid
    kube.is_away = True
    await events.post(kube, identity(), note, START)  # type: ignore[arg-type]
