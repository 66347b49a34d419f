"""Scripts of other training libraries, with the real ones: nothing here is collected unless asked for."""

from __future__ import annotations

import os

if os.environ.get("ELASTANE_TEST_FRAMEWORKS") != "1":  # make test-frameworks, which installs them
    collect_ignore_glob = ["test_*.py"]
