"""Script run by the training service benchmark; records when it runs, in monotonic seconds.

    timed_run.py first FILE           writes when its first line ran
    timed_run.py until FILE FREE      the same; ends once the file FREE exists, and adds the time
    timed_run.py lines FILE COUNT     then prints COUNT lines, each with the time when it was printed
    timed_run.py stubborn FILE        it and a child ignore SIGTERM; writes both process ids
    timed_run.py stays FILE           writes its process id, and keeps running

The first line is timed before anything is imported but `time`, which is built into the interpreter.
"""

import time

began = time.monotonic()

import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

mode, path, *rest = sys.argv[1:]


def write(*values: object) -> None:
    """Write the file atomically."""
    with open(f"{path}.new", "w") as file:  # noqa: PTH123
        file.write(" ".join(map(str, values)))
    os.replace(f"{path}.new", path)  # noqa: PTH105


if mode == "first":
    write(began)
elif mode == "until":
    write(began)
    while not os.path.exists(rest[0]):  # noqa: PTH110
        time.sleep(0.001)
    write(began, time.monotonic())
elif mode == "lines":
    write(began)
    for _ in range(int(rest[0])):
        print(f"at {time.monotonic()}", flush=True)
        time.sleep(0.02)
    time.sleep(1.0)  # keep running so that the reader sees the last line
elif mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child:
        write(os.getpid(), child)
    time.sleep(120.0)
else:
    write(os.getpid())
    time.sleep(600.0)
