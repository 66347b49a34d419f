"""The results of a fixed run: weights after each step, modelled as hashes, and contexts.

Without a seed every process builds different initial weights. A history has the weights of the process that
began it, its lineage; a mixture of two lineages, for instance from an outdated claim, gives bytes that no
fixed run has. A contribution depends on the weights, the EST and its context; the next weights on all
contributions in the order of virtual ranks; the next context on the previous one. Every applied step must
give exactly these bytes.

A context has the state of Python's generator, in the form of `elastane.rng`. Each step draws from it, and so
does the script's code before the first step of an epoch. Except in the first epoch EST 0 draws more there
than the others, like an evaluation on the leader.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Mapping
from functools import cache

Context = dict[str, bytes]

DRAWS = 3
LEADER_DRAWS = 5
_PYTHON = struct.Struct("<626IBd")
_STEP = struct.Struct("<q")


def digest(*parts: bytes) -> bytes:
    """Return eight bytes of a hash over all parts."""
    return hashlib.blake2b(b"|".join(parts), digest_size=8).digest()


def initial_weights(lineage: int) -> bytes:
    """Return the initial weights of a process. lineage: its pid."""
    return digest(b"weights", b"%d" % lineage)


def initial_context(rank: int) -> Context:
    """Return the context of an EST before step 0. One part never changes, so no delta contains it.

    Generators of odd ranks are near the end of their block, so that some steps twist it.
    """
    generator = random.Random(rank)
    # The block of words is computed: distances between states are found at once.
    generator.getrandbits(32 * (600 if rank % 2 else 1))
    return {"rng/python": _state(generator), "item/fixed": b"fixed-%d" % rank}


@cache
def _drawn(state: bytes, draws: int) -> bytes:
    version, *words, _, _ = _PYTHON.unpack(state)
    generator = random.Random()
    generator.setstate((version, tuple(words), None))
    for _ in range(draws):
        generator.getrandbits(32)
    return _state(generator)


def _state(generator: random.Random) -> bytes:
    version, words, _ = generator.getstate()
    return _PYTHON.pack(version, *words, 0, 0.0)


def after_draws(context: Context, draws: int) -> Context:
    """Return the context after code that draws so many numbers."""
    return {**context, "rng/python": _drawn(context["rng/python"], draws)}


def behind(context: Context, step: int, rank: int) -> Context:
    """Return the context after the script's code that runs before `step`, the first of an epoch."""
    after = after_draws(context, DRAWS + (LEADER_DRAWS if rank == 0 and step > 0 else 0))
    return {**after, "item/@interval": _STEP.pack(step)}


def contribution(weights: bytes, rank: int, step: int, context: Mapping[str, bytes]) -> bytes:
    """Return an EST's contribution to the all-reduce."""
    return digest(weights, b"%d/%d" % (rank, step), context["rng/python"], context["item/fixed"])


def next_context(rank: int, step: int, context: Context) -> Context:
    """Return the complete context after a step."""
    return after_draws(context, 1 + (step + rank) % 3)


def next_weights(weights: bytes, contributions: Mapping[int, bytes]) -> bytes:
    """Return the weights after the optimizer step. contributions: by virtual rank."""
    return digest(weights, *(contributions[rank] for rank in sorted(contributions)))


class FixedRuns:
    """Results of fixed runs: contexts[s][rank], and weights by lineage, at the start of step s.

    For an epoch's first step, `contexts` has those after the code between epochs, `before` those ahead of it.
    """

    def __init__(self, ests: int, steps: int, steps_per_epoch: int) -> None:
        self.contexts: list[list[Context]] = []
        self.before: dict[int, list[Context]] = {}
        contexts = [initial_context(rank) for rank in range(ests)]
        for step in range(steps + 1):
            if step % steps_per_epoch == 0 and step < steps:
                self.before[step] = contexts
                contexts = [behind(parts, step, rank) for rank, parts in enumerate(contexts)]
            self.contexts.append(contexts)
            contexts = [next_context(rank, step, parts) for rank, parts in enumerate(contexts)]
        self._weights: dict[int, list[bytes]] = {}

    def weights(self, lineage: int, step: int) -> bytes:
        """Return the weights after `step` steps of the run that the process `lineage` began."""
        known = self._weights.setdefault(lineage, [initial_weights(lineage)])
        while len(known) <= step:
            contexts = self.contexts[len(known) - 1]
            given = {
                rank: contribution(known[-1], rank, len(known) - 1, context)
                for rank, context in enumerate(contexts)
            }
            known.append(next_weights(known[-1], given))
        return known[step]
