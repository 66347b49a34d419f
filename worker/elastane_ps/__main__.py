"""`python -m elastane_ps`: a parameter server, as the agent starts it."""

import os
import sys

from elastane_ps.process import main

code = main()
sys.stdout.flush()
sys.stderr.flush()
# Not sys.exit: daemon threads that wait for peers must not delay the exit.
os._exit(code)
