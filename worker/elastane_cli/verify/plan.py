"""Pure: which worker joins, leaves or dies at which step, from a seed.

A plan can always be executed: at every moment a worker that holds the state is alive, and a worker that a
plan names exists when its time comes. Every change has a separate step:

    add, drain, term       at a gate: all workers are held in the step, and joining workers are awaited
    death                  a worker kills itself at a point inside a step (`rehearsal.POINTS`)
    death in hand-over     the donor or the receiver of the state dies while a worker joins

A path is the number of workers over the run, "4,1,3,2". Where it falls, workers are killed as long as there
are kills left, and drained or sent SIGTERM otherwise. Further kills leave the number unchanged: the dead
worker is replaced.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from elastane_common.errors import ElastaneError

Verb = Literal["add", "drain", "term"]
#: Points where a worker can die in any step.
STEP_POINTS: Final = ("forward", "all_reduce", "prepared", "applied")
HAND_OVER: Final = "hand_over"


class PlanError(ElastaneError):
    """The requested churn does not fit into the run."""

    code = "ELA409"


@dataclass(frozen=True, slots=True)
class Act:
    """An act while all workers are held in `step`: these are added, drained, or sent SIGTERM."""

    step: int
    verb: Verb
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that sends itself SIGKILL at `point` of `step`."""

    step: int
    point: str
    worker: str


@dataclass(frozen=True, slots=True)
class ChurnPlan:
    """Churn of one run.

    path: numbers of workers; start: the first ring; acts and deaths: in order of steps.
    """

    seed: str
    ests: int
    steps: int
    path: tuple[int, ...]
    start: tuple[str, ...]
    acts: tuple[Act, ...]
    deaths: tuple[Death, ...]

    def kill_of(self, worker: str) -> str:
        """Return "point:step" for the worker's rehearsal; empty if it does not die."""
        return next((f"{d.point}:{d.step}" for d in self.deaths if d.worker == worker), "")

    @property
    def doomed(self) -> frozenset[str]:
        """Workers that die."""
        return frozenset(death.worker for death in self.deaths)

    def lines(self) -> list[str]:
        """Return the plan as text, in order."""
        found = [(act.step, _said(act)) for act in self.acts]
        for death in self.deaths:
            where = "in the hand-over" if death.point == HAND_OVER else f"at {death.point}"
            found.append((death.step, f"kill -9 {death.worker} {where}"))
        lines = [f"step {step}: {text}" for step, text in sorted(found, key=lambda item: item[0])]
        return [f"start: {', '.join(self.start)}", *lines]


@dataclass(frozen=True, slots=True)
class _Change:
    """A change without a step yet. kind: an act's verb, "kill", or a joining worker whose hand-over kills."""

    kind: Literal["add", "leave", "kill", "donor dies", "receiver dies"]
    count: int = 1

    @property
    def difference(self) -> int:
        """Change of the number of workers."""
        if self.kind in ("leave", "kill"):
            return -self.count
        return self.count if self.kind == "add" else 0


def parse_paths(text: str, ests: int) -> list[tuple[int, ...]]:
    """Parse "4,1,3,2" or several paths, separated by semicolons or blanks. Raises PlanError."""
    paths = []
    for part in text.replace(";", " ").split():
        try:
            path = tuple(int(number) for number in part.strip(",").split(","))
        except ValueError:
            raise PlanError(
                f"{part!r} is not a path",
                hint="give numbers of workers, like 4,1,3,2; several paths as 4,1;1,4",
            ) from None
        paths.append(_checked(path, ests))
    if not paths:
        raise PlanError("no path was given", hint="like 4,1,3,2")
    return paths


def make_plan(
    seed: str, *, ests: int, steps: int, kills: int = 1, path: Sequence[int] | None = None
) -> ChurnPlan:
    """Make a plan for a run of `steps` global steps on `ests` logical workers.

    Equal arguments give the same plan. path: numbers of workers; None: drawn, with at least one change.
    kills: exact number of workers that die. Raises PlanError if they do not fit.
    """
    rng = random.Random(f"{seed}/{ests}/{steps}/{kills}/{path}")
    # A worker that joins in the last step would have nothing to do; the first step stays undisturbed if
    # possible.
    free = range(1 if steps > 5 else 0, steps - 1)
    if ests < 2:
        raise PlanError(
            "one logical worker leaves nothing to redistribute", hint="verify with --ests 2 or more"
        )
    if kills < 0:
        raise PlanError(f"{kills} kills", hint="give 0 or more")
    if path is not None:
        drawn = _checked(path, ests)
        changes = _changes(rng, drawn, ests, kills)
    else:
        for longest in range(min(5, len(free) + 1), 1, -1):
            drawn = _random_path(rng, ests, rng.randint(2, longest) if longest > 2 else 2)
            changes = _changes(rng, drawn, ests, kills)
            if _room(changes) <= len(free):
                break
        else:
            drawn, changes = _shortest(kills)
    if _room(changes) > len(free):
        raise PlanError(
            f"{len(changes)} changes do not fit into {steps} steps",
            hint="ask for fewer kills or a shorter path, or let the script run more steps",
        )
    return _with_steps(rng, f"{seed}", ests, steps, drawn, changes, _spread(rng, free, changes))


