"""Runs the jobs of `make fidelity` on a real training service: submits, follows, and reads their weights.

A probe measures what the simulator needs to know:

    two runs of 1 and 2 ESTs                 the first start on this service; duration of steps
    runs of 1, 2 and 4 ESTs, each alone,     when their workers join (start times by number at once), and
    three times                              how long a ring stalls when one joins
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fidelity_jobs import EST_SECONDS, Measured, SmallJob, Training

from elastane_cli.rehearse.local_service import LocalService, ServiceError, local_service
from elastane_cli.views.runs import is_waiting, state_text
from elastane_common.artifacts import read_manifest, read_record
from elastane_proto.v1 import ring_pb2, training_pb2

SCRIPT: Final = Path(__file__).parent / "peer_scripts" / "waiting_job.py"
SLOTS: Final = 4
SEED: Final = 7
STARTS: Final = (1, 2, SLOTS)
"""Workers that the probe starts at once."""
TURNS: Final = 3
"""Number of times it does so."""
_END_SECONDS: Final = 1200.0
_RECORD_SECONDS: Final = 300.0
_ENDED: Final = frozenset(
    {training_pb2.RUN_STATE_SUCCEEDED, training_pb2.RUN_STATE_FAILED, training_pb2.RUN_STATE_CANCELLED}
)

Say = Callable[[str], None]
"""Type of functions that show a line of progress."""


@contextmanager
def followed_service(folder: Path, say: Say, policy: str = "") -> Iterator[FollowedService]:
    """Yield a service with SLOTS slots under a policy ("": the default), and remove all of it afterwards."""
    settings = {"ELASTANE_SCHEDULING_POLICY": policy, "ELASTANE_RESHAPE_SECONDS": "0"} if policy else {}
    with local_service(folder, SLOTS, settings) as service:
        followed = FollowedService(service, say)
        service.on_look = followed.look
        yield followed


class FollowedService:
    """A service whose runs are shown as they change; a failed run is an error."""

    def __init__(self, service: LocalService, say: Say) -> None:
        self.service = service
        self._say = say
        self._spec: training_pb2.RunSpec | None = None
        self._lines: dict[int, str] = {}
        self._over: set[int] = set()

    def submit(self, training: Training, name: str, est_seconds: float = EST_SECONDS) -> int:
        """Submit a run; return its id. The first one uploads the code, which later ones reuse."""
        words = _words(training, est_seconds)
        if self._spec is None:
            run_id = self._submit_first(training, name, words)
            self._spec = self.service.training.get(run_id).spec
        else:
            spec = training_pb2.RunSpec()
            spec.CopyFrom(self._spec)
            spec.name, spec.instances, spec.instances_min = name, training.ests, 1
            spec.command[-len(words) :] = words
            run_id = self.service.training.train(spec)[0].run_id
        self._lines[run_id] = ""
        return run_id

    def _submit_first(self, training: Training, name: str, words: Sequence[str]) -> int:
        command = [sys.executable, "-m", "elastane_cli", "submit", "--master", self.service.address]
        command += ["--model", "waiting", "--name", name, "--instances", str(training.ests)]
        command += ["--instances-min", "1", "--seed", str(SEED), "--grace", "3", "--detach", "--json"]
        done = subprocess.run([*command, str(SCRIPT), *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceError(f"elastane submit ended with {done.returncode}: {done.stderr.strip()}")
        return int(json.loads(done.stdout)["run"]["run_id"])

    def look(self) -> None:
        """Show changes since the last call. Raises ServiceError if a run has failed."""
        for run_id in self._lines.keys() - self._over:
            run = self.service.training.get(run_id)
            words = state_text(run) if is_waiting(run) else f"{state_text(run)}: {run.reason}"
            line = f"run {run_id}, {run.spec.name}: {words}"
            if self._lines[run_id] != line:
                self._lines[run_id] = line
                self._say(line)
            if run.state in _ENDED:
                self._over.add(run_id)
            if run.state in _ENDED and run.state != training_pb2.RUN_STATE_SUCCEEDED:
                raise ServiceError(f"{line}\n{self._last_lines(run_id)}")

    def _last_lines(self, run_id: int) -> str:
        log = b"".join(piece.data for piece in self.service.training.stream_logs(run_id))
        return "\n".join(log.decode(errors="replace").splitlines()[-20:])

    def wait_for_end(self, *run_ids: int) -> None:
        """Wait until these runs have succeeded. Raises ServiceError."""
        wanted = set(run_ids)
        self.service.wait_for(lambda: wanted <= self._over, "the ends of the runs", _END_SECONDS)

    def run(self, run_id: int) -> training_pb2.Run:
        """Return a run."""
        return self.service.training.get(run_id)

    def events(self, run_id: int) -> list[ring_pb2.Event]:
        """Return the events of a run's job."""
        return list(self.service.client.events(self.run(run_id).job))

    def first_start(self, run_id: int) -> float:
        """Return the seconds from a run's first grant to the join of its first worker."""
        decisions = self.service.training.get_scheduling(run_id).decisions
        granted = training_pb2.SchedulingDecision.KIND_GRANTED
        created = _created(self.run(run_id))
        since = min(
            (one.time.ToNanoseconds() / 1e9 for one in decisions if one.kind == granted), default=created
        )
        return min(_time(one) for one in self.events(run_id) if one.kind == "worker_joined") - since

    def weights(self, run_id: int) -> str:
        """Return the sha256 of a run's model, once its record is written."""
        url = self.run(run_id).artifact_url
        self.service.wait_for(lambda: read_record(url) is not None, "the record", _RECORD_SECONDS)
        record = read_record(url)
        return record.weights_sha256 if record is not None else ""


