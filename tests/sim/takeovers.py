"""Standby masters: the leader's lease, takeovers, and a store that fails at one call of a takeover.

In some runs masters contend for the leader's lease, as on an external store; in the others each master serves
at once, and only the fencing tokens keep two of them apart. Additional checkers:

one leader   no master is granted the lease while another one would still answer
whole        a master that reports to be ready has every job of the store

Takeovers are drawn from a separate generator, so that runs without a lease keep their draws.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastane_master.decisions.events import Rejection
from elastane_master.store.keys import JOBS_KEY, JobKeys
from elastane_master.store.leader_lease import LEASE_KEY

if TYPE_CHECKING:
    from sim.master_model import MasterModel
    from sim.network import Network
    from sim.store_model import StoreServer
    from sim.world import World

CUT = "store away in a takeover"
CLOCK = "store's clock set back"
SHARE = 0.4
CALLS_MAX = 20
LEASE = LEASE_KEY.encode()
OTHER_JOBS = ("a-first", "z-last")
"""Further jobs in the store, some of which an interrupted takeover may have read."""


@dataclass(frozen=True)
class Cut:
    """A fault at one of a takeover's calls to the store.

    call: number of the call, from 1. acted: the store has executed it, and only the answer is lost. seconds:
    duration of the outage. crashes: the store dies; else the link is cut.
    """

    call: int
    acted: bool
    seconds: float
    crashes: bool = False


@dataclass
class Takeovers:
    """Settings of the masters' takeovers in a run.

    masters: number of masters kept running. cuts: faults of the coming takeovers, one each; None: draw them.
    deaths: times at which the leader is killed, in seconds after the beginning.
    """

    rng: random.Random
    lease_seconds: float = 1.0
    masters: int = 2
    cuts: list[Cut] | None = None
    deaths: tuple[float, ...] = ()
    made: int = 0
    hit: list[Cut] = field(default_factory=list)

    def next_cut(self, is_calm: bool) -> Cut | None:
        """Return the fault for a takeover that begins; None: no fault. is_calm: draw none."""
        self.made += 1
        if self.cuts is not None:
            return self.cuts.pop(0) if self.cuts else None
        if is_calm or self.rng.random() < 0.4:
            return None
        rng = self.rng
        seconds = rng.choice((0.2, 1.2, 2.5)) * self.lease_seconds
        return Cut(rng.randint(1, CALLS_MAX), rng.random() < 0.5, seconds, rng.random() < 0.3)


def draw(seed: int) -> Takeovers | None:
    """Draw the settings of a run; None: without a lease."""
    rng = random.Random(f"takeovers {seed}")
    if rng.random() >= SHARE:
        return None
    return Takeovers(rng, rng.choice((0.6, 1.0, 3.0)), rng.choice((1, 2, 2)))


def check_granted(world: World, masters: list[MasterModel], holder: bytes) -> None:
    """Check, when `holder` is newly granted the lease, that no other master would answer.

    The holder may be dead already: its request may have been sent long ago.
    """
    ids = [master.candidate.id.encode() for master in masters]
    for master, known in zip(masters, ids, strict=True):
        if holder in ids and holder != known and master.host is not None:
            world.fail("one leader", f"{master.name} would answer, and another is given the lease")


def check_whole(world: World, server: StoreServer, master: MasterModel) -> None:
    """Check, when a request arrives, that a ready master has every job of the store."""
    if not master.leadership.ready:
        return
    try:
        held = {one.name for one in (*master.jobs.all(), *master.jobs.closed())}
    except Rejection:  # its lease has just expired
        return
    names = {name.decode() for name in server.data.get(JOBS_KEY.encode(), ())}
    for name in sorted(names - held):
        if JobKeys.of(name).snapshot.encode() in server.data:
            world.fail("whole", f"{master.name} says that it is ready, without job {name}")


def inject(cut: Cut, world: World, network: Network, server: StoreServer, name: str) -> None:
    """Make the store fail: for all masters if it crashes, else for the master of this name."""
    what = "after" if cut.acted else "before"
    world.log(f"STORE goes away {what} call {cut.call} of the takeover of {name}, crashes={cut.crashes}")
    if cut.crashes:
        server.crash(cut.seconds)
    else:
        network.cut(name, [server.place], cut.seconds)
