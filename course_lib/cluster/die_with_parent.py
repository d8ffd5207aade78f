"""A process started through here is ended by the kernel when its parent ends.

Run as a script (``python die_with_parent.py SIGNAL COMMAND...``) it ties itself to its parent and
becomes COMMAND, which keeps the tie. Linux can do this even for a process that is stuck in C
code; elsewhere COMMAND simply runs, and the engines' connections to the keeper do the work.
Standard library only: it runs before anything else, and has to be fast.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie_to_parent(signum: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Ask the kernel to send ``signum`` to this process when its parent dies (Linux only).

    Args:
        signum: the signal.
        parent: the process id of the parent, if it may have died already.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    parent = os.getppid() if parent is None else parent
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signum)


if __name__ == "__main__":
    tie_to_parent(signal.Signals[sys.argv[1]])
    os.execvp(sys.argv[2], sys.argv[2:])
