"""In which runs workers apply steps ahead of their Prepared, wherever the protocol allows it."""

from __future__ import annotations

import random

SHARE = 0.6


def draw(seed: int) -> bool:
    """Draw whether workers of this run do."""
    return random.Random(f"ahead {seed}").random() < SHARE
