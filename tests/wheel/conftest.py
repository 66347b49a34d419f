"""The wheel in environments of its own: minutes of installing, so nothing is collected unless asked for."""

from __future__ import annotations

import os

if os.environ.get("ELASTANE_TEST_WHEEL") != "1":  # make test-wheel
    collect_ignore_glob = ["test_*.py"]
