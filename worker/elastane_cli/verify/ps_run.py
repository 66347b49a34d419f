"""Proof of a script with prepare_ps: joins, drains and deaths of parameter servers do not change its result.

    one worker         the script alone, in one process ── slot by slot ── with parameter servers
    several            a run with a journal ── slot by slot ── its replay

Every slot has a backup before one of its two parameter servers is killed, so nothing has to be done again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from elastane.runtime.rehearsal import Rehearsal
from elastane.tables.snapshot_file import SlotSnapshotError
from elastane.tables.snapshots import newest
from elastane.tables.spec_proto import from_proto
from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_cli.rehearse.replay import run_replay
from elastane_cli.rehearse.watcher import Watcher
from elastane_cli.verify.elastic_run import RunFailed
from elastane_cli.verify.ps_plan import PsAct, make_ps_plan
from elastane_cli.verify.workplace import Workplace, absolute_command, workplace
from elastane_common.determinism import Level, process_environment
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.storage import Folder
from elastane_proto.v1 import job_pb2, ps_pb2

_LOOK_SECONDS = 0.02
#: A parameter server is killed within this time after the worker has got a task.
_KILL_SECONDS = 0.05
_LINES_SHOWN = 30


@dataclass(frozen=True)
class PsRunResult:
    """Result of a run. acts: on parameter servers, as text. differing: slots that are not as expected."""

    acts: list[str]
    differing: list[int]
    seconds: float


@dataclass(frozen=True)
class PsProof:
    """One call of `elastane verify --ps`. kills: parameter servers killed in each run, of `servers`.

    timeout_seconds: of each run.
    """

    folder: Path
    script: Sequence[str]
    servers: int
    workers: int
    kills: int
    seed: str
    determinism: Level
    threads: int
    timeout_seconds: float
    watcher: Watcher

    def run(self, runs: int) -> list[PsRunResult]:
        """Return the results, of which the last may differ. Raises RunFailed, PlanError, ElastaneError."""
        script = absolute_command(self.script, Path.cwd())
        self.watcher.stage("the script alone")
        folder = self.folder / "alone"
        with workplace(folder, Path.cwd()) as place:
            alone = self._alone(folder, script, place)
        found: list[PsRunResult] = []
        for number in range(1, runs + 1):
            acts = make_ps_plan(f"{self.seed}/{number}", kills=self.kills, tasks=int(alone["tasks"]))
            self.watcher.stage(f"run {number} with {self.servers} parameter servers", int(alone["tasks"]))
            began, folder = time.monotonic(), self.folder / f"run-{number}"
            with workplace(folder, Path.cwd()) as place:
                done, digests = self._with_servers(folder, script, place, acts)
                if self.workers == 1:
                    differing = [
                        slot for slot, digest in enumerate(alone["slots"]) if digest != digests[slot]
                    ]
                else:
                    differing = self._replayed(folder, script, place)
            found.append(PsRunResult(done, differing, time.monotonic() - began))
            if differing:
                break
        return found

    def _alone(self, folder: Path, script: Sequence[str], place: Workplace) -> dict[str, Any]:
        """Run the script without a master; return its report."""
        environment = {**self._environment(place), "ELASTANE_MODE": "plain"}
        environment["ELASTANE_REPORT_DIR"] = str(folder / "reports")
        log = folder / "script.log"
        process = ChildProcess(
            "script", [sys.executable, *script], environment=environment, directory=place.directory, log=log
        )
        try:
            process.start()
            status = process.wait(self.timeout_seconds)
        finally:
            process.kill_group()
            process.wait()
        report = folder / "reports" / "plain-slots.json"
        if status != ExitStatus(0) or not report.exists():
            lines = log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:] if log.exists() else []
            raise RunFailed(
                "\n".join([f"the script alone: {status or 'not in time'}", *lines]),
                hint="it must train with job.prepare_ps and go through its tasks to their end",
            )
        found: dict[str, Any] = json.loads(report.read_text())
        return found

    def _with_servers(
        self, folder: Path, script: Sequence[str], place: Workplace, acts: Sequence[PsAct]
    ) -> tuple[list[str], list[str]]:
        """Carry out the acts in a run; return them as text, with the digests of the slots at its end."""
        url = str(folder / "model")
        settings = job_pb2.JobSettings(
            ests=1,
            workers_max=self.workers,
            torch_threads=self.threads,
            determinism=self.determinism.to_proto(),
            checkpoint_url=url,
            ps_replicas=1,
            ps_journal=self.workers > 1,
        )
        environment = {**self._environment(place), "ELASTANE_MODE": "elastic"}
        with local_cluster(
            folder, settings, script, environment=environment, directory=place.directory
        ) as cluster:
            play = _Play(cluster, self.timeout_seconds, Random(f"{self.seed}/victims"), self.watcher)
            play.run(self.servers, self.workers, acts)
            told = cluster.client.get_slots(cluster.job)
        spec, found = from_proto(told.model), []
        for slot in range(spec.slots):
            snapshot, rejected = newest(Folder(url, SlotSnapshotError).within("slots"), spec, slot)
            if snapshot is None:
                raise RunFailed(f"slot {slot} was not saved: {'; '.join(rejected)}")
            found.append(snapshot.weights.digest())
        return play.done, found

    def _replayed(self, folder: Path, script: Sequence[str], place: Workplace) -> list[int]:
        self.watcher.note("computing it again from its journal")
        answer = folder / "again"
        answer.mkdir()
        end = run_replay(
            str(folder / "model"),
            script,
            answer,
            ends="slots",
            watcher=self.watcher,
            on_line=lambda text: None,
            directory=place.directory,
        )
        return [one.slot for one in end.differing]

    def _environment(self, place: Workplace) -> Mapping[str, str]:
        return {
            **process_environment(self.determinism, self.threads),
            **place.environment,
            "ELASTANE_TORCH_THREADS": str(self.threads),
        }


class _Play:
    """Acts in a run. With one worker each begins while it is held at a task; done: acts as text."""

    def __init__(
        self, cluster: LocalCluster, timeout_seconds: float, random: Random, watcher: Watcher
    ) -> None:
        self._cluster, self._random, self._watcher = cluster, random, watcher
        self._timeout_seconds = timeout_seconds
        self.done: list[str] = []

    def run(self, servers: int, workers: int, acts: Sequence[PsAct]) -> None:
        cluster = self._cluster
        held = workers == 1
        if held:
            cluster.hold_in(act.tasks for act in acts)
        for _ in range(servers):
            cluster.add_server()
        gates = Rehearsal(gates=str(cluster.gates)).environment() if held else {}
        for _ in range(workers):
            cluster.add_worker(environment=gates)
        for act in acts:
            if not self._until(lambda tasks=act.tasks: self._tasks() >= tasks, f"task {act.tasks}"):
                break
            self._act(act)
        for name, process in cluster.workers.items():
            if process.wait(self._timeout_seconds) != ExitStatus(0):
                raise RunFailed(f"worker {name}: {process.status or 'not in time'}\n{cluster.last_lines()}")

    def _act(self, act: PsAct) -> None:
        cluster = self._cluster
        if act.verb == "join":
            self._join(act)
            self.done.append(f"{act.tasks}: {list(cluster.servers)[-1]} joins")
            return
        # The leaving one is not the only holder of any slot.
        self._until(self._settled, "a backup of every slot")
        victim = self._random.choice(sorted(self._owners()))
        if act.verb == "drain":
            cluster.client.drain_ps(cluster.job, victim)
            cluster.open_gate(act.tasks)
        else:
            cluster.open_gate(act.tasks)
            time.sleep(self._random.random() * _KILL_SECONDS)
            cluster.servers[victim].kill_group()
            cluster.servers[victim].wait()
            self._until(lambda: victim not in self._owners(), f"the end of {victim}")
        self.done.append(f"{act.tasks}: {victim} {'is drained' if act.verb == 'drain' else 'is killed'}")
        cluster.add_server()

    def _join(self, act: PsAct) -> None:
        """Add one before the worker continues; it gets its slots while the worker pushes."""
        name = self._cluster.add_server()
        self._until(lambda: name in {one.ps_id for one in self._slots().processes}, name)
        self._cluster.open_gate(act.tasks)

    def _tasks(self) -> int:
        done = sum(
            one.epoch * one.total + one.done for one in self._cluster.client.get_progress(self._cluster.job)
        )
        self._watcher.step(done)
        return done

    def _slots(self) -> ps_pb2.GetSlotsResponse:
        return self._cluster.client.get_slots(self._cluster.job)

    def _owners(self) -> set[str]:
        return {place.owner for place in self._slots().map.places}

    def _settled(self) -> bool:
        places = self._slots().map.places
        return bool(places) and all(
            place.owner and place.backup and not place.restoring and not place.begun for place in places
        )

    def _until(self, holds: Any, what: str) -> bool:
        """Wait. False if all workers have ended. Raises RunFailed after the timeout."""
        deadline = time.monotonic() + self._timeout_seconds
        while not holds():
            statuses = self._cluster.statuses().values()
            if all(status is not None for status in statuses):
                return False
            if time.monotonic() > deadline:
                raise RunFailed(f"waited for {what}\n{self._cluster.last_lines()}")
            time.sleep(_LOOK_SECONDS)
        return True
