"""Demo of the training service: three runs from submission to model, while its processes are killed.

    submit 3 runs ──▶ all run ──▶ kill a rank ──▶ kill the master ──▶ kill the runner ──▶ they end ──▶ look

The runs wait before one of their epochs until the faults are over, so the order is the same on every machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import run as run_process
from typing import Final

import elastane
from elastane_cli.demo.service_checks import ELASTIC, STOCK, TENSORFLOW, Found, FoundRun, Kill, RankKill
from elastane_cli.rehearse.local_service import LocalService, Part, RankKey, ServiceError, local_service
from elastane_cli.views.runs import change_line, state_name
from elastane_common import layout
from elastane_common.artifacts import ArtifactError, read_record, verify
from elastane_common.errors import ElastaneError, RefusedError
from elastane_common.run_record import RunRecord
from elastane_common.training_client import FINAL_STATES
from elastane_proto.v1 import job_pb2, training_pb2

SEED: Final = 7
TASKS: Final = 2
"""Instances of the TensorFlow run."""
GRACE_SECONDS: Final = 3
KILL_STEP: Final = 3
"""A rank is killed once the elastic run has committed this many steps."""
_END_SECONDS: Final = 600.0
_RECORD_SECONDS: Final = 60.0

Say = Callable[[str], None]
"""Shows a line of progress."""


def service_scripts() -> Path:
    """Return the folder examples/service of the checkout that has the package, or the wheel's copy.

    Raises RefusedError if there is neither, or if the dataset is not installed.
    """
    places = (
        Path(elastane.__file__).resolve().parents[2] / "examples" / "service",
        Path(__file__).resolve().with_name("service"),
    )
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise RefusedError(
            "the demo's scripts are not where Elastane was installed",
            hint="install it again: pip install --force-reinstall elastane",
        )
    if importlib.util.find_spec("sklearn") is None:
        raise RefusedError(
            "the demo trains on the digits of scikit-learn, which is not installed here",
            hint="pip install scikit-learn",
        )
    return folder


def run_service_demo(folder: Path, say: Say, *, ests: int, epochs: int) -> Found:
    """Run the demo in `folder`. Raises ElastaneError if the service or the runs do not reach their end.

    ests: logical workers of the elastic run, and ranks of stock DDP.
    """
    begun = time.monotonic()
    code = folder / "code"
    shutil.copytree(service_scripts(), code, ignore=shutil.ignore_patterns("__pycache__"))
    slots = 2 * ests + TASKS
    say(f"elastane service --slots {slots}")
    with local_service(folder / "service", slots) as service:
        play = _Play(service, code, folder / "faults-are-over", say, ests, epochs)
        play.submit()
        play.wait_until_all_run()
        rank, master, runner = play.kill_rank(), play.kill("master"), play.kill("runner")
        play.let_end()
        runs = {name: play.look(name) for name in play.runs}
    return Found(runs=runs, master=master, runner=runner, rank=rank, seconds=time.monotonic() - begun)


@dataclass
class _Play:
    """The acts of the demo. until: the file for which the runs wait. runs: ids by name."""

    service: LocalService
    code: Path
    until: Path
    say: Say
    ests: int
    epochs: int
    runs: dict[str, int] = field(default_factory=dict)
    _said: dict[int, str] = field(default_factory=dict)
    _submitted_at: float = 0.0
    _ended_at: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.service.on_look = self._look_at_runs

    # ------------------------------------------------------------------ acts

    def submit(self) -> None:
        """Submit the three runs at the same time, as a user would. Raises ServiceError."""
        instances, script = ["--instances", str(self.ests)], ["--epochs", str(self.epochs)]
        hold = ["--param", f"HOLD_UNTIL={self.until}", "--param", f"HOLD_EPOCH={self.epochs // 2}"]
        elastic = [*instances, "--seed", str(SEED), *hold, str(self.code / "digits_elastic.py"), *script]
        stock = [
            "--framework",
            "pytorch",
            *instances,
            "--param",
            f"SEED={SEED}",
            "--param",
            "OMP_NUM_THREADS=1",
        ]
        stock += [*hold, str(self.code / "digits_ddp.py"), *script]
        tensorflow = ["--framework", "tensorflow", "--instances", str(TASKS), *hold]
        tensorflow.append(str(self.code / "tf_config.py"))
        self._submitted_at = time.monotonic()
        with ThreadPoolExecutor() as pool:
            ids = pool.map(
                self._submit_one, ("digits", "digits-ddp", "cluster"), (elastic, stock, tensorflow)
            )
            self.runs = dict(zip((ELASTIC, STOCK, TENSORFLOW), ids, strict=True))
        for name, run_id in self.runs.items():
            self.say(f"run {run_id} is submitted: {name}")

    def _submit_one(self, model: str, arguments: list[str]) -> int:
        command = [sys.executable, "-m", "elastane_cli", "submit", "--master", self.service.address]
        command += ["--model", model, "--grace", str(GRACE_SECONDS), "--detach", "--json", *arguments]
        done = run_process(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceError(f"elastane submit ended with {done.returncode}: {done.stderr.strip()}")
        return int(json.loads(done.stdout)["run"]["run_id"])

    def wait_until_all_run(self) -> None:
        """Wait until every rank of every run has a process, and the elastic job trains on all its workers."""
        wanted = {RankKey(self.runs[name], rank) for name in self.runs for rank in range(self._size(name))}
        self.service.wait_for(lambda: self.service.ranks().keys() >= wanted, "all ranks", _END_SECONDS)
        self.service.wait_for(self._trains, "the elastic run's first steps", _END_SECONDS)

    def kill_rank(self) -> RankKill:
        """Kill a rank of the elastic run; wait until it is back and the others continue to train."""
        job, before = self._job(), self.service.ranks()
        members = [one.pid for one in job.workers if one.state == job_pb2.WORKER_STATE_MEMBER]
        rank = self.service.rank_of(members[-1])
        self.say(f">>> kill -9 rank {rank.rank} of run {rank.run_id} after step {job.step}")
        at = time.monotonic()
        self.service.kill_rank(rank)
        self.service.wait_for(
            lambda: self.service.ranks().get(rank, before[rank]) != before[rank], "the killed rank"
        )
        self.service.wait_for(lambda: self._trains_on(job), "the next step of the elastic run")
        seconds, after = time.monotonic() - at, self.service.ranks()
        others = [key for key in before if key != rank and after.get(key) != before[key]]
        self.say(f"rank {rank.rank} is there again, and the others train on, after {seconds:.1f} s")
        return RankKill(rank=rank.rank, step=job.step, seconds=seconds, others_restarted=len(others))

    def kill(self, part: Part) -> Kill:
        """Kill master or runner, and wait until everything is served again."""
        before = self.service.ranks()
        self.say(f">>> kill -9 the {part}, while {len(before)} ranks run")
        at = time.monotonic()
        self.service.kill(part)
        self.service.wait_for(self.service.attends, "the service")
        seconds, after = time.monotonic() - at, self.service.ranks()
        self.say(f"the {part} is back after {seconds:.1f} s")
        restarted = [key for key in before if after.get(key) != before[key]]
        return Kill(seconds=seconds, ranks=len(before), restarted=len(restarted))

    def let_end(self) -> None:
        """Let the runs continue to their ends."""
        self.until.touch()
        self.service.wait_for(
            lambda: len(self._ended_at) == len(self.runs), "the ends of the runs", _END_SECONDS
        )

    def look(self, name: str) -> FoundRun:
        """Return the results of a finished run."""
        run = self.service.training.get(self.runs[name])
        record = self._record(run)
        logs = {rank: self._log(run, rank) for rank in range(self._size(name))}
        return FoundRun(
            name=name,
            run_id=run.run_id,
            state=state_name(run),
            reason=run.reason,
            attempts=run.attempt,
            seconds=self._ended_at[run.run_id] - self._submitted_at,
            model_fault=_model_fault(run),
            record=record,
            logs={rank: log.decode(errors="replace") for rank, log in logs.items()},
            log_digests={
                layout.rank_log(run.attempt, rank): hashlib.sha256(log).hexdigest()
                for rank, log in logs.items()
            },
        )

    # ------------------------------------------------------------------ parts

    def _size(self, name: str) -> int:
        return TASKS if name == TENSORFLOW else self.ests

    def _job(self) -> job_pb2.Job:
        """Return the job of the running elastic run."""
        return self.service.client.get_job(self.service.training.get(self.runs[ELASTIC]).job)

    def _trains(self) -> bool:
        """True if the elastic run trains with all its workers in the ring, or waits for the faults."""
        job = self._job()
        members = sum(one.state == job_pb2.WORKER_STATE_MEMBER for one in job.workers)
        return members > 0 and (self._is_held(job) or (members == self.ests and job.step >= KILL_STEP))

    def _is_held(self, job: job_pb2.Job) -> bool:
        return 0 < job.steps_per_epoch * (self.epochs // 2) <= job.step

    def _trains_on(self, before: job_pb2.Job) -> bool:
        """True if a later ring of the elastic run has committed a step, or it waits for the faults."""
        job = self._job()
        return self._is_held(job) or (job.generation > before.generation and job.step > before.step)

    def _look_at_runs(self) -> None:
        """Show each change of a run. Raises ServiceError if one has failed, as nothing else will follow."""
        for run_id in self.runs.values():
            run = self.service.training.get(run_id)
            line = change_line(run)
            if self._said.get(run_id) != line:
                self._said[run_id] = line
                self.say(line)
            if run.state in FINAL_STATES:
                self._ended_at.setdefault(run_id, time.monotonic())
            if run.state in (training_pb2.RUN_STATE_FAILED, training_pb2.RUN_STATE_CANCELLED):
                raise ServiceError(f"{line}\n{self._last_lines(run)}")

    def _last_lines(self, run: training_pb2.Run) -> str:
        try:
            lines = self._log(run, 0).decode(errors="replace").splitlines()
        except ElastaneError as error:
            return f"its log: {error.args[0]}"
        return "\n".join(lines[-20:])

    def _record(self, run: training_pb2.Run) -> RunRecord | None:
        """Return the record, which is written after the run's end."""
        found: list[RunRecord] = []

        def is_written() -> bool:
            record = read_record(run.artifact_url)
            found.extend([record] if record is not None else [])
            return record is not None

        try:
            self.service.wait_for(is_written, f"the record of run {run.run_id}", _RECORD_SECONDS)
        except ServiceError:
            return None
        return found[0]

    def _log(self, run: training_pb2.Run, rank: int) -> bytes:
        """Return the output of a rank, as the service gives it to its users."""
        return b"".join(piece.data for piece in self.service.training.stream_logs(run.run_id, rank=rank))


def _model_fault(run: training_pb2.Run) -> str:
    try:
        verify(layout.model_url(run.artifact_url))
    except ArtifactError as error:
        return str(error.args[0])
    return ""
