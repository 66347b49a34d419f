"""Pure: plans joins, drains and deaths of parameter servers by task count, from a seed."""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

from elastane_cli.verify.plan import PlanError

PsVerb = Literal["join", "drain", "kill"]


class PsAct(NamedTuple):
    """An act after a number of tasks: one joins, or is drained or killed, and then replaced."""

    tasks: int
    verb: PsVerb


def make_ps_plan(seed: str, *, kills: int, tasks: int) -> list[PsAct]:
    """Return the acts of a run with this many tasks. Raises PlanError if it is too short.

    One joins first, so that every slot has a backup when one dies.
    """
    random = Random(seed)
    later: list[PsVerb] = ["drain"]
    later += ["kill"] * kills
    random.shuffle(later)
    verbs: list[PsVerb] = ["join", *later]
    if tasks <= len(verbs):
        raise PlanError(
            f"the script has {tasks} tasks, and {len(verbs)} changes were asked for",
            hint="give it more tasks, or fewer --kills",
        )
    places = sorted(random.sample(range(1, tasks), len(verbs)))
    return [PsAct(*act) for act in zip(places, verbs, strict=True)]
