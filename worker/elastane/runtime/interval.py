"""Track the script's code between two epochs as this process runs it: its random draws, and for which ESTs.

A stock rank runs that code with its own generators. Here it runs once, with those of the worker's first EST
(EST 0 on the leader): this module puts their states in place, and notices what the script does with them.
`IntervalDraws` keeps the account, of which the master gets the report.

    begin (the loader loop is over) ── the script's code ── end (the next loop begins) ── report

The code before the first epoch, from `prepare` on, runs with EST 0's generators in every worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from elastane.context import EstContext
from elastane.registry import Registry
from elastane.rng import Generators, Parts
from elastane.runtime.interval_draws import IntervalDraws
from elastane.runtime.rank_reads import BlockTrace, how_asked
from elastane.runtime.rng_watch import RngWatch, refuse_rank_seed
from elastane_common.errors import EXIT_REFUSED, ElastaneError
from elastane_proto.v1 import ring_pb2


class BuffersChangedError(ElastaneError):
    """A buffer was written to between two epochs: training would not see the change."""

    code = "ELA331"
    exit_code = EXIT_REFUSED


class Interval:
    """One worker's view of the interval. Used by the training thread.

    The worker `leads` if it hosts EST 0, or if no ring has formed yet.
    """

    def __init__(self, generators: Generators, registry: Registry) -> None:
        self._generators = generators
        self._registry = registry
        self._watch = RngWatch(self._uneven, self._seeded)
        self._trace = BlockTrace(self._block_left)
        self._running = False
        self._draws = IntervalDraws(-1, {0: EstContext(0, 0)}, {}, leads=False)
        #: An answer that the script keeps in a variable; it makes all later intervals doubtful.
        self._kept = ""
        #: Above 0: current draws do not affect the other ESTs.
        self._aside = 0
        #: The EST that the script's code runs for.
        self.rank = 0
        #: The same while `each_rank` runs, else None.
        self.est_step: int | None = None

    # ------------------------------------------------------------------ from loop to loop

    def begin(self, step: int, contexts: Mapping[int, EstContext], *, leads: bool) -> None:
        """Begin the script's code before `step`, with the states of the first of these ESTs."""
        self.end()
        self.rank = min(contexts)
        self._aside = 0
        self._put(contexts[self.rank].parts)
        self._draws = IntervalDraws(step, contexts, self._states(), leads=leads, doubt=self._kept)
        self._running = True
        self._watch.start()

    def entered(self, *, leads: bool) -> None:
        """Note that the first ring has formed; from now on only one worker leads."""
        self._draws.leads = leads

    def end(self) -> None:
        """End the interval, because the next loop begins or the script ends: the states are final."""
        if self._running:
            self._trace.stop()
            self._draws.fold(self._states())
            self._running = False
            self._watch.stop()

    def report(self, generation: int, step: int) -> ring_pb2.IntervalReport:
        """Build this worker's report of the code before `step`."""
        return self._draws.report(generation, step)

    # ------------------------------------------------------------------ what the script does

    def asked(self, name: str, frame: FrameType | None) -> None:
        """Note that the script reads `job.is_leader` or `job.rank` in `frame`.

        Raises the refusal of a seed derived from the rank.
        """
        if frame is None or self._aside:
            return
        how, draws = how_asked(frame), self._draws
        if how.seeds and name == "rank":
            raise refuse_rank_seed(how.place)
        if how.harmless:
            return
        if how.kept and (draws.leads or name == "rank"):
            self._kept = self._kept or how.place
        if not self._running:
            return
        draws.asked = True
        if how.block is None:
            if draws.leads or name == "rank":
                draws.fold(self._states())
                draws.doubt = draws.doubt or how.place
        elif draws.leads:
            draws.fold(self._states())
            if self._trace.follow(frame, how.block):
                self._aside += 1
            else:
                draws.doubt = draws.doubt or how.place

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Ignore draws inside the block; the caller restores the states."""
        fresh = dict(self._draws.fresh)
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1
            self._draws.fresh = fresh

    def each_rank(self) -> Iterator[int]:
        """Yield each hosted EST's rank with that EST's states in place."""
        draws = self._draws
        draws.fold(self._states())
        draws.run_for_each()
        self._aside += 1
        through = False
        try:
            for rank in sorted(draws.whole):
                self._put(draws.whole[rank])
                self.rank = self.est_step = rank
                yield rank
                draws.whole[rank] = self._states()
            through = True
        finally:
            if not through:
                draws.faulty(f"the loop over job.each_rank() was left at rank {self.rank}")
            self._aside -= 1
            self.rank, self.est_step = draws.first, None
            self._put(draws.whole[draws.first])
            draws.anchor, draws.fresh = self._states(), {}

    # ------------------------------------------------------------------ what is noticed meanwhile

    def _block_left(self) -> None:
        """Handle the end of a block that only EST 0 runs."""
        self._aside -= 1
        self._draws.skip(self._states())

    def _uneven(self, place: str) -> None:
        if not self._aside:
            self._draws.faulty(f"how many values are drawn depends on the generator's state in {place}")

    def _seeded(self, names: tuple[str, ...], done: bool) -> None:
        if self._aside:
            return
        states = self._generators.capture()
        if done:
            self._draws.seeded(names, states)
        else:
            self._draws.seeds(states)

    def _states(self) -> Parts:
        return self._generators.capture() | self._registry.capture()

    def _put(self, parts: Mapping[str, bytes]) -> None:
        self._generators.restore(parts)
        self._registry.restore(parts)
