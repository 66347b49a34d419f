"""Child-side launcher: asks the kernel to kill the child when its parent ends, then execs the real command.

Run as a file by `child.ChildProcess`, in a bare interpreter (about 12 ms):

    python -I -S launch.py PARENT_PID SIGNAL COMMAND [ARGUMENT...]

`preexec_fn` is no alternative: it runs Python in the fork of a process with threads (gRPC's among them)
and can hang. Here the child has been replaced by a new program before it runs any code. The request
(prctl(2), PR_SET_PDEATHSIG) survives `execv`. The kernel sends the signal when the parent's *thread* that
started the child ends, so start children from a thread that lives as long as the parent.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Replace this process by COMMAND, or exit if the parent is gone already. Does not return."""
    parent, death_signal, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        # The parent ended before the request was made: the kernel would never send the signal.
        os._exit(128 + death_signal)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        # As shells do: exit code 127 for the caller, the reason on stderr for the user.
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        raise SystemExit(127) from None


if __name__ == "__main__":
    main(sys.argv[1:])
