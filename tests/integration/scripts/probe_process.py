"""Says what a process started by a launcher sees of itself, then does what it is told."""

import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import torch


class Mine:
    """Pickles only when __main__ is this script."""


seen = {
    "arguments": sys.argv,
    "name": __name__,
    "module": sys.modules["__main__"].__dict__.get("Mine") is Mine,
    "path": sys.path[0],
    "directory": os.getcwd(),  # noqa: PTH109
    "variable": os.environ.get("PROBE"),
    "group": os.getpgid(0) == os.getpid(),
    "python": random.random(),
    "numpy": float(np.random.rand()),
    "torch": float(torch.rand(())),
    "hash": hash("elastane"),
}
print(json.dumps(seen), flush=True)
print("to stderr", file=sys.stderr, flush=True)
what = sys.argv[1]
if what == "exit":
    sys.exit(7)
elif what == "raise":
    raise RuntimeError("as asked")
elif what == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif what == "child":
    child = subprocess.Popen(["sleep", "1000"])
    print(child.pid, flush=True)
    signal.pause()
