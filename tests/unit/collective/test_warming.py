"""A process that warms up behind its script may end at any moment."""

from __future__ import annotations

import sys

import patience


def test_the_end_of_a_script_waits_for_the_warm_up() -> None:
    """Threads of C++ that are torn down with the interpreter abort the process."""
    code = (
        "import threading\n"
        "from elastane.collective import warming\n"
        "over = threading.Event()\n"
        "def slow(tls):\n"
        "    over.wait(0.3)\n"
        "    print('warm', flush=True)\n"
        "warming.warm_up = slow\n"
        "assert warming.begin() is warming.begin()\n"
    )
    ended = patience.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "warm\n"), ended.stderr
