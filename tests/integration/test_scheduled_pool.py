"""A pool of four slots under a scheduling policy and under fire: nobody starves, and the bits stay the same.

Two elastic runs train; a worker is killed, then the runner, and a run of high priority that needs two slots
at once arrives. The first two go on until it has trained, so that its slots can only be theirs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import patience
from elastane_cli.rehearse.local_service import LocalService, local_service
from elastane_common.artifacts import read_manifest, read_record
from elastane_common.client_errors import RequestRefusedError
from elastane_proto.v1 import job_pb2, training_pb2
from slow import further

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "peer_scripts" / "waiting_job.py"
SETTINGS = {
    "ELASTANE_SCHEDULING_POLICY": "foresight",
    "ELASTANE_RESHAPE_SECONDS": "0",
    "ELASTANE_STARVATION_SECONDS": "5",
}
"""Who has waited for five seconds gets slots, whatever the policy wants."""
WAIT_SECONDS = 3600.0
"""The test's own limit, which is patient, comes before."""
STEPS = 600
EST_SECONDS = 0.15


class Pool:
    """The service, and what the test does with it. until: a file; once it is there, steps do not wait."""

    def __init__(self, service: LocalService, until: Path) -> None:
        self._service, self._until = service, until

    def submit(self, *options: str, ests: int, steps: int = STEPS) -> int:
        """Submit a run as a user does; return its id."""
        command = [sys.executable, "-m", "elastane_cli", "submit", "--master", self._service.address]
        command += [
            "--model",
            "m",
            "--instances",
            str(ests),
            "--seed",
            "7",
            "--grace",
            "5",
            "--detach",
            "--json",
        ]
        done = patience.run(
            [*command, *options, str(SCRIPT), *words(ests, steps), "--until", str(self._until)],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["run"]["run_id"])

    def run(self, run_id: int) -> training_pb2.Run:
        return self._service.training.get(run_id)

    def job(self, run_id: int) -> job_pb2.Job | None:
        """The run's job; None before it is created."""
        name = self.run(run_id).job
        try:
            return self._service.client.get_job(name) if name else None
        except RequestRefusedError as refusal:
            if refusal.reason != "not_found":
                raise
            return None

    def members(self, run_id: int) -> dict[str, int]:
        """Workers of a run that train, with their processes."""
        job = self.job(run_id)
        workers = job.workers if job is not None else []
        return {one.worker_id: one.pid for one in workers if one.state == job_pb2.WORKER_STATE_MEMBER}

    def trains(self, run_id: int, beyond: int = 0) -> bool:
        job = self.job(run_id)
        return job is not None and job.step > beyond and bool(self.members(run_id))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        self._service.wait_for(condition, what, WAIT_SECONDS)

    def kill_worker(self, run_id: int) -> None:
        """Kill a worker of a run; return once others train on."""
        job = self.job(run_id)
        assert job is not None
        _, killed = sorted(self.members(run_id).items())[-1]
        os.kill(killed, signal.SIGKILL)
        self.wait(
            lambda: killed not in self.members(run_id).values() and self.trains(run_id, job.step + 1),
            "steps after the death of a worker",
        )

    def kill_runner(self) -> None:
        before = self._service.ranks()
        self._service.kill("runner")
        self.wait(self._service.attends, "the next runner")
        after = self._service.ranks()
        assert all(after.get(key) == before[key] for key in before.keys() & after.keys()) and after

    def weights(self, run_id: int) -> str:
        """Return the weights of a run that succeeds."""
        *_, run = self._service.training.watch(run_id)
        assert run.state == training_pb2.RUN_STATE_SUCCEEDED, run.reason
        self.wait(lambda: read_record(run.artifact_url) is not None, "the record")
        record = read_record(run.artifact_url)
        assert record is not None and record.attempts == 1
        return record.weights_sha256

    def leaves_within_a_step(self, run_id: int) -> bool:
        """True if a worker was asked to leave, and each that was asked left one step later at the latest."""
        events = list(self._service.client.events(self.run(run_id).job))
        asked = {one.worker_id: one.step for one in events if one.kind == "worker_draining"}
        left = {one.worker_id: one.step for one in events if one.kind == "worker_left"}
        return bool(asked) and all(left.get(worker, step) <= step + 2 for worker, step in asked.items())


def words(ests: int, steps: int) -> list[str]:
    return ["--ests", str(ests), "--steps", str(steps), "--seconds", str(EST_SECONDS)]


def undisturbed(address: str, folder: Path, ests: int, steps: int = STEPS) -> str:
    """Return the weights of the same training on one worker that nothing disturbs."""
    command = [sys.executable, "-m", "elastane_cli", "run", "--master", address, "--job", f"alone-{ests}"]
    command += ["--ests", str(ests), "--workers", "1:1", "--seed", "7", str(SCRIPT)]
    command += ["--ests", str(ests), "--steps", str(steps), "--seconds", "0"]
    url = str(folder / f"alone-{ests}")
    done = patience.run(command, env={**os.environ, "MODEL_URL": url}, capture_output=True, timeout=200)
    manifest = read_manifest(url)
    assert done.returncode == 0 and manifest is not None, done.stderr
    return manifest.content_hash


@further  # service_sim: policies, starvation, killed masters and runners; bits: test_service_scheduling
def test_two_runs_share_a_pool_under_fire_and_a_third_gets_its_slots(tmp_path: Path) -> None:
    until = tmp_path / "until"
    with local_service(tmp_path / "service", 4, SETTINGS) as service:
        pool = Pool(service, until)
        first = pool.submit(ests=4)
        pool.wait(lambda: pool.trains(first), "the first run")
        second = pool.submit(ests=2)
        pool.wait(lambda: pool.trains(second), "the second run: the first gives slots back")

        pool.kill_worker(first)
        pool.kill_runner()
        urgent = pool.submit("--priority", "1000", "--instances-min", "2", ests=2)
        pool.wait(lambda: len(pool.members(urgent)) == 2, "both workers of the urgent run")
        pool.wait(lambda: pool.trains(urgent, 1), "steps of the urgent run")
        assert all(pool.trains(run_id) for run_id in (first, second)), "the others keep a worker each"
        assert pool.leaves_within_a_step(first) or pool.leaves_within_a_step(second)

        # Nobody can give a slot back any more, and all say how long they will take.
        waits = pool.submit(ests=1, steps=20)
        pool.wait(lambda: pool.run(waits).HasField("earliest_start"), "the forecast of a run that waits")
        (holder,) = pool.run(waits).holders
        assert holder.run_id in (first, second, urgent) and holder.HasField("until")

        until.touch()
        assert pool.weights(waits)
        found = {run_id: pool.weights(run_id) for run_id in (first, second, urgent)}
        alone = [undisturbed(service.address, tmp_path, 4), undisturbed(service.address, tmp_path, 2)]
    assert [found[first], found[second], found[urgent]] == [*alone, alone[1]]
