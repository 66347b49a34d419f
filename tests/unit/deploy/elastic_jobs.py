"""Shared parts of the tests of the operator's pure code: short objects, and a miniature cluster."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from elastane_operator.decisions import actions
from elastane_operator.decisions.autoscaling import settings_of
from elastane_operator.decisions.observed import (
    JobAtMaster,
    MasterView,
    Objects,
    Observed,
    PoolView,
    ScalingSettings,
    Targets,
    WorkerView,
)
from elastane_operator.decisions.pod_labels import CAPACITY_ON_DEMAND
from elastane_operator.decisions.pods import PodView, Role, pod_name
from elastane_operator.decisions.reconcile import Decision, reconcile
from elastane_operator.decisions.reconciliation import FINALIZER
from elastane_operator.decisions.spec import Identity, JobSpec, read_spec
from elastane_operator.decisions.status import Status, read_status, write_status
from elastane_operator.manifests.master import MasterDefaults, master_objects

START = datetime(2026, 1, 1, tzinfo=UTC)


def job_body(**spec: Any) -> dict[str, Any]:
    """An ElasticJob as the API server would give it."""
    whole: dict[str, Any] = {
        "template": {"spec": {"containers": [{"name": "worker", "image": "train:1"}]}},
        "ests": 4,
        "workers": {"min": 1, "max": 3},
        "master": {"address": "127.0.0.1:50051"},
    }
    return {
        "metadata": {"name": "digits", "namespace": "ml", "uid": "0123456789abcdef", "generation": 1},
        "spec": {**whole, **spec},
    }


def spec_of(**spec: Any) -> JobSpec:
    return read_spec(job_body(**spec))


def identity(*, deleted: datetime | None = None, finalizers: tuple[str, ...] = (FINALIZER,)) -> Identity:
    return Identity("ml", "digits", "0123456789abcdef", 1, deleted, finalizers)


def pod(index: int, **fields: Any) -> PodView:
    given: dict[str, Any] = {
        "name": pod_name("digits", index),
        "uid": f"pod-{index}",
        "index": index,
        "owner_uid": "0123456789abcdef",
        "phase": "Running",
        "created": START,
        "scheduled": True,
        "ready": True,
    }
    return PodView(**{**given, **fields})


class Killed(Exception):  # noqa: N818 - what happened
    """The operator was killed here."""


class Cluster:
    """A miniature API server with a kubelet, and a master: as much of them as decisions need.

    `look` is one reconciliation by the operator. until: number of the write before which it is killed.
    """

    def __init__(self, **spec: Any) -> None:
        self.spec = spec_of(**spec)
        self.now = START
        self.deleted: datetime | None = None
        self.finalizers: tuple[str, ...] = ()
        self.status: dict[str, Any] = {}
        self.pods: dict[str, PodView] = {}
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.job: JobAtMaster | None = None
        self.reachable = True
        self.pool: PoolView | None = None
        self.autoscalers: tuple[str, ...] = ()
        self.gone = False
        self.made = 0
        self.most_live = 0
        self.asked: list[str] = []
        self.notes: list[actions.Note] = []

    # ------------------------------------------------------------------ the operator

    def identity(self) -> Identity:
        return Identity("ml", "digits", "0123456789abcdef", 1, self.deleted, self.finalizers)

    def observed(self) -> Observed:
        wanted = master_objects(self.identity(), self.spec, MasterDefaults())
        names = {(body["kind"], body["metadata"]["name"]): body for body in wanted}
        return Observed(
            pods=tuple(self.pods.values()),
            master=MasterView(True, self.job) if self.reachable else MasterView(False, error="no answer"),
            objects=Objects(
                present=tuple(key for key in names if key in self.objects),
                missing=tuple(body for key, body in names.items() if key not in self.objects),
            ),
            pool=self.pool,
            autoscalers=self.autoscalers,
        )

    def decide(self) -> Decision:
        status = read_status({"status": copy.deepcopy(self.status)})
        return reconcile(self.identity(), self.spec, status, self.observed(), self.now)

    def look(self, until: int | None = None) -> bool:
        """Reconcile once; return True if anything was written."""
        if self.gone:
            return False
        decision = self.decide()
        wrote = False
        for count, write in enumerate(self._writes(decision)):
            if until is not None and count >= until:
                raise Killed
            wrote = write() or wrote
        self.notes += decision.notes
        return wrote

    def settle(self, looks_max: int = 60) -> Status:
        """Reconcile until there is nothing to write; return the status."""
        for _ in range(looks_max):
            wrote = self.look()
            self.kubelet()
            if not wrote and not self.look():
                return self.read()
        raise AssertionError(f"still writing after {looks_max} looks: {self.decide()}")

    def read(self) -> Status:
        return read_status({"status": self.status})

    def _writes(self, decision: Decision) -> Iterator[Any]:
        yield lambda: self._write_status(decision.status)
        for action in decision.actions:
            yield lambda action=action: self._act(action)

    def _write_status(self, status: Status) -> bool:
        new = write_status(status)
        changed, self.status = new != self.status, new
        return changed

    def _act(self, action: actions.Action) -> bool:
        match action:
            case actions.AddFinalizer():
                self.finalizers = (*self.finalizers, FINALIZER)
            case actions.RemoveFinalizer():
                self.finalizers = ()
                self.gone = True
            case actions.CreatePod(index=index, device_type=kind, role=role):
                name = pod_name("digits", index, role)
                assert name not in self.pods, f"{name} is made twice"
                self.made += 1
                self.pods[name] = pod(
                    index,
                    name=name,
                    role=role,
                    uid=f"pod-{self.made}",
                    device_type="" if kind == CAPACITY_ON_DEMAND else kind,
                    on_demand=kind == CAPACITY_ON_DEMAND,
                    phase="Pending",
                    created=self.now,
                    scheduled=False,
                    ready=False,
                )
                self.most_live = max(self.most_live, len(self.live()))
            case actions.DeletePod(name=name, uid=uid):
                there = self.pods.get(name)
                if there is None or there.uid != uid:
                    return False
                if there.ended or not there.scheduled:
                    del self.pods[name]
                else:
                    self.change(name, deleted=there.deleted or self.now)
            case actions.CreateObject(kind=kind, body=body):
                self.objects[kind, body["metadata"]["name"]] = body
            case actions.DeleteObject(kind=kind, name=name):
                del self.objects[kind, name]
            case actions.AskMaster(what=what):
                self._ask(what)
        return True

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what == "Create":
            assert self.job is None, "created twice"
            workers = self.spec.workers
            self.job = JobAtMaster(
                phase="waiting", ests=self.spec.ests, workers_min=workers.min, workers_max=workers.max
            )
            self._set_scaling()
            return
        assert self.job is not None
        if what == "Scale":
            self.at_master(workers_min=self.spec.workers.min, workers_max=self.spec.workers.max)
        elif what == "SetScaling":
            self._set_scaling()
        elif what == "Suspend":
            self.at_master(phase="suspended", saved_step=self.job.step, workers=())
        elif what == "Resume":
            self.at_master(phase="waiting")
        elif what == "Cancel":
            self.at_master(phase="cancelled", reason="cancelled by an operator", workers=())

    def _set_scaling(self) -> None:
        """The master takes the scaling of the spec; nothing is measured, so as many workers as may train."""
        assert self.job is not None
        scaling = settings_of(self.spec) or ScalingSettings()
        targets = Targets(min(self.job.workers_max, self.job.ests), 0, "nothing is measured yet")
        self.at_master(scaling=scaling, targets=targets if scaling.mode else None)

    # ------------------------------------------------------------------ the world

    def kubelet(self) -> None:
        """Start pods, and remove deleted ones."""
        for name, each in list(self.pods.items()):
            if each.deleted is not None:
                del self.pods[name]
            elif each.phase == "Pending":
                self.change(name, phase="Running", scheduled=True, ready=True)
        if self.job is not None and not self.job.over and self.job.phase != "suspended":
            running = [each for each in self.live() if each.phase == "Running"]
            enough = len(running) >= self.job.workers_min
            workers = tuple(
                WorkerView(f"{each.name}-7-0", "member" if each.name in self._ring(running) else "standby")
                for each in running
            )
            self.at_master(phase="running" if enough else "waiting", workers=workers)

    def _ring(self, running: list[PodView]) -> set[str]:
        """Who trains: those on demand that are wanted, then spot, then the others; of other jobs all."""
        targets = self.job.targets if self.job is not None else None
        if targets is None:
            return {each.name for each in running}
        on_demand = [each for each in running if each.on_demand]
        spot = [each for each in running if not each.on_demand]
        first = [*on_demand[: targets.on_demand], *spot, *on_demand[targets.on_demand :]]
        return {each.name for each in first[: targets.workers]}

    def change(self, name: str, **fields: Any) -> None:
        self.pods[name] = msgspec.structs.replace(self.pods[name], **fields)

    def fail(self, index: int, code: int, **fields: Any) -> None:
        """The container of a worker ends with an exit code."""
        phase = "Succeeded" if code == 0 else "Failed"
        self.change(pod_name("digits", index), phase=phase, exit_code=code, ready=False, **fields)

    def at_master(self, **fields: Any) -> None:
        assert self.job is not None
        self.job = msgspec.structs.replace(self.job, **fields)

    def set_spec(self, **spec: Any) -> None:
        self.spec = msgspec.structs.replace(self.spec, **spec)

    def live(self, role: Role = "worker") -> list[PodView]:
        return [each for each in self.pods.values() if each.live and each.role == role]

    def indexes(self) -> list[int]:
        return sorted(each.index for each in self.live())

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def said(self, reason: str) -> list[str]:
        return [note.message for note in self.notes if note.reason == reason]
