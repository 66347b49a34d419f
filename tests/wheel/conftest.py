"""Tests of the installed wheel. Installation takes minutes, so they are collected only on request."""

from __future__ import annotations

import os

if os.environ.get("ELASTANE_TEST_WHEEL") != "1":  # make test-wheel
    collect_ignore_glob = ["test_*.py"]