def _words(training: Training, est_seconds: float) -> list[str]:
    """Return the script's arguments."""
    return ["--ests", str(training.ests), "--steps", str(training.steps), "--seconds", str(est_seconds)]


# ---------------------------------------------------------------- the trace


def play_trace(
    folder: Path, jobs: Sequence[SmallJob], policy: str, say: Say
) -> tuple[dict[str, float], dict[str, str], list[float]]:
    """Submit the jobs at their times, and wait for all.

    Return completion times and weights by name, and what the first start of each took.
    """
    with followed_service(folder, say, policy) as followed:
        runs: dict[str, int] = {}
        began = 0.0
        for job in sorted(jobs, key=lambda job: job.arrival_seconds):
            if runs:
                due = began + job.arrival_seconds
                followed.service.wait_for(lambda due=due: time.time() >= due, "the next arrival")
            runs[job.name] = followed.submit(job.training, job.name)
            began = began or _created(followed.run(runs[job.name]))
        followed.wait_for_end(*runs.values())
        ended = {name: followed.run(run_id) for name, run_id in runs.items()}
        times = {name: _ended(run) - _created(run) for name, run in ended.items()}
        starts = [followed.first_start(run_id) for run_id in runs.values()]
        return times, {name: followed.weights(run_id) for name, run_id in runs.items()}, starts


def _created(run: training_pb2.Run) -> float:
    return float(run.created.ToNanoseconds() / 1e9)


def _ended(run: training_pb2.Run) -> float:
    return float(run.ended.ToNanoseconds() / 1e9)


# ---------------------------------------------------------------- undisturbed runs


def undisturbed(service: LocalService, folder: Path, trainings: Sequence[Training]) -> dict[Training, str]:
    """Run each training undisturbed on one worker, without sleeps; return the weights.

    Runs as many at once as there are processors. Raises ServiceError.
    """
    waiting, running = list(trainings), dict[Training, subprocess.Popen[bytes]]()
    weights: dict[Training, str] = {}

    def advance() -> bool:
        for training, process in list(running.items()):
            if process.poll() is not None:
                del running[training]
                weights[training] = _weights(training, folder, process.returncode)
        while waiting and len(running) < (os.cpu_count() or 1):
            training = waiting.pop()
            running[training] = _start_undisturbed(service.address, folder, training)
        return not running

    try:
        service.wait_for(advance, "the undisturbed runs", _END_SECONDS)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return weights


