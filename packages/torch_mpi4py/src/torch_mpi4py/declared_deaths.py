"""Has MPI take ranks for dead that somebody knows to be lost: those of a host that is cut off.

MPI hears of a death from the launcher, which a cut cable keeps silent; every call that needs such a
rank would wait for ever. Whoever knows better, like the keeper of a cluster, tells each rank that
is to go on, and MPI treats it as any other death: calls raise, and the rest can shrink.

The news goes to Open MPI as an event of PMIx, which is how it hears of the others, too: ranks
behind a cut cable are dead within milliseconds, and a shrink takes 10 ms. A caller that declares
ranks dead has to see to it that they do not go on elsewhere.

Source: PMIx Administrative Steering Committee, *Process Management Interface for Exascale (PMIx)
Standard*, version 4.1, 2021, chapter 9, and its header ``pmix_common.h``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from . import cut_links
from .deaths import has_ulfm
from .gpus import loaded_library
from .runtime import MPI

_ABORTED_BY_SIGNAL = -402  # PMIX_ERR_PROC_ABORTED_BY_SIG
_TO_THIS_PROCESS = 7  # PMIX_RANGE_PROC_LOCAL
_WHO_IS_AFFECTED = b"pmix.evproc"  # PMIX_EVENT_AFFECTED_PROC
_PROCESS = 22  # PMIX_PROC: the value is a pointer to one


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", ctypes.c_void_p * 3))


class _Info(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


def declare_dead(ranks: Iterable[int]) -> None:
    """Tell the MPI of this process that some ranks have died; may be called from any thread.

    Args:
        ranks: as numbered at the start of MPI.

    Raises:
        RuntimeError: if the MPI cannot go on after a death, or does not take the news.
    """
    cut_links.decided()
    _tell(ranks)


def forsake_all() -> None:
    """Have the MPI of this process take all other ranks for dead, so that no call waits for them.

    It is the last resort for a call that nothing else ends, say a large message to a rank that
    never enters MPI. This process can do no more than end: nobody has decided who goes on.
    """
    here = MPI.COMM_WORLD.Get_rank()
    cut_links.forsaken()
    _tell(rank for rank in range(MPI.COMM_WORLD.Get_size()) if rank != here)


def _tell(ranks: Iterable[int]) -> None:
    library = loaded_library(("libpmix.so",))
    if not has_ulfm() or library is None:
        raise RuntimeError(
            "this MPI cannot go on without a rank; start Open MPI's ranks by mpiexec --with-ft ulfm"
        )
    for rank in ranks:
        who = _Process(os.environ["PMIX_NAMESPACE"].encode(), rank)
        info = _Info(key=_WHO_IS_AFFECTED, value=_Value(type=_PROCESS))
        info.value.data[0] = ctypes.addressof(who)
        status = library.PMIx_Notify_event(
            ctypes.c_int(_ABORTED_BY_SIGNAL),
            ctypes.byref(who),
            ctypes.c_uint8(_TO_THIS_PROCESS),
            ctypes.byref(info),
            ctypes.c_size_t(1),
            None,  # no function to be called when it is done: it is done on return
            None,
        )
        if status != 0:
            raise RuntimeError(f"PMIx does not take the news of rank {rank}: status {status}")
