"""A child's first act: ask the kernel to end it when its parent ends, then become the real command.

Run as a file by `process.ChildProcess`, in a bare interpreter (about 12 ms):

    python -I -S launch.py PARENT_PID SIGNAL COMMAND [ARGUMENT...]

Why not `preexec_fn`: that forks a process with threads (gRPC's among them), runs Python in the copy
and can hang. Here the child is a program of its own before it runs anything. The request survives
`execv` (prctl(2), PR_SET_PDEATHSIG) and falls due when the parent's *thread* that started the child ends,
so children are started by a thread that lives as long as the parent.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Does not return: becomes COMMAND, or exits when the parent is gone already."""
    parent, death_signal, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        # The parent ended before the request was made: nobody would ever end this process.
        os._exit(128 + death_signal)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        # What shells do: the caller sees an exit code, and the user why.
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        raise SystemExit(127) from None


if __name__ == "__main__":
    main(sys.argv[1:])
