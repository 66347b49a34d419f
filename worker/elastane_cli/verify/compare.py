"""Pure: find the first place where two runs differ, from the traces of their processes.

Steps are compared in order, and within a step in the order of execution: the batch, the generators at the
start of the body, logged values, each EST's own gradient in the order of backward, the generators after it;
then weights, optimizer, buffers and extras (schedulers, averages). Weights that differ before a step have
been detected at the previous one. So the first difference found is one that no earlier traced difference
explains.

A run's processes may have run one turn several times (replays). All of them are compared with the reference;
turns that were cut off, and steps that no process traced to the end, are ignored. Of a pipeline's workers
each has traced the gradients and the state of its units.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

What = Literal[
    "batch",
    "state",
    "value",
    "gradient",
    "state after",
    "weights",
    "optimizer",
    "buffers",
    "extras",
    "initial weights",
]
Key = tuple[int, int, int]  # step, virtual rank, mini-batch

_Stage = Callable[[Key, "MiniBatchTrace", "MiniBatchTrace"], "Difference | None"]

#: Number of further names that a difference lists.
NAMED_MAX: Final = 8


@dataclass(slots=True)
class MiniBatchTrace:
    """One EST's mini-batch in one process. began, ended: the records; empty if it was cut off."""

    process: str
    began: Mapping[str, Any]
    ended: Mapping[str, Any] = field(default_factory=dict)
    #: Virtual ranks whose turns the process ran in this run of the step, including this one.
    together: frozenset[int] = frozenset()


