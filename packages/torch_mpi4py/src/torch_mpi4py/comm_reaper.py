"""A communicator is freed when no rank can use it any more, and not before.

Open MPI has 65,535 communicators for a process and takes about 10 kB for each, and every renewal
makes some. But who frees one at once may still get messages on it, and would give them to the
next that has its number. So it is only retired, and freed when all ranks have met twice since and
nobody here refers to it any more. MPICH keeps messages that nobody took in one place for all
communicators, and gives them to the next even then: only Open MPI's are freed.
"""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple

from .deaths import has_ulfm
from .events import log
from .runtime import MPI

_MEETINGS = 2
_lock = threading.Lock()
_meetings = 0


class _Retired(NamedTuple):
    since: int
    user: weakref.ref[MPI.Intracomm]
    comm: MPI.Intracomm


_retired: list[_Retired] = []


def retire(comm: MPI.Intracomm) -> None:
    """Have ``comm``, which this rank will not use again, freed in time."""
    # Open MPI's MPI_Comm_free waits for nobody, so the ranks need not agree on the moment.
    if has_ulfm() and comm != MPI.COMM_NULL:
        with _lock:
            _retired.append(_Retired(_meetings, weakref.ref(comm), MPI.Intracomm(comm)))


def met() -> None:
    """Free what may be freed; call it when every living rank has just met the others."""
    global _meetings
    with _lock:
        _meetings += 1
        for one in list(_retired):
            if one.user() is None and _meetings - one.since > _MEETINGS:
                _retired.remove(one)
                log.forget_name(one.comm)
                one.comm.Free()


def count() -> int:
    """Return how many communicators are retired and not free yet."""
    return len(_retired)
