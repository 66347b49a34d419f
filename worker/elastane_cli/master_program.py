"""Starts the master's program in place of this one.

It uses exec instead of an import because the worker's package never imports the control plane, and the
master's process should not carry the modules of this one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def become_master(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a master with these options. Called by `elastane master`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "elastane_master", *arguments])
