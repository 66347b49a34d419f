"""Pure: which parameter servers join, are drained or die after how many tasks, from a seed."""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

from elastane_cli.verify.plan import PlanError

PsVerb = Literal["join", "drain", "kill"]


class PsAct(NamedTuple):
    """After so many tasks one joins, is drained, or is killed; of these two another one takes the place."""

    tasks: int
    verb: PsVerb


def make_ps_plan(seed: str, *, kills: int, tasks: int) -> list[PsAct]:
    """Return the acts of a run of so many tasks. Raises PlanError if it is too short.

    One joins first: so there is a backup of every slot when one dies.
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
