"""Finds out before a workshop what would fail on this machine, and says how to fix it.

``make doctor``, or ``python -m course_lib.doctor [--json] [--hosts node1:4,node2:4]``, which
examines other machines over ssh; in a notebook::

    from course_lib.doctor import doctor

    doctor()

Nothing is changed, downloaded or left running. Checks that start programs give them a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from . import machine, mpi, packages
from .examination import FAIL, OK, WARN, Finding, all_within, examine, text

__all__ = ["FAIL", "OK", "WARN", "WITHIN_S", "Finding", "doctor", "findings"]

WITHIN_S = 12.0

CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": machine.python,
    "packages": packages.lock,
    "torch": packages.torch_pair,
    "GPUs": packages.gpus,
    "kernel": packages.kernel,
    "user": machine.user,
    "cores": machine.cores,
    "memory": machine.memory,
    "shared memory": machine.shared_memory,
    "temporary files": machine.disk,
    "ports": machine.ports,
    "mpiexec": mpi.mpiexec,
    "MPI job": mpi.job,
    "Slurm": mpi.slurm,
    "data": packages.data,
}
_AT_ONCE = 2  # the slow ones wait for the programs they start


def findings(within_s: float = WITHIN_S) -> list[Finding]:
    """Examine this machine and return what was found, in a fixed order.

    Args:
        within_s: seconds for all programs together; a program that has not answered by then is a
            WARN.
    """
    with all_within(within_s), ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(examine, CHECKS, CHECKS.values()))


def doctor(within_s: float = WITHIN_S) -> None:
    """Examine this machine and print what was found, with a fix for each WARN and FAIL."""
    print(text(findings(within_s)))
