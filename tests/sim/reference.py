"""The results of a fixed run: weights and contexts after each step, modelled as hashes.

Without a seed every process builds different initial weights. A history has the weights of the process that
began it, its lineage; a mixture of two lineages, for instance from an outdated claim, gives bytes that no
fixed run has. A contribution depends on the weights, the EST and its context; the next weights on all
contributions in the order of virtual ranks; the next context on the previous one. Every applied step must
give exactly these bytes.

Before the first step of an epoch the script's code draws random numbers. Except in the first epoch EST 0
draws more than the others, like an evaluation on the leader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

Context = dict[str, bytes]

DRAWS = 3
LEADER_DRAWS = 5


def digest(*parts: bytes) -> bytes:
    """Return eight bytes of a hash over all parts."""
    return hashlib.blake2b(b"|".join(parts), digest_size=8).digest()


def initial_weights(lineage: int) -> bytes:
    """Return the initial weights of a process. lineage: its pid."""
    return digest(b"weights", b"%d" % lineage)


def initial_context(rank: int) -> Context:
    """Return the context of an EST before step 0. One part never changes, so no delta contains it."""
    return {"rng/python": digest(b"context", str(rank).encode()), "item/fixed": b"fixed-%d" % rank}


def behind(context: Context, step: int, rank: int, draws: int = DRAWS) -> Context:
    """Return the context after the script's code that runs before `step`, the first of an epoch."""
    draws += LEADER_DRAWS if rank == 0 and step > 0 else 0
    state = digest(context["rng/python"], b"%d draws" % draws)
    return {**context, "rng/python": state, "item/@behind": b"%d" % step}


def is_behind(context: Context, step: int) -> bool:
    """True if the context includes the draws of the code before `step`."""
    return context.get("item/@behind") == b"%d" % step


def contribution(weights: bytes, rank: int, step: int, context: Context) -> bytes:
    """Return an EST's contribution to the all-reduce."""
    return digest(weights, b"%d/%d" % (rank, step), context["rng/python"], context["item/fixed"])


def next_context(rank: int, step: int, context: Context) -> Context:
    """Return the complete context after a step."""
    return {**context, "rng/python": digest(context["rng/python"], b"%d/%d" % (rank, step))}


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
