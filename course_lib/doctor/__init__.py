"""The one idea: find out before the workshop what on this machine would fail in it, and the fix.

``make doctor``, or ``python -m course_lib.doctor [--json]``; in a notebook::

    from course_lib.doctor import doctor

    doctor()

Nothing is changed, downloaded or left running. Checks that start programs give them a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from . import data, machine, mpi, packages
from .finding import FAIL, OK, WARN, Finding, examine, text

__all__ = ["FAIL", "OK", "WARN", "Finding", "doctor", "findings"]

CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": machine.python,
    "packages": packages.lock,
    "torch": packages.torch_pair,
    "GPUs": packages.gpus,
    "kernel": packages.kernel,
    "user": machine.user,
    "cores": machine.cores,
    "shared memory": machine.shared_memory,
    "temporary files": machine.disk,
    "ports": machine.ports,
    "mpiexec": mpi.mpiexec,
    "MPI job": mpi.job,
    "Slurm": mpi.slurm,
    "data": data.data,
}
_AT_ONCE = 2  # the slow ones wait for programs of theirs


def findings() -> list[Finding]:
    """Examine this machine, within about 10 s, and return what was found, in a fixed order."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(examine, CHECKS, CHECKS.values()))


def doctor() -> None:
    """Examine this machine and print what was found, with a fix for each WARN and FAIL."""
    print(text(findings()))
