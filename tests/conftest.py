"""What every test run needs, however it was started."""

from __future__ import annotations

import os
import signal

# A run started in the background by a shell inherits SIGINT as ignored, and so would every process that
# the tests start: those that send SIGINT on purpose would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests use loopback only: no agent asks the addresses of clouds' metadata services by itself.
os.environ.setdefault("ELASTANE_SPOT", "none")