@dataclass(slots=True)
class RunTrace:
    """All records of one run's processes."""

    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    mini_batches: dict[Key, list[MiniBatchTrace]] = field(default_factory=lambda: defaultdict(list))
    applied: dict[int, list[tuple[str, Mapping[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    #: In a pipeline: an EST's backward in one worker's units. began: empty; ended: the record.
    backwards: dict[Key, list[MiniBatchTrace]] = field(default_factory=lambda: defaultdict(list))

    @property
    def last_step(self) -> int:
        return max(self.applied, default=-1)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that differs. step -1: before the first step.

    rank, micro: of the EST's turn; None if it concerns the step as a whole. name: the tensor, generator or
    value; empty for a batch. more: further names of the same kind that differ there. process, together: the
    process that ran it, and the ESTs it ran in that step. generators: unregistered ones that had a different
    state by then; known_generators: all unregistered ones that were found; facts: other differences between
    the processes (threads ...).
    """

    step: int
    what: What
    name: str = ""
    rank: int | None = None
    micro: int = 0
    reference: str = ""
    found: str = ""
    process: str = ""
    together: tuple[int, ...] = ()
    more: tuple[str, ...] = ()
    count: int = 1
    of: int = 1
    generators: tuple[str, ...] = ()
    known_generators: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def read_traces(folder: Path) -> RunTrace:
    """Read all records in a trace folder. A line that a killed process left unfinished is skipped."""
    run = RunTrace()
    for path in sorted(folder.glob("*.jsonl")):
        records = []
        for line in path.read_bytes().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                continue
        add_records(run, path.stem, records)
    return run


def add_records(run: RunTrace, process: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Add one process's records to the run."""
    open_batches: dict[Key, MiniBatchTrace] = {}
    step_batches: list[MiniBatchTrace] = []
    in_units: dict[int, list[MiniBatchTrace]] = defaultdict(list)
    last: tuple[int, int, int] | None = None
    for record in records:
        kind = record["kind"]
        if kind == "start":
            run.facts[process] = dict(record["facts"])
        elif kind == "applied":
            run.applied[record["step"]].append((process, record))
        elif kind == "backward":
            backward = MiniBatchTrace(process, {}, record)
            run.backwards[record["step"], record["rank"], record["micro"]].append(backward)
            in_units[record["step"]].append(backward)
        elif kind == "turn":
            key = (record["step"], record["rank"], record["micro"])
            # another step, or a repetition of the same one
            if last is None or key[0] != last[0] or key <= last:
                step_batches = []
            last = key
            mini_batch = MiniBatchTrace(process, record)
            step_batches.append(mini_batch)
            together = frozenset(one.began["rank"] for one in step_batches)
            for one in step_batches:
                one.together = together
            open_batches[key] = mini_batch
            run.mini_batches[key].append(mini_batch)
        elif kind == "end":
            ended = open_batches.pop((record["step"], record["rank"], record["micro"]), None)
            if ended is not None:
                ended.ended = record
    for backwards in in_units.values():
        ranks = frozenset(one.ended["rank"] for one in backwards)
        for one in backwards:
            one.together = ranks


def first_difference(reference: RunTrace, run: RunTrace) -> Difference | None:
    """Return the first place where `run` differs from `reference`.

    Returns None if everything traced by both is equal.
    """
    moved = _moved_generators(reference, run)
    idle = _idle_generators(reference) & _idle_generators(run)
    keys = sorted(set(reference.mini_batches) & set(run.mini_batches))
    by_step: dict[int, list[Key]] = defaultdict(list)
    for key in keys:
        by_step[key[0]].append(key)
    for step in sorted({*by_step, *(set(reference.applied) & set(run.applied))}):
        found = _in_mini_batches(reference, run, by_step[step], idle) or _in_applied(reference, run, step)
        if found is not None:
            return _with_background(found, reference, run, moved)
    return None


def _in_mini_batches(
    reference: RunTrace, run: RunTrace, keys: Sequence[Key], idle: Collection[str]
) -> Difference | None:
    """Return the first difference in a step's turns: by stage before EST, as no EST's turn explains
    another's. idle: generators that nothing draws from."""
    before, after = partial(_states, idle=idle), partial(_states_after, idle=idle)
    stages: list[_Stage] = [_batch, before, _values, _gradients, after]
    if run.backwards:  # whose scripts also log values about the gradients
        stages = [_batch, before, _loss, _gradients, _values, after]
    for micro in sorted({key[2] for key in keys}):
        for stage in stages:
            for key in (key for key in keys if key[2] == micro):
                stock = _complete(reference.mini_batches[key])
                of_units = run.backwards[key] if stage is _gradients else []
                for mini_batch in (*run.mini_batches[key], *of_units):
                    found = stage(key, stock, mini_batch)
                    if found is not None:
                        return found
    return None


def _complete(mini_batches: Sequence[MiniBatchTrace]) -> MiniBatchTrace:
    return next((mini_batch for mini_batch in mini_batches if mini_batch.ended), mini_batches[0])


def _batch(key: Key, stock: MiniBatchTrace, mini_batch: MiniBatchTrace) -> Difference | None:
    if stock.began["batch"] == mini_batch.began["batch"]:
        return None
    return _at(key, mini_batch, "batch", {"": (stock.began["batch"], mini_batch.began["batch"])}, 1)


def _states(
    key: Key, stock: MiniBatchTrace, mini_batch: MiniBatchTrace, *, idle: Collection[str]
) -> Difference | None:
    states = _without(idle, stock.began["states"]), _without(idle, mini_batch.began["states"])
    return _named(key, mini_batch, "state", *states)


def _values(key: Key, stock: MiniBatchTrace, mini_batch: MiniBatchTrace) -> Difference | None:
    if not (stock.ended and mini_batch.ended):
        return None
    return _named(key, mini_batch, "value", stock.ended["values"], mini_batch.ended["values"])


def _loss(key: Key, stock: MiniBatchTrace, mini_batch: MiniBatchTrace) -> Difference | None:
    """Compare values that a pipeline worker logs by itself, before backward."""
    if not (stock.ended and mini_batch.ended):
        return None
    values = [
        {name: value for name, value in one.ended["values"].items() if name == "loss"}
        for one in (stock, mini_batch)
    ]
    return _named(key, mini_batch, "value", *values)


def _gradients(key: Key, stock: MiniBatchTrace, mini_batch: MiniBatchTrace) -> Difference | None:
    if not (stock.ended and mini_batch.ended) or mini_batch.ended["gradients"] is None:
        return None
    ours, theirs = _sequence(mini_batch.ended["gradients"]), _sequence(stock.ended["gradients"])
    if not mini_batch.began:  # of only some units
        theirs = {name: digest for name, digest in theirs.items() if name in ours}
    return _named(key, mini_batch, "gradient", theirs, ours)


def _states_after(
    key: Key, stock: MiniBatchTrace, mini_batch: MiniBatchTrace, *, idle: Collection[str]
) -> Difference | None:
    if not (stock.ended and mini_batch.ended):
        return None
    states = _without(idle, stock.ended["states"]), _without(idle, mini_batch.ended["states"])
    return _named(key, mini_batch, "state after", *states)


def _without(names: Collection[str], states: Mapping[str, str]) -> dict[str, str]:
    return {name: state for name, state in states.items() if name not in names}


def _idle_generators(run: RunTrace) -> set[str]:
    """Return generators with the same state in all turns of an EST: nothing draws from them.

    If they are not seeded, each process has a state of its own, which explains no difference.
    """
    seen: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for (_, rank, _), mini_batches in run.mini_batches.items():
        for mini_batch in mini_batches:
            for record in (mini_batch.began, mini_batch.ended):
                for name, state in record.get("states", {}).items():
                    seen[name][rank].add(state)
    return {name for name, by_rank in seen.items() if all(len(states) == 1 for states in by_rank.values())}


def _sequence(gradients: Iterable[Sequence[str]]) -> dict[str, str]:
    """Map names to digests in the order of backward; a repeated parameter gets a number."""
    found: dict[str, str] = {}
    for name, digest in gradients:
        unique, number = name, 2
        while unique in found:
            unique, number = f"{name} (time {number})", number + 1
        found[unique] = digest
    return found


def _in_applied(reference: RunTrace, run: RunTrace, step: int) -> Difference | None:
    stock = next((record for process, record in reference.applied[step] if process == "ddp-0"), None)
    if stock is None and reference.applied[step]:
        stock = reference.applied[step][0][1]
    if stock is None:
        return None
    for what in ("weights", "optimizer", "buffers", "extras"):
        for process, record in run.applied[step]:
            if what in ("buffers", "extras") and process.startswith("ddp-") and process != "ddp-0":
                continue  # every rank of DDP has its own
            expected = stock[what]
            if record.get("partial"):  # a worker of a pipeline has the state of its units
                expected = {name: digest for name, digest in expected.items() if name in record[what]}
            differing = _pairs(expected, record[what])
            if differing:
                label: What = what if step >= 0 or what != "weights" else "initial weights"
                return _difference(
                    step, label, differing, max(len(expected), len(record[what])), process=process
                )
    return None


def _named(
    key: Key, mini_batch: MiniBatchTrace, what: What, stock: Mapping[str, str], found: Mapping[str, str]
) -> Difference | None:
    differing = _pairs(stock, found)
    return _at(key, mini_batch, what, differing, len(stock)) if differing else None


def _pairs(stock: Mapping[str, str], found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the differing values by name, in the reference's order, then names that only the other has."""
    names = [*stock, *(name for name in found if name not in stock)]
    return {
        name: (stock.get(name, ""), found.get(name, ""))
        for name in names
        if stock.get(name, "") != found.get(name, "")
    }


def _at(
    key: Key, mini_batch: MiniBatchTrace, what: What, differing: Mapping[str, tuple[str, str]], of: int
) -> Difference:
    step, rank, micro = key
    return _difference(
        step, what, differing, of,
        rank=rank, micro=micro, process=mini_batch.process, together=tuple(sorted(mini_batch.together)),
    )  # fmt: skip


def _difference(
    step: int, what: What, differing: Mapping[str, tuple[str, str]], of: int, **where: Any
) -> Difference:
    name, (reference, found) = next(iter(differing.items()))
    return Difference(
        step,
        what,
        name,
        reference=reference,
        found=found,
        more=tuple(list(differing)[1 : 1 + NAMED_MAX]),
        count=len(differing),
        of=of,
        **where,
    )


def _moved_generators(reference: RunTrace, run: RunTrace) -> list[tuple[int, int, str]]:
    """Return (step, rank, name) of unregistered generators whose state differs from the reference's."""
    found = []
    for key in sorted(set(reference.mini_batches) & set(run.mini_batches)):
        stock = reference.mini_batches[key][0].began.get("generators", {})
        for mini_batch in run.mini_batches[key]:
            for name, digest in mini_batch.began.get("generators", {}).items():
                if name in stock and stock[name] != digest:
                    found.append((key[0], key[1], name))
    return found


def _with_background(
    found: Difference, reference: RunTrace, run: RunTrace, moved: Sequence[tuple[int, int, str]]
) -> Difference:
    """Add possible explanations to the difference: generators with other states, unequal processes."""
    guilty = [
        name
        for step, rank, name in moved
        if step <= found.step and (found.rank is None or rank == found.rank or step < found.step)
    ]
    known = {
        name
        for mini_batches in run.mini_batches.values()
        for mini_batch in mini_batches
        for name in mini_batch.began.get("generators", {})
    }
    stock_facts = next(iter(reference.facts.values()), {})
    facts = run.facts.get(found.process, {})
    unlike = [
        f"{name}: {stock_facts[name]} in the reference, {facts[name]} in {found.process}"
        for name in facts
        if name in stock_facts and stock_facts[name] != facts[name]
    ]
    return replace(
        found,
        generators=tuple(dict.fromkeys(guilty)),
        known_generators=tuple(sorted(known)),
        facts=tuple(unlike),
    )