def _start_undisturbed(address: str, folder: Path, training: Training) -> subprocess.Popen[bytes]:
    name = _name(training)
    command = [sys.executable, "-m", "elastane_cli", "run", "--master", address, "--job", name]
    command += ["--ests", str(training.ests), "--workers", "1:1", "--seed", str(SEED), str(SCRIPT)]
    environment = {**os.environ, "MODEL_URL": str(folder / name)}
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, *_words(training, 0.0)], env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def _weights(training: Training, folder: Path, exit_code: int) -> str:
    """Return the weights of a run that has ended. Raises ServiceError if it wrote none."""
    name = _name(training)
    manifest = read_manifest(str(folder / name)) if exit_code == 0 else None
    if manifest is None:
        log = (folder / f"{name}.log").read_text(errors="replace")
        raise ServiceError(f"{name} ended with {exit_code}:\n{log[-2000:]}")
    return manifest.content_hash


def _name(training: Training) -> str:
    return f"undisturbed-{training.ests}-{training.steps}"


# ---------------------------------------------------------------- the probe


class Probe:
    """Measures the cost of changes on this machine."""

    def __init__(self, followed: FollowedService) -> None:
        self._followed = followed
        self._starts: dict[int, list[float]] = {count: [] for count in STARTS}
        self._stalls: list[float] = []
        self._ends: list[float] = []

    def measure(self) -> Measured:
        """Run the probe's runs; see the module."""
        one = self._followed.submit(Training(1, 40), "probe of 1 EST")
        self._wait_until_trains(one)
        two = self._followed.submit(Training(2, 40), "probe of 2 ESTs")
        self._followed.wait_for_end(one, two)
        (first_start,) = self._joins(one)
        for turn in range(1, TURNS + 1):
            for count in STARTS:
                run_id = self._followed.submit(Training(count, 12), f"probe of {count} ESTs, {turn}")
                self._followed.wait_for_end(run_id)
                self._starts[count] += self._joins(run_id)
                self._note(run_id)
        est = self._step_seconds(one)
        exchange = max(0.0, self._step_seconds(two) - est)
        return Measured(
            first_start=first_start,
            starts={count: statistics.mean(joins) for count, joins in self._starts.items()},
            stall=statistics.mean(self._stalls) if self._stalls else 0.0,
            restore=0.0,
            est=est,
            exchange=exchange,
            end=statistics.mean(self._ends),
        )

    def _wait_until_trains(self, *run_ids: int) -> None:
        def train() -> bool:
            jobs = [self._followed.run(run_id).job for run_id in run_ids]
            return all(job and self._followed.service.client.get_job(job).step > 0 for job in jobs)

        self._followed.service.wait_for(train, "the first steps of the probe")

    def _joins(self, run_id: int) -> list[float]:
        """Return the seconds from a run's submission to each join of a worker."""
        created = _created(self._followed.run(run_id))
        return [_time(one) - created for one in self._followed.events(run_id) if one.kind == "worker_joined"]

    def _note(self, run_id: int) -> None:
        """Record the stalls and the end of a run."""
        run, events = self._followed.run(run_id), self._followed.events(run_id)
        changes = [one for one in events if one.kind in ("ring_change", "ring_formed")]
        for before, after in itertools.pairwise(changes):
            if (before.kind, after.kind) == ("ring_change", "ring_formed") and after.step > 0:
                self._stalls.append(_time(after) - _time(before))
        left = [_time(one) for one in events if one.kind == "worker_left"]
        self._ends.append(_ended(run) - min(left))

    def _step_seconds(self, run_id: int) -> float:
        """Return the seconds of a step in the run's last ring."""
        events = self._followed.events(run_id)
        formed = [one for one in events if one.kind == "ring_formed"][-1]
        left = next(one for one in events if one.kind == "worker_left")
        return (_time(left) - _time(formed)) / float(left.step - formed.step)


def _time(event: ring_pb2.Event) -> float:
    return float(event.time.ToNanoseconds() / 1e9)
