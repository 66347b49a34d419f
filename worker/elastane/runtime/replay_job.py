"""Job of mode "replay": the script's loop gets the tasks of a run, in an order that all slots agree with.

`elastane ps replay` starts the script so, and reads the result that is written here.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from elastane.rng import seed_all
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.replay_request import PROGRESS, RESULT, ReplayRequest
from elastane.runtime.seeds import task_seed
from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.errors import ReplayError
from elastane.runtime.slots.model import PsArguments, model_parts
from elastane.runtime.slots.prepared import PreparedPs
from elastane.runtime.slots.remote import NONFINITE
from elastane.runtime.slots.replaying import ReplaySlots
from elastane.runtime.slots.task import PushTask
from elastane.runtime.stock import LocalTask, PlainJob
from elastane.slots.map_message import wire_of
from elastane.tables.journal_file import JournalReading
from elastane.tables.replay_order import History, ReplayOrder, SlotState
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.snapshot_file import SlotSnapshotError
from elastane.tables.snapshots import newest
from elastane.tables.spec import ModelSpec
from elastane.tables.spec_proto import from_proto
from elastane_common.atomic_writes import write_atomically
from elastane_common.errors import ElastaneError
from elastane_common.storage import Folder
from elastane_proto.v1 import ps_pb2

_PROGRESS_SECONDS: Final = 0.1


@dataclass(frozen=True)
class _End:
    """A slot as the run has saved it. digest: of its weights with the optimizer's state."""

    state: SlotState
    digest: str


class ReplayJob(PlainJob):
    """Reads the journal where the model is prepared, and compares when the last task is done."""

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        super().__init__(environment, seed)
        self._request = ReplayRequest.read()
        self._order: ReplayOrder
        self._slots: ReplaySlots
        self._ends: list[_End] = []
        self._torn: list[str] = []
        self._said_at = 0.0

    def _prepare_ps(self, given: PsArguments) -> PreparedPs:
        with self._told():
            folder = Folder(self._request.url, SlotSnapshotError)
            reading = JournalReading(folder)
            welcome = _one_model(reading)
            recorded = from_proto(welcome.model, wire_of(welcome.settings))
            parts = model_parts(given, slots=recorded.slots, seed=self._seed or 0, wire=recorded.wire)
            memory = DenseMemory(parts.spec, parts.dense)
            _check_model(parts.spec, recorded, memory, parts.local, welcome.model)
            history = History()
            for record in reading.records():
                history.add(record)
            self._torn = reading.torn
            self._ends = _ends(folder.within(self._request.ends), recorded)
            self._order = history.order(end.state for end in self._ends)
            self._slots = ReplaySlots(parts.spec, memory, self._order, self._failed)
            nonfinite = NONFINITE.get(welcome.settings.nonfinite, "refuse")
            self._say_progress()
            if not self._order.left:
                self._compare()
            return PreparedPs(given, parts, memory, self._slots, nonfinite)

    def tasks(
        self, dataset: str, *, size: int, task_size: int, **settings: Any
    ) -> Iterator[LocalTask | PushTask]:
        if self._ps is None:
            yield from super().tasks(dataset, size=size, task_size=task_size, **settings)
            return
        with self._told():
            while (found := self._slots.next(dataset)) is not None:
                start = found.task * task_size
                indices = range(start, min(start + task_size, size))
                task = PushTask(found.epoch, found.task, indices, found.attempt, dataset, found.lease)
                seed_all(task_seed(self._seed or 0, dataset, task.epoch, task.index))
                left = self._order.left
                self._ps.begin(task)
                try:
                    yield task
                finally:
                    if not self._order.left:
                        self._compare()
                end = self._ps.end().result()
                if self._order.left == left:
                    raise ReplayError(
                        f"task {found} was pushed in the run, and not now: {end.error}", task=str(found)
                    )
                self._say_progress()
            if dataset in (left_of := self._order.datasets()):
                raise ReplayError(
                    f"the tasks of {dataset!r} cannot be done before those of {', '.join(left_of)}",
                    hint="the script goes through its data sets in another order than the run",
                )

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Write an error down for the command, and end."""
        try:
            yield
        except ElastaneError as error:
            self._failed(error)
            raise SystemExit(error.exit_code) from error

    def _failed(self, error: ElastaneError) -> None:
        told = {"name": type(error).__name__, "code": error.code, "hint": error.hint, "facts": error.facts}
        self._write(error={**told, "message": str(error.args[0])})

    def _compare(self) -> None:
        made = self._slots.ends()
        slots = [
            {
                **end.state._asdict(),
                "sha256": made[end.state].digest(),
                "expected": end.digest,
            }
            for end in self._ends
        ]
        self._write(slots=slots)

    def _write(self, **found: Any) -> None:
        total = len(self._order.executions) if hasattr(self, "_order") else 0
        found |= {"tasks": total, "torn": self._torn}
        if hasattr(self, "_slots"):
            found["other_rates"] = self._slots.other_rates
        path = Path(self._request.folder) / RESULT
        if not path.exists():
            path.write_text(json.dumps(found))

    def _say_progress(self) -> None:
        now = time.monotonic()
        if now - self._said_at > _PROGRESS_SECONDS:
            self._said_at = now
            total = len(self._order.executions)
            path = Path(self._request.folder) / PROGRESS
            write_atomically(path, f"{total - self._order.left} {total}")


def _one_model(reading: JournalReading) -> ps_pb2.PsWelcome:
    """Return the model of all processes. Raises JournalError, ReplayError."""
    found: list[ps_pb2.PsWelcome] = []
    for stored in reading.models():
        welcome = ps_pb2.PsWelcome.FromString(stored)
        if found and welcome.model != found[0].model:
            raise ReplayError("the journal has two models", hint="the folder has the journals of two runs")
        found.append(welcome)
    return found[0]


def _check_model(
    spec: ModelSpec, recorded: ModelSpec, memory: DenseMemory, local: str, model: ps_pb2.SlotModel
) -> None:
    """Raise ReplayError for a model, or initial values, of another run."""
    hint = "the script, its arguments or its seed are others than in the run"
    if spec.digest != recorded.digest:
        names = {one.name for one in spec.tensors} | {one.name for one in spec.tables}
        names ^= {one.name for one in recorded.tensors} | {one.name for one in recorded.tables}
        different = f": {sorted(names)[0]!r} is in one alone" if names else ""
        raise ReplayError(f"the script has another model than the run{different}", hint=hint)
    if memory.digest != model.dense_digest:
        raise ReplayError("the model begins with other values than in the run", hint=hint)
    if local != model.environment["local"]:
        raise ReplayError("buffers or frozen parameters begin with other values than in the run", hint=hint)
    if (then := model.environment["torch"]) != torch.__version__:
        raise ReplayError(f"the run had torch {then}, and this is {torch.__version__}", hint="install that")


def _ends(folder: Folder, spec: ModelSpec) -> list[_End]:
    """Return how the run has saved its slots. Raises SlotSnapshotError."""
    found = []
    for slot in range(spec.slots):
        snapshot, rejected = newest(folder, spec, slot)
        if snapshot is None:
            why = "; ".join(rejected) or f"there is none in {folder.url}"
            raise SlotSnapshotError(f"no snapshot of slot {slot} to compare with: {why}", slot=slot)
        weights: SlotWeights = snapshot.weights
        state = SlotState(slot, snapshot.record.life, snapshot.record.version)
        found.append(_End(state, weights.digest()))
    return found
