"""Conditions that must hold after every fault. Independent of the implementation of the job.

same bits      each worker's trace of every step it applied equals the fixed run's; of a pipeline, by units
same values    every committed step has logged the same values as the fixed run
nothing lost   entries committed before the fault are still there after it, in the same order
nothing twice  the audit of the standing history is clean
monotone       neither the step nor the ring's generation goes back
reported       the events that must report the fault exist
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from elastane_cli.audit import audit
from elastane_cli.chaos.watch import Seen
from elastane_cli.rehearse.faults import ActiveFault
from elastane_cli.rehearse.results import PARTS, Values
from elastane_common.client import MasterClient
from elastane_proto.v1 import shard_pb2

_FORGOTTEN_MAX: Final = 20
#: Datasets of the fault poison-task: one task of each is meant to be lost.
POISON_PREFIX: Final = "poison-"
#: step -> part -> digests by name.
Digests = Mapping[int, Mapping[str, Any]]


def read_applied(file: Path, start: int = 0) -> tuple[list[Mapping[str, Any]], int]:
    """Return the "applied" records from byte `start` of a trace on, and the next start.

    A line that is still being written is left for the next call.
    """
    if not file.exists():
        return [], 0
    if file.stat().st_size < start:
        start = 0  # a worker of the same name has replaced it
    with file.open("rb") as opened:
        opened.seek(start)
        data = opened.read()
    whole = data[: data.rfind(b"\n") + 1]
    found = []
    for line in whole.splitlines():
        if b'"kind":"applied"' in line[:40]:
            found.append(json.loads(line))
    return found, start + len(whole)


def fixed_digests(traces: Path) -> Digests:
    """Return rank 0's trace of the fixed run, by step."""
    records, _ = read_applied(traces / "ddp-0.jsonl")
    return {int(record["step"]): record for record in records}


def training_entries(client: MasterClient, job: str) -> list[shard_pb2.AuditEntry]:
    """Return the committed history, except datasets that a fault created."""
    return [entry for entry in client.audit_log(job) if not entry.dataset.startswith(POISON_PREFIX)]


class Promises:
    """Comparison of one run with the fixed one. Used from one thread.

    traces: of the run's workers. ests, steps_per_epoch: for the audit. values: that the fixed run has logged.
    """

    def __init__(
        self,
        fixed: Digests,
        traces: Path,
        ests: int,
        steps_per_epoch: int,
        values: Values | None = None,
    ) -> None:
        self._values = values or {}
        self._fixed = fixed
        self._traces = traces
        self._ests = ests
        self._steps_per_epoch = steps_per_epoch
        self._offsets: dict[Path, int] = {}
        self._history: list[tuple[object, ...]] = []
        self._next_event = 0
        self.steps_compared: set[int] = set()

    def broken(
        self, client: MasterClient, job: str, active: ActiveFault, before: Seen, seen: Sequence[Seen]
    ) -> list[str]:
        """Return the promises broken after `active`. seen: all observations of the job since `before`."""
        problems = list(self.trace_problems())
        problems += self._history_problems(client, job, active)
        problems += _monotone(active, before, seen)
        kinds = set()
        # A store that lost its last events assigns their numbers again.
        since = max(0, self._next_event - _FORGOTTEN_MAX) if active.may_forget else self._next_event
        for event in client.events(job, since=since):
            kinds.add(event.kind)
            self._next_event = event.sequence + 1
        problems += [f"no event {kind} tells of it" for kind in active.expects if kind not in kinds]
        if said := active.check():
            problems.append(said)
        return problems

    def skip_events(self, client: MasterClient, job: str) -> None:
        """Skip the events so far, which do not report the next fault."""
        for event in client.events(job, since=self._next_event):
            self._next_event = event.sequence + 1

    def trace_problems(self) -> Iterator[str]:
        """Yield steps that a worker applied with other bits than the fixed run, since the last call."""
        for file in sorted(self._traces.glob("elastic-*.jsonl")):
            records, self._offsets[file] = read_applied(file, self._offsets.get(file, 0))
            found = [problem for record in records if (problem := self._difference(record))]
            if found:
                more = f", and so on for {len(found) - 1} more" if len(found) > 1 else ""
                yield f"{file.stem}: {found[0]}{more}"

    def _difference(self, record: Mapping[str, Any]) -> str:
        """Return how an applied step differs from the fixed run; empty if it does not."""
        step = int(record["step"])
        fixed = self._fixed.get(step)
        if fixed is None:
            return f"applied step {step}, which the fixed run has not"
        self.steps_compared.add(step)
        different = [part for part in PARTS if record[part] != _of(fixed[part], record, part)]
        return f"{', '.join(different)} differ after step {step}" if different else ""

    def _history_problems(self, client: MasterClient, job: str, active: ActiveFault) -> list[str]:
        entries = training_entries(client, job)
        history = [_key(entry) for entry in entries]
        known, self._history = self._history, history
        problems = []
        if history[: len(known)] != known and not active.may_forget:
            missing = sum(1 for key in known if key not in set(history))
            problems.append(f"{missing} of {len(known)} committed entries are gone, or their order changed")
        result = audit(entries, ests=self._ests, steps_per_epoch=self._steps_per_epoch)
        return [*problems, *result.violations[:3], *self._value_problems(entries)]

    def _value_problems(self, entries: Sequence[shard_pb2.AuditEntry]) -> list[str]:
        """Return the first committed value that is not the fixed run's, with the number of others."""
        other = [
            f"EST {entry.virtual_rank} has logged another {name} in step {entry.step}"
            for entry in entries
            for name, value in entry.metrics.items()
            if self._values.get((entry.step, entry.virtual_rank, name), value.hex()) != value.hex()
        ]
        return (
            [f"{other[0]}, and so on for {len(other) - 1} more" if other[1:] else other[0]] if other else []
        )


def _of(fixed: Mapping[str, Any], record: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """Return the fixed run's entries for a part of a record: a pipeline worker holds only some units."""
    if not record.get("partial"):
        return fixed
    return {name: digest for name, digest in fixed.items() if name in record[part]}


def _monotone(active: ActiveFault, before: Seen, seen: Sequence[Seen]) -> Iterator[str]:
    last = before
    for now in seen:
        if now.step < last.step and not active.may_rewind:
            yield f"the committed step went back from {last.step} to {now.step}"
        if now.generation < last.generation and not active.may_forget:
            yield f"the generation went back from {last.generation} to {now.generation}"
        last = now


def _key(entry: shard_pb2.AuditEntry) -> tuple[object, ...]:
    return (
        entry.epoch, entry.step, entry.virtual_rank, entry.range.start, entry.range.end, tuple(entry.samples),
        entry.committed.ToNanoseconds(), entry.worker_id,
    )  # fmt: skip
