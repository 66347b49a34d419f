"""The master imports this package on a machine without numpy, torch and gRPC."""

from __future__ import annotations

import sys
from pathlib import Path

import elastane_shards
import patience

PROGRAM = """
import sys
forbidden = ("numpy", "torch", "grpc", "redis", "asyncio", "google")
for name in forbidden:
    sys.modules[name] = None  # importing it now raises ImportError
import elastane_shards
from elastane_shards.dynamic import DynamicQueue
from elastane_shards.permutation import feistel_key, permuted
from elastane_shards.settings import QueueSettings
queue = DynamicQueue(QueueSettings(task_size=2, entries=(5, 6, 7), shuffle=True))
assert sorted(queue.lease("a", 1, 0.0)[0].entries + queue.lease("a", 1, 0.0)[0].entries) == [5, 6, 7]
assert DynamicQueue.restore(queue.snapshot()).snapshot() == queue.snapshot()
"""


def test_works_without_numpy_and_torch() -> None:
    root = Path(elastane_shards.__file__).parent.parent
    done = patience.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
