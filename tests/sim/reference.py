"""What a fixed run computes: weights and contexts after each step, as hashes.

Without a seed every process builds other initial weights. A history has the weights of the process
that began it, its lineage; mixing two lineages, as believing an outdated claim would, gives bytes that
no fixed run has. A contribution depends on the weights, the EST and its context; the next weights on all
contributions in the order of virtual ranks; the next context on the one before. Whatever workers do,
an applied step must give these very bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

Context = dict[str, bytes]


def digest(*parts: bytes) -> bytes:
    """Eight bytes of a hash."""
    return hashlib.blake2b(b"|".join(parts), digest_size=8).digest()


def initial_weights(lineage: int) -> bytes:
    """The weights that a process (its pid) starts from."""
    return digest(b"weights", b"%d" % lineage)


def initial_context(rank: int) -> Context:
    """The context of an EST before step 0. One part never changes: it is not in any delta."""
    return {"rng/python": digest(b"context", str(rank).encode()), "item/fixed": b"fixed-%d" % rank}


def contribution(weights: bytes, rank: int, step: int, context: Context) -> bytes:
    """What an EST gives to the all-reduce."""
    return digest(weights, b"%d/%d" % (rank, step), context["rng/python"], context["item/fixed"])


def next_context(rank: int, step: int, context: Context) -> Context:
    """The context after a step, complete."""
    return {**context, "rng/python": digest(context["rng/python"], b"%d/%d" % (rank, step))}


def next_weights(weights: bytes, contributions: Mapping[int, bytes]) -> bytes:
    """The weights after the optimizer step."""
    return digest(weights, *(contributions[rank] for rank in sorted(contributions)))


class FixedRuns:
    """What fixed runs compute: contexts[s][rank], and weights by lineage, at the start of step s."""

    def __init__(self, ests: int, steps: int) -> None:
        self.contexts = [[initial_context(rank) for rank in range(ests)]]
        for step in range(steps):
            contexts = self.contexts[-1]
            self.contexts.append([next_context(rank, step, contexts[rank]) for rank in range(ests)])
        self._weights: dict[int, list[bytes]] = {}

    def weights(self, lineage: int, step: int) -> bytes:
        """The weights after `step` steps of the run that the process `lineage` began."""
        known = self._weights.setdefault(lineage, [initial_weights(lineage)])
        while len(known) <= step:
            contexts = self.contexts[len(known) - 1]
            given = {
                rank: contribution(known[-1], rank, len(known) - 1, context)
                for rank, context in enumerate(contexts)
            }
            known.append(next_weights(known[-1], given))
        return known[step]
