"""Finds out which ranks have died, with some patience.

The system tells every rank of a death, but not all at the same moment, and Open MPI takes
note of it only while it is called for something.
"""

from __future__ import annotations

import os
import time

from ..core.base_comm import numbers_in
from ..core.runtime import MPI

# Ranks learn of a death within 30 ms of each other on a busy machine with 2 cores.
_PATIENCE_SECONDS = 0.1
_CERTAIN_PATIENCE_SECONDS = 5.0  # the report is sure to come, but the machine may stall
_CALLS_TO_NOTICE = 100  # about 0.1 ms; a death is noted 2 to 8 calls later


def has_ulfm() -> bool:
    """Return whether ranks stuck inside MPI can be freed: Open MPI with ``--with-ft ulfm``."""
    return _HAS_ULFM


_HAS_ULFM = (
    MPI.get_vendor()[0] == "Open MPI"
    and hasattr(MPI.Comm, "Revoke")
    and os.environ.get("OMPI_MCA_mpi_ft_enable", "0") == "1"  # noqa: SIM112 Open MPI's name
)


def is_revoked(comm: MPI.Comm) -> bool:
    """Return whether some rank has revoked ``comm``; False without ULFM."""
    return _HAS_ULFM and comm != MPI.COMM_NULL and comm.Is_revoked()


def is_broken(comm: MPI.Comm) -> bool:
    """Return whether ``comm`` was revoked, or one of its ranks is known to have died.

    It does not poll for reports, and takes less than a microsecond. False without ULFM.
    """
    if not _HAS_ULFM or comm == MPI.COMM_NULL:
        return False
    if comm.Is_revoked():
        return True
    dead = comm.Get_failed()
    if dead == MPI.GROUP_EMPTY:
        return False
    found = dead.Get_size() > 0
    dead.Free()
    return found


def failed_ranks(comm: MPI.Comm) -> list[int]:
    """Return the ranks of ``comm`` that are known to have died, ascending; none without ULFM."""
    if not _HAS_ULFM or MPI.Is_finalized() or comm == MPI.COMM_NULL:
        return []
    for _ in range(_CALLS_TO_NOTICE):
        MPI.COMM_SELF.Iprobe()  # never fails, whatever happened to the other communicators
    dead = comm.Get_failed()
    return [] if dead == MPI.GROUP_EMPTY else sorted(numbers_in(comm, dead))


_waited_at = 0.0


def await_failed_ranks(comm: MPI.Comm, certain: bool = False) -> list[int]:
    """Return the dead of ``comm`` after it was revoked: a death may be the reason.

    If none is known, it waits a tenth of a second for a report, but not again within a second: many
    requests may fail together. If a death is ``certain``, because another rank has seen it, it
    waits for as long as the report may take.
    """
    global _waited_at
    now = time.monotonic()
    patience = _PATIENCE_SECONDS if now - _waited_at > 1 else 0
    if certain:
        patience = _CERTAIN_PATIENCE_SECONDS
    while not (dead := failed_ranks(comm)) and time.monotonic() - now < patience:
        time.sleep(1e-3)
    if not dead and patience:
        _waited_at = time.monotonic()
    return dead
