"""The one idea: a complete ``torch.distributed`` backend over MPI, from a plain pip install.

Importing this package registers backend ``"mpi4py"`` and rendezvous ``mpi://``::

    import torch.distributed as dist
    import course_lib.mpi

    dist.init_process_group("mpi4py", init_method="mpi://")

Start the program with ``mpiexec -n 4 python program.py``. For plain MPI, :func:`world` gives
an mpi4py communicator whose calls have a deadline. After the death of a rank, :func:`shrink`
on the others lets them go on.
"""

# Now, before there is a group: its functions keep the default group of the moment of its import
# as their default argument, for ever. Making an optimizer would import it too.
import torch.distributed.nn.functional  # noqa: F401
from torch.distributed import Backend, register_rendezvous_handler

from .runtime import MPI  # first: it settles how MPI is initialised  # isort: skip
from . import leaving
from .emulated_link import emulated_link
from .errors import (
    ClosedGroupError,
    CommunicationError,
    DeadlineError,
    MismatchError,
    RankFailedError,
    RevokedError,
)
from .group import MPIProcessGroup
from .guard import has_ulfm
from .rendezvous import create_group, rendezvous
from .shrink import Shrunk, shrink
from .traffic import Traffic
from .world import GuardedComm, library, renew_world, world

__all__ = [
    "MPI",
    "ClosedGroupError",
    "CommunicationError",
    "DeadlineError",
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
    "renew_world",
    "shrink",
    "world",
]

if "MPI4PY" not in Backend._plugins:
    Backend.register_backend("mpi4py", create_group, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous_handler("mpi", rendezvous)
    leaving.install()
