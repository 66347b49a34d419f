"""Placement of instances on runners. Pure functions of the runners and their free slots.

All instances of a black box are placed together, on runners of one kind: on the fullest runner with room for
all, else on as few as possible. An elastic run starts with its minimum; the rest is added as slots come free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from elastane_master.decisions.runs import device_kinds, scaling
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Runner, RunnerKind

Assignment = dict[str, tuple[int, ...]]
"""Ranks by runner."""
Free = dict[str, int]
"""Free slots by runner; only runners that have some."""
Shape = tuple[object, ...]
"""Everything that decides where a run fits: runs with equal values fit in the same places."""


def free_slots(runners: Mapping[str, Runner]) -> Free:
    """Slots of all runners that take new instances."""
    return {name: free for name in sorted(runners) if (free := runners[name].slots_free)}


def shape_of(run: Run) -> Shape:
    """Return the properties that decide where a run fits."""
    spec, demand = run.spec, run.demand
    return (
        demand.instances_min,
        demand.slots_per_instance,
        run.owner,
        None if spec.code is not None else spec.algorithm,
        tuple(sorted(spec.runner_labels.items())) if spec.runner_labels else (),
        _kinds(run),
        scaling.takes_on_demand(run),
        (device_kinds.level_of(run), run.trains_on) if demand.elastic else (),
    )


def mismatch(run: Run, runner: Runner) -> str:
    """Return why a runner cannot carry a run, whatever is free on it; "" if it can."""
    spec = run.spec
    if runner.owners and not any(fnmatchcase(run.owner, pattern) for pattern in runner.owners):
        return f"takes no runs of {run.owner or 'this owner'}"
    if runner.kind not in _kinds(run):
        return f"is of the kind {runner.kind}"
    if spec.code is None and spec.algorithm not in runner.algorithms:
        return f"does not offer {spec.algorithm}"
    for name, value in spec.runner_labels.items():
        if runner.labels.get(name) != value:
            return f"has no label {name}={value}"
    if reason := scaling.closed(run, runner) or device_kinds.obstacle(run, runner):
        return reason
    if runner.slots < run.demand.slots_per_instance:
        return f"has {runner.slots} slots, and an instance takes {run.demand.slots_per_instance}"
    return ""


def _family(run: Run, runner: Runner) -> tuple[str, str]:
    """Properties that all runners of a launch share: their kind and, if elastic, that of their devices."""
    return runner.kind, device_kinds.kind_of(run, runner)


def _kinds(run: Run) -> tuple[RunnerKind, ...]:
    """Kinds of runners that can carry a run."""
    spec = run.spec
    if any(secret.kubernetes is not None for secret in spec.secrets):
        return ("kubernetes",)
    kinds: tuple[RunnerKind, ...] = ("container", "kubernetes", "process")
    if spec.code is not None and spec.code.image:
        kinds = ("container", "kubernetes")
    if any(secret.file is not None for secret in spec.secrets):
        kinds = tuple(kind for kind in kinds if kind != "kubernetes")
    return kinds


def place_start(run: Run, runners: Mapping[str, Runner], free: Free) -> Assignment | None:
    """Place the instances with which a run starts; None if there is no room for all of them."""
    needed, slots = run.demand.instances_min, run.demand.slots_per_instance
    rooms = {
        name: room
        for name, there in free.items()
        if (room := there // slots) and not mismatch(run, runners[name])
    }
    if sum(rooms.values()) < needed:
        return None
    families = {name: _family(run, runners[name]) for name in rooms}
    for family in sorted(set(families.values())):
        chosen = _fill(needed, {name: room for name, room in rooms.items() if families[name] == family})
        if chosen:
            return _ranks(chosen, run.in_order[:needed] if run.demand.elastic else range(needed))
    return None


def _fill(needed: int, rooms: Mapping[str, int]) -> dict[str, int] | None:
    """Distribute instances over as few runners as possible; None if there is not enough room."""
    if sum(rooms.values()) < needed:
        return None
    whole = [(room, name) for name, room in rooms.items() if room >= needed]
    if whole:
        return {min(whole)[1]: needed}
    chosen: dict[str, int] = {}
    for name in sorted(rooms, key=lambda name: (-rooms[name], name)):
        chosen[name] = min(rooms[name], needed)
        needed -= chosen[name]
        if not needed:
            break
    return chosen


def _ranks(counts: Mapping[str, int], ranks: Iterable[int]) -> Assignment:
    rest = list(ranks)
    assignment: Assignment = {}
    for name, count in counts.items():
        assignment[name], rest = tuple(rest[:count]), rest[count:]
    return assignment


def place_more(run: Run, ranks: Iterable[int], runners: Mapping[str, Runner], free: Free) -> Assignment:
    """Place as many of these instances of an elastic run as fit, on the kinds that it runs on.

    Runners that still have to stop other instances of the launch are left out.
    """
    slots = run.demand.slots_per_instance
    fence = run.launch.fence if run.launch else 0
    used = {_family(run, runners[record.runner_id]) for record in run.ranks if record.runner_id in runners}
    left = {
        name: room
        for name, there in free.items()
        if (room := there // slots)
        and not mismatch(run, runners[name])
        and (not used or _family(run, runners[name]) in used)
    }
    chosen: dict[str, list[int]] = {}
    for rank in ranks:
        for name in sorted(left, key=lambda name: (-left[name], name)):
            holding = runners[name].holds.get(fence)
            if holding is None or not holding.stale:
                chosen.setdefault(name, []).append(rank)
                left[name] -= 1
                if not left[name]:
                    del left[name]
                break
    return {name: tuple(placed) for name, placed in chosen.items()}


def take(free: Free, assignment: Assignment, slots_per_instance: int) -> None:
    """Take the slots of an assignment from what is free."""
    for name, ranks in assignment.items():
        _take(free, name, len(ranks) * slots_per_instance)


def reserve(run: Run, runners: Mapping[str, Runner], free: Free) -> Free:
    """Reserve free slots for a run that does not fit yet, on the runners where it will fit soonest.

    Returns the slots that it needs there, free or not. The runners with most free slots are chosen each time,
    so reserved slots only grow until the run fits. Returns nothing if it would not fit even on idle runners.
    """
    slots, needed = run.demand.slots_per_instance, run.demand.instances_min
    by_family: dict[tuple[str, str], dict[str, int]] = {}
    for name, runner in runners.items():
        if runner.open and not mismatch(run, runner):
            by_family.setdefault(_family(run, runner), {})[name] = runner.slots // slots
    fitting = {family: rooms for family, rooms in by_family.items() if sum(rooms.values()) >= needed}
    if not fitting:
        return {}
    reserved: Free = {}
    rooms = min(
        fitting.items(), key=lambda item: (-sum(free.get(name, 0) // slots for name in item[1]), item[0])
    )[1]
    for name in sorted(rooms, key=lambda name: (-(free.get(name, 0) // slots), -rooms[name], name)):
        instances = min(rooms[name], needed)
        reserved[name] = instances * slots
        _take(free, name, instances * slots)
        needed -= instances
        if not needed:
            break
    return reserved


def _take(free: Free, name: str, slots: int) -> None:
    rest = free.get(name, 0) - slots
    if rest > 0:
        free[name] = rest
    else:
        free.pop(name, None)


def obstacle(run: Run, runners: Mapping[str, Runner]) -> str:
    """Return why no runner could carry a run even if all were idle; "" if they could."""
    slots, needed = run.demand.slots_per_instance, run.demand.instances_min
    there = [runner for runner in runners.values() if runner.attends and not runner.leaving]
    if not there:
        return "no runner attends"
    reasons: dict[str, int] = {}
    rooms: dict[tuple[str, str], int] = {}
    for runner in there:
        if reason := mismatch(run, runner):
            reasons[reason] = reasons.get(reason, 0) + 1
        else:
            family = _family(run, runner)
            rooms[family] = rooms.get(family, 0) + runner.slots // slots
    if not rooms:
        most = min(reasons, key=lambda reason: (-reasons[reason], reason))
        return f"no runner fits: {reasons[most]} of {len(there)} {most}"
    if max(rooms.values()) < needed:
        return f"needs {needed} instances at once, and its runners have room for {max(rooms.values())}"
    return ""
