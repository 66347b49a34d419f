"""Random numbers drawn between two epochs by one worker's script, and the ESTs they count for. Pure.

The code runs once, with the generators and registered items of the worker's first EST (EST 0 on the leader),
whose resulting states are kept. The other ESTs would have drawn as many raw values, each from its own state:
the report says how many, and adds facts this worker knows that the number does not show. The master compares
the reports of all members and decides (its intervals.py). Nothing is decided here.

    begin ── the code runs ── fold ── EST 0 alone draws ── skip ── the code runs ── fold ── report
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from elastane.context import EstContext, Parts
from elastane.rng_draws import DRAWS_MAX, draws_between
from elastane.runtime.hosted_contexts import Change, behind, changed
from elastane_proto.v1 import ring_pb2

_ITEM: Final = "item/"


class IntervalDraws:
    """One worker's account of the code before `step`, from the states of its generators and items.

    leads: this worker hosts EST 0, or no ring has formed yet. States are those of all generators and items.
    """

    def __init__(
        self, step: int, contexts: Mapping[int, EstContext], states: Parts, *, leads: bool, doubt: str = ""
    ) -> None:
        self.step = step
        self.contexts = dict(contexts)
        self.first = min(contexts)
        self.leads = leads
        #: The script has requested something that tells the workers apart.
        self.asked = False
        #: Where it did so without showing what depends on the answer.
        self.doubt = doubt
        #: ESTs whose parts are known in full: all hosted ones, once the code has run for each.
        self.whole: dict[int, Parts] = {}
        #: States at the last fold, and states right after seeding of generators seeded since then.
        self.anchor = states
        self.fresh: Parts = {}
        self._changes: dict[str, Change] = {}
        self._uncertain = self._fault = ""

    def fold(self, states: Parts) -> None:
        """Add the draws since the last fold to the changes of all ESTs."""
        changes = {
            name: self._change(name, self.anchor[name], state)
            for name, state in states.items()
            if state != self.anchor[name] or name in self.fresh
        }
        # 0 draws change nothing. A reseeded generator's change is a state, kept even if it is the old one.
        changes = {name: change for name, change in changes.items() if change != 0}
        self.anchor, self.fresh = states, {}
        if not changes:
            return
        if self.doubt and not self._uncertain:
            self._uncertain = f"what is drawn depends on the answer requested in {self.doubt}"
        for name, change in changes.items():
            before = self._changes.get(name, 0)
            both = isinstance(change, int) and isinstance(before, int)
            # A state that all ESTs share stays shared after equal draws, so it is kept as a state.
            self._changes[name] = before + change if both else states[name]  # type: ignore[operator]
        for rank, parts in self.whole.items():
            self.whole[rank] = states if rank == self.first else changed(parts, changes)

    def skip(self, states: Parts) -> None:
        """Note states after code that only EST 0 runs: its draws do not affect the others."""
        self.anchor, self.fresh = states, {}
        if 0 in self.whole:
            self.whole[0] = states

    def run_for_each(self) -> None:
        """Note that the code is run for each EST from here on: their parts are known in full."""
        if not self.whole:
            self.whole = {
                rank: changed(context.parts, self._changes) for rank, context in self.contexts.items()
            }
        self.whole[self.first] = self.anchor

    def seeds(self, generators: Parts) -> None:
        """Note that a generator is about to be seeded. generators: the states of all of them."""
        drawn = [
            name
            for name, state in generators.items()
            if state != self.fresh.get(name, self.anchor[name])
            or (name not in self.fresh and name in self._changes)
        ]
        if drawn:
            self.faulty(
                f"a generator is seeded after {drawn[0].removeprefix('rng/')} has drawn:"
                " the seed may have been drawn, too"
            )

    def seeded(self, names: Iterable[str], generators: Parts) -> None:
        """Note that these generators have been seeded."""
        self.fresh |= {name: generators[name] for name in names if name in generators}

    def faulty(self, why: str) -> None:
        """Note why the draws cannot be determined for every EST."""
        if self.doubt and self.leads:
            # it may concern EST 0 alone; the other workers' reports tell
            self._uncertain = self._uncertain or why
        else:
            self._fault = self._fault or why

    def report(self, generation: int, step: int) -> ring_pb2.IntervalReport:
        """Build this worker's report of the code before `step`; of another step's code it knows nothing."""
        report = ring_pb2.IntervalReport(generation=generation, step=step)
        if step != self.step:
            return report
        report.passed, report.as_leader, report.asked = True, self.leads, self.asked
        report.uncertain, report.fault = self._uncertain, self._fault
        for name, change in sorted(self._changes.items()):
            if isinstance(change, int):
                report.changes.add(name=name, draws=change)
            else:
                report.changes.add(name=name, state=change)
        whole, report.each_rank = dict(self.whole), bool(self.whole)
        if self.leads:
            # As a state, because draws in blocks that only EST 0 runs are in no number of draws.
            whole[0] = self.anchor
        for rank, parts in sorted(whole.items()):
            before = self.contexts[rank]
            report.contexts.append(behind(before, parts, step).to_proto(before))
        return report

    def _change(self, name: str, before: bytes, after: bytes) -> Change:
        fresh = self.fresh.get(name)
        if fresh is not None and (
            not name.startswith("rng/") or draws_between(name, fresh, after) is not None
        ):
            return after
        if name.startswith(_ITEM):
            if len({context.parts[name] for context in self.contexts.values()}) > 1 or self.whole:
                self.faulty(
                    f"the registered item {name.removeprefix(_ITEM)!r} was changed, but each rank has a "
                    "separate one"
                )
            return after
        draws = draws_between(name, before, after)
        if draws is None:
            self.faulty(
                f"{name.removeprefix('rng/')}'s generator had its state set, keeps one of a pair of normal "
                f"values, or drew more than {DRAWS_MAX:,} values"
            )
            return after
        return draws
