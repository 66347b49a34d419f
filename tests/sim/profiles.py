"""Profiles: schedules that weigh some faults much more than others, each for a part of the seeds.

Some promises are at stake only where several faults meet: two masters at the same time and a caller that asks
the older one, a ring that changes again while state is handed over, a store that loses the taking over
itself. Even schedules meet these in a few seeds of a thousand. Every second seed has a profile that makes
such meetings frequent; the other seeds have `EVEN`, with the weights that `faults` gives.

A profile is a function of the seed alone and takes nothing from the run's generator, so the draws of the
other seeds do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GO_FORGOTTEN = "store and master forget a Go"

AT_ONCE = (0.0, 0.001, 0.005)
SOON = (0.0, 0.001, 0.005, 0.02, 0.05)


@dataclass(frozen=True)
class FollowUp:
    """A fault that follows an event. share: of the events that it follows. seconds: delays to draw from.

    event: kind of a message that a master sends ("go", "load", ...), "last prepared" for the Prepared of the
    script's last step, "acquired" for a master that has acquired a job, which it reads next, or "takeover"
    for one that has taken the jobs over.
    """

    event: str
    fault: str
    share: float
    seconds: tuple[float, ...] = SOON


@dataclass(frozen=True)
class Profile:
    """Weights of one kind of schedule.

    weights: of the named faults, in place of those that `faults` gives. others: factor for all other weights.
    registers: a caller makes datasets and asks for them. saves: False: the job has no checkpoints, so that a
    history begins anew from other weights. loses_all: power cuts take all workers with them. latecomers:
    workers come to jobs that are over. loses_takeovers: the store may lose the taking over itself; what other
    masters wrote before is on its disk then. receive_seconds: times that workers take to receive the state.
    """

    name: str
    weights: Mapping[str, float] = field(default_factory=dict)
    others: float = 1.0
    follow_ups: tuple[FollowUp, ...] = ()
    registers: bool = False
    saves: bool = True
    loses_all: bool = False
    latecomers: bool = False
    loses_takeovers: bool = False
    receive_seconds: tuple[float, float] = (0.002, 0.05)

    def weight(self, fault: str, even: float) -> float:
        """Return the weight of a fault. even: the one in schedules without a profile."""
        return self.weights.get(fault, even * self.others)


EVEN = Profile("even")

RIVAL_MASTERS = Profile(
    "rival masters",
    {"rival master": 8.0, "second master": 4.0, "calls lost and doubled": 3.0},
    others=0.4,
    follow_ups=(FollowUp("acquired", "reading master overtaken", 0.3, AT_ONCE),),
    registers=True,
    latecomers=True,
)
"""A master that cannot reach the store, or stands still while it reads a job, does not know yet that another
one leads; both are asked."""

BROKEN_CHANGES = Profile(
    "broken changes",
    {"worker starts": 8.0, "worker restarted": 4.0, "connection reset": 4.0},
    others=0.3,
    follow_ups=(
        FollowUp("prepare", "worker killed", 0.1),
        FollowUp("go", "worker killed", 0.2),
        FollowUp("go", "worker killed", 0.2, (0.03, 0.06, 0.1)),
        FollowUp("go", GO_FORGOTTEN, 0.35, AT_ONCE),
        FollowUp("load", "worker killed", 0.2, (0.0, 0.02, 0.1)),
        FollowUp("load", "master and a worker restarted", 0.5, (0.0, 0.02, 0.1)),
        FollowUp("prepared", "connection reset", 0.05),
        FollowUp("prepared", "worker killed", 0.02, AT_ONCE),
    ),
    receive_seconds=(0.05, 0.15),
)
"""The ring changes again before a change has come to its end."""

LOST_HISTORIES = Profile(
    "lost histories",
    {"connection reset": 3.0, "worker starts": 4.0},
    others=0.1,
    follow_ups=(
        FollowUp("last prepared", "one worker cut off and all others killed", 0.6, (0.02, 0.1, 0.5)),
        FollowUp("prepared", "all connections reset", 0.05, (0.005, 0.02)),
    ),
    loses_all=True,
)
"""History is given up as a whole, or behind the back of a worker that comes to the script's end alone; all
workers are evicted at once in the middle of a step."""

LOST_RUNS = Profile(
    "lost runs",
    {"all but one worker killed": 3.0, "connection reset": 3.0, "worker starts": 4.0},
    others=0.1,
    follow_ups=(FollowUp("go", "all but one worker killed", 0.25),),
    saves=False,
)
"""History begins anew without a checkpoint, and a worker comes back that holds the one before."""

LOST_TAKEOVERS = Profile(
    "lost takeovers",
    {"master killed": 8.0, "master's clock set": 3.0, "store lost writes": 2.0, "trainer hangs": 2.0},
    others=0.4,
    follow_ups=(FollowUp("takeover", "store lost writes", 0.5),),
    loses_takeovers=True,
    latecomers=True,
)
"""Masters with clocks of their own follow one another, and the store loses that one took over."""

PROFILES = (RIVAL_MASTERS, BROKEN_CHANGES, LOST_HISTORIES, LOST_RUNS, LOST_TAKEOVERS)


def choose(seed: int) -> Profile:
    """Return the profile of a seed: `EVEN` for every second one, the others in turn."""
    return PROFILES[seed // 2 % len(PROFILES)] if seed % 2 else EVEN
