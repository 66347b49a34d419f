"""What `elastane.init` leaves of a script that has seeded its generators before."""

from __future__ import annotations

import os
import sys

import patience


def test_init_without_a_seed_draws_from_no_generator() -> None:
    """Libraries that it imports do, as rich does for structlog; under DDP nothing would have been drawn."""
    script = (
        "import random, torch, numpy as np\n"
        "random.seed(1); np.random.seed(1); torch.manual_seed(1)\n"
        "take = lambda: repr((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))\n"
        "before = take()\n"
        "import elastane\n"
        "elastane.init()\n"
        "raise SystemExit(0 if take() == before else 'a generator has moved')\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
    done = patience.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
