"""A process that warms up behind its script may end at any moment."""

from __future__ import annotations

import subprocess
import sys


def test_a_script_that_ends_while_the_process_warms_up_ends_well() -> None:
    code = "from elastane.collective import warming; assert warming.begin() is warming.begin()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
