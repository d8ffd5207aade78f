"""After a death the living ranks agree on a communicator among themselves.

Nothing can interrupt ``MPI_Comm_shrink``, so it runs on a thread, and a call that was given up is
taken up again by the next one.
"""

from __future__ import annotations

from concurrent.futures import Future, wait

from ..core import advice
from ..core.base_comm import base, numbers_in, replace_base
from ..core.errors import CommunicationError, DeadlineError
from ..core.runtime import MPI
from . import deadlines
from .deaths import has_ulfm
from .mpi_errors import translate


def shrink_base(seconds: float) -> tuple[list[int], list[int]]:
    """Leave the dead out of the base; every living rank must call this.

    Returns:
        The dead and the survivors, by their ranks in the base as it was.

    Raises:
        DeadlineError: if some living rank did not come within ``seconds``. The unfinished
            call is kept, and the next one on this rank goes on with it.
    """
    before = base()
    fresh = shrunk_copy(before, seconds, "shrink")
    survivors = numbers_in(before, fresh.Get_group())
    dead = [rank for rank in range(before.Get_size()) if rank not in survivors]
    if dead:
        replace_base(fresh)
    return dead, survivors


_unfinished: dict[int, Future] = {}


def shrunk_copy(comm: MPI.Intracomm, seconds: float, what: str) -> MPI.Intracomm:
    """Return a new communicator of the ranks of ``comm`` that live; ``comm`` may be revoked.

    Raises:
        CommunicationError: if this MPI has no fault tolerance.
        DeadlineError: as in :func:`shrink_base`.
    """
    if not has_ulfm():
        raise CommunicationError(
            f"{what}: this MPI has no fault tolerance (ULFM), so nothing can go on after a death. "
            f"{advice.RESTART} Open MPI 5 has it, when started with mpiexec --with-ft ulfm."
        )
    key = comm.handle
    if key not in _unfinished:
        _unfinished[key] = deadlines.on_thread("shrink", comm.Shrink)
    shrinking = _unfinished[key]
    if not wait([shrinking], deadlines.bounded(seconds)).done:
        raise DeadlineError(
            f"{what}: Timed out because not every living rank made this call within {seconds:g} s. "
            "Call it on all of them; this rank goes on where it stopped when it is called again."
        )
    del _unfinished[key]
    try:
        fresh = shrinking.result()
    except MPI.Exception as error:
        raise translate(error, what, comm) from error
    fresh.Set_errhandler(MPI.ERRORS_RETURN)
    return fresh
