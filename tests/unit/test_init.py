"""What `elastane.init` leaves of a script that has seeded its generators before."""

from __future__ import annotations

import os
import sys

import pytest

import elastane
import patience
from elastane import modes
from elastane.runtime.elastic import ElasticJob


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


def test_a_second_training_in_a_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sweep of Hydra's in one process would begin it: the job is the first one."""
    job = object.__new__(ElasticJob)
    monkeypatch.setattr(modes, "_in_ring", job)
    job._trainer = None
    assert elastane.init() is not None  # opened twice, and not prepared yet
    job._trainer = object()  # type: ignore[assignment]
    with pytest.raises(elastane.StepError, match=r"elastane\.init was called in a script"):
        elastane.init()
