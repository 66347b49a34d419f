"""Masters that stand by for each other: the lease, takeovers, and a store that goes away at one call of them.

In a part of the runs masters contend for the leader's lease, as on a store of one's own choice; in the others
each serves at once, and the fencing tokens alone keep two apart. What is checked besides:

one leader   nobody is given the lease while another master would still answer
whole        a master that says it is ready has every job of the store

Draws come from a generator of their own: runs without a lease stay as they were.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastane_master.decisions.events import Rejection
from elastane_master.store.keys import JOBS_KEY, JobKeys
from elastane_master.store.lease import LEASE_KEY

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
"""Stored beside the job that is trained: a takeover that is cut off may have read some."""


@dataclass(frozen=True)
class Cut:
    """What happens at a takeover's call of the store. call: from 1. acted: the store has done it already, and
    only the answer is lost. seconds: how long the store is away. crashes: it dies, else the link is cut."""

    call: int
    acted: bool
    seconds: float
    crashes: bool = False


@dataclass
class Takeovers:
    """How masters follow each other in a run.

    masters: as many are kept running. cuts: of the takeovers to come, one each; None: draw. deaths: seconds
    after the beginning at which who leads is killed.
    """

    rng: random.Random
    lease_seconds: float = 1.0
    masters: int = 2
    cuts: list[Cut] | None = None
    deaths: tuple[float, ...] = ()
    made: int = 0
    hit: list[Cut] = field(default_factory=list)

    def next_cut(self, is_calm: bool) -> Cut | None:
        """For a takeover that begins."""
        self.made += 1
        if self.cuts is not None:
            return self.cuts.pop(0) if self.cuts else None
        if is_calm or self.rng.random() < 0.4:
            return None
        rng = self.rng
        seconds = rng.choice((0.2, 1.2, 2.5)) * self.lease_seconds
        return Cut(rng.randint(1, CALLS_MAX), rng.random() < 0.5, seconds, rng.random() < 0.3)


def draw(seed: int) -> Takeovers | None:
    """Those of a run; None: there is no lease."""
    rng = random.Random(f"takeovers {seed}")
    if rng.random() >= SHARE:
        return None
    return Takeovers(rng, rng.choice((0.6, 1.0, 3.0)), rng.choice((1, 2, 2)))


def check_granted(world: World, masters: list[MasterModel], holder: bytes) -> None:
    """The lease is given to `holder`, which did not have it. One that is dead may have asked long ago."""
    ids = [master.claimant.id.encode() for master in masters]
    for master, known in zip(masters, ids, strict=True):
        if holder in ids and holder != known and master.host is not None:
            world.fail("one leader", f"{master.name} would answer, and another is given the lease")


def check_whole(world: World, server: StoreServer, master: MasterModel) -> None:
    """A request comes to a master."""
    if not master.leadership.ready:
        return
    try:
        held = {one.name for one in (*master.hosts.all(), *master.hosts.closed())}
    except Rejection:  # its lease ran out a moment ago
        return
    names = {name.decode() for name in server.data.get(JOBS_KEY.encode(), ())}
    for name in sorted(names - held):
        if JobKeys.of(name).snapshot.encode() in server.data:
            world.fail("whole", f"{master.name} says that it is ready, without job {name}")


def strike(cut: Cut, world: World, network: Network, server: StoreServer, name: str) -> None:
    """The store goes away, for everybody or for the master of this name."""
    what = "after" if cut.acted else "before"
    world.log(f"STORE goes away {what} call {cut.call} of the takeover of {name}, crashes={cut.crashes}")
    if cut.crashes:
        server.crash(cut.seconds)
    else:
        network.cut(name, [server.place], cut.seconds)
