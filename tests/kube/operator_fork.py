"""Runs `python -m elastane_operator` on request, in forks of a process that has imported its modules."""

from __future__ import annotations

import gc
import runpy
import sys

from integration.forkserver import leave, serve


def main() -> None:
    """Serve requests until the other side is gone; each fork continues below and runs the operator."""
    gc.freeze()
    serve()
    sys.argv = ["elastane_operator"]
    try:
        runpy.run_module("elastane_operator", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 1)
    leave(0)


if __name__ == "__main__":
    main()