def _checked(path: Sequence[int], ests: int) -> tuple[int, ...]:
    """Return the path without repetitions. Raises PlanError for impossible numbers."""
    wrong = [number for number in path if not 1 <= number <= ests]
    if wrong or not path:
        text = ",".join(map(str, path))
        raise PlanError(
            f"path {text}: {wrong[0]} workers" if wrong else "an empty path",
            hint=f"numbers of workers between 1 and {ests}, the number of ESTs",
        )
    return tuple(number for number, _ in itertools.groupby(path))


def _random_path(rng: random.Random, ests: int, length: int) -> tuple[int, ...]:
    path = [rng.randint(1, ests)]
    while len(path) < length:
        path.append(rng.choice([number for number in range(1, ests + 1) if number != path[-1]]))
    return tuple(path)


def _changes(rng: random.Random, path: Sequence[int], ests: int, kills: int) -> list[_Change]:
    """Return the path as changes, with the kills inserted."""
    falls = [max(0, a - b) for a, b in itertools.pairwise(path)]
    units = [index for index, fall in enumerate(falls) for _ in range(fall)]
    killed = rng.sample(units, min(kills, len(units)))
    changes: list[_Change] = []
    for index, (a, b) in enumerate(itertools.pairwise(path)):
        if b > a:
            changes.append(_Change("add", b - a))
            continue
        dying = killed.count(index)
        here = [_Change("kill")] * dying
        if a - b > dying:
            here.append(_Change("leave", a - b - dying))
        rng.shuffle(here)
        changes += here
    for _ in range(kills - len(killed)):
        place = rng.randint(0, len(changes))
        workers = path[0] + sum(change.difference for change in changes[:place])
        forms: list[list[_Change]] = []
        if workers >= 2:
            forms.append([_Change("kill"), _Change("add")])
        if workers < ests:
            forms.append([_Change("receiver dies")])
        if 2 <= workers < ests:
            forms.append([_Change("donor dies")])
        changes[place:place] = rng.choice(forms)
    return changes


def _shortest(kills: int) -> tuple[tuple[int, ...], list[_Change]]:
    """Return a path and changes that need the fewest steps: `kills` + 1, or one for at most one kill."""
    first = _Change("kill" if kills else "leave")
    return (2, 1), [first, *[_Change("receiver dies")] * (kills - 1)]


def _distances(changes: Sequence[_Change]) -> list[int]:
    """Return the minimum number of steps from each change but the last to the next one.

    A worker that is asked to leave at the gate of a step leaves after the following step, or, if an epoch
    ends with that one, after the first step of the next epoch, so there must be no gate in those two. Nor in
    the step after a death: a worker that has applied the step may be held at the gate of the next one before
    the death is known, and the new ring would wait for it.
    """
    least = {"leave": 3, "kill": 2}
    return [least.get(change.kind, 1) for change in changes[:-1]]


def _room(changes: Sequence[_Change]) -> int:
    """Return the minimum number of steps that the changes need."""
    return sum(_distances(changes)) + 1 if changes else 0


def _spread(rng: random.Random, free: range, changes: Sequence[_Change]) -> list[int]:
    """Draw a step for each change, in order; not adjacent if there is room."""
    distances = _distances(changes)
    if sum(max(2, distance) for distance in distances) < len(free):
        distances = [max(2, distance) for distance in distances]
    slack = len(free) - 1 - sum(distances)
    moved = sorted(rng.randint(0, slack) for _ in changes)
    starts = itertools.accumulate(distances, initial=0)
    return [free[start + by] for start, by in zip(starts, moved, strict=False)]


@dataclass(slots=True)
class _Crew:
    """The workers alive during the plan; names are never reused."""

    alive: list[str] = field(default_factory=list)
    made: int = 0

    def add(self, count: int) -> tuple[str, ...]:
        names = tuple(f"w{self.made + index}" for index in range(count))
        self.made += count
        self.alive += names
        return names

    def take(self, rng: random.Random, count: int) -> tuple[str, ...]:
        gone = tuple(sorted(rng.sample(self.alive, count)))
        self.alive = [name for name in self.alive if name not in gone]
        return gone


def _with_steps(
    rng: random.Random,
    seed: str,
    ests: int,
    steps: int,
    path: tuple[int, ...],
    changes: Sequence[_Change],
    places: Sequence[int],
) -> ChurnPlan:
    crew = _Crew()
    start = crew.add(path[0])
    acts: list[Act] = []
    deaths: list[Death] = []
    for change, step in zip(changes, places, strict=True):
        if change.kind == "add":
            acts.append(Act(step, "add", crew.add(change.count)))
        elif change.kind == "leave":
            verb: Verb = rng.choice(("drain", "term"))
            acts.append(Act(step, verb, crew.take(rng, change.count)))
        elif change.kind == "kill":
            deaths.append(Death(step, rng.choice(STEP_POINTS), *crew.take(rng, 1)))
        elif change.kind == "donor dies":
            # The joining worker is admitted at the boundary after the gate: the state handed over is that of
            # step + 1.
            deaths.append(Death(step + 1, HAND_OVER, *crew.take(rng, 1)))
            acts.append(Act(step, "add", crew.add(1)))
        else:
            newcomer = crew.add(1)
            acts.append(Act(step, "add", newcomer))
            deaths.append(Death(step + 1, HAND_OVER, *newcomer))
            crew.alive.remove(newcomer[0])
    return ChurnPlan(seed, ests, steps, path, start, tuple(acts), tuple(deaths))


def _said(act: Act) -> str:
    verbs = {"add": "add", "drain": "drain", "term": "SIGTERM to"}
    return f"{verbs[act.verb]} {', '.join(act.workers)}"
