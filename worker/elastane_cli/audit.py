"""Audit of the committed history: does every sample of an epoch count exactly once?

It reads nothing but the committed history (`ShardService.GetAuditLog`) and knows nothing of the code that
made it, so that it can contradict that code. The log has entries of two disciplines:

lockstep   key (epoch, step, virtual rank). A later entry for the same key supersedes the earlier one:
           the ring went back to a saved step and repeated it. Ranges are positions in the epoch's order.
dynamic    key (epoch, index), `attempt` >= 1. A done task is never done again: a second entry is a fault.

Faults, as opposed to stock behaviour of `DistributedSampler` and `DataLoader`:

- positions of an epoch that no entry covers, or that two standing entries cover, are faults;
- a step without all its virtual ranks is a fault, in an epoch in progress too: a step is committed
  for all ranks at once;
- samples seen twice are padding if they are fewer than the ranks and are repeated in the epoch's last step
  (the sampler repeats its first samples so that every rank gets the same number), otherwise faults;
- samples never seen are faults, unless nothing is padded and they are fewer than the ranks (the sampler's
  `drop_last`), or every mini-batch is full and they are fewer than one of each rank (the loader's
  `drop_last`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: Limit of offending positions or samples that a result names; the counts are always exact.
NAMED_MAX = 20


class AuditRange(Protocol):
    """Positions [start, end)."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class AuditEntry(Protocol):
    """Fields of an entry that the audit reads; `shard_pb2.AuditEntry` has them."""

    @property
    def dataset(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def virtual_rank(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def range(self) -> AuditRange: ...
    @property
    def samples(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class EpochAudit:
    """Result for one epoch of one dataset.

    tasks: standing entries. positions: covered at least once. samples: distinct samples seen, or positions if
    the log records no samples. missing, duplicated: faults, as counts; `named` holds examples. padded,
    dropped: samples that the stock sampler repeats, or the loader drops. complete: the epoch has ended, so
    that missing samples are faults.
    """

    dataset: str
    epoch: int
    tasks: int
    positions: int
    samples: int
    missing: int = 0
    duplicated: int = 0
    padded: int = 0
    dropped: int = 0
    complete: bool = True
    named: tuple[int, ...] = ()
    violations: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuditResult:
    """Result for the whole history. `entries` were read; `superseded` of them were repeated later."""

    entries: int
    superseded: int
    epochs: tuple[EpochAudit, ...]
    violations: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every sample of every epoch counts exactly once."""
        return not self.violations

    @property
    def missing(self) -> int:
        return sum(epoch.missing for epoch in self.epochs)

    @property
    def duplicated(self) -> int:
        return sum(epoch.duplicated for epoch in self.epochs)


@dataclass
class _Standing:
    """An entry reduced to its range and samples."""

    start: int
    end: int
    samples: tuple[int, ...]


@dataclass
class _Epoch:
    """Standing entries of one epoch, by (step, virtual rank)."""

    dynamic: bool
    tasks: dict[tuple[int, int], _Standing] = field(default_factory=dict)
    repeated: list[int] = field(default_factory=list)


def audit(
    entries: Iterable[AuditEntry],
    *,
    ests: int | None = None,
    steps_per_epoch: int | None = None,
    dataset_sizes: Mapping[str, int] | None = None,
    tasks_per_epoch: Mapping[str, int] | None = None,
) -> AuditResult:
    """Check a history, given in the order of its commits.

    ests: logical workers; default: as many as the history shows. steps_per_epoch: shows whether the last
    lockstep epoch is complete; without it the last one counts as complete. dataset_sizes: samples of a
    dataset; without it an epoch is compared with all samples that any epoch has seen. tasks_per_epoch: like
    steps_per_epoch, for dynamic datasets. Called by `elastane audit`, the demo and tests. Raises nothing:
    faults are in the result.
    """
    epochs: dict[tuple[str, int], _Epoch] = {}
    count = superseded = 0
    for entry in entries:
        count += 1
        dynamic = entry.attempt > 0
        epoch = epochs.setdefault((entry.dataset, entry.epoch), _Epoch(dynamic))
        key = (entry.step, entry.virtual_rank)
        if key in epoch.tasks:
            superseded += 1
            if dynamic:
                epoch.repeated.append(entry.step)
        # Removed first, so that the newest run of a task takes its own place in the order of commits.
        epoch.tasks.pop(key, None)
        epoch.tasks[key] = _Standing(entry.range.start, entry.range.end, tuple(entry.samples))

    universe = _universe(epochs)
    newest: dict[str, int] = {}
    for dataset, number in epochs:
        newest[dataset] = max(newest.get(dataset, 0), number)
    results = []
    for (dataset, number), epoch in sorted(epochs.items()):
        expected = (tasks_per_epoch or {}).get(dataset) if epoch.dynamic else steps_per_epoch
        done = len({step for step, _ in epoch.tasks})
        complete = number < newest[dataset] or expected is None or done >= expected
        size = (dataset_sizes or {}).get(dataset)
        known = range(size) if size is not None else universe[dataset]
        results.append(_audit_epoch(dataset, number, epoch, ests, known, complete, expected))
    violations = tuple(text for result in results for text in result.violations)
    return AuditResult(count, superseded, tuple(results), violations)


def _universe(epochs: Mapping[tuple[str, int], _Epoch]) -> dict[str, set[int]]:
    """Return all samples of each dataset that any epoch has seen."""
    seen: dict[str, set[int]] = defaultdict(set)
    for (dataset, _), epoch in epochs.items():
        for task in epoch.tasks.values():
            seen[dataset].update(task.samples)
    return seen


def _audit_epoch(
    dataset: str,
    number: int,
    epoch: _Epoch,
    ests: int | None,
    universe: Iterable[int],
    complete: bool,
    steps_expected: int | None,
) -> EpochAudit:
    """Check one epoch. universe: all samples of the dataset. steps_expected: or tasks, if dynamic."""
    name = f"epoch {number} of {dataset!r}" if dataset else f"epoch {number}"
    violations: list[str] = []
    ranks = ests or 1 + max((rank for _, rank in epoch.tasks), default=0)
    if epoch.repeated:
        violations.append(f"{name}: {_some('task', epoch.repeated)} done more than once")
    if not epoch.dynamic:
        violations.extend(_step_faults(name, epoch, ranks))
    if complete and steps_expected is not None:
        done = len({step for step, _ in epoch.tasks})
        if done != steps_expected:
            unit = "tasks" if epoch.dynamic else "steps"
            violations.append(f"{name}: {done} {unit} committed, expected {steps_expected}")

    coverage = _coverage(epoch, in_order=complete or not epoch.dynamic)
    if coverage.gaps:
        violations.append(f"{name}: {_some('position', coverage.named_gaps, coverage.gaps)} never committed")
    if coverage.overlaps:
        text = _some("position", coverage.named_overlaps, coverage.overlaps)
        violations.append(f"{name}: {text} committed more than once")

    seen: Counter[int] = Counter()
    for task in epoch.tasks.values():
        seen.update(task.samples)
    samples = _audit_samples(name, epoch, seen, universe, ranks, complete) if seen else _Samples()
    named = samples.missing + samples.duplicated if seen else coverage.named_gaps + coverage.named_overlaps
    return EpochAudit(
        dataset=dataset,
        epoch=number,
        tasks=len(epoch.tasks),
        positions=coverage.covered,
        samples=len(seen) if seen else coverage.covered,
        missing=max(coverage.gaps, len(samples.missing)),
        duplicated=max(coverage.overlaps, len(samples.duplicated)),
        padded=samples.padded,
        dropped=samples.dropped,
        complete=complete,
        named=tuple(named[:NAMED_MAX]),
        violations=(*violations, *samples.violations),
    )


@dataclass
class _Samples:
    missing: list[int] = field(default_factory=list)
    duplicated: list[int] = field(default_factory=list)
    padded: int = 0
    dropped: int = 0
    violations: list[str] = field(default_factory=list)


def _audit_samples(
    name: str, epoch: _Epoch, seen: Counter[int], universe: Iterable[int], ranks: int, complete: bool
) -> _Samples:
    """Return missing and duplicated samples, beyond the stock sampler's padding and the loader's dropping."""
    result = _Samples()
    surplus = seen.total() - len(seen)
    # DistributedSampler pads with its first samples, which come again only in the last step.
    if surplus and surplus < ranks and complete and not epoch.dynamic and _distinct_before_last(epoch):
        result.padded = surplus
    elif surplus:
        result.duplicated = sorted(sample for sample, times in seen.items() if times > 1)
        result.violations.append(f"{name}: {_some('sample', result.duplicated)} counted more than once")
    if complete:
        missing = sorted(set(universe) - seen.keys())
        # A task may consist of several mini-batches; their size, whatever it is, divides that of every task.
        droppable = math.gcd(*(len(task.samples) for task in epoch.tasks.values())) * ranks
        if missing and len(missing) < droppable and not surplus and not epoch.dynamic:
            result.dropped = len(missing)
        elif missing:
            result.missing = missing
            result.violations.append(f"{name}: {_some('sample', missing)} never counted")
    strangers = sorted(seen.keys() - set(universe))
    if strangers:
        result.violations.append(f"{name}: {_some('sample', strangers)} not of the dataset")
    return result


def _distinct_before_last(epoch: _Epoch) -> bool:
    """True if no sample occurs twice in the steps before the epoch's last."""
    last = max(step for step, _ in epoch.tasks)
    early = [sample for (step, _), task in epoch.tasks.items() if step != last for sample in task.samples]
    return len(early) == len(set(early))


def _step_faults(name: str, epoch: _Epoch, ranks: int) -> list[str]:
    """Return the steps within the epoch's span that lack some or all virtual ranks."""
    present: dict[int, set[int]] = defaultdict(set)
    for step, rank in epoch.tasks:
        present[step].add(rank)
    first, last = min(present), max(present)
    faults = []
    absent = [step for step in range(first, last + 1) if step not in present]
    if absent:
        faults.append(f"{name}: {_some('step', absent)} never committed")
    partial = [step for step, found in sorted(present.items()) if len(found) != ranks]
    if partial:
        faults.append(f"{name}: {_some('step', partial)} without all {ranks} virtual ranks")
    return faults


@dataclass
class _Coverage:
    """Numbers of positions covered, never covered and covered twice, with the first few of each fault."""

    covered: int = 0
    gaps: int = 0
    overlaps: int = 0
    named_gaps: list[int] = field(default_factory=list)
    named_overlaps: list[int] = field(default_factory=list)


def _coverage(epoch: _Epoch, *, in_order: bool) -> _Coverage:
    """Compute how the standing ranges cover the epoch's positions from 0 on.

    in_order=False: an epoch of a dynamic dataset in progress, whose gaps are pending work. Entries without a
    range (start == end) are ignored: they contain no positions.
    """
    result = _Coverage()
    reached = 0
    for task in sorted(epoch.tasks.values(), key=lambda task: (task.start, task.end)):
        if task.end <= task.start:
            continue
        if task.start > reached and in_order:
            result.gaps += task.start - reached
            result.named_gaps.extend(range(reached, min(task.start, reached + NAMED_MAX)))
        if task.start < reached:
            end = min(reached, task.end)
            result.overlaps += end - task.start
            result.named_overlaps.extend(range(task.start, min(end, task.start + NAMED_MAX)))
        result.covered += max(0, task.end - max(task.start, reached))
        reached = max(reached, task.end)
    return result


def _some(noun: str, numbers: Sequence[int], count: int | None = None) -> str:
    """Format "3 samples (4, 7, 9)", naming only a few of them. count: their total number."""
    total = len(numbers) if count is None else count
    shown = ", ".join(str(number) for number in numbers[:8])
    more = ", ..." if total > 8 else ""
    plural = "" if total == 1 else "s"
    return f"{total} {noun}{plural} ({shown}{more})"
