"""A complete ``torch.distributed`` backend over MPI, from a plain pip install.

Installing this package, or importing it, registers backend ``"mpi4py"`` and rendezvous
``mpi://``::

    import torch.distributed as dist

    dist.init_process_group("mpi4py", init_method="mpi://")

Start the program with ``mpiexec -n 4 python program.py``. For plain MPI, :func:`world` gives
an mpi4py communicator whose calls have a deadline. After the death of a rank, :func:`shrink`
lets the others continue.

Importing this package neither imports torch nor starts MPI, so a program that only starts or
watches ranks may use its :mod:`.launch`, :mod:`.event_board` and :mod:`.diagnosis`. The first
use of a name below, or of the backend, does both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .registration import ensure_registered

if TYPE_CHECKING:
    from .api import (
        MPI,
        ClosedGroupError,
        CommunicationError,
        DeadlineError,
        DeliveryError,
        GuardedComm,
        MismatchError,
        MPIProcessGroup,
        RankFailedError,
        RevokedError,
        Shrunk,
        Traffic,
        emulated_link,
        has_ulfm,
        library,
        monitored_barrier,
        renew_world,
        shrink,
        world,
    )

__all__ = [
    "MPI",
    "ClosedGroupError",
    "CommunicationError",
    "DeadlineError",
    "DeliveryError",
    "GuardedComm",
    "MPIProcessGroup",
    "MismatchError",
    "RankFailedError",
    "RevokedError",
    "Shrunk",
    "Traffic",
    "emulated_link",
    "has_ulfm",
    "library",
    "monitored_barrier",
    "renew_world",
    "shrink",
    "world",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Start MPI and return a public name at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import api

    return getattr(api, name)


ensure_registered()
