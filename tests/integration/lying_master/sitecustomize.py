"""Run by Python in each process of a service under test: the scheduler of its master lies."""

import sys

if "elastane_master" in sys.orig_argv:
    import lying_scheduler  # beside this file

    lying_scheduler.install()
