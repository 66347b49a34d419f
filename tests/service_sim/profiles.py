"""Profiles: schedules that weigh some faults and kinds of runs more than others, for a part of the seeds.

Some promises are at stake only where several things meet: a runner that is away for longer than its lease,
whose processes go on meanwhile, and another one that has room for their successors. Even schedules meet that
in few seeds of a thousand. A profile is a function of the seed alone, so the draws of other seeds do not
depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass

FAULTS = (
    "stream lost",
    "runner restarted",
    "runner silent",
    "host died",
    "process lost",
    "runner lies",
    "runner deaf",
    "runner leaves",
    "master killed",
    "master killed in a decision",
    "clock set back",
)
"""Faults that are drawn; "old message" happens to messages by itself."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Profile:
    """What is drawn from in one kind of schedule.

    faults: one that is named several times is drawn so much more often. runners, slots: from, to.
    elastic_share: of the runs. instances: of a run. seconds: how long runs take, one of these ranges.
    lost_early: share of the launches of which an instance is lost as it is started. lying_policy: a
    scheduling policy decides, and its decisions are nonsense.
    """

    name: str
    faults: tuple[str, ...] = FAULTS
    runners: tuple[int, int] = (1, 3)
    slots: tuple[int, int] = (2, 6)
    elastic_share: float = 0.3
    instances: tuple[int, ...] = (1, 1, 2, 2, 3, 4)
    seconds: tuple[Range, ...] = ((1.0, 25.0), (1.0, 25.0), (30.0, 70.0))
    lost_early: float = 0.0
    lying_policy: bool = False


EVEN = Profile("even")

TWO_PLACES = Profile(
    "two places",
    faults=("runner silent",) * 6 + ("runner restarted", "stream lost", "process lost", "master killed"),
    runners=(2, 3),
    slots=(2, 4),
    elastic_share=0.6,
    instances=(1, 2, 3, 4),
    seconds=((30.0, 70.0), (60.0, 150.0)),
    lost_early=0.15,
)
"""Long runs, and runners away for longer than a lease: what was given up lives beside its successor."""

LOST_EFFECTS = Profile(
    "lost effects",
    faults=(*FAULTS, *("master killed in a decision",) * 8),
    elastic_share=0.8,
)
"""Elastic runs, whose jobs are created and cancelled, and masters that are killed before they do so."""

LYING_POLICY = Profile(
    "lying policy",
    runners=(2, 4),
    elastic_share=0.7,
    instances=(1, 2, 3, 4, 6),
    lying_policy=True,
)
"""A scheduling policy that wants what nobody can have, of runs that there are not, about states long past."""

SCALING_JOBS = Profile(
    "scaling jobs",
    faults=(*FAULTS, *("job scales",) * 10),
    runners=(2, 4),
    elastic_share=0.8,
    instances=(1, 2, 3, 4, 6),
    seconds=((30.0, 70.0), (60.0, 150.0)),
)
"""Elastic runs whose jobs scale by themselves, to any number and back."""

PROFILES = {3: TWO_PLACES, 5: LOST_EFFECTS, 6: LYING_POLICY, 7: SCALING_JOBS}
"""By seed modulo 8; the others are even."""


def profile_of(seed: int) -> Profile:
    """Return the profile of a seed."""
    return PROFILES.get(seed % 8, EVEN)
